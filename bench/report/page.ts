/** docs/benchmark.md: the template, with figures of the committed results in it. */
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { compareResults } from '../compare.ts';
import { describeKind, describeRatios, describeTimes } from '../compare-text.ts';
import { readResults } from '../result-file.ts';
import type { Results } from '../result-schema.ts';
import { describeAims } from './aims.ts';
import { type Block, markdown, paragraph, picture } from './blocks.ts';
import { describeCrossovers } from './crossover.ts';
import { type Group, groupsOf } from './groups.ts';
import { lineFile } from './pictures.ts';
import { barPictures } from './report.ts';
import { delayTable, describeRun, groupTable, ratioTable } from './tables.ts';

const path = (name: string): string => fileURLToPath(new URL(`../${name}`, import.meta.url));

/** The run whose figures the page has, and where its pictures go. */
export const RUN: string = path('results/nvidia-h200.json');
export const PICTURES: string = path('results/nvidia-h200');
export const PAGE: string = path('../docs/benchmark.md');
/** Runs that are held against each other: such as `repeat` wrote, and a second one of another time. */
const PAIRS = [
  ['results/nvidia-h200-a.json', 'results/nvidia-h200-b.json'],
  ['results/nvidia-h200.json', 'results/nvidia-h200-second.json'],
] as const;
const TEMPLATE = path('benchmark.template.md');

const NOT_MEASURED = paragraph('Not measured yet.');

/** A run, and the file in bench/ that it is in. */
export interface NamedRun {
  readonly file: string;
  readonly run: Results;
}

/** The page as it follows from the template and the committed results. */
export function makePage(): string {
  const results = readResults(RUN);
  const pairs = PAIRS.filter((files) => files.every((file) => existsSync(path(file))));
  const compared = pairs.map((files) =>
    files.map((file) => ({ file, run: readResults(path(file)) })),
  );
  const text = fill(readFileSync(TEMPLATE, 'utf8'), results, compared);
  return `<!-- Made by \`npm run bench -- page\`: change bench/benchmark.template.md. -->\n\n${text}`;
}

/** A template with each `{{word arguments}}` replaced. @throws Error for a word that there is not */
export function fill(
  template: string,
  results: Results,
  pairs: readonly (readonly NamedRun[])[],
): string {
  return template
    .replaceAll(/^\{\{(\S+) ?(.*)\}\}$/gm, (_, word: string, about: string) => {
      const blocks = blocksOf(word, about, results, pairs);
      return markdown(blocks.length > 0 ? blocks : [NOT_MEASURED], '../bench/results/nvidia-h200');
    })
    .replaceAll(/\n{3,}/g, '\n\n');
}

function blocksOf(
  word: string,
  about: string,
  results: Results,
  pairs: readonly (readonly NamedRun[])[],
): readonly Block[] {
  const groups = groupsOf(results);
  const found = groups.find(({ suite, name }) => `${suite}/${name}` === about);
  const ofSuite = groups.filter(({ suite }) => suite === about);
  if (word === 'run') return [paragraph(`${describeRun(results)} ${FILE}`)];
  if (word === 'table') return found ? groupTable(results, found) : [];
  if (word === 'picture') return found?.axis ? [linePicture(found)] : NOTHING;
  if (word === 'bars') return ofSuite.length > 0 ? barPictures(about, ofSuite, '') : NOTHING;
  if (word === 'ratios')
    return ofSuite.length > 0
      ? ratioTable(
          results,
          ofSuite.filter(({ axis }) => !axis).flatMap((group) => group.cases),
        )
      : [];
  if (word === 'crossover') return describeCrossovers(results);
  if (word === 'delays') return results.delays.length > 0 ? delayTable(results) : [];
  if (word === 'aims') return describeAims(results);
  if (word === 'agreement') return pairs.map(describeAgreement);
  throw new Error(`the template asks for '${word}'`);
}

const FILE = '[The result file](../bench/results/nvidia-h200.json) has every sample.';
/** A picture is left out in silence: its table says that it was not measured. */
const NOTHING = [paragraph('')];

const linePicture = (group: Group): Block =>
  picture(lineFile(group), `${group.name}: ${group.what}`);

function describeAgreement(pair: readonly NamedRun[]): Block {
  const [first, second] = pair as readonly [NamedRun, NamedRun];
  const { times, ratios } = compareResults(first.run, second.run);
  const [a, b] = [first, second].map(
    ({ file }, at) => `[${at === 0 ? 'One run' : 'another'}](../bench/${file})`,
  );
  return paragraph(
    `${a} and ${b} of ${second.run.machine.date.slice(0, 10)}. ${describeKind(first.run, second.run)}. ` +
      `${describeTimes(times)}. ${describeRatios(ratios)}.`,
  );
}
