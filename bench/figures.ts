/**
 * Writes the figures of the committed result file into docs/bench.md, between the marks
 * `<!-- figures: NAME -->` and `<!-- end -->`: `npm run bench:figures`.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { DelayResult } from './delays.ts';
import type { Machine } from './machine.ts';
import { duration, multiple } from './report.ts';
import type { CaseResult } from './run.ts';

interface Results {
  readonly machine: Machine;
  readonly rounds: number;
  readonly cases: readonly CaseResult[];
  /** Absent in files from before it was measured. */
  readonly delays?: readonly DelayResult[];
}

const path = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
const RESULTS = path('./results/nvidia-h200.json');
const PAGE = path('../docs/bench.md');

const results = JSON.parse(readFileSync(RESULTS, 'utf8')) as Results;

const casesOf = (...names: readonly string[]): readonly CaseResult[] =>
  results.cases.filter(({ name }) => names.includes(name));

/** Each figure of the page by its name. */
const figures: Readonly<Record<string, () => readonly string[]>> = {
  machine: describeMachine,
  calls: () => ratios(casesOf('stream.done', 'event.record', 'getIpcHandle')),
  connection: () => ratios(casesOf('connection')),
  'hand-over.mapped': () => medians(casesOf('hand-over.mapped')),
  'hand-over.pool': () => medians(casesOf('hand-over.pool')),
  'hand-over.first.legacy': () => medians(casesOf('hand-over.first.legacy')),
  'hand-over.first.pool': () => medians(casesOf('hand-over.first.pool')),
  'hand-over.first.virtual': () => medians(casesOf('hand-over.first.virtual')),
  'pool.allocate': () => ranking(casesOf('pool.allocate')),
  'DeviceBuffer.allocate': () => ranking(casesOf('DeviceBuffer.allocate')),
  'PinnedBuffer.allocate': () => ranking(casesOf('PinnedBuffer.allocate')),
  copyFrom: () => speeds(casesOf('copyFrom')),
  'copyFrom.pinned': () => speeds(casesOf('copyFrom.pinned')),
  copyToHost: () => speeds(casesOf('copyToHost')),
  'copyToHost.pinned': () => speeds(casesOf('copyToHost.pinned')),
  copyTo: () => speeds(casesOf('copyTo')),
  arrays: () => ratios(casesOf('array.slice', 'array.reshape', 'array.copyToHostSync')),
  'event-loop': () => delays(results.delays ?? []),
};

function describeMachine(): string[] {
  const { gpu, driverVersion, node, koffi, cpuCount } = results.machine;
  return [
    `From [the result file](../bench/results/nvidia-h200.json): ${gpu}, driver ${driverVersion},`,
    `${cpuCount} CPU cores, Node ${node.slice(1)}, koffi ${koffi}; medians of ${results.rounds} rounds.`,
  ];
}

/** What cuffi takes, and that as a multiple of each other's. */
function ratios(cases: readonly CaseResult[]): string[] {
  const others = namesIn(cases).slice(1);
  return table(
    ['call', 'cuffi', ...others.map((name) => `times ${name}`)],
    cases.map(({ name, contestants, ratios: compared }) => [
      `\`${name}\``,
      duration(contestants[0]?.median ?? Number.NaN),
      ...others.map((other) => multipleOf(compared.find(({ versus }) => versus === other)?.ratio)),
    ]),
  );
}

/** A case, a contestant a row. */
const ranking = ([measured]: readonly CaseResult[]): string[] =>
  table(
    [`\`${measured?.name}\`, ${measured?.variant}`, 'median', 'cuffi takes so many times as long'],
    (measured?.contestants ?? []).map(({ name, median }) => [
      name,
      duration(median),
      multipleOf(measured?.ratios.find(({ versus }) => versus === name)?.ratio),
    ]),
  );

const medians = (cases: readonly CaseResult[]): string[] =>
  bySize(cases, ({ contestants }, name) => {
    const found = contestants.find((contestant) => contestant.name === name);
    return found ? duration(found.median) : '';
  });

const speeds = (cases: readonly CaseResult[]): string[] =>
  bySize(cases, ({ contestants, gigabytesPerSecond }, name) => {
    const at = contestants.findIndex((contestant) => contestant.name === name);
    return gigabytesPerSecond?.[at]?.toPrecision(3) ?? '';
  });

function bySize(
  cases: readonly CaseResult[],
  cell: (result: CaseResult, name: string) => string,
): string[] {
  const names = namesIn(cases);
  return table(
    ['size', ...names],
    cases.map((result) => [result.variant ?? '', ...names.map((name) => cell(result, name))]),
  );
}

const delays = (measured: readonly DelayResult[]): string[] =>
  table(
    ['meanwhile', 'median', 'p99', 'longest'],
    measured.map(({ name, median, p99, max }) => [name, ...[median, p99, max].map(duration)]),
  );

const namesIn = (cases: readonly CaseResult[]): string[] => [
  ...new Set(cases.flatMap(({ contestants }) => contestants.map(({ name }) => name))),
];

const multipleOf = (ratio: number | undefined): string =>
  ratio === undefined ? '' : multiple(ratio);

function table(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  if (rows.length === 0) return ['Not measured yet.'];
  const lines = [head, head.map(() => '---'), ...rows];
  return ['', ...lines.map((cells) => `| ${cells.join(' | ')} |`), ''];
}

const page = readFileSync(PAGE, 'utf8');
const filled = page.replace(
  /(<!-- figures: (\S+) -->\n)[\s\S]*?(<!-- end -->)/g,
  (_, begin: string, name: string, end: string) => {
    const figure = figures[name];
    if (!figure) throw new Error(`docs/bench.md asks for the figures of '${name}'`);
    const text = figure()
      .join('\n')
      .replaceAll(/\n{3,}/g, '\n\n');
    return `${begin}${text}\n${end}`;
  },
);
writeFileSync(PAGE, filled);
