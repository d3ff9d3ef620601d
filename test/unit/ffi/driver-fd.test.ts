import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { test } from 'node:test';
import { selectDriver } from '../../../ffi/driver.ts';
import { mayBeMemory } from '../../../ffi/driver-fd.ts';
import type { Driver } from '../../../ffi/functions.ts';
import { closeFd, createMemfd } from '../../../ffi/libc.ts';
import { socketPair } from '../../../ffi/socket.ts';
import { openPipe } from './fixtures/descriptors.ts';

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
