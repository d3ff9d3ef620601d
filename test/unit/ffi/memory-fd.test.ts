import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../ffi/driver.ts';
import type { Driver } from '../../../ffi/functions.ts';
import { closeFd, createMemfd, duplicateFd } from '../../../ffi/linux/libc.ts';
import { socketPair } from '../../../ffi/linux/socket.ts';
import { isMarkedReadOnly, markReadOnly, mayBeDriverMemory } from '../../../ffi/memory-fd.ts';
import { openPipe } from './fixtures/descriptors.ts';

describe('mayBeMemory', () => {
  test('nothing that is ordinarily open is taken for memory, before whichever driver', () => {
    const fds = [
      ...socketPair(),
      ...openPipe(),
      createMemfd('other', 4096),
      openSync('/dev/null', 'r+'),
      openSync('/dev/zero', 'r+'),
      openSync('/', 'r'),
    ];
    const memory = createMemfd('cuffi.pool', 4096);
    for (const driver of ['emulated', {} as Driver] as const) {
      selectDriver(driver);
      assert.deepEqual(fds.filter(mayBeDriverMemory), []);
      assert.equal(mayBeDriverMemory(memory), true);
      assert.equal(mayBeDriverMemory(2 ** 20), false);
    }
    [...fds, memory].forEach(closeFd);
    assert.equal(mayBeDriverMemory(memory), false);
  });

  test('a mark for reading belongs to the open file: copies of the descriptor have it, another opening has not', () => {
    const fd = createMemfd('cuffi.memory', 4096);
    const again = openSync(`/proc/self/fd/${fd}`, 'r+');
    const copy = duplicateFd(fd);
    assert.deepEqual([fd, copy, again].map(isMarkedReadOnly), [false, false, false]);
    markReadOnly(copy);
    assert.deepEqual([fd, copy, again].map(isMarkedReadOnly), [true, true, false]);
    for (const each of [fd, copy, again]) closeFd(each);
    for (const call of [isMarkedReadOnly, markReadOnly])
      assert.throws(() => call(fd), { name: 'SystemError', code: 'EBADF' });
  });
});
