import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { watchFd } from '../../../../../ffi/linux/poll.ts';
import { NotSupportedError } from '../../../../../src/errors.ts';
import { connect, listen, parentPeer, spawnPeer } from '../../../../../src/ipc/index.ts';
import { openDescriptors } from '../../../../support/process-state.ts';

const { versions } = process;
/** Lets this process look like one of another runtime. */
const pretend = (other: Readonly<Record<string, string>>): void => {
  Object.defineProperty(process, 'versions', { value: { ...versions, ...other } });
};

describe('assertCanConnect', () => {
  afterEach(() => pretend({}));

  const ways: Readonly<Record<string, () => unknown>> = {
    spawnPeer: () => spawnPeer('/not/there.js'),
    parentPeer: () => parentPeer(),
    listen: () => listen('@cuffi-peer-options'),
    connect: () => connect('@cuffi-peer-options', { timeoutMs: 60_000 }),
  };
  for (const [way, call] of Object.entries(ways)) {
    test(`${way}() is refused in Bun and Deno before it does anything`, async () => {
      const before = openDescriptors();
      for (const [name, version] of [
        ['Bun', '1.4.5'],
        ['Deno', '2.9.6'],
      ] as const) {
        pretend({ [name.toLowerCase()]: version });
        await assert.rejects(
          async () => call(),
          (error: unknown) =>
            error instanceof NotSupportedError &&
            error.code === 'not-supported' &&
            error.message.startsWith(`${way}() needs Node: ${name} ${version} cannot watch`) &&
            error.message.includes('getIpcHandle'),
        );
      }
      assert.deepEqual(openDescriptors(), before);
    });
  }

  test('watchFd() is refused there, too: Bun would abort the process', () => {
    for (const runtime of ['bun', 'deno']) {
      pretend({ [runtime]: '1.0.0' });
      assert.throws(() => watchFd(0, { readable: true }, () => {}), {
        code: 'ENOSYS',
        message: /cannot watch descriptors/,
      });
    }
  });
});
