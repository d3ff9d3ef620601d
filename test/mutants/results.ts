/** What came of each fault: kept as lines of JSON, and told as a table. */
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import type { Gone, Mutant } from './mutant.ts';

export type Status =
  /** A test failed. */
  | 'noticed'
  /** The tests did not end in time. */
  | 'timed out'
  | 'survived'
  /** The text is not there exactly once. */
  | 'does not apply'
  /** The program can't be built with it. */
  | 'does not build'
  /** Its tests fail without it too. */
  | 'tests fail without it';

export interface Result {
  readonly key: string;
  readonly id: string;
  readonly status: Status;
  /** The first test that failed, or what went wrong. */
  readonly by: string;
  readonly seconds: number;
}

/** Neither noticed nor not: the entry itself is wrong. */
export const isInvalid = ({ status }: Result): boolean =>
  status === 'does not apply' || status === 'does not build' || status === 'tests fail without it';

/** The results of a file, by key; a line that was cut off is left out. */
export function readResults(file: string): Map<string, Result> {
  const found = new Map<string, Result>();
  if (!existsSync(file)) return found;
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    try {
      const result = JSON.parse(line) as Result;
      found.set(result.key, result);
    } catch {}
  }
  return found;
}

export const addResult = (file: string, result: Result): void =>
  appendFileSync(file, `${JSON.stringify(result)}\n`);

/** Results by room, in Markdown, then each fault that was not noticed or could not be run. */
export function table(
  mutants: readonly Mutant[],
  results: ReadonlyMap<string, Result>,
  gone: readonly Gone[] = [],
): string {
  const done = mutants.flatMap((mutant) => {
    const result = results.get(mutant.id);
    return result === undefined ? [] : [{ mutant, result }];
  });
  const counted = done.filter(
    ({ mutant, result }) => !isInvalid(result) && mutant.equivalent === undefined,
  );
  const share = (room: string | undefined, isLater: boolean | undefined): string => {
    const these = counted.filter(
      ({ mutant }) =>
        (room === undefined || mutant.room === room) &&
        (isLater === undefined || mutant.id.startsWith('N') === isLater),
    );
    if (these.length === 0) return '–';
    const noticed = these.filter(({ result }) => result.status !== 'survived').length;
    const percent = ((100 * noticed) / these.length).toFixed(room === undefined ? 1 : 0);
    return `${noticed} of ${these.length} (${percent} %)`;
  };
  const row = (name: string, room?: string): string =>
    `| ${name} | ${share(room, false)} | ${share(room, true)} | ${share(room, undefined)} |`;
  const rooms = [...new Set(mutants.map(({ room }) => room))].filter((room) =>
    done.some(({ mutant }) => mutant.room === room),
  );

  const list = (title: string, items: readonly string[]): string[] =>
    items.length === 0 ? [] : ['', `${title} (${items.length}):`, '', ...items];
  const tell = ({ mutant: { id, file, plants }, result: { by } }: (typeof done)[number]): string =>
    `- ${id} \`${file}\`: ${plants}${by === '' ? '' : ` (${by})`}`;
  const those = (status: Status): string[] =>
    counted.filter(({ result }) => result.status === status).map(tell);

  return [
    '| room | first list | later list | all |',
    '| --- | --- | --- | --- |',
    ...rooms.map((room) => row(room, room)),
    row('**all**'),
    ...list('Not noticed', those('survived')),
    ...list('Noticed because the tests did not end in time', those('timed out')),
    ...list(
      'Not counted: nobody could see a difference',
      done.flatMap(({ mutant: { id, file, plants, equivalent }, result: { status } }) =>
        equivalent === undefined
          ? []
          : [`- ${id} \`${file}\` (${status}): ${plants} But: ${equivalent}`],
      ),
    ),
    ...list(
      'Not counted: the entry itself is wrong',
      done
        .filter(({ result }) => isInvalid(result))
        .map(
          ({ mutant, result }) =>
            `- ${mutant.id} \`${mutant.file}\` ${result.status}: ${result.by}`,
        ),
    ),
    ...list(
      'Not counted: what they changed is gone, with nothing in its place',
      gone.map(({ id, reason }) => `- ${id}: ${reason}`),
    ),
    '',
  ].join('\n');
}
