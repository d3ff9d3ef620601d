import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls } from '../../../../ffi/driver.ts';
import { duplicateFd, isOpenFd } from '../../../../ffi/libc.ts';
import { processStartTime } from '../../../../ffi/process.ts';
import {
  Context,
  CudaEvent,
  Device,
  DeviceBuffer,
  deviceArray,
  float32,
  Graph,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../../../src/index.ts';
import { type IpcDescriptor, sealDescriptor } from '../../../../src/ipc/descriptor.ts';
import { here } from '../../../../src/ipc/here.ts';
import {
  exportIpc,
  getIpcHandle,
  ImportedPool,
  IpcArrayHandle,
  openIpc,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
} from '../../../../src/ipc/index.ts';
import { emptySession, endSession, unpack } from '../../../../src/ipc/parcel.ts';
import { currentContext, emulate } from '../emulate.ts';

const OTHER_PID = 2 ** 30;
/** A descriptor with other values, as its own process would have sealed it. */
const changed = (descriptor: object, values: object): unknown =>
  sealDescriptor({ ...descriptor, ...values } as never);
const elsewhere = { device: 'GPU-00000000-0000-0000-0000-000000000000', pid: OTHER_PID };

test('its own handles are refused before the driver is asked', () => {
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
  // One that was started earlier, and had the number before.
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

test('a GPU that this process does not see is named beside those that it sees', () => {
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

test('a message that is no descriptor never reaches the driver', () => {
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

test('what the driver refuses says whose it was, and leaves nothing open', () => {
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
      message: /^memory of process 1073741824 could not be opened: cuIpcOpenMemHandle_v2 failed: /,
    },
  );
  assert.throws(() => openIpcEvent(changed(ofEvent, { handle, pid: OTHER_PID, pidNamespace: 1 })), {
    name: 'IpcError',
    message: /^an event of process 1073741824 could not be opened: cuIpcOpenEventHandle failed: /,
  });
  assert.equal(resources.size, before);
  assert.equal(currentContext(), 0);
});

/** As another process, of which nothing is to be seen, would have made it. */
const ofAnother = (descriptor: IpcDescriptor, fields: object = {}): IpcDescriptor =>
  sealDescriptor({ ...descriptor, pid: OTHER_PID, pidNamespace: 1, ...fields } as never);

const SIZE = 2 << 20;

/** Memory of one value, and all that a process says of it. */
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
  test(`memory of kind ${kind} is what came: not what another sender has given the same name`, async () => {
    emulate();
    const [honest, hostile] = [shared(kind, 1), shared(kind, 2)];
    // All as the honest one says it, but for how the driver finds it in the pool.
    const { handle } = hostile.descriptor as { readonly handle?: string };
    const forged = ofAnother(honest.descriptor, kind === 'pool' ? { handle } : {});
    const come = ({ fds }: typeof honest, descriptor: IpcDescriptor, session = emptySession()) =>
      unpack(descriptor, fds.map(duplicateFd), session) as DeviceBuffer;
    const sessions = [emptySession(), emptySession()] as const;
    const first = come(hostile, forged, sessions[0]);
    const second = come(honest, ofAnother(honest.descriptor), sessions[1]);
    assert.deepEqual([valuesIn(first), valuesIn(second)], [[2], [1]]);
    assert.notEqual(first.resource ?? first, second.resource ?? second);
    // Each is mapped once, however often it comes, and by whichever connection.
    const recorder = recordCalls();
    const again = come(honest, ofAnother(honest.descriptor));
    const forgedAgain = come(hostile, forged);
    recorder.stop();
    assert.deepEqual([again.address, forgedAgain.address], [second.address, first.address]);
    assert.ok(!recorder.calls.some(({ name }) => /Import|cuMemMap/.test(name)));
    for (const buffer of [first, forgedAgain]) buffer.close();
    await Context.primary().flush();
    assert.deepEqual(valuesIn(second), [1]);
    for (const buffer of [second, again]) buffer.close();
    for (const session of sessions) endSession(session);
  });

test('over a connection a pool is not found by a name that other processes have seen', () => {
  emulate();
  const { descriptor, fds } = shared('pool', 3);
  using _pool = openIpcPool(
    sealDescriptor({
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
  assert.throws(() => unpack(ofAnother(descriptor), [], emptySession()), {
    code: 'no-file-descriptor',
  });
});

test('a pool that its maker has sent is found by its name, and one of another sender is not', () => {
  emulate();
  const { pid } = here();
  const { descriptor, fds } = shared('pool', 3);
  // Another process of this namespace, which lives.
  const fields = { ...ofAnother(descriptor), pid: process.ppid, pidNamespace: here().pidNamespace };
  const startTime = processStartTime(process.ppid);
  const named = sealDescriptor({ ...fields, startTime } as never);
  for (const sender of [pid, 0, process.ppid]) {
    const session = { ...emptySession(), process: { pid: sender } };
    using received = unpack(named, fds.map(duplicateFd), session) as DeviceBuffer;
    const open = (): DeviceBuffer => openIpcBuffer(named);
    if (sender === process.ppid) {
      using opened = open();
      assert.equal(opened.resource, received.resource);
    } else assert.throws(open, { code: 'no-file-descriptor' });
    endSession(session);
  }
});

test('of two pools that were opened by one name neither is found by it alone', async () => {
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

test('one pool that came by two names is one, and its memory is unmapped after the last use', async () => {
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

test('nothing is shared or opened while a graph is captured: the driver is not asked', () => {
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
  // Also what was shared before, which has its descriptor.
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
    message: new RegExp(`^${doing} while a graph is captured`),
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
    for (const object of shareable) assert.throws(() => exportIpc(object as DeviceBuffer), sharing);
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
  // The capture went on.
  graph.launch({ stream });
  stream.synchronizeSync();
  assert.deepEqual(valuesIn(buffer), [1]);
  pool.close({ buffers: true });
  memory.close();
});
