/** Rounds of a case, and how they are spread over passes and put together again. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { compareResults } from '../compare.ts';
import { measure } from '../measure.ts';
import { mergeCase, partOf, shareOf } from '../passes.ts';
import { caseOf, resultsOf } from './results.ts';

const passesOf = (of: number) => Array.from({ length: of }, (_, index) => ({ index, of }));

describe('measure', () => {
  test('a case ends when its time is over, after the least rounds, and each has its turn first', async () => {
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
    // The first round warms up.
    assert.deepEqual(turns.slice(0, 3), ['a', 'b', 'few']);
    assert.equal(turns.slice(3, 6)[0], 'a');
    assert.equal(turns.slice(6, 9)[0], 'b');

    const signal = AbortSignal.abort(new Error('interrupted'));
    await assert.rejects(measure([contestant('a')], { ...allowance, signal }), /interrupted/);
  });

  test('a contestant without a round in a pass is not run in it', async () => {
    let runs = 0;
    const absent = { name: 'absent', rounds: 0, warmUpMs: 5, run: () => (runs += 1) };
    const [one] = await measure([absent], { rounds: 2, calls: 1, budgetMs: 0, minRounds: 1 });
    assert.deepEqual([one?.samples, runs], [[], 0]);
  });

  test('a contestant that needs a warm-up runs untimed before the first round', async () => {
    let runs = 0;
    const warmed = { name: 'a', warmUpMs: 1, run: () => ++runs };
    const [one] = await measure([warmed], { rounds: 1, calls: 1, budgetMs: 0, minRounds: 1 });
    assert.ok(one && one.samples.length === 1 && (one.samples[0] as number) > 2);
  });
});

describe('partOf and shareOf', () => {
  test('passes have even parts of all rounds, the last the largest', () => {
    for (const total of [1, 5, 7, 31]) {
      const shares = passesOf(5).map((pass) => shareOf(total, pass));
      assert.equal(
        shares.reduce((sum, share) => sum + share),
        total,
      );
      assert.ok(Math.max(...shares) - Math.min(...shares) <= 1, shares.join());
      assert.equal(shares.at(-1), Math.max(...shares));
    }
  });

  test('a case that is in few passes is in the last, and spread over the others', () => {
    const parts = passesOf(5).map((pass) => partOf(pass, 2));
    assert.deepEqual(parts, [
      undefined,
      undefined,
      { index: 0, of: 2 },
      undefined,
      { index: 1, of: 2 },
    ]);
    assert.deepEqual(
      passesOf(3).map((pass) => partOf(pass, 31)),
      passesOf(3),
    );
  });
});

describe('mergeCase', () => {
  test('the samples of passes are put together in turns, each contestant for itself', () => {
    const skipped = [{ name: 'numba', reason: 'it is not here' }];
    const first = caseOf('calls', 'a', { cuffi: [1, 2, 3], C: [] }, { skipped });
    const second = caseOf('calls', 'a', { cuffi: [10, 20], C: [5] }, { skipped });
    const merged = mergeCase([first, second]);
    assert.deepEqual(
      merged.contestants.map(({ name, samples, median }) => [name, samples, median]),
      [
        ['cuffi', [1, 10, 2, 20, 3], 3],
        ['C', [5], 5],
      ],
    );
    assert.deepEqual(merged.skipped, skipped);
  });

  test('runs whose processes differ agree by passes where they do not in one', () => {
    // Each process has its own speed, each round a little jitter.
    const speeds = [100, 120, 90, 115, 95];
    const passOf = (speed: number) =>
      caseOf('calls', 'a', { cuffi: [-1, 0, 1].map((jitter) => speed + jitter) });
    const run = (...of: number[]) => resultsOf([mergeCase(of.map(passOf))]);
    assert.equal(compareResults(run(100), run(115)).times.share, 0);
    assert.equal(compareResults(run(...speeds), run(118, 93, 112, 88, 105)).times.share, 1);
  });
});
