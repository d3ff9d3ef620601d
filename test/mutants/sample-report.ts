/** What came of a sample of drawn mutations: as a page and as data. */
import { diffOf, KINDS } from './mutations.ts';
import type { RandomMutant } from './random.ts';
import { isInvalid, type Result, type Status } from './results.ts';

interface Line {
  readonly mutant: RandomMutant;
  /** Undefined until it is decided. */
  readonly result: Result | undefined;
  readonly diff: string;
}

/** The sample as data: what was drawn, and what came of it. */
export function sampleReport(
  seed: string,
  sample: readonly RandomMutant[],
  results: ReadonlyMap<string, Result>,
  read: (file: string) => string,
): object {
  return {
    seed,
    drawn: sample.length,
    mutants: linesOf(sample, results, read).map(({ mutant, result, diff }) => ({
      id: mutant.id,
      room: mutant.room,
      kind: mutant.kind,
      file: mutant.file,
      line: mutant.line,
      diff,
      status: result?.status ?? 'undecided',
      by: result?.by ?? '',
      seconds: result?.seconds ?? 0,
      ...(mutant.equivalent === undefined ? {} : { equivalent: mutant.equivalent }),
    })),
  };
}

/** The shares by room and by kind, in Markdown, then each mutation that was not noticed. */
export function sampleTable(
  seed: string,
  sample: readonly RandomMutant[],
  results: ReadonlyMap<string, Result>,
  read: (file: string) => string,
): string {
  const lines = linesOf(sample, results, read);
  const counted = lines.filter(
    ({ mutant, result }) =>
      (result === undefined || !isInvalid(result)) && mutant.equivalent === undefined,
  );
  const undecided = counted.filter(({ result }) => result === undefined);
  const of = (status: Status): Line[] => counted.filter(({ result }) => result?.status === status);
  return [
    `Seed ${seed}: ${sample.length} drawn, ${counted.length} counted`,
    ...(undecided.length === 0
      ? []
      : ['', `**Not finished**: ${undecided.length} are undecided, and count as not noticed.`]),
    '',
    ...shares('room', counted, ({ mutant }) => mutant.room),
    '',
    ...shares('kind', counted, ({ mutant }) => mutant.kind),
    ...list('Not noticed', of('survived'), ({ mutant }) => KINDS[mutant.kind]),
    ...list('Noticed because the tests did not end in time', of('timed out'), byOf),
    ...list('Undecided', undecided, ({ mutant }) => KINDS[mutant.kind]),
    ...list(
      'Not counted: nobody could see a difference',
      lines.filter(({ mutant }) => mutant.equivalent !== undefined),
      ({ mutant, result }) => `(${result?.status ?? 'undecided'}) ${mutant.equivalent}`,
    ),
    ...list(
      'Not counted: it could not be tried',
      lines.filter(({ result }) => result !== undefined && isInvalid(result)),
      ({ result }) => `${result?.status}: ${result?.by}`,
    ),
    '',
  ].join('\n');
}

const byOf = ({ result }: Line): string => result?.by ?? '';

function linesOf(
  sample: readonly RandomMutant[],
  results: ReadonlyMap<string, Result>,
  read: (file: string) => string,
): Line[] {
  return sample.map((mutant) => ({
    mutant,
    result: results.get(mutant.id),
    diff: diffOf(read(mutant.file), mutant.mutation),
  }));
}

function shares(title: string, lines: readonly Line[], groupOf: (line: Line) => string): string[] {
  const row = (name: string, those: readonly Line[]): string => {
    const noticed = those.filter(({ result }) => result && result.status !== 'survived').length;
    const percent = those.length === 0 ? '–' : `${Math.round((100 * noticed) / those.length)} %`;
    return `| ${name} | ${noticed} of ${those.length} | ${percent} |`;
  };
  const groups = [...new Set(lines.map(groupOf))].sort();
  return [
    `| ${title} | noticed | share |`,
    '| --- | --- | --- |',
    ...groups.map((group) =>
      row(
        group,
        lines.filter((line) => groupOf(line) === group),
      ),
    ),
    row('**all**', lines),
  ];
}

function list(title: string, lines: readonly Line[], tell: (line: Line) => string): string[] {
  if (lines.length === 0) return [];
  return [
    '',
    `${title} (${lines.length}):`,
    ...lines.flatMap((line) => {
      const { id, kind, file, line: at } = line.mutant;
      return ['', `- ${id} ${kind} \`${file}:${at}\`: ${tell(line)}`, '', ...fenced(line.diff)];
    }),
  ];
}

const fenced = (diff: string): string[] =>
  ['```diff', ...diff.split('\n'), '```'].map((line) => `  ${line}`);
