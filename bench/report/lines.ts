import type { CaseResult, Results } from '../result-schema.ts';
import type { Samples } from '../statistics.ts';
import { framed, type Spec } from './frame.ts';
import { type Axis, contestantsIn, type Group } from './groups.ts';
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
];
const SIZE = { width: 560, height: 340 };

/** Above and below the lines. */
const ROOM = 1.15;
/** Left and right of them, as a part of the width between. */
const SIDE_ROOM = 0.04;

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
    scale: { ...scale, domain: besides(Math.min(...x), Math.max(...x)) },
    axis: {
      values: [...new Set(x)],
      grid: false,
      labelOverlap: false,
      labelFlush: false,
      labelExpr: axis.of === 'bytes' ? bytesLabel : "format(datum.value, ',')",
    },
  } as const;
  const [least, most] = [Math.min(...y) / ROOM, Math.max(...y) * ROOM];
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
