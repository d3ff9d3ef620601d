/** The ways of moving bytes to another process. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceBuffer } from 'cuffi';
import { leases } from 'cuffi/ipc';
import { handOverWays } from '../cases/hand-over.ts';
import { chooseDriver } from '../machine.ts';
import { channelAhead, quietChannel } from '../ways/channels.ts';
import { Children } from '../ways/children.ts';
import { openWays } from '../ways/way.ts';

// More than a block of the pattern, and not a whole number of blocks.
const BYTE_LENGTH = (1 << 20) + 4096;
// The children have the names of TypeScript, however this process runs.
const LOADER = new URL('../../test/support/tsx-if-needed.mjs', import.meta.url).href;
if (!process.execArgv.includes('tsx')) process.execArgv.push('--import', LOADER);

describe('openWays', () => {
  test('each way hands over a whole buffer, then words; the receiver reports wrong bytes', async () => {
    const driver = chooseDriver();
    const children = new Children(driver);
    try {
      for (const ways of handOverWays) {
        const { contestants, verify, close } = await openWays(ways, {
          driver,
          children,
          byteLength: BYTE_LENGTH,
        });
        for (const { name, run } of contestants) assert.ok(((await run(2, 1)) as number) > 0, name);
        await verify?.();
        await close();
      }
      const receiver = await children.receiver();
      using buffer = DeviceBuffer.allocate(BYTE_LENGTH);
      await receiver.compareNext();
      assert.equal(await receiver.give(buffer), 'wrong bytes after byte 0');
    } finally {
      await children.end();
    }
  });

  test('a child that runs on keeps no channel of a way that was closed', async () => {
    const driver = chooseDriver();
    const children = new Children(driver);
    try {
      for (const way of [quietChannel, channelAhead(2)]) {
        const options = { driver, children, byteLength: 4096 };
        const { contestants, close } = await openWays([way], options);
        for (const { name, run } of contestants) assert.ok(((await run(2, 1)) as number) > 0, name);
        await close();
        await leases.drain({ timeoutMs: 10_000 });
      }
    } finally {
      await children.end();
    }
  });
});
