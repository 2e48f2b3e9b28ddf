// Starts chains as flows of nine jobs. The lines between it and `run` are in ../kit/src/driver.rs.
//
//   node driver.js --redis PORT --mode chain|idle --before N --warm-up N --runs N --bulk N --in-flight N
'use strict';
const readline = require('readline');
const { FlowProducer, Queue, QueueEvents } = require('bullmq');
const { connect, options, QUEUE, TASKS } = require('./common');

const given = options();
const [before, warmUp, runs, bulk, inFlight] =
  ['before', 'warm-up', 'runs', 'bulk', 'in-flight'].map((name) => Number(given[name]));

// The first task is the innermost child; each job waits for the one inside it.
function chain(n) {
  let flow;
  for (let k = 0; k < TASKS; k++) {
    flow = { name: `t${k + 1}`, queueName: QUEUE, data: { x: n * 16 + k }, children: flow ? [flow] : undefined };
  }
  return flow;
}

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function say(message) {
  console.log(JSON.stringify(message));
  if ((await lines.next()).done) throw new Error('the other end is gone');
}

const seconds = () => Number(process.hrtime.bigint()) / 1e9;

(async () => {
  const flows = new FlowProducer({ connection: connect(given.redis) });
  const queue = new Queue(QUEUE, { connection: connect(given.redis) });
  const ended = async (chains) => {
    while ((await queue.getCompletedCount()) < chains * TASKS) await new Promise((r) => setTimeout(r, 10));
  };
  const submit = async (first, count) => {
    let next = 0;
    const one = async () => {
      while (next < count) {
        const from = next;
        next = Math.min(from + bulk, count);
        await flows.addBulk(Array.from({ length: next - from }, (_, i) => chain(first + from + i)));
      }
    };
    await Promise.all(Array.from({ length: inFlight }, one));
  };

  await submit(before, warmUp);
  await ended(before + warmUp);
  const first = before + warmUp;
  if (given.mode === 'idle') {
    const events = new QueueEvents(QUEUE, { connection: connect(given.redis) });
    await events.waitUntilReady();
    await say({ ready: true });
    const began = seconds();
    const latencies = [];
    for (let i = 0; i < runs; i++) {
      const sent = seconds();
      const { job } = await flows.add(chain(first + i));
      await job.waitUntilFinished(events, 30000);
      latencies.push((seconds() - sent) * 1e3);
    }
    await say({ done: { elapsed_s: seconds() - began, latencies_ms: latencies } });
  } else {
    await say({ ready: true });
    const began = seconds();
    await submit(first, runs);
    const submitted = seconds() - began;
    await ended(first + runs);
    await say({ done: { elapsed_s: seconds() - began, submitted_s: submitted } });
  }
  const { completed, ...others } = await queue.getJobCounts();
  const wrong = Object.entries(others).filter(([, n]) => n > 0).map(([state, n]) => `${n} jobs are ${state}`);
  const expected = (first + runs) * TASKS;
  if (completed !== expected) wrong.push(`${completed} jobs are completed, not ${expected}`);
  console.log(JSON.stringify({ audit: wrong }));
  process.exit(0);
})().catch((e) => {
  console.error(e);
  process.exit(1);
});
