import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { inspect } from 'node:util';
import fc from 'fast-check';
import { writeUint64 } from '../../../../../ffi/arena.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import { closeFd, createMemfd, duplicateFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import {
  Context,
  CudaEvent,
  CuffiError,
  Device,
  DeviceBuffer,
  MappedMemory,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../../../../src/index.ts';
import type {
  ExportedFields,
  IpcDescriptor,
  IpcPoolDescriptor,
} from '../../../../../src/ipc/descriptor.ts';
import {
  exportIpc,
  getIpcHandle,
  ImportedPool,
  moveIpcBuffer,
  type OpenOptions,
  openIpc,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
} from '../../../../../src/ipc/index.ts';
import { ImportTable, ownerConnectionOf } from '../../../../../src/ipc/lease/import-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import {
  closeSharingSession,
  releaseImportedPoolLater,
} from '../../../../../src/ipc/sharing/connection-pools.ts';
import { withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import type { ImportLease, SharingSession } from '../../../../../src/ipc/sharing/kind.ts';
import { discardImported } from '../../../../../src/ipc/sharing/kinds.ts';
import { importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { ConnectionTimeline } from '../../../../../src/ipc/timeline/connection-timeline.ts';
import { ensureKeepaliveAllocation } from '../../../../../src/memory/physical-memory.ts';
import {
  acquireSharedUse,
  nameOfMapping,
  releaseSharedUse,
  withTable,
} from '../../../../../src/waits/worker-tables.ts';
import { recordCallsOf } from '../../../../support/arguments.ts';
import { withFaults } from '../../../../support/faults.ts';
import { trials } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import {
  descriptorNumbers,
  openDescriptors,
  openedSince,
} from '../../../../support/process-state.ts';
import { emptySharingSession, exportForPeer } from '../../../../support/sharing.ts';
import { emulate } from '../../emulate.ts';

const MIB = 1 << 20;
const session = emptySharingSession;
/** The descriptor as another process in another pid namespace would make it. */
const ofAnother = (descriptor: IpcDescriptor, fields: object = {}): IpcDescriptor =>
  withChecksum({ ...descriptor, pid: 2 ** 30, pidNamespace: 1, ...fields } as never);
const isCloseOnExec = (fd: number): boolean =>
  /^flags:\s+0*[1-7]?2\d{6}$/m.test(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'));

function sharedPool() {
  const pool = MemoryPool.create({ maxSize: 32 * MIB, shareable: true });
  return { pool, buffer: pool.allocate(4096) };
}

function sharedMemory(): VirtualMemory {
  const memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
  memory.grow(2 * MIB);
  memory.grow(6 * MIB);
  return memory;
}

describe('exportIpc', () => {
  test('file descriptors are created once, are close-on-exec, and are closed with their object', () => {
    emulate();
    // Created by the first export and kept for all later ones.
    ensureKeepaliveAllocation(Device.get());
    withTable('exports', () => {});
    const before = openDescriptors();
    const { pool, buffer } = sharedPool();
    const memory = sharedMemory();
    const made = openDescriptors();
    const ofPool = exportIpc(buffer).fds;
    assert.deepEqual(exportIpc(pool).fds, ofPool);
    assert.deepEqual(exportIpc(pool.allocate(16)).fds, ofPool);
    const ofMemory = exportIpc(memory).fds;
    assert.deepEqual(exportIpc(memory.buffer.subarray(0, 16)).fds, ofMemory.slice(0, 1));
    for (const fd of [...ofPool, ...ofMemory]) assert.ok(isCloseOnExec(fd), String(fd));
    assert.equal(openDescriptors(), made + 3);
    pool.close({ buffers: true });
    memory.close();
    assert.equal(openDescriptors(), before);
  });

  test('a reset closes the file descriptors of the memory that it frees', () => {
    emulate();
    // Created by the first export and kept for all later ones.
    ensureKeepaliveAllocation(Device.get());
    withTable('exports', () => {});
    const before = openDescriptors();
    const { buffer } = sharedPool();
    exportIpc(buffer);
    exportIpc(sharedMemory().buffer.subarray(0, 1));
    Context.primary().resetSync();
    assert.equal(openDescriptors(), before);
  });

  test('an object that was not made for sharing is refused with a reason, without a driver call', () => {
    emulate();
    const pool = MemoryPool.create({ maxSize: MIB });
    const ofPool = pool.allocate(16);
    const memory = VirtualMemory.reserve(MIB).grow(16);
    const mapped = MappedMemory.create().allocate(16);
    const inTwoPieces = sharedMemory();
    const recorder = recordCalls();
    for (const unshareable of [pool, ofPool])
      assert.throws(() => exportIpc(unshareable), { name: 'IpcError', message: /shareable: true/ });
    assert.throws(() => exportIpc(memory), { name: 'IpcError', message: /shareable: true/ });
    assert.throws(
      () => inTwoPieces.share(0, 6 * MIB, 1, 'read'),
      /has 2 chunks, and at most 1 can be shared/,
    );
    assert.throws(() => exportIpc(mapped), {
      name: 'IpcError',
      message: /copy it to device memory/,
    });
    for (const wrong of [undefined, null, {}, 5])
      assert.throws(() => exportIpc(wrong as never), { name: 'TypeError' });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    const closed = sharedPool();
    const shared = [closed.pool, closed.buffer, DeviceBuffer.allocate(64)];
    // Also objects that were exported before.
    for (const each of shared) exportForPeer(each, session());
    closed.pool.close({ buffers: true });
    shared[2]?.close();
    for (const gone of shared) {
      assert.throws(() => exportIpc(gone), { name: 'ClosedError' });
      assert.throws(() => exportForPeer(gone, session()), { name: 'ClosedError' });
    }
  });
});

describe('openIpc', () => {
  test('an alias in the same process is a view with its own close()', () => {
    emulate();
    const plain = DeviceBuffer.allocate(4096);
    const { pool, buffer } = sharedPool();
    const memory = sharedMemory();
    const event = CudaEvent.create({ interprocess: true });
    const alias = { sameProcess: 'alias' } as const;
    for (const whole of [plain, buffer, memory.buffer]) {
      const part = whole.subarray(whole.byteLength - 16, whole.byteLength - 4);
      part.fill(7);
      const isVirtual = whole === memory.buffer;
      const { descriptor } = exportIpc(isVirtual ? part.readOnly() : part);
      assert.throws(() => openIpc(descriptor), { name: 'IpcError', code: 'same-process' });
      const one = openIpcBuffer(descriptor, alias);
      const other = openIpcBuffer(descriptor, alias);
      assert.deepEqual(
        [one.address, one.byteLength, one.access],
        [part.address, 12, isVirtual ? 'read' : 'read-write'],
      );
      one.close();
      assert.deepEqual(new Set(other.copyToHostSync()), new Set([7]));
      assert.equal(whole.closed, false);
      const asked = openIpcBuffer(exportIpc(part).descriptor, { ...alias, access: 'read' });
      assert.equal(asked.access, 'read');
    }
    const again = openIpcEvent(getIpcHandle(event), alias);
    again.close();
    assert.equal(event.closed, false);
    const last = openIpcEvent(getIpcHandle(event), alias);
    event.close();
    assert.equal(last.closed, true);
    assert.throws(() => openIpcPool(exportIpc(pool).descriptor, alias), /use that pool/);
    assert.equal(openIpc(exportIpc(pool).descriptor, alias), pool);
    const { descriptor } = exportIpc(plain);
    const view = openIpcBuffer(descriptor, alias);
    plain.close();
    assert.equal(view.closed, true);
    assert.throws(() => openIpcBuffer(descriptor, alias), { name: 'ClosedError' });
    const borrowed = DeviceBuffer.fromPointer(DeviceBuffer.allocate(16).address, 16);
    assert.throws(() => openIpcBuffer(getIpcHandle(borrowed), alias), /no longer exists/);
  });
});

/** A lease that records its calls. */
function recordingLease(): ImportLease & { readonly calls: string[] } {
  const calls: string[] = [];
  return { calls, closed: () => calls.push('closed'), released: () => calls.push('released') };
}

describe('importFromPeer', () => {
  test('an imported pool is closed with its last buffer, or with its session', async () => {
    emulate();
    const context = Context.primary();
    const { pool, buffer } = sharedPool();
    const descriptor = ofAnother(exportIpc(buffer).descriptor);
    const fds = (): number[] => exportIpc(buffer).fds.map(duplicateFd);
    // The first use in a process creates the memfd of the counts.
    openIpcBuffer(descriptor, { fds: fds() }).close();
    await context.flush();
    const before = openDescriptors();
    const alone = openIpcBuffer(descriptor, { fds: fds() });
    const from = alone.resource;
    assert.ok(from instanceof ImportedPool);
    assert.equal(inspect(from), `ImportedPool(of process ${descriptor.pid})`);
    openIpcBuffer(descriptor).close();
    alone.close();
    assert.equal(from.closed, true);
    await context.flush();
    assert.equal(openDescriptors(), before);

    const ours = session();
    assert.equal(exportForPeer(buffer, ours)?.fds.length, 1);
    assert.equal(exportForPeer(pool, ours)?.fds.length, 0);
    const received = importFromPeer(descriptor, fds(), ours) as DeviceBuffer;
    const kept = received.resource;
    received.close();
    const later = importFromPeer(descriptor, [], ours) as DeviceBuffer;
    assert.equal(later.resource, kept);
    assert.deepEqual(exportForPeer(later, session())?.descriptor, descriptor);
    closeSharingSession(ours);
    assert.equal(later.closed, false);
    later.close();
    assert.equal((kept as ImportedPool).closed, true);
    assert.equal(inspect(kept), `ImportedPool(of process ${descriptor.pid}, closed)`);
    assert.throws(() => importFromPeer(descriptor, [], ours), { code: 'no-file-descriptor' });
    await context.flush();
    assert.equal(openDescriptors(), before);
    assert.equal(exportForPeer({}, ours), undefined);

    const unwanted = importFromPeer(descriptor, fds(), ours) as DeviceBuffer;
    const unwantedPool = importFromPeer(ofAnother(exportIpc(pool).descriptor), [], ours);
    assert.equal(unwantedPool, unwanted.resource);
    discardImported(unwanted);
    discardImported(unwantedPool as ImportedPool);
    assert.deepEqual([unwanted.closed, (unwanted.resource as ImportedPool).closed], [true, false]);
    closeSharingSession(ours);
    assert.equal((unwanted.resource as ImportedPool).closed, true);
  });

  test('a lease on an object of any kind is notified when the object is closed and its work is done', async () => {
    const emulated = emulate();
    // As if another process had exported them: the driver cannot open its own process's handles.
    selectDriver({
      ...emulated,
      cuIpcOpenMemHandle_v2: (out) => emulated.cuMemAlloc_v2(out, MIB),
      cuIpcCloseMemHandle: (address) => emulated.cuMemFree_v2(address),
      cuIpcOpenEventHandle: (out) => emulated.cuEventCreate(out, 2),
    });
    const context = Context.primary();
    const { pool, buffer } = sharedPool();
    const plain = DeviceBuffer.allocate(4096);
    const event = CudaEvent.create({ interprocess: true });
    using stream = Stream.create({ nonBlocking: true });
    for (const object of [plain, buffer, sharedMemory().buffer, pool, event]) {
      const { descriptor, fds } = exportIpc(object);
      const ours = session();
      const mine = recordingLease();
      const opened = importFromPeer(
        ofAnother(descriptor),
        fds.map(duplicateFd),
        ours,
        mine,
      ) as DeviceBuffer;
      closeSharingSession(ours);
      assert.deepEqual(mine.calls, []);
      const isMemory = opened instanceof DeviceBuffer;
      {
        using latch = new Latch();
        latch.hold(stream);
        if (isMemory) opened.fill(1, { stream });
        opened.close();
        opened.close();
        // Memory is released behind the work on it; a pool and an event have no work of their own.
        if (isMemory) assert.deepEqual(mine.calls, ['closed']);
      }
      await context.flush();
      const all = isMemory ? ['closed', 'released'] : ['released'];
      assert.deepEqual(mine.calls, all, descriptor.kind);
    }
  });
});

describe('ImportedPool', () => {
  test('close() of a pool with open buffers throws with their number and size', () => {
    emulate();
    const { pool } = sharedPool();
    const open = (byteLength: number): DeviceBuffer => {
      const { descriptor, fds } = exportIpc(pool.allocate(byteLength));
      return openIpcBuffer(ofAnother(descriptor), { fds: fds.map(duplicateFd) });
    };
    const [first, second] = [open(4096), open(64)];
    const from = first.resource as ImportedPool;
    assert.throws(
      () => from.close(),
      /^CuffiError: 2 buffers of this pool, 4160 bytes \(4.063 KiB\), are open/,
    );
    first.close();
    assert.throws(() => from.close(), /^CuffiError: 1 buffer of this pool, 64 bytes, is open/);
    assert.equal(from.closed, false);
    second.close();
    assert.equal(from.closed, true);
  });
});

describe('exportForPeer', () => {
  test('the export of a buffer is kept, but not of what may be other memory when it is sent again', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(64);
    const exported = exportForPeer(buffer, session());
    assert.equal(exportForPeer(buffer, session()), exported);
    // Its owner may free the memory and allocate it again.
    const borrowed = DeviceBuffer.fromPointer(buffer.address, 64);
    exportForPeer(borrowed, session());
    using recorder = recordCalls();
    exportForPeer(borrowed, session());
    assert.ok(recorder.calls.some(({ name }) => name === 'cuIpcGetMemHandle'));
    using memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
    for (const byteLength of [2 * MIB, 6 * MIB]) {
      memory.grow(byteLength);
      const { descriptor, fds } = exportForPeer(memory, session()) as ExportedFields<'virtual'>;
      assert.deepEqual([descriptor.byteLength, fds.length], [byteLength, byteLength >> 22 ? 2 : 1]);
    }
  });

  test('a session reports the close of a pool until the session is closed', () => {
    emulate();
    const closedPools: string[] = [];
    const listening = (): SharingSession => ({
      ...session(),
      onPoolClosed: (id) => closedPools.push(id),
    });
    const own = sharedPool();
    const { descriptor, fds } = exportIpc(own.buffer);
    const passedOn = openIpcBuffer(ofAnother(descriptor), { fds: fds.map(duplicateFd) });
    const ends: readonly (readonly [DeviceBuffer, Set<() => void>, () => void])[] = [
      [
        passedOn,
        (passedOn.resource as ImportedPool).shared.onClose,
        () => (passedOn.resource as ImportedPool).close({ buffers: true }),
      ],
      [own.buffer, own.pool.share().onClose, () => own.pool.close({ buffers: true })],
    ];
    for (const [buffer, onEnd, close] of ends) {
      const [ended, going] = [listening(), listening()];
      const others = onEnd.size;
      for (const each of [ended, going]) exportForPeer(buffer, each);
      assert.deepEqual([onEnd.size - others, ended.sentPools.size], [2, 1]);
      closeSharingSession(ended);
      assert.deepEqual([onEnd.size - others, ended.sentPools.size], [1, 0]);
      close();
      const { pool } = descriptor as IpcPoolDescriptor;
      assert.deepEqual(closedPools.splice(0), [pool]);
      // Reported once: the pool would have to be sent again.
      assert.equal(going.sentPools.size, 0);
    }
  });
});

describe('releaseImportedPoolLater', () => {
  test('a pool is released on the next tick, or at once if many releases are pending', async () => {
    emulate();
    const ours = session();
    const shared = Array.from({ length: 18 }, sharedPool);
    const ids = shared.map(({ buffer }) => {
      const { descriptor, fds } = exportIpc(buffer);
      const received = importFromPeer(
        ofAnother(descriptor),
        fds.map(duplicateFd),
        ours,
      ) as DeviceBuffer;
      received.close();
      return [(descriptor as IpcPoolDescriptor).pool, received.resource as ImportedPool] as const;
    });
    for (const [id] of ids) releaseImportedPoolLater(id, ours);
    assert.equal(ours.receivedPools.size, 0);
    assert.deepEqual(
      ids.map(([, { closed }]) => closed),
      ids.map((_, at) => at >= 16),
    );
    await setImmediate();
    assert.ok(ids.every(([, { closed }]) => closed));
  });
});

describe('closeSharingSession', () => {
  test('a session closes even if the driver fails to destroy a pool, and keeps no file descriptor', async () => {
    const { driver, fail } = withFaults(emulate(), ['cuMemPoolDestroy']);
    selectDriver(driver);
    const ours = session();
    const warned: string[] = [];
    const warn = ({ message }: Error): unknown => warned.push(message);
    process.on('warning', warn);
    const fds = [sharedPool(), sharedPool()].map(({ buffer }) => {
      const { descriptor, fds } = exportIpc(buffer);
      const fd = duplicateFd(fds[0] as number);
      (importFromPeer(ofAnother(descriptor), [fd], ours) as DeviceBuffer).close();
      return fd;
    });
    await Context.primary().flush();
    fail('cuMemPoolDestroy', 1, CUresult.CUDA_ERROR_LAUNCH_FAILED);
    closeSharingSession(ours);
    assert.equal(ours.receivedPools.size, 0);
    assert.deepEqual(fds.map(isOpenFd), [false, false]);
    await setImmediate();
    process.off('warning', warn);
    // Objects of earlier tests may be collected meanwhile.
    const mine = warned.filter((message) => /cuMemPoolDestroy.*LAUNCH_FAILED/.test(message));
    assert.equal(mine.length, 1);
  });
});

describe('importFromPeer', () => {
  test('a pool that returns to its maker leaves no file descriptor open', () => {
    emulate();
    const { pool, buffer } = sharedPool();
    const { descriptor, fds } = exportIpc(buffer);
    const before = openDescriptors();
    const ours = { ...session(), hasLeaseOn: () => true };
    const back = importFromPeer(descriptor, fds.map(duplicateFd), ours) as DeviceBuffer;
    assert.equal(back.address, buffer.address);
    const mine = recordingLease();
    assert.equal(
      importFromPeer(exportIpc(pool).descriptor, fds.map(duplicateFd), ours, mine),
      pool,
    );
    // The pool itself came, and its sender cannot close it.
    assert.deepEqual(mine.calls, ['released']);
    assert.deepEqual([openDescriptors(), ours.receivedPools.size], [before, 0]);
  });

  test("a pool that the driver identifies as this process's own is refused, and not destroyed", () => {
    const emulated = emulate();
    const { pool, buffer } = sharedPool();
    // The hardware returns a pool's own handle for its file descriptor.
    const calls = recordCallsOf(
      {
        ...emulated,
        cuMemPoolImportFromShareableHandle: (out) => {
          writeUint64(pool.handle, out);
          return CUresult.CUDA_SUCCESS;
        },
      },
      'cuMemPoolDestroy',
    );
    const { descriptor, fds } = exportIpc(buffer);
    const before = openDescriptors();
    assert.throws(() => openIpcBuffer(ofAnother(descriptor), { fds: fds.map(duplicateFd) }), {
      name: 'IpcError',
      code: 'same-process',
      message: /is a pool of this very process: use that pool/,
    });
    assert.deepEqual([calls, openDescriptors()], [[], before]);
    pool.allocate(64).close();
    pool.close({ buffers: true });
  });

  test('pool memory that another thread has mapped stays mapped for it', async () => {
    const emulated = emulate();
    const { buffer } = sharedPool();
    const { descriptor, fds } = exportIpc(buffer);
    const base = 2 ** 46;
    const calls = recordCallsOf(
      {
        ...emulated,
        // The driver maps it once per process, at one address.
        cuMemPoolImportPointer: (out) => {
          writeUint64(base, out);
          return CUresult.CUDA_SUCCESS;
        },
        cuPointerGetAttribute: () => CUresult.CUDA_ERROR_INVALID_VALUE,
        cuMemFree_v2: (address) =>
          Number(address) === base ? CUresult.CUDA_SUCCESS : emulated.cuMemFree_v2(address),
      },
      'cuMemFree_v2',
    );
    const open = (): void =>
      assert.throws(() => openIpcBuffer(ofAnother(descriptor), { fds: fds.map(duplicateFd) }), {
        name: 'IpcError',
        message: /while measuring memory/,
      });
    acquireSharedUse(nameOfMapping(base), 1, () => {});
    open();
    assert.deepEqual(calls, []);
    releaseSharedUse(nameOfMapping(base), () => {});
    open();
    assert.deepEqual(calls, [['cuMemFree_v2', base]]);
    await Context.primary().flush();
  });

  test('openIpcPool refuses memory and openIpcBuffer refuses a pool, and nothing stays open', async () => {
    emulate();
    const context = Context.primary();
    const { pool, buffer } = sharedPool();
    const open = (object: MemoryPool | DeviceBuffer): readonly [IpcDescriptor, OpenOptions] => {
      const { descriptor, fds } = exportIpc(object);
      return [ofAnother(descriptor), { fds: fds.map(duplicateFd) }];
    };
    openIpcBuffer(...open(buffer)).close();
    await context.flush();
    const left = (): number[] => [openDescriptors(), context.resources.size];
    const before = left();
    assert.throws(() => openIpcBuffer(...open(pool)), /open it with openIpcPool/);
    assert.throws(() => openIpcPool(...open(buffer)), /open it with openIpcBuffer/);
    assert.deepEqual(left(), before);
    // A pool that nobody received stays open for those that opened it before, if any.
    const ours = session();
    const [descriptor, { fds = [] }] = open(pool);
    const received = importFromPeer(descriptor, fds, ours) as ImportedPool;
    assert.equal(openIpcPool(descriptor, { fds: exportIpc(pool).fds.map(duplicateFd) }), received);
    discardImported(received);
    closeSharingSession(ours);
    assert.equal(received.closed, false);
    received.close();
    const others = session();
    const [again, { fds: more = [] }] = open(pool);
    discardImported(importFromPeer(again, more, others));
    closeSharingSession(others);
    await context.flush();
    assert.deepEqual(left(), before);
  });

  test('a pool that was closed with its buffers can be opened again, even while they wait to be unmapped', () => {
    emulate();
    const { buffer } = sharedPool();
    buffer.fill(3);
    const { descriptor, fds } = exportIpc(buffer);
    const open = (): DeviceBuffer =>
      openIpcBuffer(ofAnother(descriptor), { fds: fds.map(duplicateFd) });
    const context = Context.primary();
    const first = open();
    {
      using _ = context.deferCleanup();
      (first.resource as ImportedPool).close({ buffers: true });
      assert.equal(first.closed, true);
      const second = open();
      assert.notEqual(second.resource, first.resource);
      assert.deepEqual(new Set(second.copyToHostSync()), new Set([3]));
      context.releases.drainReady();
    }
    context.releases.drainReady();
    assert.deepEqual(new Set(open().copyToHostSync()), new Set([3]));
  });

  test("another device gets access to a pool's memory, and loses it with the pool", async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const { buffer } = sharedPool();
    buffer.fill(4);
    const { descriptor, fds } = exportIpc(buffer);
    const open = (device: number): DeviceBuffer =>
      openIpcBuffer(ofAnother(descriptor), { device, fds: fds.map(duplicateFd) });
    const recorder = recordCalls();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name).length;
    const [here, there] = [open(0), open(1)];
    assert.equal(there.context.device.ordinal, 1);
    assert.deepEqual(new Set(there.copyToHostSync()), new Set([4]));
    assert.equal(count('cuMemPoolSetAccess'), 1);
    // The driver maps it once per process, and the first free would unmap it for both.
    assert.equal(count('cuMemPoolImportPointer'), 1);
    there.close();
    await there.context.flush();
    assert.equal(count('cuMemPoolSetAccess'), 2);
    assert.deepEqual(new Set(here.copyToHostSync()), new Set([4]));
    here.close();
    await here.context.flush();
    recorder.stop();
    // The driver has one handle of the pool per process too.
    assert.equal(count('cuMemPoolImportFromShareableHandle'), 1);
    assert.equal(count('cuMemPoolDestroy'), 1);
  });
});

describe('openIpc', () => {
  test('file descriptors are taken in every case unless the arguments are invalid', () => {
    emulate();
    const { buffer } = sharedPool();
    const memory = sharedMemory();
    const plain = DeviceBuffer.allocate(16);
    const taken = (open: (fds: number[]) => unknown, count: number, message: RegExp): void => {
      const fds = Array.from({ length: count }, () => openSync('/dev/null', 'r'));
      assert.throws(() => open(fds), { name: 'IpcError', message });
      for (const fd of fds) assert.equal(isOpenFd(fd), false);
    };
    const cases: readonly [unknown, number, RegExp][] = [
      [{}, 2, /^this is not a cuffi descriptor of kind legacy or pool or virtual or event/],
      [exportIpc(plain).descriptor, 1, /made by this very process/],
      [
        ofAnother(exportIpc(plain).descriptor, { handle: Buffer.alloc(64).toString('base64') }),
        1,
        /could not be opened: cuIpcOpenMemHandle_v2 failed/,
      ],
      [ofAnother(exportIpc(buffer).descriptor), 1, /is not one of the driver/],
      [ofAnother(exportIpc(buffer).descriptor), 2, /a pool needs 1 file descriptors, but 2 came/],
      [ofAnother(exportIpc(memory).descriptor), 2, /is not one of the driver/],
      [ofAnother(exportIpc(memory).descriptor), 1, /needs 2 file descriptors, but 1 came/],
    ];
    for (const [descriptor, count, message] of cases) {
      taken((fds) => openIpc(descriptor, { fds }), count, message);
      // What comes over a connection was decoded before. An object of this process returns over it.
      if (descriptor !== cases[0]?.[0] && descriptor !== cases[1]?.[0])
        taken((fds) => importFromPeer(descriptor as IpcDescriptor, fds, session()), count, message);
    }
    const pools = (count: number): SharingSession => ({
      ...session(),
      receivedPools: new Map(Array.from({ length: count }, (_, n) => [String(n), n])),
    });
    const unpackOnto = (count: number) => (fds: number[]) =>
      importFromPeer(ofAnother(exportIpc(buffer).descriptor), fds, pools(count));
    taken(unpackOnto(1024), 1, /^more than 1024 memory pools came over one connection$/);
    // The last file descriptor is checked.
    taken(unpackOnto(1023), 1, /is not one of the driver/);
    const fd = openSync('/dev/null', 'r');
    for (const options of [
      { fds: [fd, fd] },
      { fds: [fd, -1] },
      { fds: fd },
      { fds: [fd], access: 'x' },
    ])
      assert.throws(() => openIpc({}, options as unknown as OpenOptions), { name: 'TypeError' });
    closeSync(fd);
  });

  test('file descriptors of the wrong kind are refused without a driver call', () => {
    emulate();
    const { buffer } = sharedPool();
    const parcels = [exportIpc(buffer), exportIpc(sharedMemory().buffer)];
    const received = session();
    for (const { descriptor, fds } of parcels)
      for (const open of [
        () => openSync('/dev/null', 'r+'),
        () => openSync('/', 'r'),
        () => createMemfd('other', 4096),
        () => createSealedMemfd('points', 4096),
        () => {
          const [near, far] = socketPair();
          closeFd(far);
          return near;
        },
      ]) {
        using recorder = recordCalls();
        assert.throws(() => importFromPeer(ofAnother(descriptor), fds.map(open), received), {
          name: 'IpcError',
          code: 'no-file-descriptor',
          message: /is not one of the driver/,
        });
        assert.deepEqual(
          recorder.calls.filter(({ name }) => /Import/.test(name)),
          [],
        );
      }
    assert.equal(received.receivedPools.size, 0);
  });

  test('a valid but hostile descriptor opens within what it names or throws, and nothing leaks', async () => {
    emulate();
    const { buffer } = sharedPool();
    const memory = sharedMemory();
    const parcels = [exportIpc(buffer.subarray(16, 512)), exportIpc(memory.buffer)];
    const context = Context.primary();
    const number = fc.oneof(fc.nat(8192), fc.nat(16 * MIB), fc.integer(), fc.constant(2 ** 52));
    const mutations = fc.dictionary(
      fc.constantFrom(
        'byteOffset',
        'byteLength',
        'baseByteLength',
        'bufferId',
        'generation',
        'firstPiece',
      ),
      number,
      { maxKeys: 3 },
    );
    const pieces = fc.option(
      fc.array(fc.oneof(fc.constantFrom(MIB, 2 * MIB, 4 * MIB), number), { maxLength: 4 }),
    );
    const flip = fc.option(fc.tuple(fc.nat(63), fc.integer({ min: 1, max: 255 })));
    await context.flush();
    const before = [openDescriptors(), context.resources.size, context.memoryInfo().free];
    fc.assert(
      fc.property(
        fc.constantFrom(...parcels),
        mutations,
        pieces,
        flip,
        (parcel, changes, sizes, bit) => {
          const fields: Record<string, unknown> = { ...parcel.descriptor, ...changes };
          if (sizes && 'pieces' in fields) fields['pieces'] = sizes;
          if (bit && typeof fields['handle'] === 'string') {
            const bytes = Buffer.from(fields['handle'], 'base64');
            bytes[bit[0]] = (bytes[bit[0]] as number) ^ bit[1];
            fields['handle'] = bytes.toString('base64');
          }
          const message = ofAnother(fields as unknown as IpcDescriptor);
          try {
            const opened = openIpcBuffer(message, { fds: parcel.fds.map(duplicateFd) });
            opened.copyToHostSync();
            opened.close();
          } catch (error) {
            assert.ok(error instanceof CuffiError, String(error));
          }
        },
      ),
      trials(300, 10_000),
    );
    await context.flush();
    assert.deepEqual(
      [openDescriptors(), context.resources.size, context.memoryInfo().free],
      before,
    );
  });

  test('a descriptor never reaches beyond what an earlier one of the same memory mapped', async () => {
    emulate();
    const context = Context.primary();
    const { buffer } = sharedPool();
    const memory = sharedMemory();
    const larger = 64 * MIB;
    const parcels = [
      [exportIpc(buffer), {}],
      [exportIpc(memory.buffer.subarray(0, MIB)), { pieces: [larger] }],
    ] as const;
    for (const [{ descriptor, fds }, fields] of parcels) {
      const own = (): number[] => fds.map(duplicateFd);
      const opened = openIpcBuffer(ofAnother(descriptor), { fds: own() });
      const before = openDescriptors();
      const wider = { baseByteLength: larger, byteLength: larger, byteOffset: 0, ...fields };
      assert.throws(() => openIpcBuffer(ofAnother(descriptor, wider), { fds: own() }), {
        name: 'IpcError',
        code: 'invalid-descriptor',
      });
      assert.equal(openDescriptors(), before);
      assert.equal(opened.copyToHostSync().byteLength, opened.byteLength);
      opened.close();
    }
    await context.flush();
  });
});

describe('moveIpcBuffer', () => {
  test('the moved buffer is the only owner of the mapping: the original and its views are closed', async () => {
    emulate();
    const context = Context.primary();
    const { buffer } = sharedPool();
    const memory = sharedMemory();
    for (const each of [buffer, memory.buffer]) {
      each.fill(6);
      const { descriptor, fds } = exportIpc(each);
      const before = descriptorNumbers();
      const resources = context.resources.size;
      const given = ofAnother(descriptor);
      {
        const read = openIpcBuffer(given, { fds: fds.map(duplicateFd), access: 'read' });
        using moved = moveIpcBuffer(read);
        assert.equal(moved.access, 'read');
        assert.throws(() => moved.fill(1), /this buffer is read-only/);
      }
      await context.flush();
      const opened = openIpcBuffer(given, { fds: fds.map(duplicateFd) });
      const view = opened.subarray(16, 32);
      const imports = new ImportTable(
        new ConnectionTimeline(),
        {
          process: PeerProcess.fromIdentity(0, 0),
          requestForward: () => ({ acknowledged: Promise.resolve(), release() {} }),
          hasUnsentForward: () => false,
        },
        () => {},
      );
      imports.add(0, 1);
      imports.setOpened(0, opened);
      const owner = ownerConnectionOf(opened);
      const moved = moveIpcBuffer(opened);
      // A third process that gets the buffer gets it from its owner, which can also revoke it.
      assert.ok(owner);
      assert.equal(ownerConnectionOf(moved), owner);
      opened.close();
      for (const gone of [opened, view]) assert.throws(() => gone.address, { name: 'ClosedError' });
      assert.throws(() => opened.address, { message: /moved to another buffer/ });
      assert.throws(() => moveIpcBuffer(opened), { name: 'ClosedError' });
      assert.throws(() => moveIpcBuffer(moved.subarray(0, 8)), { name: 'TypeError' });
      assert.throws(() => moveIpcBuffer(each), { name: 'TypeError' });
      await context.flush();
      assert.deepEqual(new Set(moved.copyToHostSync()), new Set([6]));
      assert.deepEqual(exportIpc(moved).descriptor, ofAnother(descriptor));
      if (moved.resource instanceof ImportedPool)
        assert.throws(() => (moved.resource as ImportedPool).close(), { name: 'CuffiError' });
      imports.revoke(0, 'process 7');
      assert.throws(() => moved.address, { message: /process 7 has revoked it/ });
      imports.release(0);
      imports.end();
      await context.flush();
      // Garbage of earlier tests may close descriptors meanwhile.
      assert.deepEqual(openedSince(before), []);
      assert.equal(context.resources.size, resources);
    }
  });
});
