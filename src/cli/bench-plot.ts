/** Draws the figures of `cuffi bench` as SVG: a line for each way, with logarithmic axes. */
import { type Figures, type WayName, wayNames } from './bench-figures.ts';
import { shortBytes, shortTime } from './table.ts';

/** Colours that colour-blind readers can distinguish (Okabe and Ito). */
const COLOURS: Readonly<Record<WayName, string>> = {
  connection: '#0072B2',
  channel: '#009E73',
  'connection, Python': '#56B4E9',
  'channel, Python': '#000000',
  'copying, socket': '#D55E00',
  'copying, shared memory': '#E69F00',
  'copying, page-locked': '#CC79A7',
};

const [WIDTH, HEIGHT] = [820, 480];
/** The edges of the plot. */
const [LEFT, RIGHT, TOP, BOTTOM] = [80, 620, 80, 410];
/** Labels of the x axis are at least so far apart. */
const MIN_LABEL_GAP = 56;

/** What the picture says besides the figures. */
export interface PlotTitle {
  readonly device: string;
  readonly isEmulated: boolean;
}

/** Returns the picture. @param figures at least one */
export function drawFigures(figures: readonly Figures[], title: PlotTitle): string {
  const sizes = [...new Set(figures.map(({ byteLength }) => byteLength))];
  const times = figures.flatMap(({ medianMs, p95Ms }) => [medianMs, p95Ms]);
  const x = logScale(sizes, LEFT + 20, RIGHT - 20);
  const decades = decadesOf(times);
  const y = logScale(decades, BOTTOM, TOP);
  const names = wayNames.filter((name) => figures.some(({ way }) => way === name));
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12">`,
    '<rect width="100%" height="100%" fill="white"/>',
    text(LEFT, 26, 'A GPU buffer to another process and back', 'font-size="16"'),
    text(LEFT, 44, 'lines: medians; bars: up to the 95th percentile', 'fill="#555"'),
    title.isEmulated
      ? text(LEFT, 62, 'emulated driver, no GPU: these times mean nothing', 'fill="#B00020"')
      : text(LEFT, 62, title.device, 'fill="#555"'),
    ...decades.flatMap((ms) => [
      line([LEFT, y(ms)], [RIGHT, y(ms)], 'stroke="#ddd"'),
      text(LEFT - 8, y(ms) + 4, decadeName(ms), 'text-anchor="end"'),
    ]),
    ...farApart(sizes, x).map((size) =>
      text(x(size), BOTTOM + 20, shortBytes(size), 'text-anchor="middle"'),
    ),
    ...sizes.map((size) => line([x(size), BOTTOM], [x(size), BOTTOM + 5], 'stroke="#555"')),
    `<rect x="${LEFT}" y="${TOP}" width="${RIGHT - LEFT}" height="${BOTTOM - TOP}" fill="none" stroke="#555"/>`,
    text((LEFT + RIGHT) / 2, BOTTOM + 44, 'size of the buffer', 'text-anchor="middle"'),
    text(
      0,
      0,
      'time',
      `text-anchor="middle" transform="translate(22 ${(TOP + BOTTOM) / 2}) rotate(-90)"`,
    ),
    ...names.flatMap((name, at) => [
      ...drawWay(name, figures, x, y),
      ...legendOf(name, TOP + 10 + at * 22),
    ]),
    '</svg>\n',
  ].join('\n');
}

type Scale = (value: number) => number;

/** Maps the least and the greatest value to two places; a single value to the middle. */
function logScale(values: readonly number[], from: number, to: number): Scale {
  const [low, high] = [Math.log(Math.min(...values)), Math.log(Math.max(...values))];
  return (value) =>
    low === high ? (from + to) / 2 : from + ((Math.log(value) - low) / (high - low)) * (to - from);
}

/** The powers of ten around all times. */
function decadesOf(times: readonly number[]): number[] {
  const low = Math.floor(Math.log10(Math.min(...times)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...times))));
  return Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at));
}

const decadeName = (ms: number): string => shortTime(ms).replace(/\.0+ /, ' ');

/** The sizes whose labels do not touch, from the last one on. */
function farApart(sizes: readonly number[], x: Scale): number[] {
  const chosen: number[] = [];
  for (const size of [...sizes].reverse()) {
    const next = chosen.at(-1);
    if (next === undefined || x(next) - x(size) >= MIN_LABEL_GAP) chosen.push(size);
  }
  return chosen;
}

function drawWay(name: WayName, figures: readonly Figures[], x: Scale, y: Scale): string[] {
  const own = figures.filter(({ way }) => way === name);
  const paint = `stroke="${COLOURS[name]}"`;
  const points = own.map(
    ({ byteLength, medianMs }) => `${place(x(byteLength))},${place(y(medianMs))}`,
  );
  return [
    ...own.map(({ byteLength, medianMs, p95Ms }) =>
      line(
        [x(byteLength), y(medianMs)],
        [x(byteLength), y(p95Ms)],
        `${paint} stroke-opacity="0.5"`,
      ),
    ),
    `<polyline points="${points.join(' ')}" fill="none" ${paint} stroke-width="2"/>`,
    ...own.map(
      ({ byteLength, medianMs }) =>
        `<circle cx="${place(x(byteLength))}" cy="${place(y(medianMs))}" r="4" fill="${COLOURS[name]}"/>`,
    ),
  ];
}

const legendOf = (name: WayName, y: number): string[] => [
  line([RIGHT + 16, y], [RIGHT + 40, y], `stroke="${COLOURS[name]}" stroke-width="2"`),
  `<circle cx="${RIGHT + 28}" cy="${y}" r="4" fill="${COLOURS[name]}"/>`,
  text(RIGHT + 48, y + 4, name),
];

const place = (value: number): number => Number(value.toFixed(1));

type Point = readonly [x: number, y: number];

const line = ([x1, y1]: Point, [x2, y2]: Point, style: string): string =>
  `<line x1="${place(x1)}" y1="${place(y1)}" x2="${place(x2)}" y2="${place(y2)}" ${style}/>`;

const text = (x: number, y: number, content: string, style = ''): string =>
  `<text x="${place(x)}" y="${place(y)}" ${style}>${escaped(content)}</text>`;

/** The driver chooses the name of a device: neither markup nor what XML cannot have gets into the picture. */
const escaped = (content: string): string =>
  content
    .replaceAll(/[\p{Cc}\p{Cs}]/gu, '?')
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;');
