import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  CU_DEVICE_CPU,
  CU_MEM_ADVISE_SET_ACCESSED_BY,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
  CU_MEM_ADVISE_SET_READ_MOSTLY,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY,
  CU_MEM_ATTACH_GLOBAL,
  CU_MEM_ATTACH_HOST,
} from '../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  type ManagedAdvice,
  ManagedMemory,
  type ManagedPlace,
  Stream,
} from '../../../../src/index.ts';
import { formatBytes } from '../../../../src/validate.ts';
import { recordArguments, recordCallsOf } from '../../../support/arguments.ts';
import { Latch } from '../../../support/latch.ts';
import { collectGarbage } from '../../../support/process-state.ts';
import { currentContext, emulate } from '../emulate.ts';

const MANAGED = 83;
const CONCURRENT = 89;

describe('ManagedMemory', () => {
  test('create() throws if the device has no managed memory', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: `${MANAGED}=0` });
    assert.throws(() => ManagedMemory.create(), {
      name: 'NotSupportedError',
      message: /has no managed memory/,
    });
  });

  test('CPU views, prefetch() and places throw if the device has no concurrent access', async () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: `${CONCURRENT}=0` });
    const memory = ManagedMemory.create();
    assert.equal(memory.hostAccessible, false);
    using buffer = memory.allocate(4096);
    const { device } = memory.context;
    const refused = (doing: string) => ({
      name: 'NotSupportedError',
      message: `${device} has no concurrentManagedAccess, which ${doing} needs`,
    });
    const untouchable = { name: 'NotSupportedError', message: /copy it with copyFrom/ };
    assert.throws(() => buffer.buffer, untouchable);
    assert.throws(() => buffer.window(0, 1), untouchable);
    assert.throws(() => memory.prefetch(buffer, device), refused('naming it as to'));
    assert.throws(() => memory.prefetch(buffer, 'host'), refused('prefetching'));
    assert.throws(
      () => memory.advise(buffer, 'preferredLocation', device),
      refused('naming it as place'),
    );
    memory.advise(buffer, 'preferredLocation', 'host');
    memory.advise(buffer, 'readMostly');
    buffer.fill(4);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([4]));
  });

  test('arguments are checked before any driver call', () => {
    emulate();
    const memory = ManagedMemory.create();
    using buffer = memory.allocate(4096);
    using other = DeviceBuffer.allocate(4096);
    const device = Device.get();
    const recorder = recordCalls();
    assert.throws(() => memory.allocate(0), /byteLength must be an integer of at least 1/);
    assert.throws(() => memory.allocate(1, { streams: 1 } as never), /unknown option 'streams'/);
    assert.throws(() => ManagedMemory.create({ attach: 'single' as never }), {
      message: "attach must be 'global' or 'host', not single",
    });
    assert.throws(() => memory.prefetch({} as never, device), /buffer must be a DeviceBuffer/);
    assert.throws(() => memory.prefetch(other, device), /must be managed memory/);
    assert.throws(() => memory.prefetch(buffer, 9), /^RangeError: there is no device 9/);
    assert.throws(() => memory.prefetch(buffer, 'cpu' as never), /to must be a Device/);
    assert.throws(
      () => memory.prefetch(buffer, 'host', { stream: 1 as never }),
      /stream must be a Stream, not 1/,
    );
    assert.throws(() => memory.advise(buffer, 'often' as never), /use one of readMostly/);
    assert.throws(() => memory.advise(buffer, 'accessedBy'), /needs a place/);
    assert.throws(() => memory.advise(buffer, 'readMostly', device), /takes no place/);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('allocate() refuses more than the free memory, after draining pending releases', () => {
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
      message: `out of memory: ${formatBytes(8 << 20)} of managed memory were requested with ${formatBytes(free)} free`,
    });
    recorder.stop();
    assert.ok(!recorder.calls.some(({ name }) => name === 'cuMemAllocManaged'));
    latch.open();
    memory.allocate(8 << 20).close();
    latch[Symbol.dispose]();
  });

  test('prefetch() moves the given range, to the given place, in the given stream', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const memory = ManagedMemory.create({ context: first });
    using stream = Stream.create({ context: first });
    using far = Stream.create({ context: second });
    using buffer = memory.allocate(4096);
    const moved = (use: () => void): unknown[] => {
      const before = recorder.calls.length;
      use();
      const told = recorder.calls.slice(before).filter(({ name }) => name === 'cuMemPrefetchAsync');
      return told.map(({ args, context }) => [...args, context]);
    };
    const { address } = buffer;
    assert.deepEqual(
      moved(() => memory.prefetch(buffer, second.device, { stream })),
      [[address, 4096, second.device.handle, stream.handle, 0]],
    );
    assert.deepEqual(
      moved(() => memory.prefetch(buffer.subarray(1024, 3072), first.device, { stream: far })),
      [[address + 1024, 2048, first.device.handle, far.handle, 0]],
    );
    assert.deepEqual(
      moved(() => memory.prefetch(buffer, 'host')),
      [[address, 4096, CU_DEVICE_CPU, 0, first.handle]],
    );
    // An ordinal names its device.
    assert.deepEqual(
      moved(() => memory.prefetch(buffer, 1)),
      [[address, 4096, second.device.handle, 0, first.handle]],
    );
    // An empty part makes no driver call.
    assert.deepEqual(
      moved(() => memory.prefetch(buffer.subarray(4096), 'host')),
      [],
    );
  });

  test('advise() passes each advice and place to the driver', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const memory = ManagedMemory.create({ device: 0 });
    using buffer = memory.allocate(4096);
    const { address } = buffer;
    const second = Device.get(1);
    const advices: readonly [ManagedAdvice, ManagedPlace | undefined, number, number][] = [
      ['readMostly', undefined, CU_MEM_ADVISE_SET_READ_MOSTLY, 0],
      ['unsetReadMostly', undefined, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0],
      ['preferredLocation', second, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, second.handle],
      ['preferredLocation', 'host', CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU],
      ['unsetPreferredLocation', undefined, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0],
      ['accessedBy', second, CU_MEM_ADVISE_SET_ACCESSED_BY, second.handle],
      ['unsetAccessedBy', second, CU_MEM_ADVISE_UNSET_ACCESSED_BY, second.handle],
    ];
    for (const [advice, place] of advices) memory.advise(buffer.subarray(1024), advice, place);
    memory.advise(buffer.subarray(4096), 'readMostly');
    assert.deepEqual(
      recorder.of('cuMemAdvise').map(({ args }) => args),
      advices.map(([, , number, device]) => [address + 1024, 3072, number, device]),
    );
  });

  test('allocate() uses the given device and attach mode', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    ManagedMemory.create().allocate(10).close();
    ManagedMemory.create({ device: 1, attach: 'host' }).allocate(20).close();
    ManagedMemory.create({ context: second, attach: 'global' }).allocate(30).close();
    assert.deepEqual(
      recorder.of('cuMemAllocManaged').map(({ args, context }) => [...args.slice(1), context]),
      [
        [10, CU_MEM_ATTACH_GLOBAL, first.handle],
        [20, CU_MEM_ATTACH_HOST, second.handle],
        [30, CU_MEM_ATTACH_GLOBAL, second.handle],
      ],
    );
  });

  test('memory stays allocated while a stream of another device prefetches it; the default stream is its own', async () => {
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

  test('viewed memory is not freed again after a reset, which freed it', async () => {
    const told = recordCallsOf(emulate(), 'cuMemFree_v2');
    const context = Context.primary();
    const memory = ManagedMemory.create({ context });
    const look = (close: boolean): void => {
      const buffer = memory.allocate(4096);
      new Uint8Array(buffer.buffer)[0] = 1;
      if (close) buffer.close();
    };
    for (const close of [false, true]) look(close);
    context.resetSync();
    await collectGarbage();
    assert.deepEqual(told, []);
  });
});
