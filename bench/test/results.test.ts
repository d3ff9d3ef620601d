/** Result files, and comparing two of them or one with the aims. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { appliesTo, check, type Goal, judge, readAims, readGoals, readReasons } from '../aims.ts';
import { suites } from '../cases/suites.ts';
import { compareFiles, compareResults, compareWithBefore } from '../compare.ts';
import { percent } from '../format.ts';
import { keyOf } from '../plan.ts';
import { RUN } from '../report.ts';
import {
  type CaseResult,
  joinResults,
  mergeCase,
  readResults,
  summarize,
  writeResults,
} from '../results.ts';
import { temporaryFolder } from './files.ts';
import { caseOf, resultsOf } from './results.ts';

/** What a command prints and returns. */
function printed<T>(command: () => T): [T, string] {
  const lines: string[] = [];
  const { log } = console;
  console.log = (line: string) => lines.push(line);
  try {
    return [command(), lines.join('\n')];
  } finally {
    console.log = log;
  }
}

describe('summarize', () => {
  test('interpolates quantiles linearly', () => {
    const { median, p10, p90, p99, max } = summarize('a', [40, 10, 30, 20, 50]);
    assert.deepEqual([p10, median, p90, p99, max], [14, 30, 46, 49.6, 50]);
  });
});

describe('percent', () => {
  test('rounds down, so that 94.97 % does not read as 95 %', () => {
    assert.deepEqual([0.9497, 0.95, 1].map(percent), ['94.9 %', '95.0 %', '100.0 %']);
  });
});

describe('joinResults', () => {
  const [a, b, c] = [1, 2, 3].map((ns, at) =>
    caseOf('calls', 'abc'[at] as string, { cuffi: [ns] }),
  );
  const all = ['calls/a', 'calls/b', 'calls/c'];
  const of = (commit: string, ...cases: (typeof a)[]) => {
    const results = resultsOf(cases.flatMap((each) => each ?? []));
    return { ...results, machine: { ...results.machine, commit } };
  };

  test('adds cases in the order of a whole run, in place of those that were interrupted', () => {
    const interrupted = { ...of('x', c, a), isComplete: false };
    const again = caseOf('calls', 'c', { cuffi: [9] });
    const joined = joinResults(interrupted, of('y', b, again), all, keyOf);
    assert.deepEqual(joined.cases, [a, b, again]);
    assert.deepEqual([joined.isComplete, joined.machine.commit], [true, 'x and y']);
    assert.equal(joinResults(interrupted, of('x', again), all, keyOf).isComplete, false);
    const unfinished = { ...of('x', b), isComplete: false };
    assert.equal(joinResults(interrupted, unfinished, all, keyOf).isComplete, false);
  });

  test('refuses runs on different machines', () => {
    const other = of('x', b);
    const machine = { ...other.machine, gpu: 'another one' };
    assert.throws(() => joinResults(of('x', a), { ...other, machine }, all, keyOf), {
      name: 'Error',
      message: /^the runs differ: GPU .* and another one$/,
    });
  });
});

describe('readResults and writeResults', () => {
  test('store samples in one line for each process, and compute the statistics from them', () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'a.json');
    const [first, later] = [
      [3, 1, 2],
      [1, 2],
    ].map((ns) => caseOf('calls', 'a', { cuffi: ns }));
    const results = resultsOf([mergeCase([first, later] as CaseResult[])]);
    writeResults(file, results);
    assert.deepEqual(readResults(file), results);
    assert.deepEqual(results.cases[0]?.contestants[0]?.passes, [
      [3, 1, 2],
      [1, 2],
    ]);
    const text = readFileSync(file, 'utf8');
    assert.match(text, /^ +\[3, 1, 2\],$/m);
    assert.doesNotMatch(text, /median/);
  });

  test('refuse a file that is not a result file, and name the wrong field', () => {
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

  test('the committed result is of a GPU', () => {
    assert.equal(readResults(RUN).driver.emulated, false);
  });
});

describe('compareResults', () => {
  test('names the medians outside p10 to p90 of the other run, both ways', () => {
    const a = resultsOf([
      caseOf('calls', 'same', { cuffi: [1, 2, 3], gone: [1] }),
      caseOf('calls', 'slower', { cuffi: [10, 10, 10] }),
    ]);
    const b = resultsOf([
      caseOf('calls', 'same', { cuffi: [2, 2, 3] }),
      caseOf('calls', 'slower', { cuffi: [5, 20, 30] }),
    ]);
    const { figures, share, unpaired, outliers } = compareResults(a, b, 'times');
    assert.deepEqual([figures, share, unpaired], [2, 3 / 4, 1]);
    assert.deepEqual(
      outliers.map(({ title, of, median }) => [title, of, median]),
      [['calls: slower, cuffi', 'B', 20]],
    );
  });

  test('compares ratios round by round, of contestants with as many rounds', () => {
    // A host that is half as slow again: the times differ, the ratios do not.
    const fast = { cuffi: [10, 11, 12], C: [5, 5.5, 6], rare: [1] };
    const slow = { cuffi: [15, 16.5, 18], C: [7.5, 8.25, 9], rare: [1] };
    const compared = (other: Record<string, number[]>, what: 'times' | 'ratios') =>
      compareResults(
        resultsOf([caseOf('calls', 'a', fast)]),
        resultsOf([caseOf('calls', 'a', other)]),
        what,
      );
    assert.equal(compared(slow, 'times').share, 2 / 6);
    const { figures, share } = compared(slow, 'ratios');
    assert.deepEqual([figures, share], [1, 1]);
    const { outliers } = compared({ ...slow, cuffi: [30, 33, 36] }, 'ratios');
    assert.deepEqual(
      outliers.map(({ title, of, median }) => [title, of, median]),
      [
        ['calls: a, cuffi to C', 'A', 2],
        ['calls: a, cuffi to C', 'B', 4],
      ],
    );
  });
});

describe('compareFiles and compareWithBefore', () => {
  const write = (folder: string, name: string, results = resultsOf([])): string => {
    const file = join(folder, name);
    writeResults(file, results);
    return file;
  };

  test('agree at the threshold or above, never on nothing, and not across drivers', () => {
    using folder = temporaryFolder();
    const of = (ns: number, emulated = false) =>
      resultsOf([caseOf('calls', 'a', { cuffi: [ns] })], { emulated });
    const a = write(folder.path, 'a', of(1));
    const b = write(folder.path, 'b', of(2));
    assert.equal(printed(() => compareFiles(a, a))[0], true);
    assert.equal(printed(() => compareFiles(a, b, 0))[0], true);
    const [agree, text] = printed(() => compareFiles(a, b));
    assert.equal(agree, false);
    assert.match(text, /^0 of 2 medians of times .*: 0\.0 %\nthey do not agree/m);
    const other = write(folder.path, 'other', resultsOf([caseOf('calls', 'b', { cuffi: [1] })]));
    assert.equal(printed(() => compareFiles(a, other, 0))[0], false);
    const emulated = write(folder.path, 'emulated', of(1, true));
    assert.throws(() => printed(() => compareFiles(a, emulated)), /emulated driver/);
  });

  test('counts only later medians as slower or faster', () => {
    using folder = temporaryFolder();
    const before = resultsOf([
      caseOf('hand-over', 'slower', { cuffi: [10, 11, 12], gone: [1], same: [1, 5, 9] }),
      caseOf('hand-over', 'faster', { cuffi: [10, 11, 12] }),
      caseOf('hand-over', 'narrower', { cuffi: [10, 20, 30] }),
    ]);
    const now = resultsOf([
      caseOf('hand-over', 'slower', { cuffi: [11, 22, 33], same: [2, 5, 6] }),
      caseOf('hand-over', 'faster', { cuffi: [1, 2, 3] }),
      caseOf('hand-over', 'narrower', { cuffi: [28, 28, 28] }),
    ]);
    const files = [write(folder.path, 'a', before), write(folder.path, 'b', now)] as const;
    const [hold, text] = printed(() => compareWithBefore(...files));
    assert.equal(hold, false);
    assert.match(
      text,
      /^slower \(2\.00\): hand-over: slower, cuffi: median of B 22\.0 ns, .* 10\.2 ns to 11\.8 ns$/m,
    );
    assert.match(text, /^2 of 4 medians of B .* faster: 1, slower: 1, in only one file: 1$/m);
    assert.equal(printed(() => compareWithBefore(files[0], files[0]))[0], true);
  });
});

describe('judge', () => {
  const part = (runs: Parameters<typeof judge>[0], ...aims: Goal[]) =>
    judge(runs, aims).map(({ part, met }) => [part, met]);

  test('applies an aim to its case, its sizes and its contestant', () => {
    const results = resultsOf([
      caseOf('copies', 'up', { cuffi: [30], C: [10] }, { variant: 'small', byteLength: 1 }),
      caseOf('copies', 'up', { cuffi: [30], C: [20] }, { variant: 'large', byteLength: 8 }),
      caseOf('hand-over', 'mapped', { cuffi: [39_000], other: [80_000] }),
      caseOf('event-loop', 'late', { cuffi: [0, 0, 9000], idle: [0, 0, 3000] }),
    ]);
    const verdicts = (...aims: Goal[]) => part([results], ...aims);
    const aim = { suite: 'copies', case: 'up', statistic: 'median', versus: 'C', max: 2 } as const;
    assert.deepEqual(verdicts(aim), [
      [1.5, false],
      [0.75, true],
    ]);
    assert.deepEqual(verdicts({ ...aim, fromByteLength: 2 }), [[0.75, true]]);
    assert.deepEqual(verdicts({ ...aim, variant: 'small' }), [[1.5, false]]);
    assert.deepEqual(verdicts({ ...aim, variant: 'small', contestant: 'C', versus: 'cuffi' }), [
      [1 / 6, true],
    ]);
    assert.deepEqual(verdicts({ ...aim, case: 'down' }), [[undefined, undefined]]);
    assert.deepEqual(verdicts({ ...aim, variant: 'small', versus: 'numba' }), [
      [undefined, undefined],
    ]);
    const late = { ...aim, suite: 'event-loop', case: 'late', versus: 'idle', max: 4 } as const;
    assert.deepEqual(verdicts({ ...late, statistic: 'p99' }), [[0.75, true]]);
  });

  test('subtracts what both must spend', () => {
    const results = resultsOf([caseOf('waiting', 'wait', { cuffi: [130], C: [110], spin: [100] })]);
    const aim = { suite: 'waiting', case: 'wait', statistic: 'median', versus: 'C' } as const;
    assert.deepEqual(part([results], { ...aim, max: 2, beyond: 'spin' }), [[1.5, false]]);
    assert.deepEqual(part([results], { ...aim, max: 2 }), [[130 / 110 / 2, true]]);
  });

  test('takes the best process of all runs', () => {
    const inPasses = (name: string, ...passes: number[][]) =>
      summarize(name, passes.flat(), passes);
    const of = (...contestants: CaseResult['contestants']) =>
      resultsOf([{ ...caseOf('calls', 'a', { C: [1] }), contestants }]);
    const run = of(inPasses('cuffi', [30, 31], [], [18]), inPasses('C', [10, 10], [9], [9]));
    const aim = { suite: 'calls', case: 'a', statistic: 'median', versus: 'C', max: 1.9 } as const;
    assert.deepEqual(part([run], aim), [[2 / 1.9, false]]);
    assert.equal(judge([run], [aim])[0]?.figure, 'cuffi 18.0 ns, C 9.0 ns: 2.00 (3.05)');
    const other = of(inPasses('cuffi', [18]), inPasses('C', [10]));
    assert.deepEqual(part([run, other], aim), [[1.8 / 1.9, true]]);
    assert.deepEqual(part([other, run], aim), [[1.8 / 1.9, true]]);
  });

  test('takes a time as a goal, beside its floor', () => {
    const results = resultsOf([caseOf('hand-over', 'mapped', { cuffi: [39_000], C: [9000] })]);
    const goal = {
      suite: 'hand-over',
      case: 'mapped',
      statistic: 'median',
      maxUs: 40,
      floor: 'C',
    } as const;
    const over = { ...goal, over: 'C' } as const;
    assert.deepEqual(part([results], goal, over), [
      [0.975, true],
      [0.75, true],
    ]);
    const [first, second] = judge([results], [goal, over]);
    assert.deepEqual([first?.floorNs, second?.floorNs], [9000, 9000]);
    assert.match(second?.text ?? '', /at most 40\.0 us over C$/);
  });
});

describe('aims.json', () => {
  const cases = Object.entries(suites).flatMap(([suite, ofSuite]) =>
    ofSuite.map(({ name, variant = null, byteLength = null }) => ({
      suite,
      name,
      variant,
      byteLength,
    })),
  );

  test('has aims and goals only for cases that there are, and a reason for each case with an aim', () => {
    for (const aim of [...readAims(), ...readGoals()])
      assert.ok(
        cases.some((each) => appliesTo(aim, each)),
        JSON.stringify(aim),
      );
    const aimed = new Set(readAims().map((aim) => aim.case));
    assert.deepEqual(Object.keys(readReasons()).sort(), [...aimed].sort());
  });

  test('compares with peers that the case has', () => {
    for (const aim of readAims()) {
      const ofCase = suites[aim.suite]?.filter(({ name }) => name === aim.case) ?? [];
      const peers = ofCase.flatMap((each) => each.peers.map(({ peer, name = peer }) => name));
      if (/^(C$|C,|numba|torch|cuda\.|cupy)/.test(aim.versus))
        assert.ok(peers.includes(aim.versus), JSON.stringify(aim));
    }
  });
});

describe('check', () => {
  test('prints each aim, returns 1 if one is missed, and refuses the emulated driver', () => {
    using folder = temporaryFolder();
    const [file, second] = ['a.json', 'b.json'].map((name) => join(folder.path, name)) as [
      string,
      string,
    ];
    const names = { 'raw ffi': [100], C: [100], 'cuda.bindings': [1000] };
    const cases = (ns: number) =>
      ['stream.done', 'event.record'].map((name) =>
        caseOf('calls', name, { cuffi: [ns], ...names }),
      );
    writeResults(file, resultsOf(cases(105)));
    const [good, text] = printed(() => check([file], true));
    assert.equal(good, 0);
    assert.match(text, /^met .*stream\.done.* 1\.5 times C: cuffi 105 ns, C 100 ns: 1\.05$/m);
    // An aim that is not measured is not met.
    assert.equal(printed(() => check([file], false))[0], 1);
    writeResults(second, resultsOf(cases(120)));
    const [bad, list] = printed(() => check([second], true));
    assert.equal(bad, 1);
    assert.match(list, /^missed .*raw ffi/m);
    assert.match(list, /^4 met, 2 missed, 0 not measured$/m);
    // The best of both.
    assert.equal(printed(() => check([second, file], true))[0], 0);
    writeResults(file, resultsOf(cases(105), { emulated: true }));
    assert.throws(() => check([second, file], false), /these times say nothing about a GPU/);
  });
});
