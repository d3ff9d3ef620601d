/**
 * Requests go through a channel to whichever worker is free. One worker is killed in the middle: what it
 * had goes to another, so that each request is answered once.
 */
import { type float32, Stream } from 'cuffi';
import { Channel, type ChannelConsumer, type ChildPeer, parentPeer, spawnPeer } from 'cuffi/ipc';

const REQUESTS = 12;
const WORKERS = 3;

interface Answer {
  readonly request: number;
  readonly value: number;
}

if (process.argv[2] === 'worker') {
  const server = parentPeer<{ requests: ChannelConsumer<typeof float32> }, Answer>();
  using stream = Stream.create({ nonBlocking: true });
  const { requests } = await server.receive();
  for await (const slot of requests) {
    const { request } = slot.meta as { request: number };
    const [value = 0] = await slot.array.copyToHost(undefined, { stream });
    if (request === 5 && !slot.redelivered) process.kill(process.pid, 'SIGKILL');
    await server.send({ request, value: 2 * value });
    // Released only now: what was not answered goes to another worker.
    slot.release({ stream });
  }
  requests.close();
  server.close();
} else {
  using requests = Channel.create({ slots: 4, shape: 1000, dtype: 'float32', deliver: 'one' });
  using stream = Stream.create({ nonBlocking: true });
  const workers = Array.from({ length: WORKERS }, () =>
    spawnPeer<Answer>(import.meta.filename, {
      args: ['worker'],
      stdio: ['inherit', 'inherit', 'ignore'],
    }),
  );
  const answers = new Map<number, number>();
  const collect = async (worker: ChildPeer<Answer>): Promise<string> => {
    try {
      for await (const { request, value } of worker) answers.set(request, value);
      return 'ended';
    } catch (error) {
      return (error as Error).name;
    }
  };
  const collected = workers.map(collect);
  for (const worker of workers) await worker.send({ requests });
  for (let request = 0; request < REQUESTS; request += 1) {
    const slot = await requests.acquire({ timeoutMs: 10_000 });
    slot.array.fill(request, { stream });
    slot.publish({ stream, meta: { request } });
  }
  await requests.drained({ timeoutMs: 10_000 });
  requests.close();
  const ends = await Promise.all(collected);
  console.log('workers:', ends.sort().join(', '));
  const values = [...answers].sort(([a], [b]) => a - b).map(([, value]) => value);
  console.log('answers:', values.join(' '));
  for (const worker of workers) worker.close();
}
