/** Result files, and what two of them or one and the budget come to. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { aimsOf, delayAimOf, readBudget } from '../budget.ts';
import { suites } from '../cases/all.ts';
import { check } from '../commands/check.ts';
import { compare } from '../commands/compare.ts';
import { changesSince, compareResults } from '../compare.ts';
import { describeChanges } from '../compare-text.ts';
import { percent } from '../format.ts';
import { judge } from '../judge.ts';
import { RUN } from '../report/page.ts';
import { readResults, writeResults } from '../result-file.ts';
import { readShortfalls } from '../shortfalls.ts';
import { summarize } from '../statistics.ts';
import { temporaryFolder } from './files.ts';
import { caseOf, resultsOf } from './results.ts';

/** What a command says and answers. */
async function said(command: () => number | Promise<number>): Promise<[number, string]> {
  const lines: string[] = [];
  const { log } = console;
  console.log = (line: string) => lines.push(line);
  try {
    return [await command(), lines.join('\n')];
  } finally {
    console.log = log;
  }
}

describe('results', () => {
  test('samples come to quantiles that lie between them in proportion', () => {
    const { median, p10, p90, lowerQuartile, upperQuartile, spread } = summarize(
      'a',
      [40, 10, 30, 20, 50],
    );
    assert.deepEqual([p10, lowerQuartile, median, upperQuartile, p90], [14, 20, 30, 40, 46]);
    assert.equal(spread, 32 / 30);
  });

  test('a result file is read as it was written, its figures from the samples', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const results = resultsOf([caseOf('calls', 'a', { cuffi: [3, 1, 2], C: [1, 1, 1] })]);
    writeResults(file, results);
    assert.deepEqual(readResults(file), results);

    const text = readFileSync(file, 'utf8');
    assert.match(text, /"samples": \[3, 1, 2\]/);
    writeFileSync(file, text.replace('"median": 2', '"median": 1'));
    assert.deepEqual(readResults(file), results);
  });

  test('a file that is no result file is refused by the place of what is wrong', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const results = resultsOf([caseOf('calls', 'a', { cuffi: [1] })]);
    for (const [wrong, where] of [
      [{ ...results, version: 5 }, /version/],
      [
        { ...results, cases: [{ ...results.cases[0], contestants: [] }] },
        /cases\[0\]\.contestants/,
      ],
      [{ ...results, machine: { ...results.machine, gpu: '' } }, /machine\.gpu/],
      [null, /a\.json cannot be read/],
    ] as const) {
      writeFileSync(file, JSON.stringify(wrong));
      assert.throws(() => readResults(file), where);
    }
  });

  test('a file of version 3 is read as measured by the host, by itself, on a machine of no known limits', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const results = resultsOf([caseOf('calls', 'a', { cuffi: [1] })]);
    const { clock: _, limit: __, ...old } = results.cases[0] as (typeof results.cases)[number];
    const { link: ___, memoryBandwidth: ____, ...machine } = results.machine;
    const copy = { ...old, suite: 'copies', name: 'copyTo' };
    const third = { ...results, version: 3, inTurns: undefined, machine, cases: [old, copy] };
    writeFileSync(file, JSON.stringify(third));
    const { cases, ...read } = readResults(file);
    assert.deepEqual([read.version, read.inTurns, read.machine], [4, false, results.machine]);
    assert.deepEqual(cases[0], results.cases[0]);
    assert.deepEqual(cases[1]?.limit, { by: 'memory', times: 2 });
  });

  test('a file of version 2 is read as one of a single pass', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const results = resultsOf([caseOf('calls', 'a', { cuffi: [1] })]);
    writeFileSync(file, JSON.stringify({ ...results, version: 2, passes: undefined }));
    assert.deepEqual(readResults(file), { ...results, passes: 1 });
  });

  test('a file of version 1 is read', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const today = resultsOf([]);
    const { clocks: _, commit: __, ...machine } = today.machine;
    const contestants = [{ name: 'cuffi', median: 2, min: 1, max: 3, rounds: [1, 2, 3] }];
    const old = {
      variant: null,
      what: 'x',
      callsPerBatch: 1,
      byteLength: 4,
      ratios: [],
      skipped: [],
    };
    const cases = ['stream.done', 'hand-over', 'pool.allocate', 'copyFrom', 'array.slice'].map(
      (name) => ({
        ...old,
        name,
        contestants,
        gigabytesPerSecond: name === 'copyFrom' ? [1] : null,
      }),
    );
    writeFileSync(file, JSON.stringify({ ...today, quick: undefined, version: 1, machine, cases }));
    const read = readResults(file);
    assert.deepEqual(
      read.cases.map(({ suite, isCopy }) => [suite, isCopy]),
      [
        ['calls', false],
        ['hand-over', false],
        ['memory', false],
        ['copies', true],
        ['arrays', false],
      ],
    );
    assert.deepEqual(read.cases[0]?.contestants, [summarize('cuffi', [1, 2, 3])]);
    assert.equal(read.passes, 1);
  });

  test('comparing names the medians outside p10 to p90 of the other run, both ways', () => {
    const a = resultsOf([
      caseOf('calls', 'same', { cuffi: [1, 2, 3], gone: [1] }),
      caseOf('calls', 'slower', { cuffi: [10, 10, 10] }),
    ]);
    const b = resultsOf([
      caseOf('calls', 'same', { cuffi: [2, 2, 3] }),
      caseOf('calls', 'slower', { cuffi: [5, 20, 30] }),
    ]);
    const { times, alone } = compareResults(a, b);
    assert.deepEqual([times.compared, times.share, alone], [4, 3 / 4, 1]);
    assert.deepEqual(
      times.outliers.map(({ case: name, of, median }) => [name, of, median]),
      [['slower', 'B', 20]],
    );
  });

  test('what has changed is counted by the medians of the later run, in one suite', () => {
    const before = resultsOf([
      caseOf('calls', 'slower', { cuffi: [1, 1, 1] }),
      caseOf('hand-over', 'slower', { cuffi: [10, 11, 12], gone: [1], same: [1, 5, 9] }),
      caseOf('hand-over', 'quicker', { cuffi: [10, 11, 12] }),
      // Narrow then, wide now: only the later median counts.
      caseOf('hand-over', 'wide', { cuffi: [10, 20, 30] }),
    ]);
    const now = resultsOf([
      caseOf('calls', 'slower', { cuffi: [2, 2, 2] }),
      caseOf('hand-over', 'slower', { cuffi: [11, 22, 33], same: [2, 5, 6] }),
      caseOf('hand-over', 'quicker', { cuffi: [1, 2, 3] }),
      caseOf('hand-over', 'wide', { cuffi: [28, 28, 28] }),
    ]);
    const changes = changesSince(before, now, 'hand-over');
    assert.deepEqual([changes.rows, changes.share, changes.alone], [4, 2 / 4, 1]);
    assert.deepEqual(
      [changes.quicker, changes.slower].map((rows) => rows.map((row) => row.case)),
      [['quicker'], ['slower']],
    );
    assert.deepEqual(describeChanges(changes, 0.95), [
      "hand-over: 2 of 4 medians of B lie within A's p10 to p90: 50.0 %, at least 95.0 % asked; " +
        'quicker: 1, slower: 1, in only one of them: 1',
      "slower: slower, cuffi: 22.0 ns, 2.00 times A's 11.0 ns (p10 to p90 10.2 ns to 11.8 ns)",
    ]);
    assert.equal(changesSince(before, resultsOf([]), 'hand-over').share, 0);
  });

  test('ratios are compared round by round, of whoever took part in all of them', () => {
    // A host that is slower by a half: the times differ, and what they are held against does, too.
    const quick = { cuffi: [10, 11, 12], C: [5, 5.5, 6], rare: [1] };
    const slow = { cuffi: [15, 16.5, 18], C: [7.5, 8.25, 9], rare: [1] };
    const comparing = (other: Record<string, number[]>) =>
      compareResults(
        resultsOf([caseOf('calls', 'a', quick)]),
        resultsOf([caseOf('calls', 'a', other)]),
      );
    const { times, ratios } = comparing(slow);
    assert.deepEqual([times.share, ratios.compared, ratios.share], [2 / 6, 2, 1]);
    const dearer = comparing({ ...slow, cuffi: [30, 33, 36] }).ratios;
    assert.deepEqual(
      dearer.outliers.map(({ contestant, of, median }) => [contestant, of, median]),
      [
        ['C', 'A', 2],
        ['C', 'B', 4],
      ],
    );
  });

  test('a share that falls short of what is asked does not read as if it had reached it', () => {
    assert.deepEqual([0.9497, 0.95, 1].map(percent), ['94.9 %', '95.0 %', '100.0 %']);
  });

  test('compare ends with 1 below the threshold, and refuses to mix drivers', async () => {
    using folder = temporaryFolder();
    const write = (name: string, ns: number, emulated = false): string => {
      const file = join(folder.path, name);
      writeResults(file, resultsOf([caseOf('calls', 'a', { cuffi: [ns] })], { emulated }));
      return file;
    };
    const [a, b, emulated] = [write('a', 1), write('b', 2), write('c', 1, true)];
    assert.equal((await said(() => compare([a, a])))[0], 0);
    assert.equal((await said(() => compare([a, b])))[0], 1);
    assert.equal((await said(() => compare([a, b, '--threshold', '0'])))[0], 0);
    assert.match((await said(() => compare([a, b])))[1], /0 of 2 medians .* they do not agree$/);
    const other = join(folder.path, 'other');
    writeResults(other, resultsOf([caseOf('calls', 'b', { cuffi: [1] })]));
    const nothing = await said(() => compare([a, other, '--threshold', '0']));
    assert.deepEqual([nothing[0], /nothing is in both/.test(nothing[1])], [1, true]);
    assert.throws(() => compare([a, emulated]), /emulated/);
    assert.throws(() => compare([a]), /two result files/);
    assert.throws(() => compare([a, b, '--threshold', '2']), /from 0 to 1, not '2'/);
  });

  test('an aim is held against its case, its sizes and its contestant', () => {
    const results = resultsOf([
      caseOf('copies', 'up', { cuffi: [30], C: [10] }, { variant: 'small', byteLength: 1 }),
      caseOf('copies', 'up', { cuffi: [30], C: [20] }, { variant: 'large', byteLength: 8 }),
      caseOf('hand-over', 'mapped', { cuffi: [39_000], other: [80_000] }),
    ]);
    const aim = { suite: 'copies', case: 'up', statistic: 'median', versus: 'C', max: 2 } as const;
    const mapped = { suite: 'hand-over', case: 'mapped', statistic: 'median', maxUs: 40 } as const;
    const verdicts = (...aims: Parameters<typeof judge>[1]) =>
      judge(results, aims).map(({ ratio, met }) => [ratio, met]);
    assert.deepEqual(verdicts(aim), [
      [3, false],
      [1.5, true],
    ]);
    assert.deepEqual(verdicts({ ...aim, fromByteLength: 2 }), [[1.5, true]]);
    assert.deepEqual(verdicts({ ...aim, variant: 'small' }), [[3, false]]);
    assert.deepEqual(verdicts(mapped, { ...mapped, contestant: 'other' }), [
      [0.975, true],
      [2, false],
    ]);
    const over = { ...mapped, over: 'other' } as const;
    assert.deepEqual(verdicts({ ...over, contestant: 'cuffi' }, { ...over, over: 'numba' }), [
      [-1.025, true],
      [undefined, undefined],
    ]);
    assert.match(judge(results, [over])[0]?.aim ?? '', /at most 40\.0 us over other$/);
    assert.deepEqual(verdicts({ ...aim, case: 'down' }, { ...aim, versus: 'numba' })[0], [
      undefined,
      undefined,
    ]);
  });

  test('check prints each aim, ends with 1 where one falls short, and refuses the emulated driver', async () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const names = { 'raw ffi': [100], C: [100], 'cuda.bindings': [1000] };
    const cases = (ns: number) =>
      ['stream.done', 'event.record'].map((name) =>
        caseOf('calls', name, { cuffi: [ns], ...names }),
      );
    writeResults(file, resultsOf(cases(105)));
    const [good, text] = await said(() => check([file, '--partial']));
    assert.equal(good, 0);
    assert.match(text, /^met .*stream\.done.* 1\.35 times C: cuffi 105 ns, C 100 ns: 1\.05$/m);
    // What is not measured is not met.
    assert.equal((await said(() => check([file])))[0], 1);
    writeResults(file, resultsOf(cases(120)));
    assert.match((await said(() => check([file, '--partial'])))[1], /^not met .*raw ffi/m);
    writeResults(file, resultsOf(cases(105), { emulated: true }));
    assert.throws(() => check([file]), /emulated driver: says nothing of a GPU/);
  });

  test("the budget's aims are found by a case and by a way of copying", () => {
    const budget = readBudget();
    assert.deepEqual(aimsOf(budget, { suite: 'memory', name: 'pool.allocate' }), [
      { versus: 'C', max: 1.4 },
    ]);
    assert.equal(delayAimOf(budget, 'copyFrom, a PinnedBuffer'), 5e6);
    assert.equal(delayAimOf(budget, 'nothing is copied'), undefined);
  });

  test('what a case aims at stands in the budget as well', () => {
    const budget = readBudget();
    for (const [suite, cases] of Object.entries(suites))
      for (const { name, variant, byteLength, aims = [] } of cases) {
        const budgeted = aimsOf(budget, { suite, name, variant, byteLength });
        for (const aim of aims)
          assert.ok(
            budgeted.some(({ versus, max }) => versus === aim.versus && max === aim.max),
            `${name}: ${JSON.stringify(aim)}`,
          );
      }
  });

  test('what is known of a case that falls short is said once, of a case that has an aim', () => {
    const names = readShortfalls().map(({ suite, case: name }) => `${suite}/${name}`);
    assert.equal(new Set(names).size, names.length);
    const aimed = new Set(readBudget().map(({ suite, case: name }) => `${suite}/${name}`));
    for (const name of names) assert.ok(aimed.has(name), name);
  });

  test('the committed result is of a GPU', () => {
    assert.equal(readResults(RUN).driver.emulated, false);
  });
});
