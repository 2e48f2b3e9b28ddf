// A BullMQ worker: notes what it runs, writes its ledger (ten bytes per chain, see README.md) on SIGTERM.
//
//   node worker.js --redis PORT --chains N --ledger FILE --concurrency N
'use strict';
const fs = require('fs');
const { Worker } = require('bullmq');
const { connect, options, QUEUE, CELLS } = require('./common');

const { redis, chains, ledger, concurrency } = options();
const cells = new Uint8Array(chains * CELLS);

function note(x) {
  const at = Math.floor(x / 16) * CELLS + (x % 16);
  // A task that runs before the one it waits for must not look right.
  const early = x % 16 > 0 && cells[at - 1] === 0;
  cells[at] = early ? 255 : Math.min(cells[at] + 1, 255);
}

async function task(job) {
  const { x } = job.data;
  note(x);
  if (x % 16 === CELLS - 2) note(x + 1);
  return x + 1;
}

(async () => {
  const worker = new Worker(QUEUE, task, { connection: connect(redis), concurrency: Number(concurrency) });
  worker.on('error', (e) => console.error(e));
  await worker.waitUntilReady();
  process.on('SIGTERM', async () => {
    await worker.close();
    fs.writeFileSync(ledger, cells);
    process.exit(0);
  });
  console.log(JSON.stringify({ listening: 0 }));
})();
