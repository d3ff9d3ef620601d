import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  constants,
  fstatSync,
  mkdtempSync,
  openSync,
  readlinkSync,
  readSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { openLibrary } from '../../../../ffi/library.ts';
import {
  closeFd,
  createMemfd,
  createPipe,
  duplicateFd,
  errno,
  isOpenFd,
  isPipeEnd,
  isSameFile,
  isShortage,
  libc,
  libcSymbol,
  mapShared,
  openPidfd,
  readProcessMemory,
  SystemError,
  setCloseOnExec,
  succeeded,
  writeProcessMemory,
} from '../../../../ffi/linux/libc.ts';
import { socketPair } from '../../../../ffi/linux/socket.ts';
import { addressOf } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { openDescriptors, replaceLibc } from '../../../support/process-state.ts';
import { startProcess } from '../../../support/program.ts';

const EFAULT = 14;
const code = (expected: string) => (error: unknown) =>
  error instanceof SystemError && error.code === expected;

describe('isShortage', () => {
  test('too many descriptors and too little memory are shortages, and nothing else is', () => {
    const ENOENT = 2;
    for (const [number, expected] of [
      [12, true], // ENOMEM
      [23, true], // ENFILE
      [24, true], // EMFILE
      [105, true], // ENOBUFS
      [ENOENT, false],
    ] as const)
      assert.equal(isShortage(new SystemError('open', number)), expected, `${number}`);
    assert.equal(isShortage(new Error('EMFILE')), false);
  });
});

describe('libc', () => {
  test('a call that failed is an error with the name, the number and the call', () => {
    assert.throws(
      () => closeFd(-1),
      (error) => {
        assert.ok(error instanceof SystemError);
        assert.deepEqual(
          [error.name, error.code, error.errno, error.syscall, error.message],
          ['SystemError', 'EBADF', 9, 'close', 'close: EBADF (-1 is not a descriptor)'],
        );
        return true;
      },
    );
    assert.equal(succeeded(3, 'open'), 3);
    assert.equal(new SystemError('open', 4711, 'odd').message, 'open: ERRNO_4711 (odd)');
  });

  test('a memfd has its size, is close-on-exec, and goes with its last descriptor', () => {
    const before = openDescriptors();
    const fd = createMemfd('cuffi-test', 10_000);
    assert.equal(fstatSync(fd).size, 10_000);
    assert.match(readlinkSync(`/proc/self/fd/${fd}`), /memfd:cuffi-test/);
    assert.equal(libc.fcntl(fd, 1, 0), 1);
    closeFd(fd);
    assert.equal(isOpenFd(fd), false);
    assert.equal(openDescriptors(), before);
  });

  test('a memfd whose size cannot be set leaves no descriptor', () => {
    const before = openDescriptors();
    assert.throws(() => createMemfd('cuffi-test', -1), code('EINVAL'));
    assert.equal(openDescriptors(), before);
  });

  test('isOpenFd distinguishes open descriptors from other numbers', () => {
    assert.ok(isOpenFd(2));
    for (const fd of [-1, 0.5, Number.NaN, 1_000_000]) assert.equal(isOpenFd(fd), false);
  });

  test('makes a descriptor close-on-exec', () => {
    const fd = openSync('/dev/null', 'r');
    libc.fcntl(fd, 2, 0);
    assert.equal(libc.fcntl(fd, 1, 0), 0);
    setCloseOnExec(fd);
    assert.equal(libc.fcntl(fd, 1, 0), 1);
    closeSync(fd);
    assert.throws(() => setCloseOnExec(fd), code('EBADF'));
  });

  test('two mappings of one memfd are one memory, and the file is the same memory', () => {
    const fd = createMemfd('cuffi-test', 8192);
    const [a, b] = [mapShared(fd, 8192), mapShared(fd, 4096, 4096)];
    assert.notEqual(a.address, b.address);
    const [bytesA, bytesB] = [new Uint8Array(a.view()), new Uint8Array(b.view())];
    bytesA[4096] = 1;
    assert.equal(bytesB[0], 1);
    writeSync(fd, Uint8Array.of(2), 0, 1, 4097);
    assert.equal(bytesB[1], 2);
    const read = new Uint8Array(1);
    bytesB[2] = 3;
    readSync(fd, read, 0, 1, 4098);
    assert.equal(read[0], 3);
    a.unmap();
    assert.equal(bytesB[2], 3);
    b.unmap();
    closeFd(fd);
  });

  test('a mapping outlives its descriptor', () => {
    const fd = createMemfd('cuffi-test', 4096);
    const mapping = mapShared(fd, 4096);
    closeFd(fd);
    const bytes = new Uint8Array(mapping.view());
    bytes[0] = 9;
    assert.equal(bytes[0], 9);
    mapping.unmap();
  });

  test('what cannot be mapped is an error', () => {
    const fd = createMemfd('cuffi-test', 4096);
    assert.throws(() => mapShared(fd, 0), code('EINVAL'));
    assert.throws(() => mapShared(fd, 4096, 1), code('EINVAL'));
    assert.throws(() => mapShared(-1, 4096), code('EBADF'));
    closeFd(fd);
  });

  test('copies memory of this process', () => {
    const from = Uint8Array.of(1, 2, 3, 4);
    const into = new Uint8Array(4);
    assert.equal(readProcessMemory(process.pid, addressOf(from), addressOf(into), 4), 4);
    assert.deepEqual(into, from);
    from.fill(7);
    assert.equal(writeProcessMemory(process.pid, addressOf(into), addressOf(from), 3), 3);
    assert.deepEqual(into, Uint8Array.of(7, 7, 7, 4));
  });

  test('a bad address is an answer and not a crash', () => {
    const local = new Uint8Array(8);
    const fd = createMemfd('cuffi-test', 4096);
    const mapping = mapShared(fd, 4096);
    mapping.unmap();
    for (const bad of [0, 8, mapping.address, Number.MAX_SAFE_INTEGER] as Address[]) {
      assert.equal(readProcessMemory(process.pid, bad, addressOf(local), 8), -1);
      assert.equal(errno(), EFAULT);
      assert.equal(writeProcessMemory(process.pid, bad, addressOf(local), 8), -1);
      assert.equal(errno(), EFAULT);
    }
    closeFd(fd);
  });

  test('memory that ends too soon is copied up to its end', () => {
    const fd = createMemfd('cuffi-test', 8192);
    const mapping = mapShared(fd, 8192);
    const local = new Uint8Array(8192);
    // The second page goes: the first can still be read.
    assert.equal(libc.munmap(mapping.address + 4096, 4096), 0);
    assert.equal(readProcessMemory(process.pid, mapping.address, addressOf(local), 8192), 4096);
    libc.munmap(mapping.address, 4096);
    closeFd(fd);
  });

  test('a descriptor of a process cannot be opened after the process has ended', async () => {
    const child = startProcess(process.execPath, ['-e', 'process.stdin.resume()'], {
      stdio: ['pipe', 'ignore', 'inherit'],
    });
    const exit = once(child, 'exit');
    const pid = child.pid as number;
    const pidfd = openPidfd(pid);
    child.stdin.end();
    await exit;
    assert.throws(() => openPidfd(pid), code('ESRCH'));
    closeFd(pidfd);
  });

  test('libcSymbol returns the address of a libc function, and throws for an unknown one', () => {
    const address = libcSymbol('sem_post');
    assert.ok(Number.isSafeInteger(address) && address > 0);
    assert.equal(address, openLibrary(['libc.so.6', 'libc.so']).symbol('sem_post'));
    assert.throws(() => libcSymbol('cuffi_no_such_function'), code('ENOSYS'));
  });

  test('a semaphore in native memory can be posted and taken', () => {
    const fd = createMemfd('cuffi-test', 4096);
    const mapping = mapShared(fd, 4096);
    assert.equal(libc.sem_init(mapping.address, 1, 0), 0);
    assert.equal(libc.sem_trywait(mapping.address), -1);
    assert.equal(libc.sem_post(mapping.address), 0);
    assert.equal(libc.sem_trywait(mapping.address), 0);
    mapping.unmap();
    closeFd(fd);
  });

  test('a duplicate is the same open file, close-on-exec, and lives by itself', () => {
    const before = openDescriptors();
    const fd = createMemfd('twice', 16);
    const copy = duplicateFd(fd);
    assert.notEqual(copy, fd);
    assert.equal(fstatSync(copy).ino, fstatSync(fd).ino);
    assert.equal(libc.fcntl(copy, 1, 0), 1);
    closeFd(fd);
    assert.equal(fstatSync(copy).size, 16);
    closeFd(copy);
    for (const wrong of [fd, -1, Number.NaN])
      assert.throws(() => duplicateFd(wrong), code('EBADF'));
    assert.equal(openDescriptors(), before);
  });

  test('tells the ends of pipes without a name, with their access, from all other descriptors', () => {
    const before = openDescriptors();
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-pipe-'));
    const fifo = join(folder, 'fifo');
    execFileSync('mkfifo', [fifo]);
    const O_PATH = 0o1000_0000;
    const [readEnd, writeEnd] = createPipe();
    const ends = (fd: number) => [isPipeEnd(fd, 'read'), isPipeEnd(fd, 'write')];
    assert.deepEqual(ends(readEnd), [true, false]);
    assert.deepEqual(ends(writeEnd), [false, true]);
    const others = [
      openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK),
      openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK),
      openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK),
      openSync(fifo, O_PATH),
      openSync(`/proc/self/fd/${readEnd}`, O_PATH),
      openSync(`/proc/self/fd/${readEnd}`, constants.O_RDWR),
      openSync('/dev/null', 'r'),
      openSync(join(folder, 'file'), 'w+'),
      createMemfd('memory', 16),
      ...socketPair(),
    ];
    for (const fd of [...others, -1, 1 << 20, Number.NaN])
      assert.deepEqual(ends(fd), [false, false]);
    for (const fd of [...others, readEnd, writeEnd]) closeFd(fd);
    rmSync(folder, { recursive: true });
    assert.equal(openDescriptors(), before);
  });

  test('tells copies of a descriptor from other descriptors of equal files, where the kernel does', () => {
    const fd = createMemfd('same', 16);
    const fds = [
      fd,
      duplicateFd(fd),
      openSync(`/proc/self/fd/${fd}`, 'r+'),
      createMemfd('same', 16),
    ];
    const { fcntl, syscall } = libc;
    const refuse = (): void =>
      replaceLibc('fcntl', (...args) => (args[1] === 1027 ? -1 : fcntl(...args)));
    try {
      const compare = (): unknown[] => fds.map((other) => isSameFile(fd, other));
      for (const withhold of [() => {}, refuse]) {
        withhold();
        assert.deepEqual(compare(), [true, true, false, false]);
        assert.equal(isSameFile(fd, 1 << 20), false);
      }
      replaceLibc('syscall', () => -1);
      assert.deepEqual(compare(), new Array(4).fill(undefined));
    } finally {
      replaceLibc('fcntl', fcntl);
      replaceLibc('syscall', syscall);
      for (const each of fds) closeFd(each);
    }
  });
});
