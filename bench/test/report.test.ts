/** Tables, pictures and pages of results. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { report } from '../commands/report.ts';
import { describeAims } from '../report/aims.ts';
import { markdown } from '../report/blocks.ts';
import { crossover } from '../report/crossover.ts';
import { fill, makePage, PAGE, PICTURES, RUN } from '../report/page.ts';
import { drawAll } from '../report/pictures.ts';
import { logTicks } from '../report/ticks.ts';
import { readResults, writeResults } from '../result-file.ts';
import { temporaryFolder } from './files.ts';
import { caseOf, resultsOf } from './results.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const sizes = [4 * KIB, 64 * KIB].map((byteLength) =>
  caseOf(
    'hand-over',
    'hand-over',
    { cuffi: [100, 110, 120], 'copying <&>': [byteLength / 100] },
    { byteLength, variant: `${byteLength / KIB} KiB` },
  ),
);
const single = caseOf('calls', 'stream.done', { cuffi: [3], C: [2], numba: [9] });

describe('report', () => {
  test('docs/benchmark.md and its pictures are what the committed results make', async () => {
    assert.equal(readFileSync(PAGE, 'utf8'), makePage(), 'npm run bench -- page');
    const pictures = await drawAll(readResults(RUN));
    const drawn = readdirSync(PICTURES).filter((file) => file.endsWith('.svg'));
    assert.deepEqual(drawn.sort(), [...pictures.keys()].sort());
    for (const [file, svg] of pictures)
      assert.equal(readFileSync(join(PICTURES, file), 'utf8'), svg);
    for (const [, file = ''] of makePage().matchAll(/!\[[^\]]*\]\(\.\.\/([^)]+)\)/g))
      assert.ok(existsSync(join(PAGE, '../..', file)), file);
  });

  test('a report is a folder whose page opens without network and runs nothing', async () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'run.json');
    const out = join(folder.path, 'out');
    writeResults(file, resultsOf([...sizes, single]));
    const { log } = console;
    console.log = () => {};
    try {
      assert.equal(await report([file, '--out', out]), 0);
    } finally {
      console.log = log;
    }
    assert.deepEqual(readdirSync(out).sort(), [
      'calls.ratios.svg',
      'hand-over.svg',
      'index.html',
      'report.md',
    ]);
    const page = readFileSync(join(out, 'index.html'), 'utf8');
    assert.equal(page.match(/<svg /g)?.length, 2);
    assert.doesNotMatch(page, /<script|<link|(src|href)="(?!#)/);
    assert.match(page, /copying &lt;&amp;&gt;/);
    const text = readFileSync(join(out, 'report.md'), 'utf8');
    assert.match(text, /^\| 4 KiB \| 110 ns \| 41\.0 ns \|$/m);
    assert.match(text, /^\| cuffi \| 3\.0 ns \| 3\.0 ns to 3\.0 ns \| {2}\|$/m);
    assert.match(text, /^\| C \| 2\.0 ns \| 2\.0 ns to 2\.0 ns \| 1\.50 \|$/m);
    assert.doesNotMatch(text, /emulated/);
  });

  test('of the emulated driver each table and picture says so, and none is mixed with a GPU', async () => {
    using folder = temporaryFolder();
    const emulated = resultsOf([...sizes, single], { emulated: true });
    for (const [file, svg] of await drawAll(emulated))
      assert.match(svg, /emulated driver: says nothing of a GPU/, file);
    const text = fill('{{table hand-over/hand-over}}\n\n{{ratios calls}}', emulated, []);
    assert.equal(text.match(/\(emulated driver: says nothing of a GPU\)/g)?.length, 2);
    assert.match(fill('{{aims}}', emulated, []), /^Nothing is judged/);

    const [a, b] = ['a.json', 'b.json'].map((name) => join(folder.path, name)) as [string, string];
    writeResults(a, emulated);
    writeResults(b, resultsOf([single]));
    await assert.rejects(report([a, b]), /make no common report/);
  });

  test('the limit of bytes a second is a line, and each figure a part of it, where the machine tells it', async () => {
    const copies = [MIB, 64 * MIB].map((byteLength) =>
      caseOf(
        'copies',
        'copyTo',
        { cuffi: [byteLength / 2000] },
        {
          byteLength,
          variant: `${byteLength / MIB} MiB`,
          isCopy: true,
          clock: 'gpu',
          limit: { by: 'memory', times: 2 },
        },
      ),
    );
    const hidden = resultsOf(copies);
    const told = { ...hidden, machine: { ...hidden.machine, memoryBandwidth: 5e12 } };
    const page = '{{table copies/copyTo}}';
    assert.match(fill(page, told, []), /^\| 1 MiB \| 2000 \(80\.0 %\) \|$/m);
    assert.match(fill(page, told, []), /by the GPU’s clock.*by two.* 2500 GB\/s\.$/s);
    assert.match(fill(page, hidden, []), /^\| 1 MiB \| 2000 \|$/m);
    const [[, drawn = ''] = [], [, without = ''] = []] = [
      [...(await drawAll(told))][0],
      [...(await drawAll(hidden))][0],
    ];
    assert.match(drawn, /limit, memory \/ 2: 2500 GB\/s/);
    assert.match(drawn, /by the GPU’s clock/);
    assert.doesNotMatch(without, /limit, memory/);
  });

  test('only of what falls short it is said why, as far as it is known', () => {
    const results = resultsOf([
      caseOf('calls', 'quick', { cuffi: [9] }),
      caseOf('calls', 'slow', { cuffi: [9000] }),
      caseOf('calls', 'slower', { cuffi: [9000] }),
    ]);
    const aim = { suite: 'calls', statistic: 'median', maxUs: 1 } as const;
    const about = { suite: 'calls', where: 'there', tried: 'this', next: 'that' };
    const text = markdown(
      describeAims(results, {
        budget: ['quick', 'slow', 'slower'].map((name) => ({ ...aim, case: name })),
        shortfalls: ['quick', 'slow'].map((name) => ({ ...about, case: name })),
      }),
    );
    assert.match(text, /^### Why slow falls short\n\nWhere the time goes: there\n/m);
    assert.doesNotMatch(text, /Why quick/);
    assert.match(text, /^Not looked into yet: slower\.$/m);
  });

  test('a template says of what was not measured that it was not', () => {
    const results = resultsOf([single]);
    const text = fill('a\n\n{{table x/y}}\n\n{{picture x/y}}\n\n{{crossover}}\n', results, []);
    assert.equal(text, 'a\n\nNot measured yet.\n\nNot measured yet.\n');
    const pair = ['a.json', 'b.json'].map((file) => ({ file, run: { ...results, inTurns: true } }));
    const agreement = fill('{{agreement}}', results, [pair]);
    assert.match(agreement, /took turns.* 6 of 6 medians lie within .* 4 of 4 ratios /);
    assert.throws(() => fill('{{tables}}', results, []), /asks for 'tables'/);
  });

  test('the crossover lies where the lines of a log-log plot cross', () => {
    const pair = (byteLength: number, sharing: number, copying: number) => ({
      byteLength,
      sharing,
      copying,
    });
    assert.equal(Math.round(crossover([pair(16, 1, 4), pair(1, 4, 1)])), 4);
    assert.equal(crossover([pair(1, 1, 2), pair(2, 1, 3)]), 0);
    assert.equal(crossover([pair(1, 2, 1), pair(2, 3, 1)]), Number.POSITIVE_INFINITY);
  });

  test('a logarithmic axis has enough labels, and not too many', () => {
    assert.deepEqual(logTicks(0.9, 110), [1, 2, 5, 10, 20, 50, 100]);
    assert.deepEqual(logTicks(1, 1e6), [1, 10, 100, 1e3, 1e4, 1e5, 1e6]);
    assert.deepEqual(logTicks(1e5, 4.9e5), [1e5, 1.5e5, 2e5, 3e5, 4e5]);
    assert.deepEqual(logTicks(1.9, 2.6), [2, 2.2, 2.5]);
  });
});
