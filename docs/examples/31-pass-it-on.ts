/** Memory of A goes to B, and from B to C, without a copy: C has A's memory. */
import { Context, type DeviceBuffer, MemoryPool } from 'cuffi';
import { type Peer, parentPeer, spawnPeer } from 'cuffi/ipc';

const child = (role: string) => spawnPeer(import.meta.filename, { args: [role] });
const receive = async (peer: Peer) => (await peer.receive()) as DeviceBuffer;

if (process.argv[2] === 'B') {
  using parent = parentPeer(); // closed last: then A knows that the rest is
  using buffer = await receive(parent);
  using next = child('C');
  // What was imported is passed on as what it came as, or a part of it.
  await next.send(buffer.subarray(0, 500));
  await parent.send(await next.receive());
} else if (process.argv[2] === 'C') {
  using buffer = await receive(parentPeer());
  console.log('C reads', new Set(await buffer.copyToHost()));
  buffer.fill(2);
  await Context.primary().synchronize();
  await parentPeer().send(`C (${process.pid}) wrote`);
} else {
  using pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
  using buffer = pool.allocate(1000);
  buffer.fill(1);
  await Context.primary().synchronize(); // a message carries no order
  using next = child('B');
  await next.send(buffer);
  console.log('B says', await next.receive());
  console.log('A reads', new Set(await buffer.copyToHost()));
  for await (const _ of next); // until B has closed what it had
}
