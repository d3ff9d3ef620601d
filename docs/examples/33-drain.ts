/** A shutdown that waits until nobody uses the memory that was sent, and revokes what is not returned. */
import { type DeviceBuffer, MemoryPool } from 'cuffi';
import { leases, parentPeer, spawnPeer } from 'cuffi/ipc';

if (process.argv[2] === 'worker') {
  using parent = parentPeer(); // closed at the end: an open one keeps the process alive
  const weights = (await parent.receive()) as DeviceBuffer;
  await parent.send('mine');
  await parent.receive(); // works on, and closes nothing
  try {
    weights.fill(1);
  } catch (error) {
    console.log('the worker:', (error as Error).message.replaceAll(/\d+/g, 'N'));
  }
} else {
  using worker = spawnPeer(import.meta.filename, { args: ['worker'] });
  const pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
  const weights = pool.allocate(1 << 20);
  weights.fill(0);
  await worker.send(weights);
  console.log('the worker says', await worker.receive());

  pool.close({ buffers: true }); // closed here; the memory stays
  const { orphaned } = leases.stats();
  console.log(`${orphaned.count} thing of ${orphaned.byteLength} bytes is kept for the worker`);
  await leases.drain({ timeoutMs: 50 }).catch((error: Error) => console.log(error.name));

  leases.revoke(weights); // from now on the worker cannot use it
  await leases.drain({ timeoutMs: 10_000 });
  console.log('kept for others:', leases.stats().orphaned.byteLength);
  await worker.send('go on');
  for await (const _ of worker); // until it has ended
}
