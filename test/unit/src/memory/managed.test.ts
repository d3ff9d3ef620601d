import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { Context, Device, DeviceBuffer, ManagedMemory, Stream } from '../../../../src/index.ts';
import { Latch } from '../../../support/latch.ts';
import { currentContext, emulate } from '../emulate.ts';

const MANAGED = 83;
const CONCURRENT = 89;

test('is refused where the device has none', () => {
  emulate({ CUFFI_EMULATED_ATTRIBUTES: `${MANAGED}=0` });
  assert.throws(() => ManagedMemory.create(), {
    name: 'NotSupportedError',
    message: /has no managed memory/,
  });
});

test('is not shown to the CPU, prefetched or placed where the device cannot share it', async () => {
  emulate({ CUFFI_EMULATED_ATTRIBUTES: `${CONCURRENT}=0` });
  const memory = ManagedMemory.create();
  assert.equal(memory.hostAccessible, false);
  using buffer = memory.allocate(4096);
  const { device } = memory.context;
  const refused = { name: 'NotSupportedError' };
  assert.throws(() => buffer.buffer, { ...refused, message: /copy it, with copyFrom/ });
  assert.throws(() => buffer.window(0, 1), refused);
  assert.throws(() => memory.prefetch(buffer, device), refused);
  assert.throws(() => memory.prefetch(buffer, 'host'), refused);
  assert.throws(() => memory.advise(buffer, 'preferredLocation', device), refused);
  memory.advise(buffer, 'preferredLocation', 'host');
  memory.advise(buffer, 'readMostly');
  buffer.fill(4);
  assert.deepEqual(new Set(await buffer.copyToHost()), new Set([4]));
});

test('arguments are checked before the driver is asked', () => {
  emulate();
  const memory = ManagedMemory.create();
  using buffer = memory.allocate(4096);
  using other = DeviceBuffer.allocate(4096);
  const device = Device.get();
  const recorder = recordCalls();
  assert.throws(() => memory.allocate(0), RangeError);
  assert.throws(() => memory.allocate(1, { streams: 1 } as never), TypeError);
  assert.throws(() => ManagedMemory.create({ attach: 'single' as never }), {
    message: "attach must be 'global' or 'host', not single",
  });
  assert.throws(() => memory.prefetch({} as never, device), /buffer must be a DeviceBuffer/);
  assert.throws(() => memory.prefetch(other, device), /must be of managed memory/);
  assert.throws(() => memory.prefetch(buffer, 0 as never), /to must be a Device/);
  assert.throws(() => memory.prefetch(buffer, 'cpu' as never), /to must be a Device/);
  assert.throws(() => memory.prefetch(buffer, 'host', { stream: 1 as never }), TypeError);
  assert.throws(() => memory.advise(buffer, 'often' as never), /known: readMostly/);
  assert.throws(() => memory.advise(buffer, 'accessedBy'), /needs a place/);
  assert.throws(() => memory.advise(buffer, 'readMostly', device), /is of no place/);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('more than is free is refused by cuffi, after what waits was released', () => {
  emulate({ CUFFI_EMULATED_MEMORY: '16M' });
  const memory = ManagedMemory.create();
  const buffer = DeviceBuffer.allocate(12 << 20);
  using stream = Stream.create({ nonBlocking: true });
  const latch = new Latch();
  latch.hold(stream);
  buffer.close();
  const recorder = recordCalls();
  const { free } = Context.primary().memoryInfo();
  assert.throws(() => memory.allocate(8 << 20), {
    name: 'RangeError',
    message: `out of memory: ${8 << 20} bytes of managed memory were asked for with ${free} free`,
  });
  recorder.stop();
  assert.ok(!recorder.calls.some(({ name }) => name === 'cuMemAllocManaged'));
  latch.open();
  memory.allocate(8 << 20).close();
  latch[Symbol.dispose]();
});

test('names the devices and streams that it is told', () => {
  emulate({ CUFFI_EMULATED_DEVICES: '2' });
  const memory = ManagedMemory.create();
  using stream = Stream.create();
  using buffer = memory.allocate(4096);
  memory.prefetch(buffer, Device.get(1), { stream });
  memory.advise(buffer, 'accessedBy', Device.get(1));
  // An empty part is nobody's business.
  memory.prefetch(buffer.subarray(4096), 'host');
  memory.advise(buffer.subarray(4096), 'readMostly');
});

test('is kept while a stream of another device prefetches it; the default stream is its own', async () => {
  const driver = emulate({ CUFFI_EMULATED_DEVICES: '2' });
  const [first, second] = [Context.primary(0), Context.primary(1)];
  const memory = ManagedMemory.create({ context: first });
  const buffer = memory.allocate(4096);
  using stream = Stream.create({ device: 1 });
  {
    using latch = new Latch(second);
    latch.hold(stream);
    memory.prefetch(buffer, second.device, { stream });
    buffer.close();
    assert.equal(first.pendingReleases.count, 1);
  }
  await first.flush();
  using other = ManagedMemory.create({ context: second }).allocate(4096);
  let current: number | undefined;
  selectDriver({
    ...driver,
    cuMemPrefetchAsync: (...args) => {
      current = currentContext();
      return driver.cuMemPrefetchAsync(...args);
    },
  });
  memory.prefetch(other, 'host');
  assert.equal(current, second.handle);
});
