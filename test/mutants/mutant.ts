/** The faults that are planted one at a time, as data: what they change, and the tests that should notice. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** A small fault: one piece of text of one file, and what stands there instead. */
export interface Mutant {
  /** `N…` is one of the later list, any other of the first. */
  readonly id: string;
  readonly room: string;
  /** From the root of the project. */
  readonly file: string;
  /** Occurs exactly once in the file, unless `at` says where, else the fault does not apply. */
  readonly text: string;
  readonly at?: number;
  readonly replacement: string;
  /** What is wrong with it in place, in one sentence. */
  readonly plants: string;
  /** Why nobody could see a difference. Such a fault is run, and not counted. */
  readonly equivalent?: string;
  /** Parts of paths of test files that are run first, besides the one that mirrors the file. */
  readonly near: readonly string[];
  /** Parts of paths of test files that are run where those notice nothing. */
  readonly far: readonly string[];
}

/** A fault whose code has no successor. */
export interface Gone {
  readonly id: string;
  readonly reason: string;
}

/** A list file: a room with its faults. Texts of several lines are arrays of lines. */
interface Room {
  readonly room: string;
  readonly tests: readonly string[];
  readonly mutants: readonly {
    readonly id: string;
    readonly file: string;
    readonly plants: string;
    readonly text: string | readonly string[];
    readonly replacement: string | readonly string[];
    readonly equivalent?: string;
    readonly tests?: readonly string[];
  }[];
}

/** The faults of all rooms, from the list files of a folder. */
export function readMutants(folder: string): Mutant[] {
  const mutants = readdirSync(folder)
    .filter((name) => name.endsWith('.json') && name !== 'gone.json')
    .sort()
    .flatMap((name) => {
      const { room, tests, mutants } = readJson<Room>(join(folder, name));
      return mutants.map(
        ({ text, replacement, tests: near = [], ...rest }): Mutant => ({
          ...rest,
          room,
          text: lines(text),
          replacement: lines(replacement),
          near,
          far: tests,
        }),
      );
    });
  const ids = new Set<string>();
  for (const { id } of mutants) {
    if (ids.has(id)) throw new Error(`two faults have the id ${id}`);
    ids.add(id);
  }
  return mutants;
}

/** The faults that can't be planted any more. */
export const readGone = (folder: string): Gone[] => readJson(join(folder, 'gone.json'));

/** A file's text with the fault in it; undefined where the fault does not apply. */
export function mutate(source: string, mutant: Mutant): string | undefined {
  const { text, replacement, at = onlyPlace(source, text) } = mutant;
  if (text === '' || text === replacement || !source.startsWith(text, at)) return undefined;
  return source.slice(0, at) + replacement + source.slice(at + text.length);
}

function onlyPlace(source: string, text: string): number {
  const at = source.indexOf(text);
  return source.includes(text, at + 1) ? Number.POSITIVE_INFINITY : at;
}

/** The test files of a fault: those that most likely notice it, then the others of its room. */
export function testsOf(
  { file, near, far }: Mutant,
  files: readonly string[],
): { readonly near: readonly string[]; readonly far: readonly string[] } {
  const unit = join('test/unit', file.replace(/\.ts$/, '.test.ts'));
  // Without one of its own, those beside it.
  const isMirror = (test: string): boolean =>
    files.includes(unit) ? test === unit : dirname(test) === dirname(unit);
  const first = files.filter((test) => isMirror(test) || near.some((word) => test.includes(word)));
  const others = files.filter((test) => far.some((word) => test.includes(word)));
  return { near: first, far: others.filter((test) => !first.includes(test)) };
}

/** Differs as soon as the fault, the text that it changes, or one of its tests does. */
export function keyOf(mutant: Mutant, source: string, tests: readonly string[]): string {
  const { file, text, replacement, at } = mutant;
  const place = at === undefined ? [] : [at];
  return createHash('sha256')
    .update(JSON.stringify([file, text, replacement, source, tests, ...place]))
    .digest('hex')
    .slice(0, 24);
}

const lines = (text: string | readonly string[]): string =>
  typeof text === 'string' ? text : text.join('\n');

function readJson<T>(file: string): T {
  return JSON.parse(readFileSync(file, 'utf8')) as T;
}
