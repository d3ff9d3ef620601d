/** A parent and its child pass values with GPU buffers in them: no copy, no descriptors by hand. */
import { DeviceBuffer } from 'cuffi';
import { parentPeer, spawnPeer } from 'cuffi/ipc';

interface Task {
  readonly step: number;
  readonly weights: DeviceBuffer;
}

if (process.argv[2] === 'child') {
  const parent = parentPeer();
  for await (const value of parent) {
    const { step, weights } = value as Task;
    const numbers = await weights.copyToHost(new Float32Array(3));
    console.log(`the child has step ${step}:`, numbers);
    await weights.copyFrom(numbers.map((number) => number * 2));
    weights.close();
    await parent.send({ step, done: true });
  }
  console.log('the child sees the end');
} else {
  using weights = DeviceBuffer.allocate(12);
  await weights.copyFrom(new Float32Array([1, 2, 3]));
  await using child = spawnPeer(import.meta.filename, { args: ['child'] });
  for (let step = 1; step <= 2; step++) {
    await child.send({ step, weights } satisfies Task);
    console.log('the child answers', await child.receive());
  }
  console.log('the parent reads', await weights.copyToHost(new Float32Array(3)));
}
