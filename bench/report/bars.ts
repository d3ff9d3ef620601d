import { titleOf } from '../compare.ts';
import { byClock } from '../format.ts';
import { groupBy } from '../group.ts';
import type { CaseResult, Results } from '../result-schema.ts';
import { ratioOf, type Samples } from '../statistics.ts';
import { framed, type Spec } from './frame.ts';
import { baselineOf } from './groups.ts';
import { logTicks, timeLabel } from './ticks.ts';

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
  case: `${titleOf(result)}${byClock(result.clock)}${baseline && baseline !== 'C' ? ` (C: ${baseline.slice(3)})` : ''}`,
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
    const axis = { labelLimit: 0, ticks: false, domain: false } as const;
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
