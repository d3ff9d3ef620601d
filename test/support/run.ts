/**
 * Runs the tests of some folders of test/, every `*.test.ts` at any depth, as `node --test` would:
 *
 *     node --import ./test/support/tsx-if-needed.mjs test/support/run.ts --in=unit,abi [word ...]
 *       [--test-concurrency=N] [--test-name-pattern=REGEX] [--test-timeout=MS]
 *
 * Words keep only the files whose path contains one of them. The driver is the emulated one unless
 * `CUFFI_DRIVER` says otherwise. It fails where node passes in silence: when no file was found,
 * when a file holds no test, when no test ran.
 */
import { setMaxListeners } from 'node:events';
import { readdirSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join, resolve } from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isAvailable } from '../../src/driver.ts';
import { compile } from './compile.ts';
import { COMPILED } from './program-file.ts';

process.chdir(fileURLToPath(new URL('../..', import.meta.url)));

const { values: given, positionals: words } = parseArgs({
  allowPositionals: true,
  options: {
    in: { type: 'string', default: '' },
    'test-concurrency': { type: 'string' },
    'test-name-pattern': { type: 'string', multiple: true },
    'test-timeout': { type: 'string' },
  },
});

const files = given.in
  .split(',')
  .flatMap(testFiles)
  .filter((file) => words.length === 0 || words.some((word) => file.includes(word)));
if (files.length === 0) fail(`no test file in ${given.in} ${words.join(' ')}`);

process.env['CUFFI_DRIVER'] ||= 'emulated';
const driver = process.env['CUFFI_DRIVER'];
console.log(`driver: ${driver === 'emulated' ? 'emulated, no GPU is used' : driver}`);
// One refusal instead of one a test.
if (!isAvailable()) fail(`CUFFI_DRIVER=${driver} finds no GPU here`);

const concurrency = given['test-concurrency'];
const timeout = given['test-timeout'];
const namePatterns = given['test-name-pattern'];
const stop = new AbortController();
// One listener a file is meant.
setMaxListeners(0, stop.signal);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stop.abort());

const { folder, compiled } = await compile(files);
process.env[COMPILED] = resolve(folder);
// Every file runs in a process of its own, started as this one was.
const events = run({
  files: [...compiled],
  signal: stop.signal,
  // Many tests wait for other processes: one file more than there are cores keeps them busy.
  concurrency: concurrency === undefined ? availableParallelism() + 1 : Number(concurrency),
  ...(timeout === undefined ? {} : { timeout: Number(timeout) }),
  ...(namePatterns === undefined ? {} : { testNamePatterns: namePatterns }),
});

let ran = 0;
const empty: string[] = [];
events.on('test:pass', ({ name, details, skip }) => {
  // node reports a file that holds no test as one test that passed.
  if (compiled.includes(name)) empty.push(name);
  else if (details.type !== 'suite' && skip === undefined) ran++;
});
events.on('test:fail', ({ todo }) => {
  ran++;
  if (todo === undefined) process.exitCode = 1;
});

// All is reported and written once nothing is left to do.
process.on('exit', () => {
  rmSync(folder, { recursive: true, force: true });
  if (process.exitCode) return;
  if (empty.length > 0 && namePatterns === undefined) fail(`no test in ${empty.join(', ')}`);
  if (ran === 0) fail('no test ran');
});

events.compose(new spec()).pipe(process.stdout);

function testFiles(folder: string): string[] {
  const path = join('test', folder);
  try {
    return readdirSync(path, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.test.ts'))
      .sort()
      .map((file) => join(path, file));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

function fail(reason: string): never {
  console.error(`test/support/run.ts: ${reason}`);
  process.exit(1);
}
