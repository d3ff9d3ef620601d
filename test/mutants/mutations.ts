/** The mutations that a program makes: their kinds, and the description of each. */

/** What each kind does. Rooms differ in how many places they have for a kind. */
export const KINDS = {
  cleanup: 'A statement of a catch, a finally or a close is dropped.',
  await: 'An await is dropped.',
  guard: 'A guard, an if that only returns, throws or goes on, is dropped.',
  quantifier: 'every stands for some, or some for every.',
  logic: 'An && is an ||, or an || is an &&.',
  limit: 'A comparison includes its limit, or no longer does.',
  order: 'Two neighbouring calls are swapped.',
  arguments: 'Two neighbouring arguments are swapped.',
  constant: 'A constant is one larger.',
  default: 'The default of an option is another.',
} as const;

export type Kind = keyof typeof KINDS;

/** A change of one piece of a file's text. Offsets are those of JavaScript strings. */
export interface Mutation {
  /** From the root of the project. */
  readonly file: string;
  readonly kind: Kind;
  readonly begin: number;
  readonly end: number;
  readonly replacement: string;
  /** The first line of the Python function that contains it: 0 outside all functions. */
  readonly scope?: number;
}

/** Functions that mostly release something, by their names in TypeScript and Python. */
export const CLEANUP_NAME =
  '^[#_]*(close|aclose|dispose|asyncDispose|exit|aexit|del|end|release|free|destroy|discard|forget|abandon|stop|cancel|unmap)';

export const apply = (source: string, { begin, end, replacement }: Mutation): string =>
  source.slice(0, begin) + replacement + source.slice(end);

/** The number, from 1, of the line that contains an offset. */
export const lineAt = (source: string, offset: number): number =>
  source.slice(0, offset).split('\n').length;

/** The lines that a mutation changes, as a diff without context. */
export function diffOf(source: string, mutation: Mutation): string {
  const first = source.lastIndexOf('\n', mutation.begin - 1) + 1;
  const next = source.indexOf('\n', mutation.end);
  const last = next < 0 ? source.length : next;
  const before = source.slice(first, last).split('\n');
  const after = apply(source, mutation)
    .slice(first, last + mutation.replacement.length - (mutation.end - mutation.begin))
    .split('\n');
  while (before.length > 1 && before[0] === after[0]) {
    before.shift();
    after.shift();
  }
  while (before.length > 1 && before.at(-1) === after.at(-1)) {
    before.pop();
    after.pop();
  }
  return [
    ...before.map((line) => `-${line}`),
    ...after.filter((line) => line.trim() !== '').map((line) => `+${line}`),
  ].join('\n');
}
