import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { describe, test } from 'node:test';
import { closeFd, createMemfd, libc, mapShared } from '../../../../ffi/linux/libc.ts';
import {
  createSealedMemfd,
  isSealedMemfd,
  sealAgainstHolePunching,
} from '../../../../ffi/linux/memfd.ts';
import { socketPair } from '../../../../ffi/linux/socket.ts';
import { withAddress } from '../../../../ffi/native.ts';
import { openDescriptors, replaceLibc } from '../../../support/process-state.ts';

const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_SEAL_SHRINK = 2;
const F_SEAL_GROW = 4;

describe('createSealedMemfd', () => {
  test('sealed memory keeps its size, and is distinguished from other files', () => {
    const fd = createSealedMemfd('sealed', 4096);
    assert.equal(isSealedMemfd(fd, 4096), true);
    assert.equal(isSealedMemfd(fd, 8192), false);
    assert.ok(libc.ftruncate(fd, 0) < 0);
    assert.ok(libc.ftruncate(fd, 8192) < 0);
    const others = [createMemfd('plain', 4096), openSync('/dev/null', 'r'), ...socketPair()];
    for (const other of others) assert.equal(isSealedMemfd(other, 4096), false);
    // It can only not grow: the process that made it may still shrink it.
    for (const seal of [F_SEAL_SHRINK, F_SEAL_GROW]) {
      const half = withAddress(Buffer.from('half\0'), (name) =>
        libc.memfd_create(name, MFD_ALLOW_SEALING),
      );
      assert.equal(libc.ftruncate(half, 4096), 0);
      assert.equal(libc.fcntl(half, F_ADD_SEALS, seal), 0);
      assert.equal(isSealedMemfd(half, 4096), false);
      others.push(half);
    }
    for (const each of [fd, ...others]) closeFd(each);
  });

  test('memory of huge pages is not taken for it, whose pages may be missing at their first use', () => {
    const MFD_HUGETLB = 4;
    const fd = withAddress(Buffer.from('huge\0'), (name) =>
      libc.memfd_create(name, MFD_ALLOW_SEALING | MFD_HUGETLB),
    );
    assert.ok(fd >= 0);
    assert.equal(libc.ftruncate(fd, 2 << 20), 0);
    assert.equal(libc.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert.equal(isSealedMemfd(fd, 2 << 20), false);
    closeFd(fd);
  });

  test('memory that cannot be sealed is an error, and does not stay open', () => {
    const before = openDescriptors();
    const { fcntl } = libc;
    // The kernel knows no such seal.
    replaceLibc('fcntl', (fd, command) => fcntl(fd, command, 1 << 20));
    assert.throws(() => createSealedMemfd('sealed', 4096), { name: 'SystemError', code: 'EINVAL' });
    replaceLibc('fcntl', fcntl);
    assert.equal(openDescriptors(), before);
  });

  const F_SEAL_SEAL = 1;
  const F_SEAL_FUTURE_WRITE = 0x10;
  const PUNCH_HOLE = 2 | 1;
  const MADV_REMOVE = 9;

  test('sealed against holes its memory stays the same, and the mappings that are there stay writable', () => {
    const fd = createSealedMemfd('sealed', 4096);
    const mapping = mapShared(fd, 4096);
    const words = new Uint32Array(mapping.view());
    words[0] = 7;
    assert.equal(sealAgainstHolePunching(fd), true);
    assert.equal(sealAgainstHolePunching(fd), true);
    assert.ok(libc.fallocate(fd, PUNCH_HOLE, 0, 4096) < 0);
    assert.ok(libc.madvise(mapping.address, 4096, MADV_REMOVE) < 0);
    assert.throws(() => mapShared(fd, 4096), { name: 'SystemError', code: 'EPERM' });
    assert.equal(words[0], 7);
    words[0] = 8;
    assert.equal(words[0], 8);
    mapping.unmap();
    closeFd(fd);
  });

  test('memory that may not be sealed is an error, and a kernel without the seal is reported', () => {
    const fd = createSealedMemfd('sealed', 4096);
    assert.equal(libc.fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    assert.throws(() => sealAgainstHolePunching(fd), { name: 'SystemError', code: 'EPERM' });
    closeFd(fd);
    // A kernel before 5.1 fails in the same way for a seal that it lacks.
    const { fcntl } = libc;
    replaceLibc('fcntl', (of, command, seals) =>
      fcntl(of, command, seals === F_SEAL_FUTURE_WRITE ? 1 << 20 : seals),
    );
    const other = createSealedMemfd('sealed', 4096);
    assert.equal(sealAgainstHolePunching(other), false);
    replaceLibc('fcntl', fcntl);
    closeFd(other);
  });
});
