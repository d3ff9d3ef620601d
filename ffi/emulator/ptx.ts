/** What PTX text says of itself: its version, its kernels with their parameters, its globals. */

/** A kernel as PTX declares it. */
export interface PtxEntry {
  readonly name: string;
  /** The bytes of each parameter. */
  readonly params: readonly number[];
  /** The most threads that a block may have, where it says. */
  readonly maxThreads: number | undefined;
}

/** A variable of a module. */
export interface PtxGlobal {
  readonly name: string;
  readonly byteLength: number;
  /** What it begins with; the rest is zero. */
  readonly initial: Uint8Array;
}

/** A module, as far as it can be told without a compiler. */
export interface Ptx {
  readonly version: number;
  /** The architecture that it is for; 0 where it says none. */
  readonly target: number;
  /** Why it does not compile, as far as can be told, in the compiler's words. */
  readonly error: string | undefined;
  readonly entries: readonly PtxEntry[];
  readonly globals: readonly PtxGlobal[];
}

const ENTRY = /\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)/g;
const PARAM = /\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)[^,[]*(?:\[(\d+)\])?/g;
const GLOBAL =
  /^\s*(?:\.(?:visible|extern|weak)\s+)*\.(?:global|const)\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+([\w$%]+)((?:\[\d+\])*)\s*(?:=\s*\{?([^};]*)\}?)?\s*;/gm;
const MAX_THREADS = /\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?/;

/** Undefined for text that does not begin as PTX does. */
export function parsePtx(text: string): Ptx | undefined {
  const plain = withoutComments(text);
  const version = /^\s*\.version\s+(\d+)\.(\d+)/.exec(plain);
  if (!version) return undefined;
  return {
    version: Number(version[1]) * 10 + Number(version[2]),
    target: targetOf(plain),
    error: ptxErrorOf(plain),
    entries: [...plain.matchAll(ENTRY)].map(([, name = '', params = '', directives = '']) => ({
      name,
      params: [...params.matchAll(PARAM)].map(
        ([, , bits, count]) => (Number(bits) / 8) * Number(count ?? 1),
      ),
      maxThreads: maxThreadsOf(directives),
    })),
    globals: [...plain.matchAll(GLOBAL)].map(([, , bits, name = '', extents = '', values = '']) => {
      const width = Number(bits) / 8;
      const count = [...extents.matchAll(/\d+/g)].reduce((product, [n]) => product * Number(n), 1);
      return { name, byteLength: width * count, initial: initialBytes(values, width) };
    }),
  };
}

function maxThreadsOf(directives: string): number | undefined {
  const found = MAX_THREADS.exec(directives);
  return found
    ? found.slice(1).reduce((product, extent) => product * Number(extent ?? 1), 1)
    : undefined;
}

/** Values as PTX writes them: integers, and floats by their bits (0f3F800000). */
function initialBytes(values: string, width: number): Uint8Array {
  const words = values.split(',').flatMap((value) => {
    const [, float, rest = ''] = /^\s*(0[fFdD])?(\S+)\s*$/.exec(value) ?? [];
    try {
      return rest === '' ? [] : [BigInt(float ? `0x${rest}` : rest)];
    } catch {
      return [0n];
    }
  });
  const bytes = Buffer.alloc(words.length * width);
  words.forEach((word, at) => {
    const wide = Buffer.alloc(8);
    wide.writeBigUInt64LE(BigInt.asUintN(64, word));
    wide.copy(bytes, at * width, 0, width);
  });
  return bytes;
}

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
const withoutComments = (text: string): string =>
  text.replace(COMMENT_OR_STRING, (found) => found.replace(/[^\n]/g, ' '));

/** The architecture that PTX is for, e.g. 70; 0 where it says none. */
const targetOf = (plain: string): number => Number(TARGET.exec(plain)?.[2] ?? 0);

/** What the compiler says of text without comments that it cannot compile. */
function ptxErrorOf(plain: string): string | undefined {
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
