/** The ways of moving bytes to another process, and how long they warm up. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { DeviceBuffer } from 'cuffi';
import { handOverWays } from '../cases/hand-over.ts';
import { chooseDriver } from '../driver.ts';
import { isWarm, measure } from '../measure.ts';
import { HandOverChildren } from '../programs/hand-over-children.ts';
import { openWays } from '../ways/open.ts';

// More than a block of the pattern, and no whole number of them.
const BYTE_LENGTH = (1 << 20) + 4096;
// The processes of the bench are of the source, whatever this one is.
if (!process.execArgv.includes('tsx')) process.execArgv.push('--import', 'tsx');

describe('openWays', () => {
  test('each way hands over a whole buffer, then words; a receiver of other bytes says so', async () => {
    const driver = chooseDriver();
    const children = new HandOverChildren(driver);
    try {
      for (const ways of handOverWays) {
        const { contestants, close } = await openWays(ways, {
          driver,
          children,
          byteLength: BYTE_LENGTH,
        });
        for (const { name, run } of contestants) assert.ok((await run(2, 1)) > 0, name);
        await close();
      }
      const receiver = await children.receiver();
      using buffer = DeviceBuffer.allocate(BYTE_LENGTH);
      await receiver.compareNext();
      assert.equal(await receiver.give(buffer), 'other bytes than were sent, after byte 0');
    } finally {
      await children.end();
    }
  });
});

describe('isWarm and measure', () => {
  test('a warm-up ends when its last third is no quicker than the one before', () => {
    const batches = (...thirds: readonly number[]): number[] => thirds.flatMap((ns) => [ns, ns]);
    assert.ok(isWarm(batches(300, 100, 98)));
    assert.ok(!isWarm(batches(300, 100, 96)));
    assert.ok(!isWarm(batches(100, 100, 100).slice(1)));
  });

  test('a warm-up goes on while it gains, and ends before its most when it gains no more', async () => {
    let runs = 0;
    const slowThenQuick = {
      name: 'a',
      warmUpMs: 1,
      warmUpMostMs: 60_000,
      run: async () => {
        await sleep(1);
        runs += 1;
        return Math.max(100 - runs, 10);
      },
    };
    const [one] = await measure([slowThenQuick], {
      rounds: 1,
      calls: 1,
      budgetMs: 0,
      minRounds: 1,
    });
    assert.deepEqual(one?.samples, [10]);
  });
});
