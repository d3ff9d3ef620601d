import assert from 'node:assert/strict';
import { closeSync } from 'node:fs';
import { describe, test } from 'node:test';
import {
  BLOCK,
  OUT0,
  OUT1,
  readBytes,
  readInt32,
  readSize,
  writeInt32,
  writeStruct,
  writeUint64,
} from '../../../../ffi/arena.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import type { Address, CUdeviceptr, CUmemoryPool } from '../../../../ffi/types.ts';
import { withPeer } from './peer.ts';
import { at, device, Emulated, LEGACY } from './support.ts';

const deadline = { timeout: 30_000 };
const MIB = 2 ** 20;
const THRESHOLD = 4;
const [RESERVED, RESERVED_HIGH, USED, USED_HIGH] = [5, 6, 7, 8] as const;

const currentPool = (emulated: Emulated): CUmemoryPool => {
  emulated.ok(emulated.cu.cuDeviceGetMemPool(OUT0, device(0)));
  return readSize(OUT0) as CUmemoryPool;
};

describe('emulated pools', () => {
  test('memory of a pool can be used, freed and reused', () => {
    const emulated = Emulated.inContext();
    const stream = emulated.stream(1);
    const pool = emulated.pool({ maxSize: 64 * MIB });
    const first = emulated.allocateFrom(pool, 1000, stream);
    const second = emulated.allocateFrom(pool, 1000, stream);
    emulated.write(first, 1, 2);
    emulated.write(second, 3);
    assert.equal(emulated.read(first), 1);
    assert.deepEqual(emulated.range(at(first, 999)), { base: first, byteLength: 1000 });
    assert.equal(emulated.attribute(10, first), 0);
    assert.equal(emulated.attribute(14, first, true), 0);
    assert.equal(emulated.attribute(17, first, true), pool);
    emulated.ok(emulated.cu.cuMemFreeAsync(first, stream));
    assert.equal(emulated.cu.cuMemFreeAsync(first, stream), 1);
    assert.equal(emulated.allocateFrom(pool, 1000, stream), first);
    emulated.ok(emulated.cu.cuMemFree_v2(first));
    assert.equal(emulated.cu.cuMemFree_v2(first), 1);
    assert.equal(emulated.cu.cuMemFree_v2(at(second, 512)), 1);
    assert.equal(emulated.cu.cuMemcpyDtoH_v2(BLOCK, first, 4), 1);
  });

  test('a free waits for its stream: others get the memory later, the same stream at once', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    const [held, other] = [emulated.stream(1), emulated.stream(1)];
    const pool = emulated.pool({ maxSize: 64 * MIB });
    const memory = emulated.allocateFrom(pool, MIB, held);
    emulated.ok(cu.cuStreamWaitValue32_v2(held, word, 1, 0));
    emulated.ok(cu.cuMemsetD8Async(memory, 7, MIB, held));
    emulated.ok(cu.cuMemFreeAsync(memory, held));
    const elsewhere = emulated.allocateFrom(pool, MIB, other);
    assert.notEqual(elsewhere, memory);
    assert.equal(emulated.allocateFrom(pool, MIB, held), memory);
    emulated.ok(cu.cuStreamWriteValue32_v2(other, word, 1, 0));
    emulated.ok(cu.cuStreamSynchronize(held));
    assert.equal(emulated.read(memory), 0x07_07_07_07);
  });

  test('a pool counts what is reserved and used, and gives back what it does not keep', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '256M' });
    const { cu } = emulated;
    const pool = emulated.pool();
    const total = emulated.freeBytes();
    const memory = emulated.allocateFrom(pool, 40 * MIB);
    assert.equal(emulated.poolAttribute(pool, USED), 40 * MIB);
    assert.equal(emulated.poolAttribute(pool, RESERVED), 64 * MIB);
    assert.equal(emulated.freeBytes(), total - 64 * MIB);
    emulated.ok(cu.cuMemPoolSetAttribute(pool, THRESHOLD, writeUint64(2n ** 64n - 1n)));
    emulated.ok(cu.cuMemPoolGetAttribute(pool, THRESHOLD, BLOCK));
    assert.deepEqual(readBytes(BLOCK, 8), new Uint8Array(8).fill(0xff));
    emulated.ok(cu.cuMemFreeAsync(memory, LEGACY));
    emulated.ok(cu.cuStreamSynchronize(LEGACY));
    assert.equal(emulated.poolAttribute(pool, USED), 0);
    assert.equal(emulated.poolAttribute(pool, RESERVED), 64 * MIB);
    emulated.ok(cu.cuMemPoolTrimTo(pool, 64 * MIB));
    assert.equal(emulated.poolAttribute(pool, RESERVED), 64 * MIB);
    emulated.ok(cu.cuMemPoolTrimTo(pool, 0));
    assert.equal(emulated.poolAttribute(pool, RESERVED), 0);
    assert.equal(emulated.freeBytes(), total);
    assert.equal(emulated.poolAttribute(pool, USED_HIGH), 40 * MIB);
    assert.equal(emulated.poolAttribute(pool, RESERVED_HIGH), 64 * MIB);
    emulated.ok(cu.cuMemPoolSetAttribute(pool, USED_HIGH, writeUint64(0)));
    assert.equal(emulated.poolAttribute(pool, USED_HIGH), 0);
    assert.equal(cu.cuMemPoolSetAttribute(pool, USED_HIGH, writeUint64(1)), 1);
    assert.equal(cu.cuMemPoolSetAttribute(pool, USED, writeUint64(0)), 1);
    assert.equal(cu.cuMemPoolGetAttribute(pool, 99, OUT0), 1);
    emulated.ok(cu.cuMemPoolSetAttribute(pool, 2, writeInt32(0)));
    assert.deepEqual(
      [1, 2, 3].map((attribute) => emulated.poolAttribute(pool, attribute)),
      [1, 0, 1],
    );
  });

  test('a pool without a threshold gives back at the next wait, and to those who need it', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '64M' });
    const { cu } = emulated;
    const pool = emulated.pool();
    emulated.ok(cu.cuMemFreeAsync(emulated.allocateFrom(pool, 50 * MIB), LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.poolAttribute(pool, RESERVED), 0);
    emulated.ok(cu.cuMemPoolSetAttribute(pool, THRESHOLD, writeUint64(2n ** 63n)));
    emulated.ok(cu.cuMemFreeAsync(emulated.allocateFrom(pool, 50 * MIB), LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.poolAttribute(pool, RESERVED), 64 * MIB);
    emulated.free(emulated.allocate(60 * MIB));
    assert.equal(emulated.poolAttribute(pool, RESERVED), 0);
  });

  test('a pool has no more than its maximum, and no more than the device', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '64M' });
    const { cu } = emulated;
    // A whole chunk of 32 MiB, however little is asked for.
    const small = emulated.pool({ maxSize: 4 * MIB });
    const memory = emulated.allocateFrom(small, 30 * MIB);
    assert.equal(cu.cuMemAllocFromPoolAsync(OUT0, 3 * MIB, small, LEGACY), 2);
    assert.equal(cu.cuMemAllocFromPoolAsync(OUT0, 33 * MIB, small, LEGACY), 2);
    emulated.free(memory);
    emulated.allocateFrom(small, 32 * MIB);
    assert.equal(cu.cuMemAllocAsync(OUT0, 34 * MIB, LEGACY), 2);
    emulated.ok(cu.cuMemAllocAsync(OUT0, 0, LEGACY));
    assert.equal(readSize(OUT0), 0);
    emulated.ok(cu.cuMemFreeAsync(at(0), LEGACY));
  });

  test('what is used counts bytes as asked for, and falls with cuMemFreeAsync itself', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const word = emulated.allocate(4);
    emulated.write(word, 0);
    const pool = emulated.pool({ maxSize: 64 * MIB });
    const [held, other] = [emulated.stream(1), emulated.stream(1)];
    const [first, second] = [1000, 1000].map((size) => emulated.allocateFrom(pool, size, held));
    emulated.ok(cu.cuStreamWaitValue32_v2(held, word, 1, 0));
    emulated.ok(cu.cuMemFreeAsync(first as CUdeviceptr, held));
    assert.equal(emulated.poolAttribute(pool, USED), 1000);
    assert.equal(cu.cuMemcpyDtoHAsync_v2(BLOCK, first as CUdeviceptr, 4, other), 1);
    // cuMemFree does not wait, and counts as used until the context is waited for.
    emulated.free(second as CUdeviceptr);
    assert.notEqual(emulated.allocateFrom(pool, 1000, other), second);
    emulated.ok(cu.cuStreamWriteValue32_v2(other, word, 1, 0));
    emulated.ok(cu.cuStreamSynchronize(held));
    assert.equal(emulated.poolAttribute(pool, USED), 2000);
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.poolAttribute(pool, USED), 1000);
  });

  test('a million bytes allocated and freed a thousand times stay where they are', () => {
    const emulated = Emulated.inContext();
    const pool = emulated.pool({ maxSize: 64 * MIB });
    const stream = emulated.stream(1);
    const addresses = new Set<number>();
    for (let n = 0; n < 1000; n += 1) {
      const memory = emulated.allocateFrom(pool, 1_000_000, stream);
      addresses.add(memory);
      emulated.ok(emulated.cu.cuMemFreeAsync(memory, stream));
    }
    assert.equal(addresses.size, 1);
  });

  test('cuMemAllocAsync takes from the current pool, which is the default one at first', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    emulated.ok(cu.cuDeviceGetDefaultMemPool(OUT0, device(0)));
    const standard = readSize(OUT0) as CUmemoryPool;
    assert.equal(currentPool(emulated), standard);
    const pool = emulated.pool({ maxSize: 64 * MIB });
    emulated.ok(cu.cuDeviceSetMemPool(device(0), pool));
    assert.equal(currentPool(emulated), pool);
    emulated.ok(cu.cuMemAllocAsync(OUT0, 100, LEGACY));
    const memory = at(readSize(OUT0));
    assert.equal(emulated.attribute(17, memory, true), pool);
    // A pool that is destroyed while memory of it lives goes with the last of it.
    emulated.ok(cu.cuMemPoolDestroy(pool));
    assert.equal(currentPool(emulated), standard);
    emulated.write(memory, 5);
    assert.equal(emulated.read(memory), 5);
    emulated.ok(cu.cuMemFreeAsync(memory, LEGACY));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, memory, 4), 1);
    assert.equal(cu.cuMemPoolDestroy(standard), 1);
  });

  test('what a pool is made of is checked', () => {
    const { cu } = Emulated.inContext();
    const create = (values: object): number =>
      cu.cuMemPoolCreate(
        OUT0,
        writeStruct('CUmemPoolProps', { allocType: 1, 'location.type': 1, ...values }),
      );
    assert.equal(create({}), 0);
    assert.equal(create({ allocType: 0 }), 1);
    assert.equal(create({ 'location.type': 0 }), 1);
    assert.equal(create({ 'location.type': 3 }), 801);
    assert.equal(create({ 'location.id': 7 }), 1);
    assert.equal(create({ handleTypes: 8 }), 801);
    const address = writeStruct('CUmemPoolProps', { allocType: 1, 'location.type': 1 });
    writeInt32(1, (address + 84) as Address);
    assert.equal(cu.cuMemPoolCreate(OUT0, address), 1);
  });

  test('access is asked for by device, and the owner can only have all of it', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_DEVICES: '2' });
    const { cu } = emulated;
    const pool = emulated.pool({ maxSize: MIB });
    const set = (ordinal: number, flags: number): number =>
      cu.cuMemPoolSetAccess(
        pool,
        writeStruct('CUmemAccessDesc', { 'location.type': 1, 'location.id': ordinal, flags }),
        1,
      );
    const get = (ordinal: number): number => {
      const location = writeStruct('CUmemLocation', { type: 1, id: ordinal });
      emulated.ok(cu.cuMemPoolGetAccess(OUT0, pool, location));
      return readInt32(OUT0);
    };
    assert.deepEqual([set(0, 0), set(0, 1), set(0, 3)], [101, 801, 0]);
    assert.deepEqual([get(0), get(1)], [3, 0]);
    assert.equal(set(1, 3), 0);
    assert.equal(get(1), 3);
    assert.equal(set(1, 0), 0);
    assert.equal(get(1), 0);
    assert.equal(set(5, 3), 101);
    assert.equal(set(1, 2), 1);
  });

  test('stream memory operations and legacy handles refuse memory of pools', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.allocateFrom(emulated.pool({ handleTypes: 1, maxSize: MIB }), 4096);
    assert.equal(cu.cuStreamWaitValue64_v2(LEGACY, memory, 1, 0), 1);
    assert.equal(cu.cuStreamWriteValue32_v2(LEGACY, memory, 1, 0), 1);
    assert.equal(cu.cuIpcGetMemHandle(BLOCK, memory), 1);
  });

  test(
    'another process imports a pool and its pointers, and reads on when they are freed',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const { cu } = emulated;
        const pool = await peer.ask('pool', { handleTypes: 1, maxSize: 64 * MIB });
        const theirs = await peer.ask('allocateFrom', pool, 1000);
        await peer.ask('write', theirs, 42);
        // Its pool is exported first.
        assert.equal(await peer.ask('cuMemPoolExportPointer', BLOCK, theirs), 1);
        const fd = emulated.openFd(peer.pid, await peer.ask('exportPool', pool));
        const data = await peer.ask('exportPointer', theirs);
        const imported = emulated.importPool(fd);
        assert.equal(emulated.importPool(fd), imported);
        emulated.ok(cu.cuMemPoolDestroy(imported));
        closeSync(fd);

        const first = emulated.importPointer(imported, data);
        const second = emulated.importPointer(imported, data);
        assert.deepEqual([first.status, second.status, second.address], [0, 0, first.address]);
        assert.equal(emulated.read(first.address), 42);
        assert.equal(emulated.range(first.address).byteLength, 1000);
        emulated.free(first.address);
        assert.equal(cu.cuMemcpyDtoH_v2(OUT0, first.address, 4), 1);
        assert.equal(cu.cuMemFree_v2(second.address), 1);

        const again = emulated.importPointer(imported, data).address;
        await peer.ask('cuMemFree_v2', theirs);
        assert.notEqual(await peer.ask('allocateFrom', pool, 1000), theirs);
        assert.equal(emulated.read(again), 42);
        emulated.ok(cu.cuMemFreeAsync(again, LEGACY));
        emulated.ok(cu.cuStreamSynchronize(LEGACY));
        // Nobody asks the owner, who has freed it.
        const late = emulated.importPointer(imported, data);
        assert.equal(late.status, 0);

        assert.equal(cu.cuMemAllocFromPoolAsync(OUT0, 64, imported, LEGACY), 1);
        assert.equal(cu.cuMemPoolExportToShareableHandle(OUT1, imported, 1, 0), 1);
        assert.equal(cu.cuDeviceSetMemPool(device(0), imported), 1);
        assert.equal(cu.cuMemPoolDestroy(imported), 1, 'memory of it is mapped');
        emulated.free(late.address);
        emulated.ok(cu.cuMemPoolDestroy(imported));
        emulated.ok(cu.cuMemPoolDestroy(imported));
        assert.throws(
          () => emulated.importPointer(imported, data),
          /pool was destroyed: hardware would cra/,
        );
      }),
  );

  test(
    'pointer data is refused that was altered, or is of another pool, or of no base',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const pools = [];
        for (let n = 0; n < 2; n += 1) {
          const pool = await peer.ask('pool', { handleTypes: 1, maxSize: 64 * MIB });
          const memory = await peer.ask('allocateFrom', pool, 4096);
          const fd = emulated.openFd(peer.pid, await peer.ask('exportPool', pool));
          const data = await peer.ask('exportPointer', memory);
          pools.push({ pool: emulated.importPool(fd), data, memory });
          closeSync(fd);
        }
        const [one, two] = pools as [(typeof pools)[0], (typeof pools)[0]];
        assert.equal(await peer.ask('cuMemPoolExportPointer', BLOCK, at(one.memory, 512)), 1);
        assert.equal(emulated.importPointer(one.pool, two.data).status, 1);
        assert.equal(emulated.importPointer(one.pool, new Uint8Array(64)).status, 1);
        for (let n = 0; n < 64; n += 1) {
          const altered = one.data.slice();
          altered[n] = (altered[n] as number) ^ 1;
          assert.equal(emulated.importPointer(one.pool, altered).status, 1, `byte ${n}`);
        }
        const { status, address } = emulated.importPointer(one.pool, one.data);
        assert.equal(status, 0);
        assert.equal(emulated.cu.cuMemPoolExportPointer(BLOCK, address), 1);
        await peer.kill();
        assert.equal(emulated.cu.cuMemcpyDtoH_v2(OUT0, address, 4), 0);
      }),
  );

  test('only pools that were made for it are shared, and only descriptors of pools imported', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const pool = emulated.pool({ maxSize: MIB });
    assert.equal(cu.cuMemPoolExportToShareableHandle(OUT0, pool, 1, 0), 1);
    assert.equal(cu.cuMemPoolExportPointer(BLOCK, emulated.allocateFrom(pool, 64)), 1);
    for (const fd of [0, 1_000_000])
      assert.equal(cu.cuMemPoolImportFromShareableHandle(OUT0, fd as Address, 1, 0), 1);
    const shared = emulated.exportPool(emulated.pool({ handleTypes: 1, maxSize: MIB }));
    assert.equal(libc.fcntl(shared, 1, 0), 0, 'inherited by programs, as the hardware’s is');
    closeSync(shared);
  });

  test('a device without pools refuses every function of them', () => {
    const { cu } = Emulated.inContext({ CUFFI_EMULATED_ATTRIBUTES: '115=0' });
    assert.equal(cu.cuDeviceGetDefaultMemPool(OUT0, device(0)), 801);
    assert.equal(cu.cuMemAllocAsync(OUT0, 64, LEGACY), 801);
  });

  test('the n-th allocation from a pool fails where that is asked for', () => {
    const { cu } = Emulated.inContext({ CUFFI_EMULATED_FAULTS: 'cuMemAllocAsync:2=2' });
    assert.deepEqual(
      [1, 2, 3].map(() => cu.cuMemAllocAsync(OUT0, 64, LEGACY)),
      [0, 2, 0],
    );
  });
});
