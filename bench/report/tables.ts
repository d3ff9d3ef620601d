/** The figures of a run as tables. */
import { titleOf } from '../compare.ts';
import { byClock, duration, EMULATED, inPasses, multiple, percent, speed } from '../format.ts';
import { limitOf } from '../limits.ts';
import type { CaseResult, DelayResult, Machine, Results } from '../result-schema.ts';
import { ratioOf, type Samples } from '../statistics.ts';
import { type Block, paragraph, table } from './blocks.ts';
import { contestantsIn, type Group } from './groups.ts';
import { describeLimit } from './limit-text.ts';

/** What is said of everything that an emulated run measured. */
export const marked = ({ driver }: Results, blocks: readonly Block[]): Block[] => [
  ...blocks,
  ...(driver.emulated ? [paragraph(`(${EMULATED})`)] : []),
];

/** The table that a group asks for: a row a size or number, or a row a contestant. */
export const groupTable = (results: Results, group: Group): Block[] =>
  marked(
    results,
    group.axis
      ? [seriesTable(results, group.cases), ...describeBounds(results, group.cases)]
      : group.cases.map(rankingTable),
  );

/** Medians, or 1e9 bytes a second, by what the cases differ by. */
function seriesTable({ machine }: Results, cases: readonly CaseResult[]): Block {
  const names = contestantsIn(cases);
  const isCopy = cases.some((result) => result.isCopy);
  const first = isCopy ? 'GB/s' : (cases[0]?.count?.of ?? 'size');
  return table(
    [first, ...names],
    cases.map((result) => {
      const { variant, byteLength, contestants } = result;
      return [
        variant ?? '',
        ...names.map((name) => {
          const found = contestants.find((contestant) => contestant.name === name);
          if (!found) return '';
          if (!isCopy) return duration(found.median);
          const limit = limitOf(result, machine);
          const part = limit && ((byteLength ?? 0) / found.median) * (1e9 / limit);
          return `${speed(byteLength ?? 0, found.median)}${part ? ` (${percent(part)})` : ''}`;
        }),
      ];
    }),
  );
}

/** By which clock times are, and what the parts in brackets are of. */
function describeBounds({ machine }: Results, cases: readonly CaseResult[]): Block[] {
  const [first] = cases;
  const limit = first && describeLimit(first, machine);
  const isGpu = first?.clock === 'gpu';
  return [
    ...(isGpu ? ['Times are by the GPU’s clock.'] : []),
    ...(limit ? [`In brackets the part of the limit: ${limit}.`] : []),
  ].map(paragraph);
}

/** The contestants of a case, and how many times as long the first of them takes. */
function rankingTable(result: CaseResult): Block {
  const first = result.contestants[0] as Samples;
  return table(
    [
      `${titleOf(result)}${byClock(result.clock)}`,
      'median',
      'p10 to p90',
      `${first.name} takes so many times as long`,
    ],
    result.contestants.map((contestant) => [
      contestant.name,
      duration(contestant.median),
      `${duration(contestant.p10)} to ${duration(contestant.p90)}`,
      contestant === first ? '' : multiple(ratioOf(first, contestant)),
    ]),
  );
}

/**
 * Several cases, one a row: what the first contestant takes, and that as a multiple of each other's.
 * Cases with another first contestant have tables of their own.
 */
export function ratioTable(results: Results, cases: readonly CaseResult[]): Block[] {
  const first = cases[0]?.contestants[0]?.name ?? '';
  const isAlike = ({ contestants }: CaseResult): boolean => contestants[0]?.name === first;
  const alike = cases.filter(isAlike);
  const others = contestantsIn(alike).filter((name) => name !== first);
  const rows = alike.map((result) => {
    const [own, ...rest] = result.contestants;
    return [
      `${titleOf(result)}${byClock(result.clock)}`,
      own ? duration(own.median) : '',
      ...others.map((name) => {
        const other = rest.find((contestant) => contestant.name === name);
        return own && other ? multiple(ratioOf(own, other)) : '';
      }),
    ];
  });
  const head = ['call', first, ...others.map((name) => `times ${name}`)];
  const rest = cases.filter((result) => !isAlike(result));
  return marked(results, [table(head, rows), ...rest.map(rankingTable)]);
}

/** How late the event loop was. */
export const delayTable = (results: Results): Block[] =>
  marked(results, [
    table(
      ['meanwhile', 'median', 'p99', 'longest'],
      results.delays.map(({ name, median, p99, max }: DelayResult) => [
        name,
        ...[median, p99, max].map(duration),
      ]),
    ),
  ]);

/** Where and when a run took place, in a sentence. */
export function describeRun({ machine, driver, rounds, passes, quick }: Results): string {
  const parts = [
    driver.emulated ? `${machine.gpu} (${EMULATED})` : machine.gpu,
    ...(machine.driverVersion ? [`driver ${machine.driverVersion}`] : []),
    `CUDA ${machine.cuda}`,
    ...clocks(machine),
    ...links(machine),
    `${machine.cpuCount} CPU cores (${machine.cpu})`,
    `Node ${machine.node.replace(/^v/, '')}`,
    `koffi ${machine.koffi}`,
    ...(machine.commit ? [`commit ${machine.commit.replace(/^(.{12}).*?(\+?)$/, '$1$2')}`] : []),
    machine.date.slice(0, 10),
  ];
  return `${parts.join(', ')}; medians of at most ${rounds} rounds${inPasses(passes)}${quick ? ', a quick run' : ''}.`;
}

const clocks = ({ clocks: read }: Machine): string[] =>
  read
    ? [`clocks ${read.sm} of ${read.smMax} MHz, memory ${read.memory} of ${read.memoryMax} MHz`]
    : [];

const links = ({ link }: Machine): string[] =>
  link ? [`PCI Express: ${link.current.width} lanes, at most ${link.max.speed} GT/s`] : [];
