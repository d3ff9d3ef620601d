/** Draws pictures, without a browser. */
import { parse, View } from 'vega';
import { compile, type TopLevelSpec } from 'vega-lite';
import type { Spec } from './frame.ts';

/** The picture as SVG: the same for the same specification, and no more digits than can be seen. */
export async function draw(spec: Spec): Promise<string> {
  const view = new View(parse(compile(spec as unknown as TopLevelSpec).spec), { renderer: 'none' });
  try {
    return `${(await view.toSVG()).replaceAll(PLACES, rounded)}\n`;
  } finally {
    view.finalize();
  }
}

/** The attributes that say where something is; what is written there stays as it is. */
const PLACES = / (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"/g;

const rounded = (attribute: string): string =>
  attribute.replaceAll(
    /-?\d+\.\d{3,}(?:e-?\d+)?/g,
    (digits) => `${Number(Number(digits).toFixed(2))}`,
  );
