import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver, FunctionName } from '../../../../../ffi/functions.ts';
import { closeFd, duplicateFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { isProcessEnding, processStartTime } from '../../../../../ffi/linux/process.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import {
  CudaEvent,
  DeviceBuffer,
  deviceArray,
  float32,
  MemoryPool,
  VirtualMemory,
} from '../../../../../src/index.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { localProcess } from '../../../../../src/ipc/identity.ts';
import { exportIpc, openIpc, openIpcBuffer, type Shareable } from '../../../../../src/ipc/index.ts';
import {
  ExportTable,
  type LeaseHolder,
  leaseRegistry,
} from '../../../../../src/ipc/lease/export-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Tag } from '../../../../../src/ipc/protocol.ts';
import { encodeFields, withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { leaves } from '../../../../support/left-open.ts';
import { collectGarbage } from '../../../../support/process-state.ts';
import { killed, startProcess } from '../../../../support/program.ts';
import { emptySharingSession } from '../../../../support/sharing.ts';
import { emulate } from '../../emulate.ts';
import { RawPeer, tableOf } from '../peer/support.ts';

const SIZE = 2 << 20;

/** Objects of each kind, and the driver functions that open them. */
const kinds = {
  memory: [() => DeviceBuffer.allocate(SIZE), 'cuIpcOpenMemHandle_v2'],
  event: [() => CudaEvent.create({ interprocess: true }), 'cuIpcOpenEventHandle'],
  pool: [() => newPool(), 'cuMemPoolImportFromShareableHandle'],
  'memory of a new pool': [() => newPool().allocate(SIZE), 'cuMemPoolImportFromShareableHandle'],
  'memory of a pool': [() => newPool().allocate(SIZE), 'cuMemPoolImportPointer'],
  'access to a pool': [() => newPool().allocate(SIZE), 'cuMemPoolGetAccess'],
  'virtual memory': [
    () => VirtualMemory.reserve(SIZE, { shareable: true }).grow(SIZE),
    'cuMemImportFromShareableHandle',
  ],
} as const satisfies Record<string, readonly [make: () => object, opens: FunctionName]>;

const newPool = (): MemoryPool => MemoryPool.create({ maxSize: 32 << 20, shareable: true });

describe('openDescriptor', () => {
  /** Opens an object while `name` fails with `status`. If `ends`, its exporter is killed in that call. */
  function open(
    t: TestContext,
    make: () => object,
    name: FunctionName,
    { ends, status }: { readonly ends: boolean; readonly status: CUresult },
  ): unknown {
    const driver = emulate();
    const { descriptor, fds } = exportIpc(make() as DeviceBuffer);
    const exporter = startProcess('sleep', ['60']);
    t.after(() => killed(exporter));
    const pid = exporter.pid as number;
    const { pidNamespace } = localProcess();
    const by = { pid, startTime: processStartTime(pid), pidNamespace };
    selectDriver({
      ...driver,
      [name]: () => {
        if (ends) exporter.kill('SIGKILL');
        while (ends && !isProcessEnding(pid));
        return status;
      },
    } as Driver);
    const received = fds.map(duplicateFd);
    try {
      return openIpc(withChecksum({ ...descriptor, ...by } as never), { fds: received });
    } catch (error) {
      assert.ok(!received.some(isOpenFd), 'the descriptors are closed');
      return error;
    }
  }

  const { CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY } = CUresult;

  for (const [kind, [make, name]] of Object.entries(kinds))
    test(`${kind} whose exporter ends before ${name} is refused as of a process that has exited`, (t) => {
      const gone = open(t, make, name, { ends: true, status: CUDA_ERROR_INVALID_HANDLE }) as Error;
      const { code, cause } = gone as { code?: string; cause?: { name: string; call: string } };
      // The file descriptors of virtual memory keep it, so the refusal has another cause.
      assert.equal(code, kind === 'virtual memory' ? 'ipc-failed' : 'exporter-gone');
      if (kind !== 'virtual memory') assert.match(gone.message, /^process \d+, .* has exited\. It/);
      assert.deepEqual([cause?.name, cause?.call], ['CudaError', name]);
    });

  test('what the driver refuses of a living process, or for lack of memory, keeps its code', (t) => {
    const [make, name] = kinds.memory;
    for (const options of [
      { ends: false, status: CUDA_ERROR_INVALID_HANDLE },
      { ends: true, status: CUDA_ERROR_OUT_OF_MEMORY },
    ])
      assert.equal((open(t, make, name, options) as { code?: string }).code, 'ipc-failed');
  });
});

/** Descriptors that return to their process: over a connection, the peer needs a lease on each. */
describe('openAlias', () => {
  const refused = {
    name: 'IpcError',
    code: 'same-process',
    message: /that it holds no lease on/,
  };

  function shareables(): Record<string, Shareable> {
    const pool = MemoryPool.create({ maxSize: 32 << 20, shareable: true });
    const memory = VirtualMemory.reserve(4 << 20, { shareable: true });
    memory.grow(4 << 20);
    return {
      plain: DeviceBuffer.allocate(64),
      pooled: pool.allocate(64),
      memory,
      array: deviceArray(8, float32),
      pool,
      event: CudaEvent.create({ interprocess: true }),
    };
  }

  const holder = (pid: number): LeaseHolder => ({ pid, name: `process ${pid}`, revoke() {} });

  test('what comes back after it was closed and collected is a closed object of this process, if its peer holds a lease', async () => {
    emulate();
    const [lent, none] = [new ExportTable(holder(2 ** 30)), new ExportTable(holder(2 ** 30 - 1))];
    const sessionOf = (table: ExportTable) => ({
      ...emptySharingSession(),
      hasLeaseOn: (asked: Shareable) => table.hasLeaseOn(asked),
      hasLeaseOnCollected: (name: string) => table.hasLeaseOnCollected(name),
    });
    const made = ((): [string, IpcDescriptor][] => {
      const objects = shareables();
      const exported = Object.values(objects).map((object) => exportIpc(object));
      lent.add(Object.values(objects), undefined, exported);
      objects['pooled']?.close();
      for (const object of Object.values(objects)) object.close();
      return Object.keys(objects).map((name, at) => [
        name,
        exported[at]?.descriptor as IpcDescriptor,
      ]);
    })();
    await collectGarbage();
    for (const [name, descriptor] of made) {
      const receive = (table: ExportTable) => () =>
        importFromPeer(descriptor, [], sessionOf(table));
      assert.throws(receive(lent), { name: 'ClosedError' }, name);
      assert.throws(receive(none), refused, name);
    }
    lent.endAll();
    for (const [name, descriptor] of made)
      assert.throws(() => importFromPeer(descriptor, [], sessionOf(lent)), refused, name);
  });

  test('an alias of an event is closed with the original, and closing it keeps the original open', () => {
    emulate();
    const event = CudaEvent.create({ interprocess: true });
    const lent = new ExportTable(holder(2 ** 30));
    lent.add([event], undefined);
    const session = {
      ...emptySharingSession(),
      hasLeaseOn: (asked: Shareable) => lent.hasLeaseOn(asked),
    };
    const receive = () => importFromPeer(exportIpc(event).descriptor, [], session) as CudaEvent;
    const first = receive();
    const second = receive();
    assert.notEqual(first, event);
    assert.equal(first.handle, event.handle);
    first.close();
    assert.deepEqual([first.closed, second.closed, event.closed], [true, false, false]);
    event.close();
    assert.equal(second.closed, true);
    assert.throws(() => second.handle, { name: 'ClosedError' });
    lent.endAll();
  });

  test("a peer that holds no lease cannot open this process's descriptors of any kind", () => {
    emulate();
    for (const [name, object] of Object.entries(shareables())) {
      const { descriptor } = exportIpc(object);
      assert.throws(() => importFromPeer(descriptor, [], emptySharingSession()), refused, name);
      const lent = new ExportTable(holder(2 ** 30));
      const session = {
        ...emptySharingSession(),
        hasLeaseOn: (asked: Shareable) => lent.hasLeaseOn(asked),
      };
      lent.add([object], undefined);
      const back = importFromPeer(descriptor, [], session) as Shareable;
      if (back !== object) back.close();
      lent.endAll();
      assert.throws(() => importFromPeer(descriptor, [], session), refused, name);
    }
  });

  test('a peer cannot return a larger range, or more access, than it was given', () => {
    emulate();
    const buffer = DeviceBuffer.allocate(64);
    const lent = new ExportTable(holder(2 ** 30));
    lent.add([buffer.subarray(16, 32), buffer.subarray(32, 48).readOnly()], undefined);
    const has = (begin: number, end: number, access: 'read' | 'read-write'): boolean => {
      const part = buffer.subarray(begin, end);
      return lent.hasLeaseOn(access === 'read' ? part.readOnly() : part);
    };
    assert.deepEqual(
      [has(16, 32, 'read-write'), has(20, 24, 'read'), has(32, 48, 'read')],
      [true, true, true],
    );
    assert.deepEqual(
      [has(15, 32, 'read'), has(16, 33, 'read'), has(32, 48, 'read-write'), has(0, 64, 'read')],
      [false, false, false, false],
    );
    lent.endAll();
    const array = deviceArray(16, float32);
    lent.add([array.slice({ start: 4, stop: 8 })], undefined);
    assert.deepEqual(
      [
        lent.hasLeaseOn(array.buffer.subarray(16, 32)),
        lent.hasLeaseOn(array.buffer.subarray(16, 36)),
      ],
      [true, false],
    );
    lent.endAll();
    // Its items repeat, so it is read-only.
    const repeated = deviceArray(4, float32).at(0).broadcastTo([3]);
    lent.add([repeated], undefined);
    const item = repeated.buffer.subarray(0, 4);
    assert.deepEqual([lent.hasLeaseOn(item.readOnly()), lent.hasLeaseOn(item)], [true, false]);
    lent.endAll();
  });

  test('an alias never exceeds what was shared, whatever its descriptor states', () => {
    emulate();
    const pool = MemoryPool.create({ maxSize: 32 << 20, shareable: true });
    const alias = { sameProcess: 'alias' } as const;
    for (const buffer of [DeviceBuffer.allocate(64), pool.allocate(64)]) {
      const { descriptor } = exportIpc(buffer) as { descriptor: IpcDescriptor & { kind: 'pool' } };
      const changed = (fields: object): IpcDescriptor =>
        withChecksum({ ...descriptor, ...fields } as never);
      const { byteOffset } = descriptor;
      // The descriptor states a larger allocation.
      const baseByteLength = 1 << 30;
      for (const fields of [
        { byteLength: 65 },
        { byteOffset: byteOffset + 1 },
        { byteOffset: byteOffset + 64, byteLength: 1 },
      ])
        assert.throws(() => openIpcBuffer(changed({ ...fields, baseByteLength }), alias), {
          name: 'IpcError',
          code: 'invalid-descriptor',
        });
      using forReading = openIpcBuffer(changed({ access: 'read' }), alias);
      assert.equal(forReading.access, 'read');
      assert.throws(() => forReading.fill(1), { name: 'TypeError' });
      using forWriting = openIpcBuffer(descriptor, { ...alias, access: 'read-write' });
      assert.equal(forWriting.access, 'read-write');
    }
  });

  test('a peer process holds the leases of all its connections, and forwarded ones', () => {
    emulate();
    const buffer = DeviceBuffer.allocate(64);
    const [one, again, other, unseen, hidden] = [2 ** 30, 2 ** 30, 2 ** 30 + 1, 0, 0].map(
      (pid) => new ExportTable(holder(pid)),
    ) as [ExportTable, ExportTable, ExportTable, ExportTable, ExportTable];
    const all = (): boolean[] =>
      [one, again, other, unseen, hidden].map((lent) => lent.hasLeaseOn(buffer));
    one.add([buffer], undefined);
    assert.deepEqual(all(), [true, true, false, false, false]);
    const passed = leaseRegistry.leasesOf(buffer)[0]?.forwardTo(holder(2 ** 30 + 1));
    one.endAll();
    assert.deepEqual(all(), [false, false, true, false, false]);
    passed?.end();
    // Processes in other pid namespaces cannot be told apart.
    unseen.add([buffer], undefined);
    assert.deepEqual(all(), [false, false, false, true, false]);
    unseen.endAll();
    assert.equal(leaseRegistry.leasesOf(buffer).length, 0);
  });

  test('a peer opens nothing of this process over a connection before this process sends it', async () => {
    leaves(
      /onPeerGone|leaseRegistry$|^driver: allocation$/,
      'leases of a process whose end is unknown last a while',
    );
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    buffer.fill(7);
    const bytes = encodeFields(exportIpc(buffer).descriptor as IpcDescriptor);
    const entry = { bytes: [...bytes] };
    using stranger = new RawPeer({ process: PeerProcess.ofChild(0) } as never);
    stranger.send(Uint8Array.of(Tag.gpuObject, ...tableOf(0, entry)));
    await assert.rejects(stranger.peer.receive(), refused);
    await stranger.peer.send(buffer);
    const sent = stranger.receive();
    if (typeof sent === 'object') sent.fds.forEach(closeFd);
    stranger.send(Uint8Array.of(Tag.gpuObject, ...tableOf(1, entry)), { sequence: 1 });
    using back = (await stranger.peer.receive()) as DeviceBuffer;
    assert.deepEqual(new Set(back.copyToHostSync()), new Set([7]));
  });
});
