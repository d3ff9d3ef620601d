/** The rounds of a case, and the samples of several passes. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isWarm, measure } from '../measure.ts';
import { mergeCase } from '../results.ts';
import { caseOf } from './results.ts';

const once = { rounds: 1, calls: 1, budgetMs: 0, minRounds: 1 };

describe('measure', () => {
  test('ends after the budget and the least rounds, and begins each round with another contestant', async () => {
    const turns: string[] = [];
    const contestant = (name: string, rounds?: number) => ({
      name,
      ...(rounds === undefined ? {} : { rounds }),
      run: (calls: number) => {
        turns.push(name);
        return calls * 7;
      },
    });
    const allowance = { rounds: 9, calls: 3, budgetMs: 0, minRounds: 4 };
    const [a, b, few] = await measure(
      [contestant('a'), contestant('b'), contestant('few', 2)],
      allowance,
    );
    assert.deepEqual(a?.samples, [7, 7, 7, 7]);
    assert.equal(b?.samples.length, 4);
    assert.equal(few?.samples.length, 2);
    // The first round is untimed.
    assert.deepEqual(turns.slice(0, 3), ['a', 'b', 'few']);
    assert.equal(turns[3], 'a');
    assert.equal(turns[6], 'b');

    const signal = AbortSignal.abort(new Error('interrupted'));
    await assert.rejects(measure([contestant('a')], { ...allowance, signal }), /interrupted/);
  });

  test('keeps all samples of a contestant that takes its own, without an untimed round', async () => {
    let runs = 0;
    const run = () => {
      runs += 1;
      return [5, 6, 7];
    };
    const own = { name: 'a', hasRun: true, rounds: 1, run };
    const [one] = await measure([own], { ...once, rounds: 2, calls: 10 });
    assert.deepEqual([one?.samples, runs], [[5, 6, 7], 1]);
  });

  test('runs a contestant untimed first if it asks for a warm-up', async () => {
    let runs = 0;
    const [one] = await measure([{ name: 'a', warmUpMs: 1, run: () => ++runs }], once);
    assert.ok(one && one.samples.length === 1 && (one.samples[0] as number) > 2);
  });

  test('goes on with a warm-up while it gains, and ends it before its most when it does not', async () => {
    let runs = 0;
    const slowThenFast = {
      name: 'a',
      warmUpMs: 1,
      warmUpMostMs: 60_000,
      run: async () => {
        await sleep(1);
        runs += 1;
        return Math.max(100 - runs, 10);
      },
    };
    const [one] = await measure([slowThenFast], once);
    assert.deepEqual(one?.samples, [10]);
  });
});

describe('isWarm', () => {
  test('is true if the last third of at least six batches is hardly faster than the third before', () => {
    const batches = (...thirds: readonly number[]): number[] => thirds.flatMap((ns) => [ns, ns]);
    assert.ok(isWarm(batches(300, 100, 98)));
    assert.ok(!isWarm(batches(300, 100, 96)));
    assert.ok(!isWarm(batches(100, 100, 100).slice(1)));
  });
});

describe('mergeCase', () => {
  test('joins the samples of each contestant, and leaves out one that has none', () => {
    const skipped = [{ name: 'numba', reason: 'it is not here' }];
    const first = caseOf('calls', 'a', { cuffi: [1, 2, 3], C: [] }, { skipped });
    const second = caseOf('calls', 'a', { cuffi: [10, 20], D: [] }, { skipped });
    const merged = mergeCase([first, second]);
    assert.deepEqual(
      merged.contestants.map(({ name, samples, median }) => [name, samples, median]),
      [['cuffi', [1, 2, 3, 10, 20], 3]],
    );
    assert.deepEqual(merged.skipped, skipped);
  });
});
