import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type Figures, type WayName, wayNames } from '../../../../src/cli/bench-figures.ts';
import { drawFigures } from '../../../../src/cli/bench-plot.ts';

const figure = (way: WayName, byteLength: number, medianMs: number, p95Ms = medianMs): Figures => ({
  way,
  byteLength,
  rounds: 3,
  medianMs,
  p95Ms,
  bytesPerSecond: null,
});
const draw = (...figures: readonly Figures[]): string =>
  drawFigures(figures, { device: 'a GPU', isEmulated: false });
const all = (svg: string, pattern: RegExp): string[] =>
  [...svg.matchAll(pattern)].map(([, found]) => found as string);
/** The places of the texts of the y axis, by what they say. */
const decades = (svg: string): [string, number][] =>
  [...svg.matchAll(/y="([\d.]+)" text-anchor="end">([^<]+)</g)].map(([, y, name]) => [
    name as string,
    Number(y),
  ]);

describe('drawFigures', () => {
  test('both axes are logarithmic', () => {
    const svg = draw(
      figure('channel', 4 << 10, 0.01),
      figure('channel', 64 << 10, 0.1),
      figure('channel', 1 << 20, 10),
    );
    assert.deepEqual(
      decades(svg).map(([name]) => name),
      ['10 µs', '100 µs', '1 ms', '10 ms'],
    );
    const steps = decades(svg).map(([, y], at, list) => y - (list[at - 1]?.[1] ?? y));
    for (const step of steps.slice(1)) assert.ok(Math.abs(step + 110) < 0.2, String(steps));
    const [points = ''] = all(svg, /<polyline points="([^"]+)"/g);
    const places = points.split(' ').map((each) => each.split(',').map(Number));
    // From 80 to 620 with 20 to spare, and from 410 up to 80.
    assert.deepEqual(places, [
      [100, 410],
      [350, 300],
      [600, 80],
    ]);
  });

  test('each way has a colour of its own, in its line and in the legend', () => {
    const svg = draw(...wayNames.map((way, at) => figure(way, 4096, at + 1)));
    const lines = all(svg, /<polyline [^>]*stroke="(#\w+)"/g);
    assert.equal(new Set(lines).size, wayNames.length);
    for (const [at, name] of wayNames.entries()) {
      const colour = lines[at];
      assert.match(
        svg,
        new RegExp(
          `stroke="${colour}" stroke-width="2"/>\n<circle [^>]*fill="${colour}"/>\n<text [^>]*>${name}<`,
        ),
      );
    }
    assert.doesNotMatch(draw(figure('channel', 4, 1)), /connection/);
  });

  test('a single time of a single size is in the picture', () => {
    const svg = draw(figure('channel', 4096, 1, 1));
    assert.match(svg, /<circle cx="350" cy="410"/);
    assert.doesNotMatch(svg, /NaN|Infinity/);
  });

  test('all places are within the picture, up to the 95th percentile', () => {
    const svg = draw(
      figure('channel', 4, 0.0009, 31),
      figure('copying, socket', 2 ** 31, 8000, 12_000),
    );
    for (const y of all(svg, /\by[12]?="([^"]+)"/g))
      assert.ok(Number(y) >= 0 && Number(y) <= 480, y);
    const bars = [...svg.matchAll(/y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)" [^>]*opacity/g)];
    assert.equal(bars.length, 2);
    for (const [, from, to] of bars) assert.ok(Number(to) < Number(from));
    assert.ok(bars.every(([, , to]) => Number(to) >= 80));
  });

  test('labels of near sizes are left out rather than put on each other', () => {
    const sizes = Array.from({ length: 20 }, (_, at) => 2 ** (12 + at));
    const svg = draw(...sizes.map((size) => figure('channel', size, 1)));
    const at = all(svg, /x="([\d.]+)" y="430" text-anchor="middle">/g).map(Number);
    const sorted = at.sort((a, b) => a - b);
    assert.ok(sorted.length > 5 && sorted.at(-1) === 600, String(sorted));
    for (const [i, x] of sorted.slice(1).entries()) assert.ok(x - (sorted[i] as number) >= 56);
  });

  test('the emulated driver is named, and the name of a device is no markup', () => {
    const figures = [figure('channel', 4, 1)];
    const emulated = drawFigures(figures, { device: 'x', isEmulated: true });
    assert.match(emulated, />emulated driver, no GPU: these times mean nothing</);
    const svg = drawFigures(figures, { device: '<b>&\u0007', isEmulated: false });
    assert.match(svg, />&lt;b&gt;&amp;\?</);
    assert.doesNotMatch(svg, /mean nothing/);
  });
});
