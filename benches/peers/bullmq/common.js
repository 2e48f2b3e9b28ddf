// What the worker and the driver share.
'use strict';
const IORedis = require('ioredis');

const QUEUE = 'bench';
const TASKS = 9;
// Of the ledger, per chain: its tasks and its end.
const CELLS = TASKS + 1;

// `--name value` pairs.
function options() {
  const words = process.argv.slice(2);
  const values = {};
  for (let i = 0; i < words.length; i += 2) values[words[i].replace(/^--/, '')] = words[i + 1];
  return values;
}

// As BullMQ asks for: a blocking command must not be given up.
function connect(port) {
  return new IORedis(Number(port), '127.0.0.1', { maxRetriesPerRequest: null });
}

module.exports = { connect, options, QUEUE, TASKS, CELLS };
