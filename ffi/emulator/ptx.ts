/** What PTX text says of itself: its version, its kernels with their parameters, its globals. */
import { ptxErrorOf, targetOf, withoutComments } from './ptx-syntax.ts';

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
