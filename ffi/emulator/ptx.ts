/** Parses PTX text: version, kernels with their parameters, globals. */

/** A kernel of PTX. */
export interface PtxEntry {
  readonly name: string;
  /** The size of each parameter in bytes. */
  readonly params: readonly number[];
  /** The maximum threads per block, if declared. */
  readonly maxThreads: number | undefined;
}

/** A variable of a module. */
export interface PtxGlobal {
  readonly name: string;
  readonly byteLength: number;
  /** Whether it is in managed memory: a `__managed__` variable. */
  readonly isManaged: boolean;
  /** The initial bytes. The rest is zero. */
  readonly initial: Uint8Array;
}

/** The contents of PTX text that can be determined without a compiler. */
export interface Ptx {
  readonly version: number;
  /** The target architecture. 0 if none is given. */
  readonly target: number;
  /** The compiler's error message, for errors that are detected. */
  readonly error: string | undefined;
  readonly entries: readonly PtxEntry[];
  readonly globals: readonly PtxGlobal[];
}

const ENTRY = /\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)/g;
const PARAM = /\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)[^,[]*(?:\[(\d+)\])?/g;
const GLOBAL =
  /^\s*(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const)\s+((?:\.attribute\s*\((?:[^()]|\([^()]*\))*\)\s*|\.align\s+\d+\s+)*)\.([a-z]+)(\d+)\s+([\w$%]+)((?:\[\d+\])*)\s*(?:=\s*\{?([^};]*)\}?)?\s*;/gm;
const MAX_THREADS = /\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?/;

/** Parses PTX. Undefined if the text does not begin like PTX. */
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
    globals: [...plain.matchAll(GLOBAL)].map(
      ([, qualifiers = '', , bits, name = '', extents = '', values = '']) => {
        const width = Number(bits) / 8;
        const count = [...extents.matchAll(/\d+/g)].reduce((all, [n]) => all * Number(n), 1);
        return {
          name,
          byteLength: width * count,
          isManaged: /\.managed\b/.test(qualifiers),
          initial: initialBytes(values, width),
        };
      },
    ),
  };
}

function maxThreadsOf(directives: string): number | undefined {
  const found = MAX_THREADS.exec(directives);
  return found
    ? found.slice(1).reduce((product, extent) => product * Number(extent ?? 1), 1)
    : undefined;
}

/** Encodes values of PTX: integers, and floats as bits (0f3F800000). */
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

// ---- Errors of PTX text that show without a compiler: its target, its brackets ----

/** The targets that ptxas 13.0 accepts. */
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

/** Replaces comments and strings by spaces, and keeps line breaks. */
const withoutComments = (text: string): string =>
  text.replace(COMMENT_OR_STRING, (found) => found.replace(/[^\n]/g, ' '));

/** The target architecture of PTX, e.g. 70. 0 if none is given. */
const targetOf = (plain: string): number => Number(TARGET.exec(plain)?.[2] ?? 0);

/** The compiler's error message for text without comments. Undefined if no error is detected. */
function ptxErrorOf(plain: string): string | undefined {
  const target = TARGET.exec(plain);
  if (!target) return fatalMessage(plain, 0, 'Missing .target directive at start of file');
  if (!TARGETS.has(Number(target[2])))
    return fatalMessage(plain, target.index, `Unsupported .target '${target[1]}'`);
  const open: string[] = [];
  for (const { 0: bracket, index } of plain.matchAll(BRACKET)) {
    const closing = CLOSING.get(bracket);
    // A body inside of a parameter list means that the list was not closed.
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
