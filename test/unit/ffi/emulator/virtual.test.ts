import assert from 'node:assert/strict';
import { closeSync } from 'node:fs';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, readSize, writeStruct } from '../../../../ffi/arena.ts';
import type { Address } from '../../../../ffi/types.ts';
import { withPeer } from './peer.ts';
import { at, Emulated, LEGACY, physicalProperties } from './support.ts';

const deadline = { timeout: 30_000 };
const UNIT = 2 ** 21;

describe('emulated virtual memory', () => {
  test('memory is mapped where addresses are reserved, and used when access is given', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    emulated.ok(cu.cuMemGetAllocationGranularity(OUT0, physicalProperties(), 0));
    assert.equal(readSize(OUT0), UNIT);
    const total = emulated.freeBytes();
    const memory = emulated.reserve(2 * UNIT);
    const handle = emulated.createPhysical(UNIT);
    assert.equal(emulated.freeBytes(), total - UNIT);
    emulated.ok(cu.cuMemMap(memory, UNIT, 0, handle, 0));
    assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, memory, 4), 1);
    emulated.ok(emulated.setAccess(memory, UNIT, 1));
    emulated.ok(cu.cuMemcpyDtoH_v2(BLOCK, memory, 4));
    assert.equal(cu.cuMemcpyHtoD_v2(memory, BLOCK, 4), 1);
    assert.equal(cu.cuMemsetD8Async(memory, 1, 4, LEGACY), 1);
    emulated.ok(emulated.setAccess(memory, UNIT, 3));
    emulated.write(memory, 9);
    emulated.ok(cu.cuMemGetAccess(OUT0, writeStruct('CUmemLocation', { type: 1 }), memory));
    assert.equal(readSize(OUT0), 3);
    assert.deepEqual(emulated.range(at(memory, 5)), { base: memory, byteLength: UNIT });
    assert.equal(emulated.attribute(10, memory), 0);

    // The mapping keeps the memory when the handle goes, and the addresses cannot go before it.
    emulated.ok(cu.cuMemRelease(handle));
    assert.equal(cu.cuMemRelease(handle), 1);
    assert.equal(emulated.read(memory), 9);
    assert.equal(cu.cuMemAddressFree(memory, 2 * UNIT), 1);
    emulated.ok(cu.cuMemUnmap(memory, UNIT));
    assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, memory, 4), 1);
    assert.equal(emulated.freeBytes(), total);
    assert.equal(cu.cuMemAddressFree(memory, UNIT), 1);
    emulated.ok(cu.cuMemAddressFree(memory, 2 * UNIT));
    assert.equal(cu.cuMemAddressFree(memory, 2 * UNIT), 1);
  });

  test('memory grows in place, and copies do not cross the seam', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const memory = emulated.reserve(4 * UNIT);
    const handles = [emulated.createPhysical(UNIT), emulated.createPhysical(2 * UNIT)] as const;
    emulated.ok(cu.cuMemMap(memory, UNIT, 0, handles[0], 0));
    emulated.ok(emulated.setAccess(memory, UNIT, 3));
    emulated.write(at(memory, UNIT - 4), 1);
    emulated.ok(cu.cuMemMap(at(memory, UNIT), 2 * UNIT, 0, handles[1], 0));
    assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, at(memory, UNIT - 4), 8), 1);
    emulated.ok(emulated.setAccess(memory, 3 * UNIT, 3));
    emulated.write(at(memory, UNIT), 2);
    // What is read now may be of both sides, if it is little.
    emulated.ok(cu.cuMemcpyDtoH_v2(BLOCK, at(memory, UNIT - 4), 8));
    const seam = at(memory, UNIT - 4);
    const plain = emulated.allocate(256);
    assert.equal(cu.cuMemcpyDtoH_v2(BLOCK, seam, 128), 1);
    assert.equal(cu.cuMemcpyHtoD_v2(seam, BLOCK, 8), 1);
    assert.equal(cu.cuMemcpyDtoHAsync_v2(BLOCK, seam, 8, LEGACY), 1);
    assert.equal(cu.cuMemcpyHtoDAsync_v2(seam, BLOCK, 8, LEGACY), 1);
    assert.equal(cu.cuMemcpyDtoDAsync_v2(plain, seam, 8, LEGACY), 1);
    assert.equal(cu.cuMemsetD8Async(seam, 1, 8, LEGACY), 1);
    assert.equal(cu.cuMemsetD2D8Async(seam, 8, 1, 4, 2, LEGACY), 1);
    assert.equal(emulated.read(at(memory, UNIT - 4)), 1);
    assert.equal(cu.cuMemUnmap(memory, 2 * UNIT), 1);
    assert.equal(emulated.attribute(12, memory, true), 4 * UNIT);
    assert.equal(emulated.range(memory).byteLength, UNIT);
    emulated.ok(cu.cuMemUnmap(memory, 3 * UNIT));
    emulated.ok(cu.cuMemUnmap(memory, 3 * UNIT));
    emulated.ok(cu.cuMemMap(at(memory, UNIT), UNIT, 0, handles[0], 0));
    emulated.ok(emulated.setAccess(at(memory, UNIT), UNIT, 3));
    assert.equal(emulated.read(at(memory, 2 * UNIT - 4)), 1);
  });

  test('sizes, places and addresses are checked', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '16M' });
    const { cu } = emulated;
    const memory = emulated.reserve(2 * UNIT);
    const handle = emulated.createPhysical(UNIT);
    assert.equal(cu.cuMemAddressReserve(OUT0, 4096, 0, at(0), 0), 1);
    assert.equal(cu.cuMemCreate(OUT0, 4096, physicalProperties(), 0), 1);
    assert.equal(cu.cuMemCreate(OUT0, 16 * UNIT, physicalProperties(), 0), 2);
    assert.equal(cu.cuMemCreate(OUT0, UNIT, physicalProperties(0, { type: 0 }), 0), 1);
    assert.equal(cu.cuMemCreate(OUT0, UNIT, physicalProperties(0, { 'location.id': 3 }), 0), 101);
    assert.equal(cu.cuMemMap(memory, 2 * UNIT, 0, handle, 0), 1);
    assert.equal(cu.cuMemMap(memory, UNIT, 0, emulated.createPhysical(2 * UNIT), 0), 801);
    assert.equal(cu.cuMemMap(at(memory, 4096), UNIT, 0, handle, 0), 1);
    assert.equal(cu.cuMemMap(at(0x1234_5600), UNIT, 0, handle, 0), 1);
    emulated.ok(cu.cuMemMap(memory, UNIT, 0, handle, 0));
    assert.equal(cu.cuMemMap(memory, UNIT, 0, handle, 0), 1);
    assert.equal(emulated.setAccess(at(memory, UNIT), UNIT, 3), 1);
    assert.equal(emulated.setAccess(memory, UNIT, 3, 9), 1);
    assert.equal(emulated.setAccess(memory, UNIT, 2), 1);
    assert.equal(cu.cuMemSetAccess(memory, UNIT, BLOCK, 0), 1);
    const wanted = emulated.reserve(UNIT);
    emulated.ok(cu.cuMemAddressFree(wanted, UNIT));
    assert.equal(emulated.reserve(UNIT, wanted), wanted);
    assert.notEqual(emulated.reserve(UNIT, wanted), wanted);
    emulated.ok(cu.cuMemAddressReserve(OUT0, UNIT, 16 * UNIT, at(0), 0));
    assert.equal(readSize(OUT0) % (16 * UNIT), 0);
  });

  test(
    'another process imports memory by descriptor, and keeps it when the owner is killed',
    deadline,
    () =>
      withPeer(async (peer) => {
        const emulated = Emulated.inContext();
        const { cu } = emulated;
        const theirs = await peer.ask('reserve', UNIT);
        const handle = await peer.ask('createPhysical', UNIT, 1);
        await peer.ask('cuMemMap', theirs, UNIT, 0, handle, 0);
        await peer.ask('setAccess', theirs, UNIT, 3);
        await peer.ask('write', theirs, 77);
        const fd = emulated.openFd(peer.pid, await peer.ask('exportPhysical', handle));
        const imported = emulated.importPhysical(fd);
        closeSync(fd);
        assert.equal(cu.cuMemExportToShareableHandle(OUT0, imported, 1, 0), 1);
        const memory = emulated.reserve(UNIT);
        emulated.ok(cu.cuMemMap(memory, UNIT, 0, imported, 0));
        assert.equal(cu.cuMemcpyDtoH_v2(OUT0, memory, 4), 1);
        emulated.ok(emulated.setAccess(memory, UNIT, 1));
        assert.equal(emulated.read(memory), 77);
        assert.equal(cu.cuMemsetD8Async(memory, 1, 4, LEGACY), 1);
        emulated.ok(cu.cuMemRelease(imported));
        await peer.kill();
        assert.equal(emulated.read(memory), 77);
        emulated.ok(cu.cuMemUnmap(memory, UNIT));
      }),
  );

  test('imported in its own process, memory has a second address', () => {
    const emulated = Emulated.inContext();
    const { cu } = emulated;
    const handle = emulated.createPhysical(UNIT, 1);
    const fd = emulated.exportPhysical(handle);
    const alias = emulated.importPhysical(fd);
    closeSync(fd);
    const addresses = [handle, alias].map((each) => {
      const address = emulated.reserve(UNIT);
      emulated.ok(cu.cuMemMap(address, UNIT, 0, each, 0));
      emulated.ok(emulated.setAccess(address, UNIT, 3));
      return address;
    });
    emulated.write(at(addresses[0] as number), 3);
    assert.equal(emulated.read(at(addresses[1] as number)), 3);
    assert.equal(cu.cuMemExportToShareableHandle(OUT0, emulated.createPhysical(UNIT), 1, 0), 1);
    assert.equal(cu.cuMemImportFromShareableHandle(OUT0, 1_000_000 as Address, 1), 1);
    emulated.ok(cu.cuStreamWriteValue64_v2(LEGACY, at(addresses[0] as number), 2n ** 40n, 0));
    emulated.ok(cu.cuCtxSynchronize());
    assert.equal(emulated.read(at(addresses[0] as number, 4)), 2 ** 8);
  });

  test('a device without virtual memory refuses its functions', () => {
    const { cu } = Emulated.inContext({ CUFFI_EMULATED_ATTRIBUTES: '102=0' });
    assert.equal(cu.cuMemAddressReserve(OUT0, UNIT, 0, at(0), 0), 801);
  });
});
