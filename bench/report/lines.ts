import { byClock } from '../format.ts';
import { limitOf } from '../limits.ts';
import type { CaseResult, Results } from '../result-schema.ts';
import type { Samples } from '../statistics.ts';
import { framed, type Spec } from './frame.ts';
import { type Axis, contestantsIn, type Group } from './groups.ts';
import { nameLimit } from './limit-text.ts';
import { bytesLabel, logTicks, timeLabel } from './ticks.ts';

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
  '#8C510A',
  '#7B3FA0',
  '#B2182B',
  '#5AAE61',
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
  'triangle-left',
  'triangle-right',
  'diamond',
  'cross',
];
const SIZE = { width: 560, height: 340 };

/** Of the limit and what is said of it. */
const LIMIT = '#555555';

/** Above and below the lines. */
const ROOM = 1.15;
/** Above a line that has a text on it, as a part of the height. */
const TEXT_ROOM = 0.08;
/** Left and right of them, as a part of the width between. */
const SIDE_ROOM = 0.04;

/** Time or bandwidth against what the cases of a group differ by, a line a contestant. */
export function linePlot(results: Results, { name, what, cases }: Group, axis: Axis): Spec {
  const isCopy = cases.some((result) => result.isCopy);
  const values = cases.flatMap((result) =>
    result.contestants.map((samples) => point(result, samples, axis)),
  );
  const x = values.map((value) => value.x);
  const limit = limitLine(results, cases);
  const y = [...values.flatMap(({ low, high }) => [low, high]), ...limit.map((line) => line.at)];
  const clock = byClock(cases[0]?.clock ?? 'host').replace(',', ';');
  const unit = isCopy ? 'GB/s (10⁹ bytes a second)' : 'time of each';
  const scale = { type: 'log', nice: false } as const;
  const inOrder = { type: 'nominal', sort: contestantsIn(cases) } as const;
  const names = contestantsIn(cases);
  if (names.length > COLOURS.length) throw new Error(`${name}: two of its lines would look alike`);
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
    scale: { ...scale, domain: besides(Math.min(...x), Math.max(...x)) },
    axis: {
      values: [...new Set(x)],
      grid: false,
      labelOverlap: false,
      labelFlush: false,
      labelExpr: axis.of === 'bytes' ? bytesLabel : "format(datum.value, ',')",
    },
  } as const;
  const least = Math.min(...y) / ROOM;
  const highest = Math.max(...y) * ROOM;
  const most = highest * (limit.length > 0 ? (highest / least) ** TEXT_ROOM : 1);
  const ticks = logTicks(least, most);
  const yAxis = {
    type: 'quantitative',
    title: unit,
    scale: { ...scale, domain: span(least, most) },
    axis: {
      values: ticks,
      gridColor: '#eeeeee',
      ...(isCopy ? { format: '~g' } : { labelExpr: timeLabel }),
    },
  } as const;
  return {
    ...framed(results, name, what, `lines: medians; bands: p10 to p90${clock}`),
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
      ...limit.flatMap((line) => limitLayers(line, yAxis)),
    ],
  };
}

/** Where a picture of bytes a second has its limit, in 1e9 of them. */
interface LimitLine {
  readonly at: number;
  readonly text: string;
}

/** Of the largest size, as of each other one; none where it is not known. */
function limitLine({ machine }: Results, cases: readonly CaseResult[]): LimitLine[] {
  const last = cases.at(-1);
  const at = last && limitOf(last, machine);
  return last && at ? [{ at: at / 1e9, text: `limit, ${nameLimit(last, machine)}` }] : [];
}

/** A dashed line from one side to the other; what it is stands on it at the left, where lines are low. */
const limitLayers = ({ at, text }: LimitLine, yAxis: Spec): Spec[] => [
  {
    data: { values: [{ at }] },
    mark: { type: 'rule', strokeDash: [6, 4], color: LIMIT },
    encoding: { y: { ...yAxis, field: 'at' } },
  },
  {
    data: { values: [{ at, text }] },
    mark: { type: 'text', align: 'left', baseline: 'bottom', dy: -3, fontSize: 12, color: LIMIT },
    encoding: {
      x: { value: 6 },
      y: { ...yAxis, field: 'at' },
      text: { field: 'text', type: 'nominal' },
    },
  },
];

const span = (from: number, to: number): [number, number] => [from, to];

/** On a logarithmic axis, with room at both ends: no point lies on the labels of the other axis. */
const besides = (from: number, to: number): [number, number] => {
  const room = (to / from) ** SIDE_ROOM;
  return [from / room, to * room];
};

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
