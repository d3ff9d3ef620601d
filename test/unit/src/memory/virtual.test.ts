import assert from 'node:assert/strict';
import { fstatSync } from 'node:fs';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import {
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from '../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  MemoryPool,
  Stream,
  VirtualMemory,
  type VirtualMemoryOptions,
} from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { failing, keepingBooks, withFaults } from '../../../support/faults.ts';
import { Latch } from '../../../support/latch.ts';
import { leaves } from '../../../support/left-open.ts';
import { discardsDone, openDescriptors, replaceLibc } from '../../../support/process-state.ts';
import { emulate } from '../emulate.ts';

const LOST = 700;

/** The file of a descriptor; undefined if it is closed. */
function fileOf(fd: number): number | undefined {
  try {
    return fstatSync(fd).ino;
  } catch {
    return undefined;
  }
}

const MIB = 1 << 20;

describe('VirtualMemory', () => {
  test('invalid options are refused before any driver call', () => {
    emulate();
    const recorder = recordCalls();
    assert.throws(() => VirtualMemory.reserve(1, { size: 1 } as never), /unknown option 'size'/);
    assert.throws(
      () => VirtualMemory.reserve(1, { shareable: 1 as never }),
      /^TypeError: shareable must be true or false, not 1/,
    );
    for (const size of [0, -1, 0.5, 2 ** 53])
      assert.throws(() => VirtualMemory.reserve(size), {
        name: 'RangeError',
        message: `byteLength must be an integer of at least 1, not ${size}`,
      });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('reserve() throws a clear error on a device without virtual memory', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '102=0' });
    assert.throws(() => VirtualMemory.reserve(MIB), {
      name: 'NotSupportedError',
      message: /has no virtual memory management/,
    });
    for (const device of [Device.get(), 0, undefined])
      assert.equal(VirtualMemory.supported(device), false);
    assert.throws(
      () => VirtualMemory.supported('0' as never),
      /^TypeError: device must be a Device/,
    );
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '103=0' });
    assert.equal(VirtualMemory.supported(), true);
    VirtualMemory.reserve(MIB).close();
    assert.throws(() => VirtualMemory.reserve(MIB, { shareable: true }), {
      name: 'NotSupportedError',
      message: /does not support virtual memory that can be shared/,
    });
  });

  test('each option reaches the driver, for the given device', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const second = Context.primary(1);
    const cases: readonly [options: VirtualMemoryOptions, device: number, handleTypes: number][] = [
      [{}, 0, CU_MEM_HANDLE_TYPE_NONE],
      [{ device: 1, shareable: true }, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR],
      [{ context: second, shareable: false }, 1, CU_MEM_HANDLE_TYPE_NONE],
    ];
    for (const [options, device, requestedHandleTypes] of cases) {
      recorder.calls.length = 0;
      using memory = VirtualMemory.reserve(5 * MIB, options);
      memory.grow(3 * MIB);
      const { address } = memory;
      const place = { 'location.type': CU_MEM_LOCATION_TYPE_DEVICE, 'location.id': device };
      const kind = { type: CU_MEM_ALLOCATION_TYPE_PINNED, requestedHandleTypes, ...place };
      const [asked] = recorder.of('cuMemGetAllocationGranularity').map(({ args }) => args[1]);
      const [reserved] = recorder.of('cuMemAddressReserve').map(({ args }) => args.slice(1));
      const [created] = recorder.of('cuMemCreate').map(({ args }) => args);
      const [allowed] = recorder.of('cuMemSetAccess').map(({ args }) => args);
      for (const given of [asked, created?.[2]])
        assert.deepEqual({ ...(given as object), ...kind }, given);
      assert.deepEqual(reserved, [6 * MIB, 0, 0, 0]);
      assert.equal(created?.[1], 4 * MIB);
      assert.deepEqual(allowed, [
        address,
        4 * MIB,
        { ...place, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
        1,
      ]);
    }
  });

  test('allowAccess() gives one device access to all chunks by one call, and to later ones', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '3' }));
    using memory = VirtualMemory.reserve(16 * MIB, { device: 1 });
    const given = (): readonly unknown[] =>
      recorder
        .of('cuMemSetAccess')
        .map(({ args: [address, byteLength, access] }) => [
          (address as number) - memory.address,
          byteLength,
          (access as { 'location.id': number })['location.id'],
        ]);
    memory.allowAccess(2);
    assert.deepEqual(given(), [], 'there is no memory yet');
    memory.grow(4 * MIB);
    memory.grow(6 * MIB);
    recorder.calls.length = 0;
    memory.allowAccess(0);
    memory.allowAccess(Device.get(0));
    assert.deepEqual(given(), [[0, 6 * MIB, 0]]);
    recorder.calls.length = 0;
    memory.grow(7 * MIB);
    assert.deepEqual(given(), [
      [6 * MIB, 2 * MIB, 1],
      [6 * MIB, 2 * MIB, 2],
      [6 * MIB, 2 * MIB, 0],
    ]);
  });

  test('allowAccess() that fails gives no access, and memory without it is not added', () => {
    const driver = emulate({ CUFFI_EMULATED_DEVICES: '3' });
    const faults = withFaults(driver, ['cuMemSetAccess']);
    selectDriver({
      ...faults.driver,
      // Device 2 reaches no other one.
      cuDeviceCanAccessPeer: (out, device, peer) =>
        driver.cuDeviceCanAccessPeer(out, device, Number(device) === 2 ? device : peer),
    });
    using memory = VirtualMemory.reserve(16 * MIB);
    memory.grow(2 * MIB);
    assert.throws(() => memory.allowAccess(2), {
      code: 'not-supported',
      message: /^Device 2 .* cannot access the memory of Device 0 .*: copy there instead/,
    });
    faults.fail('cuMemSetAccess', 1, 999);
    assert.throws(() => memory.allowAccess(1), { call: 'cuMemSetAccess', status: 999 });
    assert.deepEqual([memory.access(1), memory.access(2)], ['none', 'none']);
    memory.allowAccess(1);
    // The second device that a new chunk is made accessible for.
    faults.fail('cuMemSetAccess', 2, 999);
    assert.throws(() => memory.grow(4 * MIB), { call: 'cuMemSetAccess', status: 999 });
    assert.deepEqual([memory.byteLength, memory.mappedByteLength], [2 * MIB, 2 * MIB]);
    assert.equal(memory.grow(4 * MIB).byteLength, 4 * MIB);
    assert.equal(memory.access(1), 'read-write');
  });

  test('no copy or fill crosses two chunks, however small it is', async () => {
    const recorder = recordArguments(emulate());
    using memory = VirtualMemory.reserve(4 * MIB);
    const { granularity } = memory;
    memory.grow(granularity);
    using other = DeviceBuffer.allocate(8);
    const buffer = memory.grow(2 * granularity).subarray(granularity - 5, granularity + 3);
    const host = new Uint8Array(8);
    for (const use of [
      () => buffer.copyToHostSync(),
      () => buffer.copyFromSync(host),
      () => buffer.copyToHost(),
      () => buffer.copyFrom(host),
      () => buffer.copyTo(other),
      () => other.copyTo(buffer),
      () => buffer.fill(1),
    ]) {
      recorder.calls.length = 0;
      await use();
      const work = recorder.calls.filter(({ name }) => /Memcpy|Memset/.test(name));
      const sizes = work.map(({ args }) => args[2]);
      assert.deepEqual(sizes, [5, 3], `${use}`);
    }
  });

  test('a range is shared as the chunks that it overlaps, and no others', () => {
    emulate();
    using memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
    const STEP = memory.granularity;
    for (const size of [1, 2, 3, 4]) memory.grow(size * STEP);
    const shared = (begin: number, end: number, most = 99): readonly number[] => {
      const { firstChunk, byteOffset, chunks } = memory.share(begin, end, most, 'read-write');
      assert.ok(chunks.every(({ byteLength }) => byteLength === STEP));
      return [firstChunk, byteOffset, chunks.length];
    };
    assert.deepEqual(shared(0, STEP), [0, 0, 1]);
    assert.deepEqual(shared(STEP, 2 * STEP), [1, 0, 1]);
    assert.deepEqual(shared(STEP - 1, STEP), [0, STEP - 1, 1]);
    assert.deepEqual(shared(STEP - 1, STEP + 1), [0, STEP - 1, 2]);
    assert.deepEqual(shared(2 * STEP - 1, 3 * STEP), [1, STEP - 1, 2]);
    assert.deepEqual(shared(3 * STEP, 4 * STEP), [3, 0, 1]);
    assert.deepEqual(shared(0, 4 * STEP, 4), [0, 0, 4]);
    assert.throws(() => shared(0, 4 * STEP, 3), {
      name: 'IpcError',
      message: /has 4 chunks, and at most 3 can be shared at once/,
    });
    const handles = (begin: number, end: number): readonly number[] =>
      memory.share(begin, end, 99, 'read-write').chunks.map(({ fd }) => fd);
    const all = handles(0, 4 * STEP);
    assert.equal(new Set(all).size, 4);
    assert.deepEqual(handles(STEP, 2 * STEP), [all[1]]);
  });

  test('descriptors are closed with the memory, or at once if one could not be kept or marked', () => {
    emulate();
    const memory = VirtualMemory.reserve(2 * MIB, { shareable: true });
    memory.grow(1);
    const share = (access: 'read' | 'read-write'): number =>
      memory.share(0, 1, 1, access).chunks[0]?.fd as number;
    const fds = [share('read-write')];
    const { fcntl } = libc;
    // The descriptor is set close-on-exec, then marked: its flags are read and set.
    const [F_SETFD, F_GETFL, F_SETFL] = [2, 3, 4];
    for (const failing of [F_SETFD, F_GETFL, F_SETFL]) {
      const before = openDescriptors();
      replaceLibc('fcntl', (...args) => (args[1] === failing ? -1 : fcntl(...args)));
      try {
        assert.throws(() => share('read'), { name: 'SystemError' }, `${failing}`);
      } finally {
        replaceLibc('fcntl', fcntl);
      }
      assert.equal(openDescriptors(), before, `${failing}`);
    }
    fds.push(share('read'));
    assert.deepEqual([share('read-write'), share('read')], fds);
    const files = fds.map(fileOf);
    assert.ok(!files.includes(undefined));
    memory.close();
    discardsDone();
    for (const [at, fd] of fds.entries()) assert.notEqual(fileOf(fd), files[at]);
  });

  test('descriptors from a lost context are closed when new ones are made', () => {
    leaves(/^driver: /, 'the context is lost', 2);
    const { driver, fail } = withFaults(emulate(), ['cuCtxSynchronize']);
    selectDriver(driver);
    const context = Context.primary();
    /** Each descriptor with its file. */
    const share = (): (readonly [fd: number, file: number | undefined])[] => {
      const memory = VirtualMemory.reserve(3 * MIB, { shareable: true });
      const { granularity } = memory;
      memory.grow(granularity);
      memory.grow(2 * granularity);
      const { chunks } = memory.share(0, memory.byteLength, 2, 'read-write');
      return chunks.map(({ fd }) => [fd, fileOf(fd)]);
    };
    const left = share();
    context.synchronizeSync();
    fail('cuCtxSynchronize', 1, LOST);
    context.resetSync();
    for (const [fd, file] of left) assert.equal(fileOf(fd), file, 'nobody was told so far');
    const shared = share();
    discardsDone();
    for (const [fd, file] of left) assert.notEqual(fileOf(fd), file);
    for (const [fd, file] of shared) assert.equal(fileOf(fd), file);
    context.resetSync();
    discardsDone();
    for (const [fd, file] of shared) assert.notEqual(fileOf(fd), file);
  });

  test('a failed grow() leaves nothing behind, and can be retried', () => {
    const steps: readonly FunctionName[] = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess'];
    for (const step of steps) {
      const { driver, open } = keepingBooks(emulate());
      selectDriver(failing(driver, step, 2, 1));
      const memory = VirtualMemory.reserve(16 * MIB);
      memory.grow(MIB);
      const before = new Set(open);
      assert.throws(() => memory.grow(8 * MIB), { call: step, status: 1 });
      assert.deepEqual(new Set(open), before, step);
      assert.deepEqual([memory.byteLength, memory.mappedByteLength], [MIB, 2 * MIB]);
      assert.equal(memory.grow(8 * MIB).byteLength, 8 * MIB);
      memory.close();
      assert.deepEqual([...open], []);
    }
  });

  test('close() unmaps the newest chunk first, and frees the addresses as they were reserved', () => {
    emulate();
    const memory = VirtualMemory.reserve(15 * MIB);
    memory.grow(MIB);
    memory.grow(6 * MIB);
    const recorder = recordCalls();
    memory.close();
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name).filter((name) => name.startsWith('cuMem')),
      ['cuMemUnmap', 'cuMemRelease', 'cuMemUnmap', 'cuMemRelease', 'cuMemAddressFree'],
    );
  });

  test('the memory is unmapped when the earlier work is done, whatever was queued since', async () => {
    emulate();
    const context = Context.primary();
    using before = Stream.create({ nonBlocking: true });
    using since = Stream.create({ nonBlocking: true });
    const memory = VirtualMemory.reserve(4 * MIB);
    const plain = DeviceBuffer.allocate(4 * MIB);
    using first = new Latch();
    first.hold(before);
    memory.grow(MIB).fill(1, { stream: before });
    memory.close();
    plain.close();
    assert.equal(context.pendingReleases.count, 2);
    // The first drain records the work that the releases wait for; later work does not count.
    context.releases.drainReady();
    using second = new Latch();
    second.hold(since);
    first.open();
    before.synchronizeSync();
    context.releases.drainReady();
    // Plain memory is freed once the context is idle, because its free would wait.
    assert.deepEqual(context.pendingReleases, { count: 1, byteLength: 4 * MIB });
    second.open();
    await context.flush();
  });

  test('a failed release step throws, and does not prevent the other steps', () => {
    const driver = emulate();
    const memory = VirtualMemory.reserve(15 * MIB);
    memory.grow(MIB);
    memory.grow(6 * MIB);
    selectDriver(failing(driver, 'cuMemRelease', 1, 999));
    const recorder = recordCalls();
    assert.throws(() => memory.close(), { call: 'cuMemRelease', status: 999 });
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name).filter((name) => name.startsWith('cuMem')),
      ['cuMemUnmap', 'cuMemRelease', 'cuMemUnmap', 'cuMemRelease', 'cuMemAddressFree'],
    );
  });

  test('a reset of the context closes the memory, and frees nothing twice', async () => {
    emulate();
    const memory = VirtualMemory.reserve(16 * MIB);
    const buffer = memory.grow(MIB);
    buffer.fill(1);
    await Context.primary().reset();
    const recorder = recordCalls();
    memory.close();
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.equal(buffer.closed, true);
    assert.throws(() => memory.address, /its context was reset/);
  });

  test('a reset releases what was made while the context was not open', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    for (const times of [1, 2]) {
      const memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
      memory.grow(3 * MIB);
      const [piece] = memory.share(0, 1, 1, 'read-write').chunks;
      assert.ok(piece && fileOf(piece.fd) !== undefined);
      const pool = MemoryPool.create();
      context.resetSync();
      discardsDone();
      assert.deepEqual([memory.closed, pool.closed, fileOf(piece.fd)], [true, true, undefined]);
      const left = [...open].filter((handle) =>
        /^cuMem(Create|AddressReserve|PoolCreate)/.test(handle),
      );
      assert.deepEqual(left, [], `${times}`);
    }
  });

  test('toString() describes the memory', () => {
    emulate();
    const memory = VirtualMemory.reserve(4 * MIB);
    memory.grow(10);
    assert.equal(inspect(memory), `VirtualMemory(10 of ${4 * MIB} bytes)`);
    memory.close();
    assert.equal(inspect(memory), `VirtualMemory(10 of ${4 * MIB} bytes, closed)`);
  });
});
