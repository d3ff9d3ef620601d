/** Reports of result files, and docs/benchmark.md. */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { markdownTable } from 'markdown-table';
import { judge, readGoals, readReasons } from './aims.ts';
import { groupBy, sizeName } from './format.ts';
import { wordsOf } from './names.ts';
import { baselineOf, drawAll, lineFile, ratioFile, timeFile } from './pictures.ts';
import { type CaseResult, type Results, readResults } from './results.ts';
import {
  aimTable,
  contestantsIn,
  describePlace,
  type Group,
  goalTable,
  groupsOf,
  groupTable,
  headlineTable,
  ratioTable,
} from './tables.ts';

const path = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The committed results, whose figures the page shows. */
export const RUN: string = path('results/nvidia-h100.json');
/** The folder of their report and pictures. */
export const REPORT: string = path('results/nvidia-h100');
export const PAGE: string = path('../docs/benchmark.md');
const TEMPLATE = path('benchmark.template.md');

/** `report`: writes report.md and the pictures to a folder. */
export async function report(file: string, out: string | undefined): Promise<number> {
  const name = basename(file, '.json');
  const folder = resolve(out ?? join(file, '..', name));
  const count = await writeReport(name, readResults(file), folder);
  console.log(`written: ${folder}: report.md, pictures: ${count}`);
  return 0;
}

/** `page`: writes docs/benchmark.md, and the report of the committed results. */
export async function page(): Promise<number> {
  const results = readResults(RUN);
  writeFileSync(PAGE, makePage(results));
  const count = await writeReport(basename(REPORT), results, REPORT);
  console.log(`written: ${PAGE} and ${REPORT}: report.md, pictures: ${count}`);
  return 0;
}

async function writeReport(name: string, results: Results, folder: string): Promise<number> {
  const pictures = await drawAll(results);
  mkdirSync(folder, { recursive: true });
  // An earlier run may have had other pictures.
  for (const file of readdirSync(folder)) if (file.endsWith('.svg')) rmSync(join(folder, file));
  for (const [file, svg] of pictures) writeFileSync(join(folder, file), svg);
  writeFileSync(join(folder, 'report.md'), makeReport(name, results));
  return pictures.size;
}

/** All tables and pictures of a run, as Markdown. */
export function makeReport(name: string, results: Results): string {
  const suites = [...groupBy(groupsOf(results), ({ suite }) => suite)];
  return `${[
    `# ${name}`,
    describePlace(results),
    ...results.skipped.map(({ name: peer, reason }) => `Skipped: ${peer}: ${reason}.`),
    ...suites.flatMap(([suite, groups]) => [
      `## ${suite}`,
      ...barPictures(suite, groups, '.'),
      ...groups.flatMap((group) => [
        `### ${group.name}`,
        `${group.what[0]?.toUpperCase()}${group.what.slice(1)}.`,
        ...(group.axis ? [picture(group.name, `./${lineFile(group)}`)] : []),
        groupTable(results, group),
      ]),
      ...(suite === 'hand-over' ? crossoverTable(results) : []),
    ]),
    '## Aims',
    aimTable(results, judge([results]), readReasons()),
    '## Goals',
    goalTable(results, judge([results], readGoals())),
  ].join('\n\n')}\n`;
}

const picture = (alt: string, file: string): string => `![${alt}](${file})`;

function barPictures(suite: string, groups: readonly Group[], folder: string): string[] {
  const cases = groups.filter(({ axis }) => !axis).flatMap((group) => group.cases);
  return [
    ...(cases.some(baselineOf)
      ? [picture(`${suite}: ratios to C`, `${folder}/${ratioFile(suite)}`)]
      : []),
    ...(cases.some((one) => !baselineOf(one))
      ? [picture(`${suite}: times`, `${folder}/${timeFile(suite)}`)]
      : []),
  ];
}

/** Fills the template with tables and pictures of the committed results. */
export const makePage = (results: Results): string =>
  `<!-- Made by \`npm run bench -- page\` from bench/benchmark.template.md. -->\n\n` +
  // Without the spaces that align columns: the page is read rendered.
  fill(readFileSync(TEMPLATE, 'utf8'), results).replaceAll(/^\|.*\|$/gm, (row) =>
    row.replaceAll(/ *(?<!\\)\| */g, '|'),
  );

/** Replaces each line `{{word arguments}}`. @throws Error for an unknown word */
export const fill = (template: string, results: Results): string =>
  template
    .replaceAll(
      /^\{\{(\S+) ?(.*)\}\}$/gm,
      (_, word: string, about: string) => expand(word, about, results) || 'Not measured.',
    )
    .replaceAll(/\n{3,}/g, '\n\n');

function expand(word: string, about: string, results: Results): string {
  const groups = groupsOf(results);
  const found = groups.find(({ suite, name }) => `${suite}/${name}` === about);
  const ofSuite = groups.filter(({ suite }) => suite === about);
  const folder = '../bench/results/nvidia-h100';
  switch (word) {
    case 'run':
      return describePlace(results);
    case 'table':
      return found ? groupTable(results, found) : '';
    case 'picture':
      return found?.axis
        ? picture(`${wordsOf(found.name)}, by ${found.axis.of}`, `${folder}/${lineFile(found)}`)
        : '';
    case 'bars':
      return barPictures(about, ofSuite, folder).join('\n\n');
    case 'ratios':
      return ratioTable(results, casesAt(groups, about));
    case 'crossover':
      return crossoverTable(results).join('\n\n');
    case 'headline':
      return headlineTable(results);
    case 'aims':
      return aimTable(results, judge([results]), readReasons());
    case 'goals':
      return goalTable(results, judge([results], readGoals()));
    default:
      throw new Error(`the template asks for '${word}'`);
  }
}

/**
 * `SUITE`: the cases without a size or number; `SUITE/VARIANT`: those of one size. Names of cases may
 * follow: those alone.
 */
function casesAt(groups: readonly Group[], about: string): CaseResult[] {
  const [at, ...names] = about.split(', ');
  const [suite, variant] = at?.split('/') ?? [];
  return groups
    .filter((group) => group.suite === suite && (variant !== undefined || !group.axis))
    .flatMap(({ cases }) => cases)
    .filter((result) => variant === undefined || result.variant === variant)
    .filter(({ name }) => names.length === 0 || names.includes(name));
}

/** The medians of two ways at one size. */
export interface Pair {
  readonly byteLength: number;
  readonly sharing: number;
  readonly copying: number;
}

/**
 * The size below which copying is faster: 0 if sharing is always faster, Infinity if it never is.
 * Between two measured sizes it is where the lines of a log-log plot cross.
 */
export function crossover(pairs: readonly Pair[]): number {
  const sorted = [...pairs].sort((a, b) => a.byteLength - b.byteLength);
  const gain = ({ sharing, copying }: Pair): number => Math.log(copying / sharing);
  // Above the last size at which copying is faster, sharing always is.
  const last = sorted.findLastIndex((pair) => gain(pair) < 0);
  const [below, above] = [sorted[last], sorted[last + 1]];
  if (!below) return 0;
  if (!above) return Number.POSITIVE_INFINITY;
  const part = gain(below) / (gain(below) - gain(above));
  return below.byteLength * (above.byteLength / below.byteLength) ** part;
}

/** The crossovers of each kind of hand-over and each way of copying. */
function crossoverTable(results: Results): string[] {
  const groups = groupsOf(results).filter(({ suite, axis }) => suite === 'hand-over' && axis);
  const all = groups.flatMap(({ cases }) => cases);
  const copies = contestantsIn(all).filter((name) => name.startsWith('copying'));
  if (copies.length === 0) return [];
  const rows = groups.map(({ name, cases }) => {
    const sharing = cases[0]?.contestants[0]?.name ?? '';
    return [
      wordsOf(name),
      ...copies.map((copying) => sizeInWords(crossover(pairsOf(cases, sharing, all, copying)))),
    ];
  });
  return [markdownTable([['copying is faster below', ...copies], ...rows])];
}

function pairsOf(
  cases: readonly CaseResult[],
  sharing: string,
  all: readonly CaseResult[],
  copying: string,
): Pair[] {
  const medianOf = (name: string, from: readonly CaseResult[], size: number | null) =>
    from
      .filter(({ byteLength }) => byteLength === size)
      .flatMap(({ contestants }) => contestants)
      .find((one) => one.name === name)?.median;
  return cases.flatMap(({ byteLength }) => {
    const [own, other] = [medianOf(sharing, cases, byteLength), medianOf(copying, all, byteLength)];
    return byteLength === null || own === undefined || other === undefined
      ? []
      : [{ byteLength, sharing: own, copying: other }];
  });
}

function sizeInWords(byteLength: number): string {
  if (byteLength === 0) return 'no measured size';
  if (byteLength === Number.POSITIVE_INFINITY) return 'every measured size';
  // A power of two, because the sizes between which it lies are far apart.
  return `about ${sizeName(2 ** Math.round(Math.log2(byteLength)))}`;
}
