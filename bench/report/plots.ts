/** The figures of a run as specifications of pictures. */
import { titleOf } from '../compare.ts';
import { EMULATED } from '../format.ts';
import { groupBy } from '../group.ts';
import type { CaseResult, Results } from '../result-schema.ts';
import { ratioOf, type Samples } from '../statistics.ts';
import { type Axis, baselineOf, contestantsIn, type Group } from './groups.ts';
import { bytesLabel, logTicks, timeLabel } from './ticks.ts';

/** A picture in the words of vega-lite, whose own types take no read-only list. */
export type Spec = Readonly<Record<string, unknown>>;

/** Told apart by people who see few colours, too (Okabe and Ito). */
const COLOURS = [
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
  '#7A7A7A',
];
const SHAPES = [
  'circle',
  'square',
  'triangle-up',
  'diamond',
  'cross',
  'triangle-down',
  'circle',
  'square',
];
const SIZE = { width: 560, height: 340 };

const CONFIG = {
  background: 'white',
  padding: 16,
  font: 'sans-serif',
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 'normal', titlePadding: 10 },
  legend: { labelFontSize: 12, labelLimit: 300, symbolSize: 80, symbolOpacity: 1 },
  header: { labelFontSize: 13, labelLimit: 600 },
  title: { fontSize: 15, anchor: 'start', offset: 14, limit: 900, subtitlePadding: 5 },
  view: { stroke: '#cccccc' },
} as const;

/** Time or bandwidth against what the cases of a group differ by, a line a contestant. */
export function linePlot(results: Results, { name, what, cases }: Group, axis: Axis): Spec {
  const isCopy = cases.some((result) => result.isCopy);
  const values = cases.flatMap((result) =>
    result.contestants.map((samples) => point(result, samples, axis)),
  );
  const x = values.map((value) => value.x);
  const y = values.flatMap(({ low, high }) => [low, high]);
  const unit = isCopy ? 'GB/s (10⁹ bytes a second)' : 'time of each';
  const scale = { type: 'log', nice: false } as const;
  const inOrder = { type: 'nominal', sort: contestantsIn(cases) } as const;
  const names = contestantsIn(cases);
  const colour = {
    field: 'contestant',
    ...inOrder,
    title: null,
    scale: { domain: names, range: COLOURS.slice(0, names.length) },
  } as const;
  const xAxis = {
    field: 'x',
    type: 'quantitative',
    title: axis.of === 'bytes' ? 'size' : axis.of,
    scale: { ...scale, domain: span(Math.min(...x), Math.max(...x)) },
    axis: {
      values: [...new Set(x)],
      grid: false,
      labelOverlap: false,
      labelFlush: false,
      labelExpr: axis.of === 'bytes' ? bytesLabel : "format(datum.value, ',')",
    },
  } as const;
  const ticks = logTicks(Math.min(...y), Math.max(...y));
  const yAxis = {
    type: 'quantitative',
    title: unit,
    scale: { ...scale, domain: span(Math.min(...y), Math.max(...y)) },
    axis: {
      values: ticks,
      gridColor: '#eeeeee',
      ...(isCopy ? { format: '~g' } : { labelExpr: timeLabel }),
    },
  } as const;
  return {
    ...framed(results, name, what, 'lines: medians; bands: p10 to p90'),
    ...SIZE,
    data: { values },
    layer: [
      {
        mark: { type: 'area', opacity: 0.15 },
        encoding: { x: xAxis, y: { ...yAxis, field: 'low' }, y2: { field: 'high' }, color: colour },
      },
      {
        mark: { type: 'line', strokeWidth: 2 },
        encoding: { x: xAxis, y: { ...yAxis, field: 'median' }, color: colour },
      },
      {
        mark: { type: 'point', filled: true, size: 60, opacity: 1 },
        encoding: {
          x: xAxis,
          y: { ...yAxis, field: 'median' },
          color: colour,
          shape: {
            field: 'contestant',
            ...inOrder,
            title: null,
            scale: { domain: names, range: SHAPES.slice(0, names.length) },
          },
        },
      },
    ],
  };
}

const span = (from: number, to: number): [number, number] => [from, to];

function point(result: CaseResult, { name, median, p10, p90 }: Samples, axis: Axis) {
  const inUnit = (ns: number): number => (result.isCopy ? (result.byteLength ?? 0) / ns : ns);
  const [a, b] = [inUnit(p10), inUnit(p90)];
  return {
    contestant: name,
    x: axis.valueOf(result),
    median: inUnit(median),
    low: Math.min(a, b),
    high: Math.max(a, b),
  };
}

/** The colours of bars: cuffi's, and all others'. */
const OWN = '#0072B2';
const OTHER = '#A9B4BD';
const isOwn = "indexof(datum.contestant, 'cuffi') === 0";

/** How many times as long as C each contestant takes, cases below each other. */
export function ratioPlot(results: Results, suite: string, cases: readonly CaseResult[]): Spec {
  const values = cases.flatMap((result) => {
    const baseline = result.contestants.find(({ name }) => name === baselineOf(result));
    if (!baseline) return [];
    return result.contestants
      .filter((samples) => samples !== baseline)
      .map((samples) => bar(result, samples, ratioOf(samples, baseline), baseline.name));
  });
  const most = Math.max(...values.map(({ value }) => value));
  const least = Math.min(1, ...values.map(({ value }) => value));
  return bars(results, suite, 'how many times as long as C each takes', values, {
    title: 'times as long as C, logarithmic',
    scale: () => ({ type: 'log', nice: false, domain: [least / 1.2, most * 1.6] }),
    axis: { values: logTicks(least / 1.2, most * 1.6), format: '~g', gridColor: '#eeeeee' },
    from: 1,
    label: "format(datum.value, '.3~r')",
  });
}

/** How long each contestant takes, cases below each other. */
export function timePlot(results: Results, suite: string, cases: readonly CaseResult[]): Spec {
  const values = cases.flatMap((result) =>
    result.contestants.map((samples) => bar(result, samples, samples.median, undefined)),
  );
  return bars(results, suite, 'how long each takes, medians', values, {
    title: 'median',
    // Each its own: what is measured beside it may take a thousand times as long.
    scale: (ofCase) => ({ type: 'linear', nice: false, domain: [0, Math.max(...ofCase) * 1.15] }),
    axis: { tickCount: 6, labelExpr: timeLabel, gridColor: '#eeeeee' },
    from: 0,
    label: timeLabel,
  });
}

interface Bar {
  readonly case: string;
  readonly contestant: string;
  readonly value: number;
}

const bar = (
  result: CaseResult,
  { name }: Samples,
  value: number,
  baseline: string | undefined,
): Bar => ({
  case: `${titleOf(result)}${baseline && baseline !== 'C' ? ` (C: ${baseline.slice(3)})` : ''}`,
  contestant: name,
  value,
});

interface BarAxis {
  readonly title: string;
  readonly scale: (ofCase: readonly number[]) => object;
  readonly axis: object;
  readonly from: number;
  readonly label: string;
}

function bars(
  results: Results,
  title: string,
  what: string,
  values: readonly Bar[],
  { title: unit, scale, axis: xAxis, from, label }: BarAxis,
): Spec {
  const cases = [...groupBy(values, (value) => value.case)];
  const panel = ([text, ofCase]: (typeof cases)[number], at: number) => {
    const x = {
      type: 'quantitative',
      title: at === cases.length - 1 ? unit : null,
      scale: scale(ofCase.map(({ value }) => value)),
      axis: xAxis,
    } as const;
    const axis = { labelLimit: 260, ticks: false, domain: false } as const;
    const y = { field: 'contestant', type: 'nominal', title: null, sort: null, axis } as const;
    return {
      title: { text, frame: 'group', fontSize: 13, fontWeight: 'bold', offset: 6 },
      width: 520,
      height: { step: 24 },
      data: {
        values: ofCase.map((value) => ({ ...value, from, end: Math.max(value.value, from) })),
      },
      layer: [
        {
          mark: { type: 'bar', height: { band: 0.75 } },
          encoding: {
            y,
            x: { ...x, field: 'value' },
            x2: { field: 'from' },
            color: { condition: { test: isOwn, value: OWN }, value: OTHER },
          },
        },
        {
          transform: [{ calculate: label, as: 'label' }],
          mark: { type: 'text', align: 'left', dx: 5, fontSize: 12 },
          encoding: { y, x: { ...x, field: 'end' }, text: { field: 'label', type: 'nominal' } },
        },
      ],
    } as const;
  };
  return { ...framed(results, title, what), spacing: 14, vconcat: cases.map(panel) };
}

/** What every picture has: what it shows, and whose figures they are. */
function framed({ machine, driver }: Results, text: string, ...what: readonly string[]) {
  const day = machine.date.slice(0, 10);
  const whose = driver.emulated ? `${EMULATED} (${day})` : `${machine.gpu}, ${day}`;
  return {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    config: CONFIG,
    title: {
      text,
      subtitle: [...what.flatMap(wrapped), whose],
      subtitleColor: driver.emulated ? '#B00020' : '#555555',
      subtitleFontSize: 12,
    },
  };
}

/** Lines no wider than a picture. */
const wrapped = (text: string): string[] =>
  text.match(/.{1,85}(?= |$)/g)?.map((line) => line.trim()) ?? [];
