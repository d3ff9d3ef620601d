/** What all pictures have in common. */
import { EMULATED } from '../format.ts';
import type { Results } from '../result-schema.ts';

/** A picture in the words of vega-lite, whose own types take no read-only list. */
export type Spec = Readonly<Record<string, unknown>>;

const CONFIG = {
  background: 'white',
  padding: 16,
  font: 'sans-serif',
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 'normal', titlePadding: 10 },
  legend: { labelFontSize: 12, labelLimit: 0, symbolSize: 80, symbolOpacity: 1 },
  title: { fontSize: 15, anchor: 'start', offset: 14, limit: 900, subtitlePadding: 5 },
  view: { stroke: '#cccccc' },
} as const;

/** What every picture has: what it shows, and whose figures they are. */
export function framed(
  { machine, driver }: Results,
  text: string,
  ...what: readonly string[]
): Spec {
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
