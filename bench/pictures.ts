/** Pictures of results, drawn by vega-lite as SVG. */
import { parse, View } from 'vega';
import { compile, type TopLevelSpec } from 'vega-lite';
import { byClock, EMULATED, groupBy } from './format.ts';
import { describeLimit, limitOf } from './machine.ts';
import { captionOf, colourOf, shapeOf, titleOfPicture } from './names.ts';
import { type CaseResult, type Results, ratioOf } from './results.ts';
import { contestantsIn, type Group, groupsOf } from './tables.ts';

/** A specification of vega-lite, whose own types refuse read-only lists. */
type Spec = Readonly<Record<string, unknown>>;

/** The file of a group that has an axis. */
export const lineFile = ({ suite, name }: Group): string =>
  `${name.startsWith(suite) ? name : `${suite}.${name}`}.svg`;
/** The files of a suite's other cases: ratios to C, and times of cases without C. */
export const ratioFile = (suite: string): string => `${suite}.ratios.svg`;
export const timeFile = (suite: string): string => `${suite}.times.svg`;

/** Draws all pictures of a run. Returns SVG by file name. */
export async function drawAll(results: Results): Promise<Map<string, string>> {
  const groups = groupsOf(results);
  const specs = new Map<string, Spec>();
  for (const group of groups)
    if (group.axis) specs.set(lineFile(group), linePlot(results, group, group.axis));
  for (const [suite, ofSuite] of groupBy(groups, (group) => group.suite)) {
    const cases = ofSuite.filter(({ axis }) => !axis).flatMap((group) => group.cases);
    const withC = cases.filter(baselineOf);
    const withoutC = cases.filter((one) => !baselineOf(one));
    if (withC.length > 0) specs.set(ratioFile(suite), ratioPlot(results, suite, withC));
    if (withoutC.length > 0) specs.set(timeFile(suite), timePlot(results, suite, withoutC));
  }
  const pictures = new Map<string, string>();
  for (const [file, spec] of specs) pictures.set(file, await draw(spec));
  return pictures;
}

async function draw(spec: Spec): Promise<string> {
  const view = new View(parse(compile(spec as unknown as TopLevelSpec).spec), { renderer: 'none' });
  try {
    return `${(await view.toSVG()).replaceAll(PLACES, rounded)}\n`;
  } finally {
    view.finalize();
  }
}

/** Attributes with positions, which need no more than two digits. Text stays as it is. */
const PLACES = / (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"/g;
const rounded = (attribute: string): string =>
  attribute.replaceAll(
    /-?\d+\.\d{3,}(?:e-?\d+)?/g,
    (digits) => `${Number(Number(digits).toFixed(2))}`,
  );

const CONFIG = {
  // The page says in words what a picture shows; inside an <img> nothing else is read aloud.
  aria: false,
  background: 'white',
  padding: 16,
  font: 'sans-serif',
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 'normal', titlePadding: 10 },
  legend: { labelFontSize: 12, labelLimit: 0, symbolSize: 80, symbolOpacity: 1 },
  title: { fontSize: 15, anchor: 'start', offset: 14, limit: 900, subtitlePadding: 5 },
  view: { stroke: '#cccccc' },
} as const;

/** The title, and whose figures the picture shows. */
function framed({ machine, driver }: Results, text: string, ...what: readonly string[]): Spec {
  const day = machine.date.slice(0, 10);
  const whose = driver.emulated ? `${EMULATED} (${day})` : `${machine.gpu}, ${day}`;
  const wrapped = what.flatMap((each) => each.match(/.{1,85}(?= |$)/g) ?? []);
  return {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    config: CONFIG,
    title: {
      text,
      subtitle: [...wrapped.map((line) => line.trim()), whose],
      subtitleColor: driver.emulated ? '#B00020' : '#555555',
      subtitleFontSize: 12,
    },
  };
}

/** C, if it takes part. */
export const baselineOf = ({ contestants }: CaseResult) =>
  contestants.find(({ name }) => name === 'C' || name.startsWith('C, '));

const shortest = (divisor: number): string => `format(datum.value / ${divisor}, '.3~r')`;
/** Nanoseconds with a unit, as an expression of vega. */
const timeLabel =
  `datum.value === 0 ? '0' : datum.value < 1e3 ? ${shortest(1)} + ' ns' : datum.value < 1e6 ? ${shortest(1e3)} + ' µs' : ` +
  `datum.value < 1e9 ? ${shortest(1e6)} + ' ms' : ${shortest(1e9)} + ' s'`;
/** Bytes with a unit. */
const bytesLabel =
  `datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : ` +
  `datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'`;

const GREY = '#555555';

/** The ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 if the values lie close together. */
function ticksFor(all: readonly number[]): number[] {
  const values = all.filter((value) => value > 0);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const first = Math.floor(Math.log10(low));
  const powers = Array.from(
    { length: Math.ceil(Math.log10(high)) - first + 1 },
    (_, at) => 10 ** (first + at),
  );
  const ticks =
    high / low >= 10 ? powers : powers.flatMap((power) => [power, 2 * power, 5 * power]);
  return ticks.slice(
    ticks.findLastIndex((tick) => tick <= low),
    ticks.findIndex((tick) => tick >= high) + 1 || undefined,
  );
}

/** Time or bandwidth by size or number; one line per contestant, log-log. */
function linePlot(results: Results, group: Group, axis: NonNullable<Group['axis']>): Spec {
  const { name, what, cases } = group;
  const isCopy = cases.some((result) => result.isCopy);
  const values = cases.flatMap((result) =>
    result.contestants.map(({ name: contestant, ...times }) => {
      const inUnit = (ns: number): number => (isCopy ? (result.byteLength ?? 0) / ns : ns);
      const [median, p10, p90] = [times.median, times.p10, times.p90].map(inUnit);
      return { contestant, x: axis.numberOf(result), median, p10, p90 };
    }),
  );
  const names = contestantsIn(cases);
  if (new Set(names.map(colourOf)).size < names.length)
    throw new Error(`${name}: two lines would have one colour`);
  const last = cases.at(-1) as CaseResult;
  const limit = limitOf(last, results.machine);
  const scale = { type: 'log', nice: false, padding: 24 } as const;
  const marks = (of: (contestant: string) => string) => ({
    field: 'contestant',
    type: 'nominal',
    title: null,
    scale: { domain: names, range: names.map(of) },
  });
  const x = {
    field: 'x',
    type: 'quantitative',
    title: axis.of,
    scale,
    axis: {
      values: [...new Set(values.map((value) => value.x))],
      grid: false,
      labelOverlap: false,
      labelFlush: false,
      labelExpr: axis.of === 'size' ? bytesLabel : "format(datum.value, ',')",
    },
  };
  const ticks = ticksFor([
    ...values.flatMap(({ median = 0, p10 = 0, p90 = 0 }) => [median, p10, p90]),
    ...(limit ? [limit / 1e9] : []),
  ]);
  const y = {
    type: 'quantitative',
    title: isCopy ? 'GB/s (10⁹ bytes a second)' : 'time of each',
    scale: { ...scale, padding: 0, domain: [ticks[0], ticks.at(-1)] },
    axis: {
      gridColor: '#eeeeee',
      values: ticks,
      labelOverlap: false,
      ...(isCopy ? { format: '~g' } : { labelExpr: timeLabel }),
    },
  };
  const median = { ...y, field: 'median' };
  const color = marks(colourOf);
  const layers = [
    {
      mark: { type: 'area', opacity: 0.15 },
      encoding: { x, y: { ...y, field: 'p10' }, y2: { field: 'p90' }, color },
    },
    { mark: { type: 'line', strokeWidth: 2 }, encoding: { x, y: median, color } },
    {
      mark: { type: 'point', filled: true, size: 60, opacity: 1 },
      encoding: { x, y: median, color, shape: marks(shapeOf) },
    },
  ];
  const text = `limit, ${describeLimit(last, results.machine)}`;
  const at = limit && { ...y, datum: limit / 1e9 };
  const once = { values: [{}] };
  const limitLayers = [
    { data: once, mark: { type: 'rule', strokeDash: [6, 4], color: GREY }, encoding: { y: at } },
    {
      data: once,
      mark: { type: 'text', text, x: 6, align: 'left', dy: -8, fontSize: 12, color: GREY },
      encoding: { y: at },
    },
  ];
  return {
    ...framed(
      results,
      titleOfPicture(name),
      `${what}${byClock(last.clock)}`,
      'lines: medians; bands: p10 to p90',
    ),
    width: 560,
    height: 340,
    data: { values },
    layer: [...layers, ...(at ? limitLayers : [])],
  };
}

/** How many times as long as C each contestant takes. */
function ratioPlot(results: Results, suite: string, cases: readonly CaseResult[]): Spec {
  const values = cases.flatMap((result) => {
    const baseline = baselineOf(result);
    if (!baseline) return [];
    const which = baseline.name === 'C' ? '' : ` (C: ${baseline.name.slice(3)})`;
    return result.contestants
      .filter((one) => one !== baseline)
      .map((one) => barOf(result, one.name, ratioOf(one, baseline), which));
  });
  const all = values.map(({ value }) => value);
  // Where the text behind the longest bar has room.
  const domain = [Math.min(1, ...all) / 1.2, Math.max(...all) * 1.6];
  const ticks = ticksFor(all).filter(
    (tick) => tick >= (domain[0] ?? 0) && tick <= (domain[1] ?? 0),
  );
  return bars(results, values, {
    what: [`${titleOfPicture(suite)}: ratios to C`, 'how many times as long as C each takes'],
    unit: 'times as long as C, logarithmic',
    scale: { type: 'log', domain },
    axis: { values: ticks, labelOverlap: false, format: '~g' },
    from: 1,
    label: "format(datum.value, '.3~r')",
  });
}

/** How long each contestant takes; each case has its own scale. */
function timePlot(results: Results, suite: string, cases: readonly CaseResult[]): Spec {
  const isDelay = suite === 'event-loop';
  const values = cases.flatMap((result) =>
    result.contestants.map((one) => barOf(result, one.name, isDelay ? one.p99 : one.median, '')),
  );
  const unit = isDelay ? 'p99' : 'median';
  return bars(results, values, {
    what: [
      `${titleOfPicture(suite)}: times`,
      isDelay ? 'how late a timer is: p99' : 'how long each takes: median',
    ],
    unit,
    scale: { type: 'linear' },
    axis: { tickCount: 6, labelExpr: timeLabel },
    from: 0,
    label: timeLabel,
  });
}

interface Bar {
  readonly case: string;
  readonly contestant: string;
  readonly value: number;
}

const barOf = (result: CaseResult, contestant: string, value: number, which: string): Bar => ({
  case: `${captionOf(result)}${which}`,
  contestant,
  value,
});

interface BarStyle {
  readonly what: readonly [title: string, subtitle: string];
  /** The title of the axis. */
  readonly unit: string;
  readonly scale: object;
  readonly axis: object;
  /** Where bars begin. */
  readonly from: number;
  /** The text at the end of a bar, as an expression of vega. */
  readonly label: string;
}

/** One group of bars per case, one bar per contestant. */
function bars(
  results: Results,
  values: readonly Bar[],
  { what, unit, scale, axis, from, label }: BarStyle,
): Spec {
  const x = {
    type: 'quantitative',
    title: unit,
    scale: { nice: false, ...scale },
    axis: { gridColor: '#eeeeee', ...axis },
  };
  const y = {
    field: 'contestant',
    type: 'nominal',
    title: null,
    sort: null,
    axis: { labelLimit: 0, ticks: false, domain: false },
  };
  const panels = [...groupBy(values, (value) => value.case)].map(([text, ofCase]) => ({
    title: { text, frame: 'group', fontSize: 13, offset: 6 },
    width: 520,
    height: { step: 24 },
    data: {
      values: ofCase.map((each) => ({
        ...each,
        from,
        end: Math.max(each.value, from),
        colour: colourOf(each.contestant),
      })),
    },
    layer: [
      {
        mark: { type: 'bar', height: { band: 0.75 } },
        encoding: {
          y,
          x: { ...x, field: 'value' },
          x2: { field: 'from' },
          color: { field: 'colour', type: 'nominal', scale: null },
        },
      },
      {
        transform: [{ calculate: label, as: 'label' }],
        mark: { type: 'text', align: 'left', dx: 5, fontSize: 12 },
        encoding: { y, x: { ...x, field: 'end' }, text: { field: 'label', type: 'nominal' } },
      },
    ],
  }));
  return { ...framed(results, ...what), spacing: 14, vconcat: panels };
}
