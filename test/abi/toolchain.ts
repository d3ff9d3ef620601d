/** The C compiler and the CUDA header of this machine, and a folder to build in. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const findHeader = (): string | undefined => {
  if (process.env['CUFFI_ABI'] === 'record') return undefined;
  const toolkits = existsSync('/usr/local')
    ? readdirSync('/usr/local')
        .filter((name) => name.startsWith('cuda'))
        .map((name) => join('/usr/local', name))
    : [];
  return [process.env['CUDA_HOME'], process.env['CUDA_PATH'], ...toolkits, '/usr']
    .filter((root) => root !== undefined && root !== '')
    .map((root) => join(root as string, 'include', 'cuda.h'))
    .find((path) => existsSync(path));
};

const findCompiler = (): string | undefined =>
  ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);

/** The path of cuda.h, or undefined. */
export const header: string | undefined = findHeader();
/** A C compiler that runs, or undefined. */
export const compiler: string | undefined = findCompiler();

/** Why the header cannot be asked, or false. */
export const noHeader: string | false =
  header === undefined
    ? 'no cuda.h in CUDA_HOME, CUDA_PATH, /usr/local/cuda* or /usr/include'
    : false;
/** Why nothing can be compiled, or false. */
export const noCompiler: string | false =
  compiler === undefined ? 'no C compiler: none of cc, gcc, clang runs' : false;

/** A folder in which tests build C. */
export interface BuildFolder {
  readonly folder: string;
  /** What the preprocessor makes of `source`. */
  preprocess(source: string, flags?: readonly string[]): string;
  /** Compiles and links `source`; returns the path of the output. */
  compile(name: string, source: string, flags?: readonly string[]): string;
  /** Builds and runs `source`, and returns its output. */
  run(name: string, source: string, flags?: readonly string[]): string;
}

/** Makes a {@link BuildFolder}, which is removed at the end of the process. */
export function openBuildFolder(): BuildFolder {
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-abi-'));
  // Not a hook of the test runner: a file that fails while it loads runs none.
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  const includes = header ? ['-I', join(header, '..')] : [];
  const invoke = (args: readonly string[]): string => {
    if (compiler === undefined) throw new Error('no C compiler');
    // A table that disagrees with the header fails here too, so that the compiler's words are the
    // failure's message.
    const { status, stdout, stderr } = spawnSync(compiler, [...includes, ...args], {
      encoding: 'utf8',
      env: { ...process.env, LC_ALL: 'C' },
      maxBuffer: 2 ** 26,
    });
    if (status !== 0) throw new Error(`${compiler} ${args.join(' ')}\n${stderr}`);
    return stdout;
  };
  const write = (name: string, source: string): string => {
    const path = join(folder, `${name}.c`);
    writeFileSync(path, source);
    return path;
  };
  const compile: BuildFolder['compile'] = (name, source, flags = []) => {
    const output = join(folder, name);
    invoke(['-std=gnu11', '-O0', ...flags, '-o', output, write(name, source)]);
    return output;
  };
  return {
    folder,
    preprocess: (source, flags = []) =>
      invoke(['-E', '-P', ...flags, write('preprocessed', source)]),
    compile,
    run: (name, source, flags) =>
      execFileSync(compile(name, source, flags), { encoding: 'utf8', maxBuffer: 2 ** 26 }),
  };
}
