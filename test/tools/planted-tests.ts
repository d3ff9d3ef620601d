/** Runs of the test runner on folders of test files that a test plants. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { until } from '../support/iterations.ts';
import { COMPILED, programFile } from '../support/program.ts';

export const root = fileURLToPath(new URL('../..', import.meta.url));
const DEADLINE_MS = 60_000;
/** As the suite has compiled it: tsx would take a second for each that is started here. */
const runner = programFile(new URL('../support/run.ts', import.meta.url));
const options = ['--enable-source-maps', '--import', './test/support/tsx-if-needed.mjs'];

/** A folder of test files, within the project as all are. */
export class Planted implements Disposable {
  readonly folder: string;

  constructor() {
    const out = process.env[COMPILED] || join(root, '.out');
    mkdirSync(out, { recursive: true });
    this.folder = mkdtempSync(join(out, 'planted-'));
  }

  /** As `--in` has it. */
  get name(): string {
    return relative(join(root, 'test'), this.folder);
  }

  path(name: string): string {
    return join(this.folder, name);
  }

  write(name: string, text: string): void {
    writeFileSync(this.path(name), `import { test } from 'node:test';\n${text}`);
  }

  /** The pids that a test file has written, once it has. */
  async pids(name: string): Promise<number[]> {
    await until(() => existsSync(this.path(name)));
    return JSON.parse(readFileSync(this.path(name), 'utf8')) as number[];
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Starts the runner. */
export function start(
  folder: string,
  args: readonly string[],
  more: NodeJS.ProcessEnv = {},
): ChildProcess {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  return spawn(process.execPath, [...options, runner.path, `--in=${folder}`, ...args], {
    cwd: root,
    env: { ...env, CUFFI_DRIVER: 'emulated', ...more },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  });
}

/** Runs the runner to its end. */
export async function run(
  folder: string,
  ...args: string[]
): Promise<{ code: number | null; output: string }> {
  const child = start(folder, args);
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output };
}
