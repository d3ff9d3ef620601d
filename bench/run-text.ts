/** A run in words and tables, while it runs. */
import { sizeName } from './bytes.ts';
import type { Aim } from './cases/case.ts';
import type { DriverChoice } from './driver.ts';
import { byClock, duration, EMULATED, inPasses, multiple, percent, speed } from './format.ts';
import { limitOf } from './limits.ts';
import type { Skipped } from './peers/peer.ts';
import type { CaseResult, DelayResult, Machine } from './result-schema.ts';
import { ratioOf } from './statistics.ts';

/** Which driver, in one line: the first of every output. */
export const describeDriver = (driver: DriverChoice): string =>
  driver.emulated
    ? `driver: emulated (${driver.reason}): real processes, but its times say nothing about a GPU`
    : `driver: ${driver.library}, CUDA ${driver.version} (${driver.reason})`;

/** Where a run takes place. */
export const describeRun = (machine: Machine, rounds: number, passes: number): string[] => [
  `machine: ${machine.gpu}${machine.driverVersion ? `, driver ${machine.driverVersion}` : ''}; ` +
    `${machine.cpuCount} x ${machine.cpu}; node ${machine.node}, koffi ${machine.koffi}`,
  `times per call, medians of ${rounds} rounds in turns at most${inPasses(passes)}; ratio: the first row's to this one's`,
];

/** Who could not take part. */
export const describeSkipped = ({ name, reason }: Skipped): string => `skipped: ${name}: ${reason}`;

/** How many cases are left out, and why. */
export const describeLeftOut = (count: number): string =>
  `left out: ${count} ${count === 1 ? 'case, which needs' : 'cases, which need'} a GPU`;

/** The table of a case; of an emulated run nothing is judged. */
export function describeCase(
  result: CaseResult,
  aims: readonly Aim[],
  { emulated }: DriverChoice,
  machine: Machine,
): string[] {
  const { name, variant, what, clock, contestants, byteLength, isCopy, skipped } = result;
  const limit = limitOf(result, machine);
  const [first] = contestants;
  const rows = contestants.map((contestant, at) => {
    const ratio = first && at > 0 ? ratioOf(first, contestant) : undefined;
    const max = aims.find(({ versus }) => versus === contestant.name)?.max;
    return [
      contestant.name,
      duration(contestant.median),
      `${duration(contestant.p10)} .. ${duration(contestant.p90)}`,
      ...(isCopy && byteLength ? [speed(byteLength, contestant.median)] : []),
      ...(limit && byteLength ? [percent((byteLength / contestant.median) * (1e9 / limit))] : []),
      ratio === undefined ? '' : multiple(ratio),
      ratio === undefined || max === undefined
        ? ''
        : `<= ${max.toFixed(2)}: ${judgement(emulated ? undefined : ratio <= max)}`,
    ];
  });
  const head = [
    '',
    'median',
    'p10 .. p90',
    ...(isCopy ? ['GB/s'] : []),
    ...(limit ? ['of limit'] : []),
    'ratio',
    'aim',
  ];
  return [
    `${name}${variant ? `, ${variant}` : ''}: ${what}${byClock(clock)}${emulated ? ` (${EMULATED})` : ''}`,
    ...table(head, rows).map((line) => `  ${line}`),
    ...skipped.map((peer) => `  ${describeSkipped(peer)}`),
  ];
}

/** How late the event loop was. */
export function describeDelays(
  delays: readonly DelayResult[],
  maxNs: (name: string) => number | undefined,
  { emulated }: DriverChoice,
): string[] {
  const rows = delays.map(({ name, median, p99, max }) => {
    const aim = maxNs(name);
    return [
      name,
      duration(median),
      duration(p99),
      duration(max),
      aim === undefined
        ? ''
        : `p99 <= ${duration(aim)}: ${judgement(emulated ? undefined : p99 <= aim)}`,
    ];
  });
  const { byteLength = 0, copies = 0 } = delays.at(-1) ?? {};
  return [
    `event loop: how late it is while ${sizeName(byteLength)} is copied ${copies} times, awaited` +
      (emulated ? ` (${EMULATED})` : ''),
    ...table(['', 'median', 'p99', 'max', 'aim'], rows).map((line) => `  ${line}`),
  ];
}

const judgement = (met: boolean | undefined): string =>
  met === undefined ? 'not judged' : met ? 'met' : 'MISSED';

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
