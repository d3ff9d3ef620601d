/** Tables, pictures and pages of results. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { colourOf } from '../names.ts';
import { drawAll } from '../pictures.ts';
import { crossover, fill, makePage, makeReport, PAGE, REPORT, RUN, report } from '../report.ts';
import { readResults, writeResults } from '../results.ts';
import { temporaryFolder } from './files.ts';
import { caseOf, resultsOf } from './results.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const sizes = [4 * KIB, 64 * KIB].map((byteLength) =>
  caseOf(
    'hand-over',
    'hand-over',
    { cuffi: [100, 110, 120], 'copying | <&>': [byteLength / 100] },
    { byteLength, variant: `${byteLength / KIB} KiB` },
  ),
);
const single = caseOf('calls', 'stream.done', { cuffi: [3], C: [2], numba: [9] });

describe('page', () => {
  test('docs/benchmark.md, the report and the pictures are what the committed results make', async () => {
    const results = readResults(RUN);
    assert.equal(readFileSync(PAGE, 'utf8'), makePage(results), 'npm run bench -- page');
    const pictures = await drawAll(results);
    const drawn = readdirSync(REPORT).filter((file) => file.endsWith('.svg'));
    assert.deepEqual(drawn.sort(), [...pictures.keys()].sort());
    for (const [file, svg] of pictures) assert.equal(readFileSync(join(REPORT, file), 'utf8'), svg);
    const written = readFileSync(join(REPORT, 'report.md'), 'utf8');
    assert.equal(written, makeReport('nvidia-h100', results));
    for (const [, file = ''] of makePage(results).matchAll(/!\[[^\]]*\]\(\.\.\/([^)]+)\)/g))
      assert.ok(existsSync(join(PAGE, '../..', file)), file);
    for (const [, file = ''] of written.matchAll(/!\[[^\]]*\]\(\.\/([^)]+)\)/g))
      assert.ok(existsSync(join(REPORT, file)), file);
  });

  test('docs/benchmark.md has titles in words, and no table with more than seven columns', () => {
    // Aims name the cases as the command does.
    const [results = ''] = readFileSync(PAGE, 'utf8').split('\n## The aims\n');
    const rows = results.match(/^\|.*\|$/gm) ?? [];
    assert.ok(rows.length > 100);
    for (const row of rows) {
      assert.ok(row.split('|').length - 2 <= 7, row);
      assert.doesNotMatch(row, /hand-over\.|channel\.|scale\.|startup\.|waits\.|event-loop/, row);
    }
  });

  test('docs/benchmark.md has at most 3,500 words', () => {
    const words = readFileSync(PAGE, 'utf8').split(/\s+/).length;
    assert.ok(words <= 3500, `${words}`);
  });
});

describe('report', () => {
  test('writes a folder of tables and pictures', async () => {
    using folder = temporaryFolder();
    const file = join(folder.path, 'run.json');
    const out = join(folder.path, 'out');
    writeResults(file, resultsOf([...sizes, single]));
    const { log } = console;
    console.log = () => {};
    try {
      assert.equal(await report(file, out), 0);
    } finally {
      console.log = log;
    }
    assert.deepEqual(readdirSync(out).sort(), ['calls.ratios.svg', 'hand-over.svg', 'report.md']);
    const text = readFileSync(join(out, 'report.md'), 'utf8');
    assert.match(text, /copying \\\| <&>/);
    assert.match(text, /^\| 4 KiB +\| +110 ns \| +41\.0 ns \|$/m);
    assert.match(text, /^\| cuffi +\| 3\.0 ns \| 3\.0 ns to 3\.0 ns \| +\|$/m);
    assert.match(text, /^\| C +\| 2\.0 ns \| 2\.0 ns to 2\.0 ns \| +1\.50 \|$/m);
    assert.doesNotMatch(text, /emulated/);
  });

  test('says in each table and picture of an emulated run that there was no GPU', async () => {
    const emulated = resultsOf([...sizes, single], { emulated: true });
    const sentence = /emulated driver: these times say nothing about a GPU/g;
    for (const [file, svg] of await drawAll(emulated)) assert.ok(svg.match(sentence), file);
    const text = fill('{{table hand-over/hand-over}}\n\n{{ratios calls}}', emulated);
    assert.equal(text.match(sentence)?.length, 2);
    assert.match(fill('{{aims}}', emulated), /^Aims are not judged/);
  });

  test('shows the limit of the bandwidth as a line, and each figure as a part of it', async () => {
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
    const unknown = resultsOf(copies);
    const known = { ...unknown, machine: { ...unknown.machine, memoryBandwidth: 5e12 } };
    const page = '{{table copies/copyTo}}';
    assert.match(fill(page, known), /^\| 1 MiB +\| 2000 \(80\.0 %\) \|$/m);
    assert.match(fill(page, known), /by the GPU’s clock.*memory \/ 2: 2500 GB\/s/s);
    assert.match(fill(page, unknown), /^\| 1 MiB +\| +2000 \|$/m);
    const [[, drawn = ''] = [], [, without = ''] = []] = [
      [...(await drawAll(known))][0],
      [...(await drawAll(unknown))][0],
    ];
    assert.match(drawn, /limit, memory \/ 2: 2500 GB\/s/);
    assert.match(drawn, /by the GPU’s clock/);
    assert.doesNotMatch(without, /limit, memory/);
  });

  test('says why an aim is missed, and only then', () => {
    const of = (ns: number) =>
      resultsOf([
        caseOf('hand-over', 'hand-over.mapped', { cuffi: [ns], C: [10_000] }, { variant: '1 MiB' }),
      ]);
    const missed = fill('{{aims}}', of(50_000));
    assert.match(missed, /^Of \d+ aims 0 are met and 1 missed\.$/m);
    assert.match(missed, /^Not measured: connection, .*, stream\.synchronize\.$/m);
    assert.match(missed, /: 5\.00 \|.*^- `hand-over\.mapped`: Both event loops sleep/ms);
    const met = fill('{{aims}}', of(20_000));
    assert.match(met, /^Of \d+ aims 1 are met and 0 missed\.$/m);
    assert.doesNotMatch(met, /Both event loops sleep/);
  });

  test('lists each goal once, with what was measured in all sizes and beside what', () => {
    const of = (variant: string, ns: number) =>
      caseOf('hand-over', 'hand-over.mapped', { cuffi: [ns], C: [9000] }, { variant });
    const text = fill('{{goals}}', resultsOf([of('4 KiB', 50_000), of('1 MiB', 45_000)]));
    assert.match(
      text,
      /^\| hand-over\.mapped: 40\.0 us +\| +45\.0 us to 50\.0 us \| +C 9000 ns \|$/m,
    );
    assert.match(text, /^\| hand-over\.queued: 1\.1 times C +\| +not measured \|/m);
  });

  test('says in a template that a case was not measured, and refuses an unknown word', () => {
    const results = resultsOf([single]);
    const text = fill('a\n\n{{table x/y}}\n\n{{crossover}}\n', results);
    assert.equal(text, 'a\n\nNot measured.\n\nNot measured.\n');
    assert.throws(() => fill('{{tables}}', results), /asks for 'tables'/);
  });
});

describe('the tables of ratios', () => {
  const calls = [single, caseOf('calls', 'event.record', { cuffi: [4], C: [1] })];

  test('have contestants as rows, cases as columns, and in brackets what cuffi takes of their time', () => {
    const lines = fill('{{ratios calls}}', resultsOf(calls)).replaceAll(/ +/g, ' ').split('\n');
    assert.equal(lines[0], '| median (cuffi divided by it) | stream.done | event.record |');
    assert.deepEqual(lines.slice(2), [
      '| cuffi | 3.0 ns | 4.0 ns |',
      '| C | 2.0 ns (1.50) | 1.0 ns (4.00) |',
      '| numba | 9.0 ns (0.333) | |',
    ]);
  });

  test('have only the cases that the template names, if it names some', () => {
    const text = fill('{{ratios calls, event.record}}', resultsOf(calls));
    assert.match(text, /^\| median \(cuffi divided by it\) \| +event\.record \|$/m);
  });
});

describe('the pictures', () => {
  const draw = async (ns: readonly number[]): Promise<string> => {
    const cases = ns.map((median, at) =>
      caseOf(
        'hand-over',
        'hand-over.mapped',
        { cuffi: [median], C: [median / 2] },
        { byteLength: 4 ** (at + 6), variant: `${4 ** (at + 1)} KiB` },
      ),
    );
    return [...(await drawAll(resultsOf(cases))).values()].join();
  };
  const labels = (svg: string): string[] =>
    [...svg.matchAll(/text-anchor="end"[^>]*>([^<]+ (?:ns|µs|ms))</g)].map(([, text = '']) => text);

  test('have ticks at powers of ten, or at 1, 2 and 5 if the values lie close together', async () => {
    assert.deepEqual(labels(await draw([40_000, 7e6])), ['10 µs', '100 µs', '1 ms', '10 ms']);
    assert.deepEqual(labels(await draw([40_000, 60_000])), ['20 µs', '50 µs', '100 µs']);
  });

  test('have a title in words, and give a contestant the same colour everywhere', async () => {
    const svg = await draw([40_000, 7e6]);
    assert.match(svg, />Mapped buffer</);
    const bars = [...(await drawAll(resultsOf([single]))).values()].join();
    for (const drawn of [svg, bars]) assert.ok(drawn.includes(colourOf('cuffi')), 'cuffi is blue');
    assert.notEqual(colourOf('cuffi'), colourOf('C'));
  });

  test('refuse two lines of one colour', async () => {
    const alike = [4 * KIB, MIB].map((byteLength) =>
      caseOf('memory', 'pool', { 'cupy one': [1], 'cupy two': [2] }, { byteLength }),
    );
    await assert.rejects(drawAll(resultsOf(alike)), /two lines would have one colour/);
  });
});

describe('crossover', () => {
  test('lies where the lines of a log-log plot cross', () => {
    const pair = (byteLength: number, sharing: number, copying: number) => ({
      byteLength,
      sharing,
      copying,
    });
    assert.equal(Math.round(crossover([pair(16, 1, 4), pair(1, 4, 1)])), 4);
    assert.equal(crossover([pair(1, 1, 2), pair(2, 1, 3)]), 0);
    assert.equal(crossover([pair(1, 2, 1), pair(2, 3, 1)]), Number.POSITIVE_INFINITY);
  });
});
