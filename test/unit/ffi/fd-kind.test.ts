import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../ffi/driver.ts';
import { isForReading, markForReading, mayBeMemory } from '../../../ffi/fd-kind.ts';
import type { Driver } from '../../../ffi/functions.ts';
import { closeFd, createMemfd, duplicateFd } from '../../../ffi/linux/libc.ts';
import { socketPair } from '../../../ffi/linux/socket.ts';
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
      assert.deepEqual(fds.filter(mayBeMemory), []);
      assert.equal(mayBeMemory(memory), true);
      assert.equal(mayBeMemory(2 ** 20), false);
    }
    [...fds, memory].forEach(closeFd);
    assert.equal(mayBeMemory(memory), false);
  });

  test('a mark for reading belongs to the open file: copies of the descriptor have it, another opening has not', () => {
    const fd = createMemfd('cuffi.memory', 4096);
    const again = openSync(`/proc/self/fd/${fd}`, 'r+');
    const copy = duplicateFd(fd);
    assert.deepEqual([fd, copy, again].map(isForReading), [false, false, false]);
    markForReading(copy);
    assert.deepEqual([fd, copy, again].map(isForReading), [true, true, false]);
    for (const each of [fd, copy, again]) closeFd(each);
    for (const call of [isForReading, markForReading])
      assert.throws(() => call(fd), { name: 'SystemError', code: 'EBADF' });
  });
});
