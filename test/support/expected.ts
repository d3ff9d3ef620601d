/**
 * What a whole run of the tests must look like: how many tests each folder has at least, and which
 * of them are skipped, and why. It is committed as test/expected.json.
 */
import { dirname } from 'node:path';

export interface Skip {
  readonly file: string;
  readonly test: string;
  readonly reason: string;
}

/** What ran: the tests that passed, by file, and those that were skipped. */
export interface Report {
  readonly ran: Record<string, number>;
  readonly skipped: Skip[];
}

/** A skip that is expected; where it names a tool, only while that tool is missing. */
export interface ExpectedSkip extends Skip {
  readonly tool?: string;
}

export interface Expected {
  /** The fewest tests of each folder, without those of its folders. */
  readonly tests: Readonly<Record<string, number>>;
  /** What a skip may say where a tool is missing: a regular expression for each tool. */
  readonly tools: Readonly<Record<string, string>>;
  readonly skips: readonly ExpectedSkip[];
}

/** How much of a folder may vanish unnoticed, which is what a removed test or two are. */
const KEPT = 0.9;
/** A folder that has grown so much that half of it could vanish unnoticed needs a new number. */
const STALE = 0.6;

const idOf = ({ file, test }: Skip): string => `${file}: ${test}`;

/** Compares a report with what is expected; returns a sentence for each difference. */
export function differences(report: Report, expected: Expected): string[] {
  const said: string[] = [];
  const counts = countByFolder(report);
  for (const [folder, fewest] of Object.entries(expected.tests)) {
    const count = counts.get(folder) ?? 0;
    if (count < fewest) said.push(`${folder} has ${count} tests, and must have ${fewest}`);
  }
  for (const [folder, count] of counts)
    if ((expected.tests[folder] ?? 0) < STALE * count)
      said.push(
        `${folder} has ${count} tests, and only ${expected.tests[folder] ?? 0} must be there`,
      );

  const left = new Map(expected.skips.map((skip) => [idOf(skip), skip]));
  for (const skip of report.skipped) {
    const known = left.get(idOf(skip));
    left.delete(idOf(skip));
    if (known === undefined) said.push(`${idOf(skip)} was skipped: ${skip.reason}`);
    else if (!isAsExpected(skip, known, expected.tools))
      said.push(`${idOf(skip)} was skipped for another reason: ${skip.reason}`);
  }
  for (const skip of left.values())
    if (skip.tool === undefined) said.push(`${idOf(skip)} was not skipped: ${skip.reason}`);
  return said;
}

function isAsExpected(skip: Skip, known: ExpectedSkip, tools: Expected['tools']): boolean {
  if (known.tool === undefined) return skip.reason === known.reason;
  const pattern = tools[known.tool];
  return pattern !== undefined && new RegExp(pattern).test(skip.reason);
}

/**
 * What is expected after a report. A skip whose reason is that of a tool is one that is expected
 * only without the tool; those of tools that are here are kept as long as their file has tests.
 */
export function expectedFrom(report: Report, { tools, skips }: Expected): Expected {
  const found = report.skipped.map((skip): ExpectedSkip => {
    const tool = Object.keys(tools).find((name) => new RegExp(tools[name] ?? '').test(skip.reason));
    return tool === undefined ? skip : { ...skip, tool };
  });
  const ids = new Set(found.map(idOf));
  const kept = skips.filter(
    (skip) => skip.tool !== undefined && !ids.has(idOf(skip)) && report.ran[skip.file],
  );
  return {
    tests: Object.fromEntries(
      [...countByFolder(report)].sort().map(([folder, count]) => [folder, Math.ceil(KEPT * count)]),
    ),
    tools,
    skips: [...found, ...kept].sort((a, b) => (idOf(a) < idOf(b) ? -1 : 1)),
  };
}

function countByFolder({ ran, skipped }: Report): Map<string, number> {
  const counts = new Map<string, number>();
  const add = (file: string, count: number): void => {
    counts.set(dirname(file), (counts.get(dirname(file)) ?? 0) + count);
  };
  for (const [file, count] of Object.entries(ran)) add(file, count);
  for (const { file } of skipped) add(file, 1);
  return counts;
}
