import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena, OUT0 } from '../../../../../ffi/arena.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver } from '../../../../../ffi/functions.ts';
import type { CUdeviceptr } from '../../../../../ffi/types.ts';
import { Context, Device, type DeviceBuffer, float32, Stream } from '../../../../../src/index.ts';
import { getIpcHandle, openIpcArray, openIpcBuffer } from '../../../../../src/ipc/index.ts';
import { withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { describeExporter } from '../../../../../src/ipc/sharing/facts.ts';
import { type ImportedMapping, MappingTable } from '../../../../../src/ipc/sharing/mapping.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { failing, keepingBooks } from '../../../../support/faults.ts';
import { Latch } from '../../../../support/latch.ts';
import { currentContext, emulate } from '../../emulate.ts';

const BYTE_LENGTH = 4096;

/** A driver that opens every handle, as if another process had shared 4 KiB. */
function importing(env?: NodeJS.ProcessEnv): {
  readonly driver: Driver;
  readonly open: ReadonlySet<string>;
} {
  const emulated = emulate(env);
  const { driver, open } = keepingBooks({
    ...emulated,
    cuIpcOpenMemHandle_v2: (out) => emulated.cuMemAlloc_v2(out, BYTE_LENGTH),
    cuIpcCloseMemHandle: (address) => emulated.cuMemFree_v2(address),
  });
  selectDriver(driver);
  return { driver, open };
}

const descriptor = (fields: object = {}) =>
  withChecksum({
    kind: 'legacy',
    ...describeExporter(Device.get()),
    pid: 2 ** 30,
    // In another pid namespace, so it may still run.
    pidNamespace: 1,
    handle: Buffer.alloc(64, 1).toString('base64'),
    baseByteLength: BYTE_LENGTH,
    byteOffset: 0,
    byteLength: BYTE_LENGTH,
    access: 'read-write',
    bufferId: 1,
    generation: 1,
    ...fields,
  });

/** Two contexts, each with a blocked stream. */
function twoContexts() {
  emulate({ CUFFI_EMULATED_DEVICES: '2' });
  const own = Context.primary(0);
  const other = Context.primary(1);
  const stream = Stream.create({ device: 1, nonBlocking: true });
  const latch = new Latch(other);
  latch.hold(stream);
  return { own, other, stream, latch };
}

describe('MappingTable', () => {
  test('memory that is opened twice is mapped once, and unmapped when its last buffer closes', () => {
    const { open } = importing();
    const first = openIpcBuffer(descriptor());
    const second = openIpcBuffer(descriptor({ byteOffset: 100, byteLength: 10 }));
    assert.equal(second.address, first.address + 100);
    assert.equal(first.origin, 'imported');
    assert.equal(open.size, 1);
    first.close();
    first.close();
    assert.equal(open.size, 1);
    second.copyToHostSync(new Uint8Array(1));
    second.close();
    assert.equal(open.size, 0);
    openIpcBuffer(descriptor()).close();
    assert.equal(open.size, 0);
  });

  test('a range beyond the allocation is refused, and the mapping is released', () => {
    const { open } = importing();
    for (const range of [
      { byteLength: BYTE_LENGTH + 1 },
      { byteOffset: 1 },
      { byteOffset: BYTE_LENGTH, byteLength: 1 },
      { byteOffset: Number.MAX_SAFE_INTEGER, byteLength: 1 },
      { byteOffset: Number.MAX_SAFE_INTEGER, byteLength: Number.MAX_SAFE_INTEGER },
    ])
      assert.throws(() => openIpcBuffer(descriptor(range)), {
        name: 'IpcError',
        message:
          /^the descriptor names bytes \d+ to \d+ of an allocation of process 1073741824 that has 4096$/,
      });
    assert.equal(open.size, 0);
    const whole = openIpcBuffer(descriptor());
    assert.throws(() => openIpcBuffer(descriptor({ byteOffset: 1 })), { name: 'IpcError' });
    whole.copyToHostSync(new Uint8Array(1));
    whole.close();
    assert.equal(open.size, 0);
  });

  test('memory that is smaller than its descriptor says is refused, and its mapping is released', async () => {
    const { open } = importing();
    const larger = { baseByteLength: 2 * BYTE_LENGTH, byteLength: BYTE_LENGTH + 1 };
    const refused = {
      name: 'IpcError',
      code: 'invalid-descriptor',
      message: /names bytes 0 to 4097 of an allocation of process 1073741824 that has 4096$/,
    };
    assert.throws(() => openIpcBuffer(descriptor(larger)), refused);
    assert.deepEqual([...open], []);
    // The number of uses is what it was before.
    const whole = openIpcBuffer(descriptor({ baseByteLength: 2 * BYTE_LENGTH }));
    assert.throws(() => openIpcBuffer(descriptor(larger)), refused);
    whole.copyToHostSync(new Uint8Array(1));
    whole.close();
    await Context.primary().flush();
    assert.deepEqual([...open], []);
  });

  test('an earlier allocation with the same handle must be closed first', () => {
    const { open } = importing();
    const old = openIpcBuffer(descriptor());
    assert.throws(() => openIpcBuffer(descriptor({ bufferId: 2 })), {
      name: 'IpcError',
      message: /earlier allocation with the same handle is still open here/,
    });
    old.close();
    openIpcBuffer(descriptor({ bufferId: 2 })).close();
    assert.equal(open.size, 0);
  });

  test('memory that is closed behind pending work is unmapped after it, once', async () => {
    const { open } = importing();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    latch.hold(stream);
    const buffer = openIpcBuffer(descriptor());
    buffer.fill(1, { stream });
    buffer.close();
    assert.ok([...open].some((entry) => entry.startsWith('cuIpcOpen')));
    const recorder = recordCalls();
    latch[Symbol.dispose]();
    await context.flush();
    recorder.stop();
    assert.ok(![...open].some((entry) => entry.startsWith('cuIpcOpen')));
    const closes = recorder.calls.filter((call) => call.name === 'cuIpcCloseMemHandle');
    assert.equal(closes.length, 1);
  });

  test('legacy memory is not unmapped while later work of its context runs, because the driver would wait for it', async () => {
    const { open } = importing();
    const context = Context.primary();
    const isMapped = (): boolean => [...open].some((entry) => entry.startsWith('cuIpcOpen'));
    const streams = [0, 1].map(() => Stream.create({ nonBlocking: true })) as [Stream, Stream];
    using before = new Latch();
    using after = new Latch();
    for (const openBuffer of [
      () => openIpcBuffer(descriptor()),
      () => openIpcArray({ handle: Buffer.alloc(64, 2), shape: [4], dtype: float32 }),
    ]) {
      before.hold(streams[0]);
      openBuffer().close();
      // Work queued from here on came after the close.
      assert.equal(context.releases.drainReady(), false);
      after.hold(streams[1]);
      before.open();
      await streams[0].synchronize();
      context.releases.drainReady();
      assert.equal(isMapped(), true);
      after.open();
      await streams[1].synchronize();
      await context.flush();
      assert.equal(isMapped(), false);
      for (const { word } of [before, after]) word.shut();
    }
    for (const stream of streams) stream.close();
  });

  test('memory that is opened again while its unmapping waits stays mapped', async () => {
    importing();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    latch.hold(stream);
    const first = openIpcBuffer(descriptor());
    const { address } = first;
    first.close();
    using again: DeviceBuffer = openIpcBuffer(descriptor());
    assert.equal(again.address, address);
    latch[Symbol.dispose]();
    await context.flush();
    again.fill(7);
    assert.deepEqual(new Set(again.copyToHostSync()), new Set([7]));
  });

  test('memory that is opened and closed twice while its unmapping waits is unmapped once', async () => {
    importing();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    latch.hold(stream);
    openIpcBuffer(descriptor()).close();
    openIpcBuffer(descriptor()).close();
    const recorder = recordCalls();
    latch[Symbol.dispose]();
    await context.flush();
    recorder.stop();
    const closes = recorder.calls.filter((call) => call.name === 'cuIpcCloseMemHandle');
    assert.deepEqual(
      closes.map((call) => call.status),
      [0],
    );
  });

  test('memory that is released again while its unmapping waits stays mapped for the work of the later user', async () => {
    emulate();
    const context = Context.primary();
    let unmapped = 0;
    const table = new MappingTable<ImportedMapping>(() => (unmapped += 1), { mayBlock: false });
    const base = 4096 as CUdeviceptr;
    const map = () => ({ context, epoch: context.epoch, base, byteLength: BYTE_LENGTH });
    using one = Stream.create();
    using other = Stream.create();
    using first = new Latch();
    using second = new Latch();
    for (const [stream, latch] of [
      [one, first],
      [other, second],
    ] as const) {
      const use = table.use('memory', 1, context, map);
      latch.hold(stream);
      use.release();
      // The first release waits for the first stream only.
      assert.equal(context.releases.drainReady(), false);
    }
    first.open();
    await one.synchronize();
    context.releases.drainReady();
    assert.equal(unmapped, 0);
    second.open();
    await context.flush();
    assert.equal(unmapped, 1);
  });

  test("a release by one of two users is reported when that user's work is done", async () => {
    emulate();
    const context = Context.primary();
    const base = 4096 as CUdeviceptr;
    const table = new MappingTable<ImportedMapping>(() => {}, { mayBlock: true });
    const map = () => ({ context, epoch: context.epoch, base, byteLength: BYTE_LENGTH });
    const [first, second] = [0, 1].map(() => table.use('name', 1, context, map));
    const released: string[] = [];
    {
      using latch = new Latch();
      latch.hold(Stream.create({ nonBlocking: true }));
      first?.release(() => released.push('first'));
      await nextLoopIteration();
      assert.equal(released.length, 0);
    }
    await context.flush();
    assert.deepEqual(released, ['first']);
    second?.release(() => released.push('second'));
    assert.deepEqual(released, ['first', 'second']);
  });

  test('a mapping is unmapped behind the work of every context that used it', async () => {
    const { own, other, stream, latch } = twoContexts();
    let unmapped = 0;
    const table = new MappingTable<ImportedMapping>(() => (unmapped += 1), { mayBlock: false });
    const base = 4096 as CUdeviceptr;
    const map = () => ({ context: own, epoch: own.epoch, base, byteLength: BYTE_LENGTH });
    // Either context may release it last.
    for (const first of [own, other]) {
      const uses = [own, other].map((user) => [user, table.use('memory', 1, user, map)] as const);
      const released: string[] = [];
      for (const [user, { release }] of uses.sort(([user]) => (user === first ? -1 : 1)))
        release(() => released.push(user === own ? 'own' : 'other'));
      own.releases.drainReady();
      assert.deepEqual([unmapped, released.includes('other')], [0, false]);
      latch.open();
      await stream.synchronize();
      await own.flush();
      assert.deepEqual([unmapped, released.sort()], [1, ['other', 'own']]);
      unmapped = 0;
      latch.word.shut();
      latch.hold(stream);
    }
    latch[Symbol.dispose]();
    stream.close();
  });

  test('memory that is closed in a stream of another context is unmapped behind the work of that stream', async () => {
    const { open } = importing({ CUFFI_EMULATED_DEVICES: '2' });
    const stream = Stream.create({ device: 1, nonBlocking: true });
    using latch = new Latch(stream.context);
    latch.hold(stream);
    const isMapped = (): boolean => [...open].some((entry) => entry.startsWith('cuIpcOpen'));
    const buffer = openIpcBuffer(descriptor());
    assert.notEqual(buffer.context, stream.context);
    buffer.close({ stream });
    await nextLoopIteration();
    buffer.context.releases.drainReady();
    assert.equal(isMapped(), true);
    latch.open();
    await stream.synchronize();
    await buffer.context.flush();
    assert.equal(isMapped(), false);
    stream.close();
  });

  test('a mapping lost by a reset is reported once, and is mapped anew', () => {
    emulate();
    const context = Context.primary();
    const base = 4096 as CUdeviceptr;
    const map = () => ({ context, epoch: context.epoch, base, byteLength: BYTE_LENGTH });
    const forgotten: ImportedMapping[] = [];
    let unmapped = 0;
    const table = new MappingTable<ImportedMapping>(() => (unmapped += 1), {
      mayBlock: false,
      onContextReset: (mapping) => forgotten.push(mapping),
    });
    const before = table.use('memory', 1, context, map);
    assert.equal(table.has('memory', 1), true);
    context.resetSync();
    assert.equal(table.has('memory', 1), false);
    assert.equal(table.has('memory', 1), false);
    assert.deepEqual(forgotten, [before.mapping]);
    // Another allocation may now use the name.
    const after = table.use('memory', 2, context, map);
    assert.notEqual(after.mapping, before.mapping);
    before.release();
    assert.equal(unmapped, 0);
    after.release();
    assert.deepEqual([unmapped, forgotten.length], [1, 1]);
  });

  test('a reset unmaps everything, and the handle can be opened again', () => {
    importing();
    const context = Context.primary();
    const before = openIpcBuffer(descriptor());
    context.resetSync();
    assert.equal(before.closed, true);
    const after = openIpcBuffer(descriptor());
    before.close();
    after.fill(1);
    after.close();
  });

  test('memory that cannot be measured is unmapped again', () => {
    const { driver, open } = importing();
    selectDriver(failing(driver, 'cuMemGetAddressRange_v2', 1, 999));
    assert.throws(() => openIpcBuffer(descriptor()), {
      name: 'IpcError',
      message: /could not be opened: .* while measuring memory of process 1073741824/,
    });
    assert.equal(open.size, 0);
    selectDriver({
      ...driver,
      cuMemGetAddressRange_v2: (_, size) => {
        new BigUint64Array(arena.buffer)[(size - OUT0) / 8] = 2n ** 60n;
        return 0;
      },
    });
    assert.throws(() => openIpcBuffer(descriptor()), {
      name: 'IpcError',
      message: /could not be opened: the driver returned 1152921504606846976/,
    });
    assert.equal(open.size, 0);
    selectDriver(driver);
    assert.equal(currentContext(), 0);
    openIpcBuffer(descriptor()).close();
  });
});

describe('reexportBuffer', () => {
  test('an imported buffer is exported again as it came, narrowed to the view', () => {
    importing();
    const came = descriptor({ byteOffset: 10, byteLength: 100 });
    using buffer = openIpcBuffer(came);
    assert.deepEqual(getIpcHandle(buffer), came);
    const part = withChecksum({ ...came, byteOffset: 11, byteLength: 2 });
    assert.deepEqual(getIpcHandle(buffer.subarray(1, 3)), part);
    assert.throws(() => getIpcHandle(buffer.readOnly()), { code: 'not-supported' });
  });
});
