/** What is wrong with PTX text, as far as that shows without a compiler: its target, its brackets. */

/** What ptxas 13.0 takes. */
const TARGETS: ReadonlySet<number> = new Set([
  10, 11, 12, 13, 20, 21, 30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 82, 86, 87, 88,
  89, 90, 100, 101, 103, 110, 120, 121,
]);

const COMMENT_OR_STRING = /"(?:[^"\\\n]|\\.)*"|\/\*[\s\S]*?\*\/|\/\/[^\n]*/g;
const TARGET = /\.target\s+(sm_(\d+)[af]?)/;
const BRACKET = /[()[\]{}]/g;
const CLOSING: ReadonlyMap<string, string> = new Map([
  ['(', ')'],
  ['[', ']'],
  ['{', '}'],
]);

/** The text with spaces in the place of comments and strings, its lines where they were. */
export const withoutComments = (text: string): string =>
  text.replace(COMMENT_OR_STRING, (found) => found.replace(/[^\n]/g, ' '));

/** The architecture that PTX is for, e.g. 70; 0 where it says none. */
export const targetOf = (plain: string): number => Number(TARGET.exec(plain)?.[2] ?? 0);

/** What the compiler says of text without comments that it cannot compile. */
export function ptxErrorOf(plain: string): string | undefined {
  const target = TARGET.exec(plain);
  if (!target) return fatalMessage(plain, 0, 'Missing .target directive at start of file');
  if (!TARGETS.has(Number(target[2])))
    return fatalMessage(plain, target.index, `Unsupported .target '${target[1]}'`);
  const open: string[] = [];
  for (const { 0: bracket, index } of plain.matchAll(BRACKET)) {
    const closing = CLOSING.get(bracket);
    // A body within a list of parameters is a list that was not closed.
    const isMisplaced = bracket === '{' ? open.at(-1) === ')' : !closing && open.pop() !== bracket;
    if (isMisplaced)
      return fatalMessage(plain, index, `Parsing error near '${bracket}': syntax error`);
    if (closing) open.push(closing);
  }
  return open.length === 0
    ? undefined
    : fatalMessage(plain, plain.length, "Parsing error near '': syntax error");
}

const fatalMessage = (plain: string, at: number, what: string): string =>
  `ptxas application ptx input, line ${plain.slice(0, at).split('\n').length}; fatal   : ${what}\n` +
  'ptxas fatal   : Ptx assembly aborted due to errors';
