/** An HTTP server in front of a Python model: batches, clients that leave, and a worker that may crash. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { type DeviceArray, toDevice } from 'cuffi';
import { spawnPython } from 'cuffi/ipc';

interface Job {
  readonly row: readonly number[];
  /** Aborted when the client has left. */
  readonly signal: AbortSignal;
  crashes: number;
  answer(score: number): void;
  refuse(reason: Error): void;
}

const [WIDTH, MAX_BATCH, MAX_WAITING, MAX_CRASHES] = [4, 32, 1000, 3];
const waiting: Job[] = [];
let worker = startWorker();
let working = Promise.resolve();

function startWorker() {
  const script = new URL('./42-model-server.py', import.meta.url);
  const started = spawnPython<DeviceArray, DeviceArray>(script);
  console.log(`worker ${started.pid} starts`);
  return started;
}

/** Queues a row for the next batch. Rejects with the reason if there will be no answer. */
function score(row: readonly number[], signal: AbortSignal): Promise<number> {
  if (waiting.length >= MAX_WAITING) throw new Error('too many requests are waiting');
  return new Promise((answer, refuse) => {
    waiting.push({ row, signal, crashes: 0, answer, refuse });
    working = working.then(runBatch);
  });
}

/** Answers a batch: all that arrived while the worker was busy with the one before. */
async function runBatch(): Promise<void> {
  // After a crash each job is tried alone: one that crashes the worker takes no other with it.
  const taken = waiting.splice(0, waiting[0]?.crashes ? 1 : MAX_BATCH);
  const jobs = taken.filter(({ signal }) => !signal.aborted);
  if (jobs.length === 0) return;
  const abandoned = new AbortController();
  const check = () => jobs.every(({ signal }) => signal.aborted) && abandoned.abort();
  for (const { signal } of jobs) signal.addEventListener('abort', check);
  try {
    if (worker.closed) worker = startWorker();
    const rows = Float32Array.from(jobs.flatMap(({ row }) => row));
    using batch = await toDevice(rows, { shape: [jobs.length, WIDTH] });
    using scores = await worker.request(batch, { signal: abandoned.signal });
    const answers = await scores.copyToHost();
    for (const [at, job] of jobs.entries()) job.answer(Number(answers[at]));
  } catch (error) {
    for (const job of jobs.toReversed()) {
      if (!worker.closed || ++job.crashes >= MAX_CRASHES) job.refuse(error as Error);
      else waiting.unshift(job);
      working = working.then(runBatch);
    }
  }
}

const server = createServer(async (request, response) => {
  const left = new AbortController();
  response.once('close', () => left.abort());
  let status = 400;
  try {
    const row: number[] = JSON.parse(await text(request));
    if (row.length !== WIDTH || !row.every(Number.isFinite)) throw new Error('not 4 numbers');
    status = 503;
    response.end(String(await score(row, left.signal)));
  } catch (error) {
    response.writeHead(status).end((error as Error).message);
  }
});
await once(server.listen(Number(process.argv[2] ?? 0)), 'listening');
const url = `http://localhost:${(server.address() as AddressInfo).port}`;
console.log(`listening: curl -d '[1, 2, 3, 4]' ${url}`);

if (process.argv[2] === undefined) {
  const ask = (body: string) => fetch(url, { method: 'POST', body }).then((each) => each.text());
  console.log(await Promise.all(['[1, 1, 1, 1]', '[2, 2, 2, 2]', '[3]'].map(ask)));
  worker.process.kill('SIGKILL');
  console.log('after a crash:', await ask('[1, 2, 3, 4]'));
  server.close();
  worker.close();
}
