/** A run in words and tables. */
import { sizeName } from './bytes.ts';
import type { DelayResult } from './delays.ts';
import type { DriverChoice } from './driver.ts';
import type { Machine } from './machine.ts';
import type { Skipped } from './peers/peer.ts';
import type { CaseResult, Ratio } from './run.ts';

/** Which driver, in one line: the first of every output. */
export const describeDriver = (driver: DriverChoice): string =>
  driver.emulated
    ? `driver: emulated (${driver.reason}): real processes, but its times say nothing about a GPU`
    : `driver: ${driver.library}, CUDA ${driver.version} (${driver.reason})`;

/** Where a run takes place. */
export const describeRun = (machine: Machine, rounds: number): string[] => [
  `machine: ${machine.gpu}${machine.driverVersion ? `, driver ${machine.driverVersion}` : ''}; ` +
    `${machine.cpuCount} x ${machine.cpu}; node ${machine.node}, koffi ${machine.koffi}`,
  `times per call, the median of ${rounds} rounds in turns; ratio: the first row's to this one's`,
];

/** Who could not take part. */
export const describeSkipped = ({ name, reason }: Skipped): string => `skipped: ${name}: ${reason}`;

/** How many cases are left out, and why. */
export const describeLeftOut = (count: number): string =>
  `left out: ${count} ${count === 1 ? 'case' : 'cases'}, which need a GPU`;

/** The table of a case. */
export function describeCase(result: CaseResult): string[] {
  const { name, variant, what, contestants, ratios, gigabytesPerSecond: speeds, skipped } = result;
  const rows = contestants.map(({ name: contestant, median, min, max }, at) => {
    const ratio = ratios.find(({ versus }) => versus === contestant);
    return [
      contestant,
      duration(median),
      `${duration(min)} .. ${duration(max)}`,
      ...(speeds ? [speeds[at]?.toPrecision(3) ?? ''] : []),
      ratio ? multiple(ratio.ratio) : '',
      ratio ? verdict(ratio) : '',
    ];
  });
  const head = ['', 'median', 'min .. max', ...(speeds ? ['GB/s'] : []), 'ratio', 'aim'];
  return [
    `${name}${variant ? `, ${variant}` : ''}: ${what}`,
    ...table(head, rows).map((line) => `  ${line}`),
    ...skipped.map((peer) => `  ${describeSkipped(peer)}`),
  ];
}

/** How late the event loop was. */
export function describeDelays(delays: readonly DelayResult[]): string[] {
  const rows = delays.map(({ name, median, p99, max, aim, met }) => [
    name,
    duration(median),
    duration(p99),
    duration(max),
    aim === undefined ? '' : `p99 <= ${duration(aim)}: ${judgement(met)}`,
  ]);
  const { byteLength = 0, copies = 0 } = delays.at(-1) ?? {};
  return [
    `event loop: how late it is while ${sizeName(byteLength)} is copied ${copies} times, awaited`,
    ...table(['', 'median', 'p99', 'max', 'aim'], rows).map((line) => `  ${line}`),
  ];
}

function verdict({ aim, met }: Ratio): string {
  if (aim === undefined) return '';
  return `<= ${aim.toFixed(2)}: ${judgement(met)}`;
}

const judgement = (met: boolean | undefined): string =>
  met === undefined ? 'not judged' : met ? 'met' : 'MISSED';

export const multiple = (ratio: number): string =>
  ratio < 100 ? ratio.toPrecision(3) : ratio.toFixed(0);

export function duration(ns: number): string {
  if (ns < 1e4) return `${ns.toFixed(ns < 100 ? 1 : 0)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} us`;
  return `${(ns / 1e6).toFixed(1)} ms`;
}

/** Columns as wide as their widest cell; the first and the last from the left. */
function table(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const lines = [head, ...rows];
  const widths = head.map((_, column) => Math.max(...lines.map((row) => row[column]?.length ?? 0)));
  return lines.map((row) =>
    row
      .map((cell, column) => {
        const width = widths[column] ?? 0;
        return column === 0 || column === head.length - 1
          ? cell.padEnd(width)
          : cell.padStart(width);
      })
      .join('  ')
      .trimEnd(),
  );
}
