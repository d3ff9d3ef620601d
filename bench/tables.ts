/** Tables and sentences of results, for the terminal and for Markdown. */
import { markdownTable } from 'markdown-table';
import {
  type Aim,
  appliesTo,
  inWordsOf,
  type Judgement,
  judgeCase,
  limitOf as limitOfAim,
  verdict,
} from './aims.ts';
import { byClock, duration, EMULATED, groupBy, multiple, percent, speed } from './format.ts';
import { describeLimit, limitOf } from './machine.ts';
import { captionOf, wordsOf } from './names.ts';
import type { Plan } from './plan.ts';
import {
  type CaseResult,
  type DriverChoice,
  type Machine,
  type Results,
  ratioOf,
  type Samples,
} from './results.ts';

/** Where a run took place. */
export interface Place {
  readonly machine: Machine;
  readonly driver: DriverChoice;
}

const table = (
  head: readonly string[],
  rows: readonly (readonly string[])[],
  { driver }: Place,
): string => {
  const text = markdownTable(
    [head, ...rows].map((row) => row.map((cell) => cell.replaceAll('|', '\\|'))),
    { align: head.map((_, column) => (column === 0 ? 'l' : 'r')) },
  );
  return driver.emulated ? `${text}\n\n(${EMULATED})` : text;
};

/** The first lines of a run. */
export function describeRun(place: Place & Pick<Results, 'skipped'>, plan: Plan): string[] {
  const { driver, skipped } = place;
  const left = driver.emulated ? plan.cases.filter(({ needsGpu }) => needsGpu).length : 0;
  return [
    driver.emulated
      ? `driver: emulated (${driver.reason}): real processes, but the times say nothing about a GPU`
      : `driver: ${driver.library} (${driver.reason})`,
    describePlace({ ...place, ...plan }),
    ...(left > 0 ? [`skipped: ${left} cases, which need a GPU`] : []),
    ...skipped.map(({ name, reason }) => `skipped: ${name}: ${reason}`),
  ];
}

/** The contestants of a case, one per row. */
export function caseTable(
  result: CaseResult,
  { machine, driver, aims }: Place & { readonly aims: readonly Aim[] },
): string {
  const { contestants, byteLength, isCopy, skipped, suite } = result;
  const limit = limitOf(result, machine);
  const isDelay = suite === 'event-loop';
  const judged = aims
    .filter((aim) => appliesTo(aim, result))
    .map((aim) => judgeCase([result], aim))
    .map((each) => `${verdict(each)}: ${each.text}: ${each.figure}`);
  const [first] = contestants;
  const rows = contestants.map((one) => [
    one.name,
    duration(one.median),
    ...(isDelay
      ? [duration(one.p99), duration(one.max)]
      : [`${duration(one.p10)} to ${duration(one.p90)}`]),
    ...(isCopy && byteLength ? [bandwidth(result, one, limit)] : []),
    ...(isDelay ? [] : [first && one !== first ? multiple(ratioOf(first, one)) : '']),
  ]);
  const head = [
    captionOf(result),
    'median',
    ...(isDelay ? ['p99', 'longest'] : ['p10 to p90']),
    ...(isCopy && byteLength ? [limit ? 'GB/s (part of the limit)' : 'GB/s'] : []),
    ...(isDelay ? [] : ['ratio']),
  ];
  return [
    table(head, rows, { machine, driver }),
    ...skipped.map(({ name, reason }) => `skipped: ${name}: ${reason}`),
    ...judged,
  ].join('\n');
}

const bandwidth = (
  { byteLength }: CaseResult,
  { median }: Samples,
  limit: number | undefined,
): string => {
  const bytes = byteLength ?? 0;
  const part = limit ? ` (${percent((bytes / median) * (1e9 / limit))})` : '';
  return `${speed(bytes, median)}${part}`;
};

/** The cases of one name: one, or several that differ by a size or a number. */
export interface Group {
  readonly suite: string;
  readonly name: string;
  readonly what: string;
  readonly cases: readonly CaseResult[];
  /** The number by which they differ; undefined if they do not differ by a number. */
  readonly axis:
    | { readonly of: string; readonly numberOf: (result: CaseResult) => number }
    | undefined;
}

/** Groups cases by suite and name. */
export const groupsOf = ({ cases }: Results): Group[] =>
  [...groupBy(cases, ({ suite, name }) => `${suite}/${name}`).values()].map((ofName) => {
    const { suite, name, what, count } = ofName[0] as CaseResult;
    const numberOf = (result: CaseResult): number =>
      (count ? result.count?.value : result.byteLength) ?? 0;
    const values = new Set(ofName.map(numberOf));
    const isAxis = values.size > 1 && values.size === ofName.length && !values.has(0);
    return {
      suite,
      name,
      what,
      cases: ofName,
      axis: isAxis ? { of: count?.of ?? 'size', numberOf } : undefined,
    };
  });

export const contestantsIn = (cases: readonly CaseResult[]): string[] => [
  ...new Set(cases.flatMap(({ contestants }) => contestants.map(({ name }) => name))),
];

/** What the number of a case counts, if it is the length of a kernel: its variant says so. */
const UNITS: ReadonlySet<string> = new Set(['milliseconds', 'microseconds']);

/** The table of a group: sizes or numbers as rows, contestants as columns. */
export function groupTable(results: Results, { axis, cases }: Group): string {
  if (!axis) return cases.map((result) => caseTable(result, { ...results, aims: [] })).join('\n\n');
  const names = contestantsIn(cases);
  const [first] = cases as [CaseResult];
  const { isCopy } = first;
  const rows = cases.map((result) => [
    result.variant ?? '',
    ...names.map((name) => {
      const found = result.contestants.find((one) => one.name === name);
      if (!found) return '';
      return isCopy
        ? bandwidth(result, found, limitOf(result, results.machine))
        : duration(found.median);
    }),
  ]);
  const limit = describeLimit(first, results.machine);
  const clock = first.clock === 'gpu' ? 'Times are by the GPU’s clock. ' : '';
  const note = `${clock}${limit ? `In brackets: the part of the limit (${limit}).` : ''}`.trim();
  return [
    table(
      [
        UNITS.has(axis.of) ? 'kernels' : axis.of,
        ...names.map((name) => `${name}, ${isCopy ? 'GB/s' : 'median'}`),
      ],
      rows,
      results,
    ),
    ...(note ? [note] : []),
  ].join('\n\n');
}

/**
 * Cases as columns, contestants as rows: the median of each, and in brackets the ratio of the first
 * contestant's time to it. Cases that differ by their first contestant have tables of their own.
 */
export function ratioTable(results: Results, cases: readonly CaseResult[]): string {
  const byFirst = groupBy(cases, ({ contestants }) => contestants[0]?.name ?? '');
  return [...byFirst]
    .map(([first, alike]) => {
      const sameVariant = new Set(alike.map(({ variant }) => variant)).size === 1;
      const rows = contestantsIn(alike).map((name) => [
        name,
        ...alike.map(({ contestants: [own, ...rest] }) => {
          const other = rest.find((one) => one.name === name);
          if (own && name === first) return duration(own.median);
          return own && other ? `${duration(other.median)} (${multiple(ratioOf(own, other))})` : '';
        }),
      ]);
      const columns = alike.map((each) =>
        sameVariant && alike.length > 1
          ? `${wordsOf(each.name)}${byClock(each.clock)}`
          : captionOf(each),
      );
      const others = rows.length > 1 ? ` (${first} divided by it)` : '';
      return table([`median${others}`, ...columns], rows, results);
    })
    .join('\n\n');
}

const PAGE_LOCKED = 'copying, page-locked shared memory';
const SHARED = 'copying, shared memory';
const SOCKET = 'copying, socket';

/** How long a word of a buffer takes to another process and back, by each way. */
export function headlineTable(results: Results): string {
  const sizes = ['1 MiB', '1 GiB'];
  const medianOf = (name: string, contestant: string, variant: string): string => {
    const found = results.cases
      .filter((one) => one.name === name && one.variant === variant)
      .flatMap(({ contestants }) => contestants)
      .find((one) => one.name === contestant);
    return found ? duration(found.median) : '';
  };
  const rows = HEADLINE.map(([way, name, contestant]) => [
    way,
    ...sizes.map((size) => medianOf(name, contestant, size)),
  ]).filter(([, ...cells]) => cells.some((cell) => cell !== ''));
  return rows.length > 0
    ? table(['way', ...sizes.map((size) => `${size}, median`)], rows, results)
    : '';
}

const HEADLINE: readonly (readonly [way: string, name: string, contestant: string])[] = [
  ['cuffi, a channel', 'channel.roundTrip', 'cuffi, a word read'],
  ['cuffi, a connection', 'hand-over.mapped', 'cuffi'],
  ['cuffi, a connection, busy polling', 'hand-over.mapped', 'cuffi, busy polling'],
  ['C: the driver’s calls, and a Unix socket', 'hand-over.mapped', 'C'],
  ['numba', 'hand-over.mapped', 'numba'],
  ['cuda.core', 'hand-over.mapped', 'cuda.core'],
  ['torch', 'hand-over.mapped', 'torch'],
  [PAGE_LOCKED, 'hand-over.mapped', PAGE_LOCKED],
  [SHARED, 'hand-over.mapped', SHARED],
  [SOCKET, 'hand-over.mapped', SOCKET],
];

/** Where and when a run took place, in one sentence. */
export function describePlace({
  machine,
  driver,
  rounds,
  passes,
  quick,
}: Place & Pick<Results, 'rounds' | 'passes' | 'quick'>): string {
  const { clocks, link, commit } = machine;
  const parts = [
    driver.emulated ? `${machine.gpu} (${EMULATED})` : machine.gpu,
    machine.driverVersion && `driver ${machine.driverVersion}`,
    `CUDA ${machine.cuda}`,
    clocks &&
      `clocks of at most ${clocks.smMax} MHz (idle before the run: ${clocks.sm} MHz), memory ${clocks.memory} of ${clocks.memoryMax} MHz`,
    link && `PCI Express with ${link.current.width} lanes of at most ${link.max.speed} GT/s`,
    `${machine.cpuCount} CPU cores (${machine.cpu})`,
    `Node ${machine.node.replace(/^v/, '')}`,
    `koffi ${machine.koffi}`,
    commit && `commit ${commit.replace(/\b([\da-f]{12})[\da-f]+/g, '$1')}`,
    machine.date.slice(0, 10),
  ];
  const processes = passes > 1 ? ` in ${passes} processes` : '';
  return `${parts.filter(Boolean).join(', ')}; medians of at most ${rounds} rounds${processes}${quick ? ', a quick run' : ''}.`;
}

/** How many aims are met, those that are missed, and one line for each case that misses one. */
export function aimTable(
  results: Results,
  judged: readonly Judgement[],
  reasons: Readonly<Record<string, string>>,
): string {
  if (results.driver.emulated) return `Aims are not judged: ${EMULATED}.`;
  const of = (wanted: boolean | undefined) => judged.filter(({ met }) => met === wanted);
  const missed = of(false);
  const cases = (some: readonly Judgement[]) => [...new Set(some.map(({ aim }) => aim.case))];
  const unmeasured = cases(of(undefined));
  // Without the suite.
  const rows = missed.map((each) => [each.text.replace(/^[\w-]+: /, ''), each.figure]);
  const reasonOf = (one: string): string => reasons[one] ?? 'not known.';
  const why = [...groupBy(cases(missed), reasonOf)].map(
    ([reason, alike]) => `- ${alike.map((one) => `\`${one}\``).join(', ')}: ${reason}`,
  );
  return [
    `Of ${judged.length} aims ${of(true).length} are met and ${missed.length} missed.`,
    ...(unmeasured.length === 0 ? [] : [`Not measured: ${unmeasured.join(', ')}.`]),
    ...(missed.length === 0 ? [] : [table(['missed', 'measured'], rows, results), why.join('\n')]),
  ].join('\n\n');
}

/** The goals, each with what was measured, and with the time of what it is compared with. */
export function goalTable(results: Results, judged: readonly Judgement[]): string {
  if (results.driver.emulated) return `Goals are not judged: ${EMULATED}.`;
  const goals = [...groupBy(judged, ({ aim }) => JSON.stringify(aim)).values()];
  const isReached = (ofGoal: readonly Judgement[]) => ofGoal.every(({ met }) => met === true);
  const inWords = ({ aim }: Judgement): string =>
    `${[aim.case, aim.variant, aim.contestant].filter(Boolean).join(', ')}: ${limitOfAim(aim)}`;
  const reached = goals.filter(isReached).map(([one]) => inWords(one as Judgement));
  const rows = goals
    .filter((ofGoal) => !isReached(ofGoal))
    .map((ofGoal) => {
      const one = ofGoal[0] as Judgement;
      const { aim } = one;
      const floor = 'versus' in aim ? aim.versus : aim.floor;
      const beside = range(ofGoal, ({ floorNs }) => floorNs, duration);
      return [
        inWords(one),
        range(ofGoal, ({ value }) => value, inWordsOf(aim)) || 'not measured',
        beside && `${floor} ${beside}`,
      ];
    });
  return [
    table(['goal', 'measured', 'beside'], rows, results),
    ...(reached.length === 0 ? [] : [`Reached: ${reached.join('; ')}.`]),
  ].join('\n\n');
}

/** The smallest and the largest of several values. */
function range(
  judged: readonly Judgement[],
  take: (one: Judgement) => number | undefined,
  inWords: (value: number) => string,
): string {
  const values = judged.flatMap((one) => take(one) ?? []).sort((a, b) => a - b);
  const [least, most] = [values[0], values.at(-1)];
  if (least === undefined || most === undefined) return '';
  return least === most ? inWords(least) : `${inWords(least)} to ${inWords(most)}`;
}
