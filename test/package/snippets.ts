/** The code in the documents, as programs that a compiler reads. */
import { readFileSync } from 'node:fs';

/** What the snippets use without saying where it is from. */
const GIVEN = `
declare const buffer: cuda.DeviceBuffer;
declare const image: cuda.DeviceBuffer;
declare const result: cuda.DeviceBuffer;
declare const array: cuda.DeviceArray;
declare const stream: cuda.Stream;
declare const mine: cuda.Stream;
declare const pool: cuda.MemoryPool;
declare const module: cuda.Module;
declare const peer: ipc.Peer;
declare const child: ipc.ChildPeer & { send(message: unknown): Promise<void> };
declare const worker: import('node:worker_threads').Worker;
declare const socket: number;
declare const message: unknown;
declare function classify(...args: unknown[]): Promise<void>;
declare function fill(buffer: cuda.DeviceBuffer, options: { stream: cuda.Stream }): void;
declare function work(task: unknown): unknown;
declare const handle: Uint8Array;
declare const strides: number[];
declare const byteOffset: number;
declare const x: cuda.DeviceBuffer, y: cuda.DeviceBuffer, z: cuda.DeviceBuffer, n: number;
declare const grid: number, block: number;
declare const first: cuda.Kernel, second: cuda.Kernel, step: cuda.Kernel, steps: cuda.Kernel[];
declare const transpose: cuda.Kernel, sumsOfBlocks: cuda.Kernel;
declare const target: cuda.DeviceArray, source: cuda.DeviceArray, sums: cuda.DeviceArray;
declare const columns: number, rows: number;
declare const ptx: string;
`;

/** Where snippets need other things by the same names. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  'flat(y)': 'declare const x: cuda.DeviceArray, y: cuda.DeviceArray;',
  'cuda.compile(source': 'declare const source: string;',
};

const CUDA = "import * as cuda from 'cuffi';";

/** A snippet, with where it is. */
export interface Snippet {
  readonly place: string;
  readonly program: string;
}

/** Returns the TypeScript of a document, each block as a module of its own. */
export function snippetsOf(
  url: URL,
  exported: Readonly<Record<string, readonly string[]>>,
): Snippet[] {
  const text = readFileSync(url, 'utf8');
  const name = url.pathname.split('/').at(-1);
  return [...text.matchAll(/^```ts\n(.*?)^```/gms)].map(({ 1: code = '', index }) => ({
    place: `${name}:${text.slice(0, index).split('\n').length}`,
    program:
      code.startsWith('import') && code.includes("from 'node:") ? code : programOf(code, exported),
  }));
}

/** Each paragraph may be of another process: then it is a function of its own. */
function programOf(code: string, exported: Readonly<Record<string, readonly string[]>>): string {
  const types: readonly string[] = code.match(/^type .*$/gm) ?? [];
  const imports: readonly string[] = code.match(/^import .*$/gm) ?? [];
  const body = code.replace(/^(type|import) .*$/gm, '').replaceAll('…', '');
  const others = Object.entries(ELSEWHERE)
    .filter(([part]) => code.includes(part))
    .map(([, declaration]) => declaration);
  const named = Object.entries(exported).map(([specifier, names]) => {
    const used = names.filter((name) =>
      new RegExp(`(?<![.\\w])${name}\\b`).test(`${body}${types.join()}`),
    );
    const given = used.filter((name) => !imports.join().includes(name));
    return given.length > 0 ? `import { ${given.join(', ')} } from '${specifier}';` : '';
  });
  const hidden = others.flatMap((line) =>
    [...line.matchAll(/(\w+): cuda|(\w+): string/g)].map(([, a, b]) => a ?? b),
  );
  const given = GIVEN.split('\n').filter(
    (line) => !hidden.some((name) => new RegExp(`\\b${name}: `).test(line)),
  );
  const parts = body
    .split(/\n\n+/)
    .map((part, at) => `export async function part${at}() {\n${part}\n}`);
  return [
    imports.includes(CUDA) ? '' : CUDA,
    "import type * as ipc from 'cuffi/ipc';",
    ...imports,
    ...named,
    ...given,
    ...others,
    ...types,
    ...parts,
  ].join('\n');
}
