/** A producer with two consumers, of which one is killed: nothing is lost, nothing hangs. */
import { DeviceBuffer, Stream } from 'cuffi';
import { leases, type Peer, parentPeer, spawnPeer } from 'cuffi/ipc';

if (process.argv[2] === 'consumer') {
  const producer = parentPeer();
  using stream = Stream.create({ nonBlocking: true });
  using own = DeviceBuffer.allocate(1000);
  for (;;) {
    const task = await producer.receive({ stream }).catch(() => undefined);
    if (!(task instanceof DeviceBuffer)) break;
    task.copyTo(own, { stream }); // behind the producer's fill, which may not have run yet
    task.close(); // the producer's next fill comes behind the copy
    await producer.send([...new Set(await own.copyToHost(undefined, { stream }))]);
  }
} else {
  using stream = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(1000);
  const consumers = [1, 2].map(() => spawnPeer(import.meta.filename, { args: ['consumer'] }));
  const ask = async (consumer: Peer, value: number): Promise<unknown> => {
    buffer.fill(value, { stream }); // only queued
    await consumer.send(buffer, { stream });
    return consumer.receive();
  };
  const [first, second] = consumers;
  if (!first || !second) throw new Error('two were started');
  console.log('the first reads', await ask(first, 1));
  console.log('the second reads', await ask(second, 2));

  await second.send(buffer); // it has the buffer,
  second.process.kill('SIGKILL'); // and will never close it
  console.log('the second:', (await second.ended).name);
  console.log('the first reads', await ask(first, 3));

  buffer.close(); // closed here at once
  await leases.drain({ timeoutMs: 10_000 });
  console.log('kept for others:', leases.stats().orphaned.byteLength);
  first.close();
}
