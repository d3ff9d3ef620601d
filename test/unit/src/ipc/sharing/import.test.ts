import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver } from '../../../../../ffi/functions.ts';
import { duplicateFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { processStartTime } from '../../../../../ffi/linux/process.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import {
  bfloat16,
  Context,
  CudaEvent,
  Device,
  DeviceArray,
  DeviceBuffer,
  Dtype,
  deviceArray,
  float32,
  fromBuffer,
  fromPointer,
  Graph,
  IpcError,
  int16,
  MemoryPool,
  Stream,
  toDeviceSync,
  VirtualMemory,
} from '../../../../../src/index.ts';
import type {
  DescriptorFields,
  IpcDescriptor,
  IpcMemoryDescriptor,
} from '../../../../../src/ipc/descriptor.ts';
import { localProcess } from '../../../../../src/ipc/identity.ts';
import {
  decodeDescriptor,
  type Exported,
  encodeDescriptor,
  exportIpc,
  getIpcHandle,
  ImportedPool,
  IpcArrayHandle,
  IpcBufferHandle,
  openIpc,
  openIpcArray,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
  ready,
} from '../../../../../src/ipc/index.ts';
import { closeSharingSession } from '../../../../../src/ipc/sharing/connection-pools.ts';
import { withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { discardImported } from '../../../../../src/ipc/sharing/kinds.ts';
import { importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { asArray } from '../../../../../src/ipc/sharing/memory.ts';
import { ConnectionTimeline } from '../../../../../src/ipc/timeline/connection-timeline.ts';
import type { TimelinePoint } from '../../../../../src/ipc/timeline/words.ts';
import { failing, keepingBooks } from '../../../../support/faults.ts';
import { trials } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { anyLayout } from '../../../../support/layouts.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { killed, startProcess } from '../../../../support/program.ts';
import { emptySharingSession, exportForPeer } from '../../../../support/sharing.ts';
import { currentContext, emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

describe('openIpcBuffer', () => {
  const OTHER_PID = 2 ** 30;
  /** A descriptor with other values and the checksum that its own process would compute. */
  const changed = (descriptor: object, values: object): unknown =>
    withChecksum({ ...descriptor, ...values } as never);
  const elsewhere = { device: 'GPU-00000000-0000-0000-0000-000000000000', pid: OTHER_PID };

  test("this process's own handles are refused without a driver call", () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    using event = CudaEvent.create({ interprocess: true });
    const [ofBuffer, ofEvent] = [getIpcHandle(buffer), getIpcHandle(event)];
    const recorder = recordCalls();
    const expected = {
      name: 'IpcError',
      message: new RegExp(`made by this very process \\(pid ${process.pid}\\)\\. Use the object`),
    };
    assert.throws(() => openIpcBuffer(ofBuffer), expected);
    assert.throws(() => openIpcEvent(ofEvent), expected);
    assert.throws(
      () => openIpcBuffer(changed(ofBuffer, { ...elsewhere, pid: process.pid })),
      expected,
    );
    // An earlier process with the same pid.
    for (const open of [
      () => openIpcBuffer(changed(ofBuffer, { startTime: 1 })),
      () => openIpcBuffer(changed(ofBuffer, { startTime: 1 }), { sameProcess: 'alias' }),
      () => openIpcEvent(changed(ofEvent, { startTime: 1 })),
    ])
      assert.throws(open, { name: 'IpcError', code: 'exporter-gone' });
    recorder.stop();
    assert.deepEqual(
      recorder.calls.filter(({ name }) => /Ipc|Import/.test(name)),
      [],
    );
  });

  test('an invisible GPU is named together with the visible ones', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using buffer = DeviceBuffer.allocate(16);
    using event = CudaEvent.create({ interprocess: true });
    const recorder = recordCalls();
    const expected = {
      name: 'IpcError',
      message: new RegExp(
        `GPU ${elsewhere.device}, which this process does not see; it sees ` +
          `${Device.get(0).uuid}, ${Device.get(1).uuid}\\. `,
      ),
    };
    assert.throws(() => openIpcBuffer(changed(getIpcHandle(buffer), elsewhere)), expected);
    assert.throws(() => openIpcEvent(changed(getIpcHandle(event), elsewhere)), expected);
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name.startsWith('cuIpcOpen')));
  });

  test('a message that is not a descriptor never reaches the driver', () => {
    emulate();
    const recorder = recordCalls();
    for (const message of [undefined, null, {}, 'x', 5, { kind: 'legacy' }]) {
      assert.throws(() => openIpcBuffer(message), { name: 'IpcError' });
      assert.throws(() => openIpcEvent(message), { name: 'IpcError' });
    }
    assert.throws(() => openIpcBuffer({}, { devise: 1 } as never), /unknown option 'devise'/);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('a driver error names the exporter and leaves nothing open', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    using event = CudaEvent.create({ interprocess: true });
    const handle = Buffer.alloc(64).toString('base64');
    const [ofBuffer, ofEvent] = [getIpcHandle(buffer), getIpcHandle(event)];
    const { resources } = buffer.context;
    const before = resources.size;
    assert.throws(
      () => openIpcBuffer(changed(ofBuffer, { handle, pid: OTHER_PID, pidNamespace: 1 })),
      {
        name: 'IpcError',
        message:
          /^memory of process 1073741824 could not be opened: cuIpcOpenMemHandle_v2 failed: /,
      },
    );
    assert.throws(
      () => openIpcEvent(changed(ofEvent, { handle, pid: OTHER_PID, pidNamespace: 1 })),
      {
        name: 'IpcError',
        message:
          /^an event of process 1073741824 could not be opened: cuIpcOpenEventHandle failed: /,
      },
    );
    assert.equal(resources.size, before);
    assert.equal(currentContext(), 0);
  });

  /** The descriptor as another process in another pid namespace would make it. */
  const ofAnother = (descriptor: IpcDescriptor, fields: object = {}): IpcDescriptor =>
    withChecksum({ ...descriptor, pid: OTHER_PID, pidNamespace: 1, ...fields } as never);

  const SIZE = 2 << 20;

  /** Memory filled with one value, and its descriptor with file descriptors. */
  function shared(kind: 'virtual' | 'pool', value: number): ReturnType<typeof exportIpc> {
    const buffer =
      kind === 'virtual'
        ? VirtualMemory.reserve(SIZE, { shareable: true }).grow(SIZE)
        : MemoryPool.create({ maxSize: 32 << 20, shareable: true }).allocate(SIZE);
    buffer.fill(value);
    return exportIpc(buffer);
  }

  const valuesIn = (buffer: DeviceBuffer): number[] => [...new Set(buffer.copyToHostSync())];

  for (const kind of ['virtual', 'pool'] as const)
    test(`memory of kind ${kind} is identified by what was received, not by the name its sender states`, async () => {
      emulate();
      const [honest, hostile] = [shared(kind, 1), shared(kind, 2)];
      // The same as the honest descriptor, apart from the driver's handle.
      const { handle } = hostile.descriptor as { readonly handle?: string };
      const forged = ofAnother(honest.descriptor, kind === 'pool' ? { handle } : {});
      const come = (
        { fds }: typeof honest,
        descriptor: IpcDescriptor,
        session = emptySharingSession(),
      ) => importFromPeer(descriptor, fds.map(duplicateFd), session) as DeviceBuffer;
      const sessions = Array.from({ length: 4 }, emptySharingSession);
      const first = come(hostile, forged, sessions[0]);
      const second = come(honest, ofAnother(honest.descriptor), sessions[1]);
      assert.deepEqual([valuesIn(first), valuesIn(second)], [[2], [1]]);
      assert.notEqual(first.resource ?? first, second.resource ?? second);
      // Each is mapped once, however often and over whichever connection it comes.
      const recorder = recordCalls();
      const again = come(honest, ofAnother(honest.descriptor), sessions[2]);
      const forgedAgain = come(hostile, forged, sessions[3]);
      recorder.stop();
      assert.deepEqual([again.address, forgedAgain.address], [second.address, first.address]);
      assert.ok(!recorder.calls.some(({ name }) => /Import|cuMemMap/.test(name)));
      for (const buffer of [first, forgedAgain]) buffer.close();
      await Context.primary().flush();
      assert.deepEqual(valuesIn(second), [1]);
      for (const buffer of [second, again]) buffer.close();
      for (const session of sessions) closeSharingSession(session);
    });

  test('a pool sent over a connection is not found by an identity that other processes have seen', () => {
    emulate();
    const { descriptor, fds } = shared('pool', 3);
    using _pool = openIpcPool(
      withChecksum({
        ...ofAnother(descriptor),
        handle: null,
        baseByteLength: 0,
        byteLength: 0,
        generation: 0,
        bufferId: 0,
      } as never),
      { fds: fds.map(duplicateFd) },
    );
    using opened = openIpcBuffer(ofAnother(descriptor));
    assert.deepEqual(valuesIn(opened), [3]);
    assert.throws(() => importFromPeer(ofAnother(descriptor), [], emptySharingSession()), {
      code: 'no-file-descriptor',
    });
  });

  test('a pool is found by its identity only if its maker sent it', () => {
    emulate();
    const { pid } = localProcess();
    const { descriptor, fds } = shared('pool', 3);
    // Another running process in this namespace.
    const fields = {
      ...ofAnother(descriptor),
      pid: process.ppid,
      pidNamespace: localProcess().pidNamespace,
    };
    const startTime = processStartTime(process.ppid);
    const named = withChecksum({ ...fields, startTime } as never);
    for (const sender of [pid, 0, process.ppid]) {
      const session = { ...emptySharingSession(), process: { pid: sender } };
      using received = importFromPeer(named, fds.map(duplicateFd), session) as DeviceBuffer;
      const open = (): DeviceBuffer => openIpcBuffer(named);
      if (sender === process.ppid) {
        using opened = open();
        assert.equal(opened.resource, received.resource);
      } else assert.throws(open, { code: 'no-file-descriptor' });
      closeSharingSession(session);
    }
  });

  test('two pools with one identity are not found by that identity alone', async () => {
    emulate();
    const [one, other] = [shared('pool', 1), shared('pool', 2)];
    const { pool } = one.descriptor as { readonly pool: string };
    const open = ({ descriptor, fds }: typeof one): DeviceBuffer =>
      openIpcBuffer(ofAnother(descriptor, { pool }), { fds: fds.map(duplicateFd) });
    using first = open(one);
    const second = open(other);
    assert.deepEqual([valuesIn(first), valuesIn(second)], [[1], [2]]);
    assert.throws(() => openIpcBuffer(ofAnother(one.descriptor)), { code: 'no-file-descriptor' });
    second.close();
    await Context.primary().flush();
    using found = openIpcBuffer(ofAnother(one.descriptor));
    assert.equal(found.resource, first.resource);
  });

  test('one pool that came by two identities is imported once, and its memory is unmapped after the last use', async () => {
    emulate();
    const { descriptor, fds } = shared('pool', 4);
    const id = 'ab'.repeat(16);
    const recorder = recordCalls();
    const [first, second] = [{}, { pool: id }].map((fields) =>
      openIpcBuffer(ofAnother(descriptor, fields), { fds: fds.map(duplicateFd) }),
    ) as [DeviceBuffer, DeviceBuffer];
    assert.ok(first.resource instanceof ImportedPool);
    assert.equal(first.resource, second.resource);
    assert.equal(first.address, second.address);
    first.close();
    await Context.primary().flush();
    assert.deepEqual(valuesIn(second), [4]);
    second.close();
    await Context.primary().flush();
    recorder.stop();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name).length;
    assert.deepEqual([count('cuMemFreeAsync'), count('cuMemPoolDestroy')], [1, 1]);
  });

  test('sharing and opening throw during a graph capture, without a driver call', () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    using array = deviceArray([4], float32);
    using event = CudaEvent.create({ interprocess: true });
    const pool = MemoryPool.create({ maxSize: 32 << 20, shareable: true });
    const pooled = pool.allocate(64);
    const memory = VirtualMemory.reserve(SIZE, { shareable: true });
    memory.grow(SIZE);
    const shareable = [buffer, array, event, pool, pooled, memory];
    // Also objects that were exported before.
    const parcels = shareable.map((each) => exportIpc(each as DeviceBuffer));
    const ofPool = exportIpc(pool).descriptor;
    using handle = getIpcHandle(array);
    const message = ofAnother(handle.toJSON());
    const opened: readonly ((descriptor: IpcDescriptor, fds: number[]) => unknown)[] = [
      (descriptor, fds) => openIpc(descriptor, { fds }),
      ({ kind, ...descriptor }, fds) =>
        (kind === 'event' ? openIpcEvent : openIpcBuffer)({ kind, ...descriptor }, { fds }),
    ];
    const given: number[] = [];
    const refusal = (doing: string) => ({
      name: 'CuffiError',
      message: new RegExp(`^${doing} is not possible while a graph is captured`),
    });
    const sharing = refusal('sharing');
    const opening = refusal('opening what another process shared');
    using graph = Graph.capture(stream, () => {
      buffer.fill(1, { stream });
      using recorder = recordCalls();
      for (const object of [buffer, array, event] as const)
        assert.throws(() => getIpcHandle(object as DeviceBuffer), sharing);
      assert.throws(() => getIpcHandle(buffer, { stream }), sharing);
      assert.throws(() => exportIpc(buffer, { stream }), sharing);
      for (const object of shareable)
        assert.throws(() => exportIpc(object as DeviceBuffer), sharing);
      for (const { descriptor, fds } of parcels)
        for (const open of opened) {
          if ('handle' in descriptor && descriptor.handle === null && open === opened[1]) continue;
          const own = fds.map(duplicateFd);
          given.push(...own);
          assert.throws(() => open(ofAnother(descriptor), own), opening);
        }
      assert.throws(() => IpcArrayHandle.from(message).open(), opening);
      assert.throws(() => openIpcPool(ofAnother(ofPool)), opening);
      assert.deepEqual(recorder.calls, []);
    });
    assert.deepEqual(given.filter(isOpenFd), []);
    // The capture continued.
    graph.launch({ stream });
    stream.synchronizeSync();
    assert.deepEqual(valuesIn(buffer), [1]);
    pool.close({ buffers: true });
    memory.close();
  });
});

/** Arrays in descriptors: exported, opened, and hostile ones refused. */
describe('openIpcArray', () => {
  test('a message that is not a descriptor is refused as by openIpcBuffer, and its files are closed', () => {
    emulate();
    const recorder = recordCalls();
    const before = openDescriptors();
    for (const [message, hint] of [
      [undefined, /./],
      [null, /./],
      [5, /./],
      [{}, /it has no kind/],
      ['{}', /it is text: JSON\.parse it first/],
      [Promise.resolve(), /it is a Promise: await it first/],
      [{ kind: 'legacy' }, /./],
      // What only Python or C sends has no file descriptors.
      [{ handle: Buffer.alloc(64), shape: [4], dtype: float32 }, /handle alone has no file desc/],
    ] as const) {
      const fds = [duplicateFd(0)];
      assert.throws(() => openIpcArray(message, { fds }), {
        name: 'IpcError',
        code: 'invalid-descriptor',
        message: hint,
      });
    }
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.deepEqual(openDescriptors(), before);
    class Options {}
    assert.throws(() => openIpcArray({}, new Options()), /options must be a plain object/);
    assert.throws(() => openIpcArray({}, { devise: 1 } as never), /unknown option 'devise'/);
    const raw = { handle: Buffer.alloc(64, 2), shape: [4], dtype: float32 };
    assert.throws(() => openIpcArray(raw, { access: 'read' }), /unknown option 'access'/);
  });

  const MIB = 1 << 20;
  const alias = { sameProcess: 'alias' } as const;
  const seal = (fields: object): IpcMemoryDescriptor =>
    withChecksum(fields as never) as IpcMemoryDescriptor;
  /** The descriptor as another process in another pid namespace would make it. */
  const ofAnother = (descriptor: object, fields: object = {}): IpcMemoryDescriptor =>
    seal({ ...descriptor, pid: 2 ** 30, pidNamespace: 1, ...fields });
  const numbers = (length: number): Int16Array => Int16Array.from({ length }, (_, i) => i);

  /** One allocation of each kind, as an int16 array of ascending numbers. */
  function allocations(): DeviceArray<typeof int16>[] {
    const pool = MemoryPool.create({ maxSize: 32 * MIB, shareable: true });
    const memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
    memory.grow(2 * MIB);
    const buffers = [DeviceBuffer.allocate(8192), pool.allocate(8192), memory.grow(4 * MIB)];
    return buffers.map((buffer) => {
      const array = fromBuffer(buffer, buffer.byteLength / 2, int16);
      array.copyFromSync(numbers(array.size));
      return array;
    });
  }

  test('a view with any strides is shared as exactly the bytes that it occupies', () => {
    emulate();
    for (const all of allocations()) {
      const grid = all.slice({ start: 100, stop: 148 }).reshape([6, 8]);
      for (const [view, offset, byteLength] of [
        [grid, 200, 96],
        [grid.slice({ start: 1, step: 2 }, { start: 3 }).T, 222, 74],
        [grid.slice({ step: -1 }, { step: -3 }), 202, 94],
        [grid.at(5, 7), 294, 2],
        [grid.at(0).broadcastTo([3, 8]), 200, 16],
        [grid.view(Dtype.bytes(4)), 200, 96],
        [grid.view(bfloat16), 200, 96],
      ] as const) {
        const { descriptor } = exportIpc(view);
        assert.ok(descriptor.kind !== 'event');
        assert.deepEqual([descriptor.byteOffset, descriptor.byteLength], [offset, byteLength]);
        assert.deepEqual(JSON.parse(JSON.stringify(descriptor)), descriptor);
        assert.deepEqual(decodeDescriptor(encodeDescriptor(descriptor)), descriptor);
        using opened = openIpcArray(descriptor, alias);
        assert.deepEqual(
          [opened.dtype.name, opened.shape, opened.strides, opened.readOnly, opened.extents],
          [view.dtype.name, view.shape, view.strides, view.readOnly, view.extents],
        );
        assert.deepEqual(opened.copyToHostSync(), view.copyToHostSync());
        const bytes = openIpcBuffer(descriptor, alias);
        assert.deepEqual([bytes.address, bytes.byteLength], [view.extents.low, byteLength]);
      }
    }
    const buffer = DeviceBuffer.allocate(20_000);
    fc.assert(
      fc.property(anyLayout, ({ shape, strides, itemsize, byteOffset }) => {
        const dtype = Dtype.bytes(itemsize);
        const array = fromBuffer(buffer, shape, dtype, { strides, byteOffset });
        if (array.size === 0) {
          assert.throws(() => exportIpc(array), RangeError);
          return;
        }
        const opened = openIpc(exportIpc(array).descriptor, alias) as DeviceArray;
        assert.deepEqual([opened.address, opened.extents], [array.address, array.extents]);
        assert.deepEqual([opened.shape, opened.strides], [array.shape, array.strides]);
      }),
      trials(300, 10_000),
    );
  });

  test('a hostile layout throws an IpcError without a driver call, or lies within its range', () => {
    emulate();
    const arrays = allocations().map((all) => all.slice({ start: 50, stop: 62 }).reshape([3, 4]).T);
    const parcels = arrays.map((array) => exportIpc(array));
    const sound = parcels[0]?.descriptor as IpcMemoryDescriptor;
    const wrong: readonly (readonly [layout: object, message: RegExp])[] = [
      [{ shape: [2 ** 40, 2 ** 40] }, /too large/],
      [{ shape: [2 ** 53, 3] }, /layout\.shape/],
      [{ shape: [2, 3], strides: [2 ** 52, 2 ** 52] }, /too large|range that has/],
      [{ strides: [-(2 ** 53), 2] }, /layout\.strides/],
      [{ strides: [-8, -2], shape: [4, 9] }, /its items take 42 bytes of a range that has 24/],
      [{ shape: [4, 4] }, /its items take 32 bytes/],
      [{ shape: [0, 3] }, /it has no items/],
      [{ shape: [-1, 3] }, /layout\.shape/],
      [{ shape: [12] }, /layout\.strides has 2 items, and the shape 1/],
      [{ dtype: 'float' }, /there is no dtype "float"/],
      [{ dtype: 'i2' }, /the dtype is called int16, not i2/],
      [{ dtype: 'V0' }, /itemsize must be/],
      [{ dtype: 'V9999999999' }, /itemsize must be/],
      [{ dtype: 'constructor' }, /there is no dtype/],
      [{ shape: Array(65).fill(1), strides: Array(65).fill(2) }, /layout\.shape/],
      [{ order: 'C' }, /order/],
    ];
    const recorder = recordCalls();
    for (const [change, message] of wrong) {
      const { layout } = sound;
      const hostile = ofAnother(sound, { layout: { ...layout, ...change } });
      for (const open of [openIpcArray, openIpcBuffer, IpcArrayHandle.from])
        assert.throws(() => open(hostile), {
          name: 'IpcError',
          code: 'invalid-descriptor',
          message,
        });
    }
    recorder.stop();
    assert.deepEqual(recorder.calls, []);

    const wild = fc.oneof(fc.integer(), fc.constantFrom(2 ** 31, 2 ** 52, -1));
    const size = fc.oneof({ arbitrary: fc.nat(6), weight: 9 }, { arbitrary: wild, weight: 1 });
    const stride = fc.oneof(
      { arbitrary: fc.integer({ min: -8, max: 8 }), weight: 9 },
      { arbitrary: wild, weight: 1 },
    );
    const axes = fc
      .array(fc.tuple(size, stride), { maxLength: 3 })
      .map((all) => ({ shape: all.map(([n]) => n), strides: all.map(([, step]) => step) }));
    const change = fc.oneof(
      axes,
      fc.record({ dtype: fc.constantFrom('int16', 'uint8', 'V7', 'V70', 'x', '__proto__') }),
      fc.record({ shape: fc.array(size, { maxLength: 3 }) }),
    );
    const range = fc.oneof(
      { arbitrary: fc.constant({}), weight: 2 },
      {
        arbitrary: fc.record(
          {
            byteOffset: fc.oneof(fc.nat(200), wild),
            byteLength: fc.oneof(fc.nat(200), wild),
            baseByteLength: wild,
          },
          { requiredKeys: [] },
        ),
        weight: 1,
      },
    );
    const opened = new Set<string>();
    for (const { descriptor, fds } of parcels.slice(1))
      openIpcArray(ofAnother(descriptor), { fds: fds.map(duplicateFd) }).close();
    Context.primary().releases.drainReady();
    const before = openDescriptors();
    fc.assert(
      fc.property(
        fc.constantFrom(...parcels),
        change,
        range,
        fc.boolean(),
        (parcel, layout, fields, isSealed) => {
          const { descriptor, fds } = parcel as { descriptor: IpcMemoryDescriptor; fds: number[] };
          const altered = { ...descriptor, layout: { ...descriptor.layout, ...layout }, ...fields };
          // The driver cannot open a legacy handle of its own process, so an alias is opened.
          const isPlain = descriptor.kind === 'legacy';
          const made = isPlain ? seal(altered) : ofAnother(altered);
          const message = isSealed ? made : { ...made, checksum: descriptor.checksum };
          try {
            const own = isPlain ? alias : { fds: fds.map(duplicateFd) };
            using array = openIpcArray(message as IpcMemoryDescriptor, own);
            opened.add(descriptor.kind);
            if (!isSealed) assert.equal(made.checksum, descriptor.checksum);
            const { low, high } = array.extents;
            const { address, byteLength } = array.buffer;
            assert.ok(low >= address && high <= address + byteLength);
            assert.equal(byteLength, message.byteLength);
            assert.ok(message.byteOffset + byteLength <= message.baseByteLength);
            if (array.size < 1e6) array.copyToHostSync();
          } catch (error) {
            assert.ok(error instanceof IpcError, String(error));
          }
        },
      ),
      trials(300, 10_000),
    );
    assert.deepEqual([...opened].sort(), ['legacy', 'pool', 'virtual']);
    Context.primary().releases.drainReady();
    assert.equal(openDescriptors(), before);
  });

  test('asArray closes memory that is too small for the items of its descriptor', () => {
    emulate();
    const { descriptor } = exportIpc(deviceArray(8, float32));
    for (const byteLength of [28, 31, 32]) {
      const opened = DeviceBuffer.allocate(byteLength);
      if (byteLength === 32) {
        (asArray(opened, descriptor) as DeviceArray).close();
      } else {
        assert.throws(() => asArray(opened, descriptor), {
          name: 'IpcError',
          code: 'invalid-descriptor',
          message: new RegExp(`take 32 bytes, but the memory that it shared has ${byteLength}$`),
        });
      }
      assert.equal(opened.closed, true);
    }
  });

  test('two views of one buffer share a mapping, which is unmapped with the last view', async () => {
    emulate();
    const [, pooled, virtual] = allocations();
    const context = Context.primary();
    const recorder = recordCalls();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name && call.status === 0).length;
    for (const [all, mapped] of [
      [pooled, 'cuMemPoolImportPointer'],
      [virtual, 'cuMemImportFromShareableHandle'],
    ] as const) {
      const parcels = [all?.slice({ stop: 64 }), all?.slice({ step: 3, stop: 90 }).T].map((view) =>
        exportIpc(view as DeviceArray),
      );
      const open = ({ descriptor, fds }: Exported): DeviceArray =>
        openIpcArray(ofAnother(descriptor), { fds: fds.map(duplicateFd), access: 'read' });
      // The first use in a process creates the memfd of the counts.
      open(parcels[0] as Exported).close();
      await context.flush();
      const before = openDescriptors();
      const mappings = count(mapped);
      const [first, second] = parcels.map(open) as [DeviceArray, DeviceArray];
      assert.equal(count(mapped), mappings + 1, mapped);
      assert.equal(first.address, second.address);
      assert.throws(() => first.fill(1), { name: 'TypeError', message: /read only/ });
      const part = first.slice({ start: 3 });
      first.close();
      assert.throws(() => part.address, { name: 'ClosedError' });
      assert.equal((second.copyToHostSync() as Int16Array)[29], 87);
      // An imported view is exported again as it came, narrowed to the view.
      const passOn = () =>
        exportIpc(second.slice({ start: 1, stop: 3 })).descriptor as IpcMemoryDescriptor;
      if (all === pooled) {
        assert.throws(passOn, { name: 'IpcError', code: 'not-supported' });
      } else {
        const again = passOn();
        assert.deepEqual(
          [again.pid, again.byteOffset, again.byteLength, again.layout, again.access],
          [2 ** 30, 6, 8, { dtype: 'int16', shape: [2], strides: [6] }, 'read'],
        );
      }
      second.close();
      await context.flush();
      // What other tests have dropped may be released meanwhile.
      assert.ok(openDescriptors() <= before);
    }
    recorder.stop();
  });

  test('a handle keeps the memory until it is closed, and refuses a second open', async () => {
    emulate();
    const context = Context.primary();
    const array = toDeviceSync(numbers(1 << 20), { dtype: int16 });
    const before = context.memoryInfo().free;
    const handle = getIpcHandle(array.slice({ step: 2 }));
    assert.deepEqual({ ...handle }, { ...handle.toJSON() });
    assert.equal('life' in handle, false);
    for (const sent of [handle, { ...handle }])
      for (const copy of [structuredClone(sent), JSON.parse(JSON.stringify(sent))])
        assert.deepEqual(copy, { ...handle.toJSON() });
    assert.throws(() => handle.open(), { name: 'IpcError', code: 'same-process' });
    const opened = handle.open(alias);
    assert.throws(() => handle.open(alias), { name: 'IpcError', message: /already open/ });
    opened.close();
    const again = handle.open({ ...alias, access: 'read' });
    assert.equal(again.readOnly, true);
    assert.equal((await again.copyToHost())[3], 6);
    array.close();
    assert.deepEqual([array.closed, array.buffer.closed, again.closed], [true, true, true]);
    await context.flush();
    assert.equal(context.memoryInfo().free, before);
    handle.close();
    handle.close();
    await context.flush();
    assert.ok(context.memoryInfo().free >= before + 2 * MIB);
    assert.throws(() => handle.open(alias), { name: 'ClosedError' });

    const other = deviceArray(4, float32);
    const twice = [getIpcHandle(other), getIpcHandle(other)] as const;
    const free = context.memoryInfo().free;
    other.close();
    twice[0].close();
    await context.flush();
    assert.equal(context.memoryInfo().free, free, 'the second still holds it');
    await context.reset();
    twice[1].close();

    const pool = MemoryPool.create({ maxSize: 32 * MIB, shareable: true });
    const empty = deviceArray([0, 3], float32);
    assert.throws(() => getIpcHandle(deviceArray(4, float32, { memory: pool })), {
      name: 'IpcError',
      message: /share it with exportIpc/,
    });
    assert.throws(() => getIpcHandle(empty), RangeError);
    assert.throws(() => getIpcHandle(array), { name: 'ClosedError' });
    assert.throws(() => getIpcHandle(other, { streams: 1 } as never), /unknown option 'streams'/);
    assert.throws(() => exportIpc(pool as never, { stream: Stream.legacyDefault() }), TypeError);
    const bytes = exportIpc(DeviceBuffer.allocate(16)).descriptor as IpcMemoryDescriptor;
    for (const open of [IpcArrayHandle.from, openIpcArray])
      assert.throws(() => open(bytes), {
        name: 'IpcError',
        message: /describes bytes, not an array/,
      });
    assert.throws(() => IpcArrayHandle.from({}), { name: 'IpcError', code: 'invalid-descriptor' });
  });

  test('a sent array is ordered behind its stream, and a sent buffer behind all work', async (t) => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using array = deviceArray([2, 2], float32, { stream });
    const asked: unknown[] = [];
    for (const name of ['pointsBehindStream', 'pointsBehindContext'] as const) {
      const behind = ConnectionTimeline.prototype[name] as (place: never) => TimelinePoint[];
      t.mock.method(
        ConnectionTimeline.prototype,
        name,
        function (this: ConnectionTimeline, place: never) {
          asked.push(place);
          return behind.call(this, place);
        },
      );
    }
    using pair = peerPair();
    await pair.a.send([array, array]);
    await pair.a.send(array.buffer);
    assert.deepEqual(asked, [stream, array.context]);
  });

  test('ready waits for the work of the stream, and can be aborted', async () => {
    emulate();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    const array = deviceArray([2, 2], float32, { stream });
    const made = context.resources.size;
    using latch = new Latch();
    latch.hold(stream);
    array.fill(3);
    const handle = getIpcHandle(array, { stream });
    const ofBuffer = getIpcHandle(array.buffer, { stream });
    const parcel = exportIpc(array, { stream });
    assert.deepEqual(parcel.descriptor.layout, handle.layout);
    assert.notEqual(handle.readyEvent?.handle, ofBuffer.readyEvent?.handle);
    const waits = [handle.ready(), ofBuffer.ready(), ready(structuredClone(parcel.descriptor))];
    await assert.rejects(handle.ready({ timeoutMs: 5 }), { name: 'TimeoutError' });
    await assert.rejects(ready(handle, { signal: AbortSignal.abort('given up') }), (reason) => {
      assert.equal(reason, 'given up');
      return true;
    });
    const closed = getIpcHandle(array, { stream });
    const wait = closed.ready();
    closed.close();
    await assert.rejects(wait, { name: 'ClosedError' });
    latch.open();
    await Promise.all(waits);
    assert.deepEqual(await handle.open(alias).copyToHost(), Float32Array.of(3, 3, 3, 3));
    const there = IpcBufferHandle.from(JSON.parse(JSON.stringify(ofBuffer)));
    assert.equal(there.open(alias).byteLength, 16);
    there.close();
    // Work that was once done stays done, even if its event is closed.
    parcel.close();
    await assert.rejects(ready(parcel.descriptor), { name: 'ClosedError' });
    await handle.ready();
    await assert.rejects(ready(getIpcHandle(array.buffer)), /without \{ stream \}/);
    await assert.rejects(ready({}), { name: 'IpcError', code: 'invalid-descriptor' });
    await assert.rejects(ready(handle, { timeout: 1 } as never), /unknown option 'timeout'/);
    const altered = { ...handle.readyEvent, handle: Buffer.alloc(64).toString('base64') };
    for (const message of [
      { ...handle, readyEvent: altered },
      // The checksum around the event is right.
      { ...handle, readyEvent: { ...handle.readyEvent, checksum: 0 } },
    ])
      await assert.rejects(ready(message), { name: 'IpcError', code: 'corrupted' });
    for (const each of [handle, ofBuffer]) each.close();
    await context.flush();
    assert.ok(context.resources.size <= made + 1, 'but for the handle that was only asked');
  });

  test('a failing getIpcHandle leaves nothing open and keeps no memory', async () => {
    for (const name of ['cuEventCreate', 'cuIpcGetEventHandle', 'cuEventRecord'] as const) {
      const driver = emulate();
      const context = Context.primary();
      const { free } = context.memoryInfo();
      const array = deviceArray(MIB, float32);
      using stream = Stream.create();
      const { resources } = context;
      const before = resources.size;
      selectDriver(failing(driver, name, 1, 2));
      assert.throws(() => getIpcHandle(array, { stream }), { name: 'CudaError' });
      selectDriver(failing(driver, name, 1, 2));
      assert.throws(() => exportIpc(array, { stream }), { name: 'CudaError' });
      assert.equal(resources.size, before);
      array.close();
      await context.flush();
      assert.equal(context.memoryInfo().free, free, name);
    }
  });

  /** A driver that opens every event handle, as if another process had shared it. */
  function openingEvents(changes: Partial<Driver> = {}): ReadonlySet<string> {
    const emulated = emulate();
    const { driver, open } = keepingBooks({
      ...emulated,
      cuIpcOpenEventHandle: (out) => emulated.cuEventCreate(out, 2),
      ...changes,
    });
    selectDriver(driver);
    return open;
  }

  /** The descriptor of an array shared with a stream, as another process would make it. */
  function sharedBy(fields: object): IpcMemoryDescriptor {
    const stream = Stream.create();
    const { readyEvent, ...handle } = getIpcHandle(deviceArray(4, float32, { stream }), {
      stream,
    }).toJSON();
    return ofAnother(handle, { ...fields, readyEvent: ofAnother(readyEvent as object, fields) });
  }

  test('ready closes the imported event when the wait ends', async () => {
    let status: CUresult = CUresult.CUDA_SUCCESS;
    const open = openingEvents({ cuEventQuery: () => status });
    const opened = (): string[] => [...open].filter((what) => what.startsWith('cuIpcOpenEvent'));
    const message = sharedBy({});
    await ready(message);
    assert.deepEqual(opened(), []);
    status = CUresult.CUDA_ERROR_NOT_READY;
    const abort = new AbortController();
    const waits = ready(message, { signal: abort.signal });
    assert.equal(opened().length, 1);
    abort.abort(new Error('given up'));
    await assert.rejects(waits, { message: 'given up' });
    status = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    await assert.rejects(ready(message), { name: 'CudaError' });
    assert.deepEqual(opened(), []);
  });

  test('ready rejects if the exporter exits before its work is done', {
    timeout: 20_000,
  }, async (t) => {
    const open = openingEvents({ cuEventQuery: () => CUresult.CUDA_ERROR_NOT_READY });
    const child = startProcess('sleep', ['60']);
    t.after(() => killed(child));
    const pid = child.pid as number;
    const { pidNamespace } = localProcess();
    const waits = ready(sharedBy({ pid, startTime: processStartTime(pid), pidNamespace }));
    child.kill('SIGKILL');
    await assert.rejects(waits, {
      name: 'IpcError',
      code: 'exporter-gone',
      message: /exited before/,
    });
    assert.ok(![...open].some((what) => what.startsWith('cuIpcOpenEvent')));
  });

  test('the owner of borrowed memory is kept alive, and not called', () => {
    emulate();
    const array = deviceArray(4, float32);
    const owner = Stream.create();
    const borrowed = fromPointer(array.address, { shape: 4, dtype: float32, owner });
    owner.close();
    assert.equal(borrowed.closed, false);
    const handle = getIpcHandle(borrowed);
    assert.equal(handle.generation, 0);
    handle.close();
  });

  test('a connection exports an array once, and closing the imported array closes its mapping', () => {
    emulate();
    const [, pooled] = allocations();
    const array = (pooled as DeviceArray<typeof int16>).slice({ start: 10, stop: 20 });
    const session = emptySharingSession();
    const receiving = { ...session, receivedPools: new Map() };
    const first = exportForPeer(array, session);
    assert.equal(exportForPeer(array, session)?.descriptor, first?.descriptor);
    const opened = importFromPeer(
      ofAnother(first?.descriptor as object),
      first?.fds.map(duplicateFd) ?? [],
      receiving,
    );
    assert.ok(opened instanceof DeviceArray);
    assert.deepEqual(opened.copyToHostSync(), array.copyToHostSync());
    const own = importFromPeer(first?.descriptor as DescriptorFields, [], {
      ...session,
      hasLeaseOn: () => true,
    }) as DeviceArray;
    assert.equal(own.address, array.address);
    discardImported(opened);
    assert.equal(opened.buffer.closed, true);
    closeSharingSession(receiving);
  });
});
