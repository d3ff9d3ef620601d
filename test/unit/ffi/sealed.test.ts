import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { test } from 'node:test';
import { closeFd, createMemfd, libc } from '../../../ffi/libc.ts';
import { createSealedMemfd, isSealedMemfd } from '../../../ffi/sealed.ts';
import { socketPair } from '../../../ffi/socket.ts';

test('sealed memory keeps its size, and is told from all else', () => {
  const fd = createSealedMemfd('sealed', 4096);
  assert.equal(isSealedMemfd(fd, 4096), true);
  assert.equal(isSealedMemfd(fd, 8192), false);
  assert.ok(libc.ftruncate(fd, 0) < 0);
  assert.ok(libc.ftruncate(fd, 8192) < 0);
  const others = [createMemfd('plain', 4096), openSync('/dev/null', 'r'), ...socketPair()];
  for (const other of others) assert.equal(isSealedMemfd(other, 4096), false);
  for (const each of [fd, ...others]) closeFd(each);
});
