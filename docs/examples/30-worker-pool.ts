/** Twenty tasks over three worker processes, their memory out of three pools: no copy, no loss. */
import { Context, type DeviceBuffer, MemoryPool } from 'cuffi';
import { type ChildPeer, parentPeer, spawnPeer } from 'cuffi/ipc';

interface Task {
  readonly id: number;
  readonly numbers: DeviceBuffer;
}

async function work(): Promise<void> {
  const parent = parentPeer({ busyPollUs: 50 }); // looks for so long before it sleeps
  for await (const value of parent) {
    const { id, numbers } = value as Task;
    const squared = (await numbers.copyToHost(new Float32Array(4))).map((number) => number ** 2);
    await numbers.copyFrom(squared);
    numbers.close();
    await numbers.context.flush(); // unmapped here before the parent frees it
    await parent.send(id);
  }
}

async function main(): Promise<void> {
  const pools = [0, 1, 2].map(() => MemoryPool.create({ maxSize: 64 << 20, shareable: true }));
  const workers = [0, 1, 2].map(() => spawnPeer(import.meta.filename, { args: ['worker'] }));
  const tasks = Array.from({ length: 20 }, (_, id) => id).values();
  let sum = 0;

  async function feed(worker: ChildPeer): Promise<void> {
    for (const id of tasks) {
      using numbers = (pools[id % pools.length] as MemoryPool).allocate(16);
      await numbers.copyFrom(new Float32Array(4).fill(id));
      await worker.send({ id, numbers } satisfies Task);
      const answered = await worker.receive();
      if (answered !== id) throw new Error(`task ${id} was answered with ${answered}`);
      const [first = 0] = await numbers.copyToHost(new Float32Array(4));
      sum += first;
    }
    worker.close();
  }

  await Promise.all(workers.map(feed));
  console.log(`the sum of the squares of 0 to 19 is ${sum}`);
  await Context.primary().flush();
  for (const pool of pools) pool.close();
}

await (process.argv[2] === 'worker' ? work() : main());
