/**
 * Runs the tests of some folders of test/, every `*.test.ts` at any depth, as `node --test` would:
 *
 *     node --import ./test/support/tsx-if-needed.mjs test/support/run.ts --in=unit,abi [word ...]
 *       [--test-concurrency=N] [--test-name-pattern=REGEX] [--test-timeout=MS] [--compare | --record]
 *       [--verbose]
 *
 * `--in` may also name a file; `--without` names files that a run without words leaves out. Words keep only
 * the files whose path contains one of them. Each of those runs in a process of its own;
 * without words, on the emulated driver, quick files share some (groups.ts). The driver is the emulated one unless
 * `CUFFI_DRIVER` says otherwise. It fails where node passes in silence: when a folder is missing or
 * has no test file, when a file holds no test, when no test ran, when a `todo` fails.
 *
 * A file that takes longer than `--test-timeout` is killed, and every process that it has started
 * with it, as is what a file leaves behind (in-group.sh). A run fails whose files have left anything in
 * TMPDIR or XDG_RUNTIME_DIR, which are its own, or a process outside its group. `--compare` fails where tests
 * have vanished, or other tests were skipped than test/expected.json says; `--record` writes it.
 * `--verbose` prints every test and what it prints, as node does.
 */
import { spawnSync } from 'node:child_process';
import { setMaxListeners } from 'node:events';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { delimiter, dirname, join, relative, resolve } from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isAvailable } from '../../src/driver.ts';
import { differences, type Expected, expectedFrom, type Report } from './expected.ts';
import { groupFiles, LONG } from './groups.ts';
import { isSoak, iterations } from './iterations.ts';
import { compile } from './kernels.ts';
import { RunFolders } from './leftovers.ts';
import { COMPILED } from './program.ts';
import { Reporter } from './reporter.ts';
import { variantOf } from './variants.ts';

/** Which variant the groups of files take in turns. */
const VARIANTS_OF_GROUPS = ['two-devices', 'foreign-context', undefined];
/** What a whole run must look like. */
const EXPECTED = 'test/expected.json';

process.chdir(fileURLToPath(new URL('../..', import.meta.url)));

const { values: given, positionals: words } = parseArgs({
  allowPositionals: true,
  options: {
    in: { type: 'string', default: '' },
    without: { type: 'string', default: '' },
    compare: { type: 'boolean' },
    record: { type: 'boolean' },
    verbose: { type: 'boolean' },
    'test-concurrency': { type: 'string' },
    'test-name-pattern': { type: 'string', multiple: true },
    'test-timeout': { type: 'string' },
    variant: { type: 'string' },
  },
});
if (given.variant !== undefined) Object.assign(process.env, variantOf(given.variant));

/** What a whole run leaves to another one. */
const left = given.without.split(',').filter((path) => path !== '');
for (const path of left) testFiles(path);
const files = given.in
  .split(',')
  .flatMap(testFiles)
  .filter((file) =>
    words.length === 0
      ? !left.some((path) => file === join('test', path))
      : words.some((word) => file.includes(word)),
  );
if (files.length === 0) fail(`no test file in ${given.in} ${words.join(' ')}`);

process.env['CUFFI_DRIVER'] ||= 'emulated';
const driver = process.env['CUFFI_DRIVER'];
// Where it hides GPUs, it is not meant for the emulated ones.
if (driver === 'emulated') delete process.env['CUDA_VISIBLE_DEVICES'];
console.log(`driver: ${driver === 'emulated' ? 'emulated, no GPU is used' : driver}`);
// One refusal instead of one a test.
if (!isAvailable()) fail(`CUFFI_DRIVER=${driver} finds no GPU here`);

const concurrency = given['test-concurrency'];
/** Far more than any file takes on a busy machine, or on a GPU, where the facts take longest. */
const minutes = iterations(driver === 'emulated' ? 5 : 15, 120);
const seconds = Number(given['test-timeout'] ?? minutes * 60_000) / 1000;
const namePatterns = given['test-name-pattern'];
const stop = new AbortController();
// One listener a file is meant.
setMaxListeners(0, stop.signal);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stop.abort());

const { folder, compiled } = await compile(files, process.env[COMPILED] || undefined);
/** What each process runs: a test file, or the files of a group. */
const filesOf = new Map(
  files.map((file, at): [string, readonly string[]] => [compiled[at] as string, [file]]),
);
if (words.length === 0 && driver === 'emulated' && !isSoak) shareProcesses();
if (given.variant === 'worker') useWorkers();
process.env[COMPILED] ||= resolve(folder);
// Tests count descriptors: the socket for cuffi ls would be opened in between. Its own tests open it.
process.env['CUFFI_INSPECT'] ??= '0';
process.env['CUFFI_TEST_NODE'] = process.execPath;
// It may name another cuffi.
delete process.env['PYTHONPATH'];
// Compiling the companion takes as long as the rest of a start: its processes share the bytecode. If
// it were not written, each would compile the standard library as well, which has none in that folder.
delete process.env['PYTHONDONTWRITEBYTECODE'];
process.env['PYTHONPYCACHEPREFIX'] = resolve(folder, 'python');
findPython();
// Node reads such certificates at each start, which takes longer than all the rest of it. No test needs them.
delete process.env['NODE_EXTRA_CA_CERTS'];
process.env['CUFFI_TEST_SECONDS'] = String(seconds);
const folders = new RunFolders();
Object.assign(process.env, folders.environment);
// What node's runner starts each file with: it has no option for that, and its own time limit is
// one of files in some versions, and of tests in others.
process.execPath = fileURLToPath(new URL('in-group.sh', import.meta.url));
// Every file runs in a process of its own, started as this one was.
const events = run({
  files: [...filesOf.keys()],
  signal: stop.signal,
  // Many tests wait for other processes: one file more than there are cores keeps them busy.
  concurrency: concurrency === undefined ? availableParallelism() + 1 : Number(concurrency),
  ...(namePatterns === undefined ? {} : { testNamePatterns: namePatterns }),
});

if (given.verbose) events.compose(new spec()).pipe(process.stdout);
else new Reporter(process.stdout, filesOf).listen(events);

let ran = 0;
const empty: string[] = [];
const report: Report = { ran: {}, skipped: [] };
/** The tests that run now, as `file: name`. */
const running = new Set<string>();
const label = ({ name, file = '' }: { name: string; file?: string | undefined }): string =>
  `${relative('.', file)}: ${name}`;
const isFile = ({ name }: { name: string }): boolean => filesOf.has(name);

events.on('test:dequeue', (event) => {
  if (!isFile(event)) running.add(label(event));
});
events.on('test:complete', (event) => running.delete(label(event)));
events.on('test:pass', (event) => {
  const { name, details, skip } = event;
  // node reports a file that holds no test as one test that passed.
  if (isFile(event)) empty.push(...(filesOf.get(name) ?? []));
  else if (skip !== undefined) {
    const reason = typeof skip === 'string' ? skip : '';
    report.skipped.push({ file: relative('.', event.file ?? ''), test: name, reason });
  } else if (details.type !== 'suite') count(event.file);
});
events.on('test:fail', (event) => {
  count(event.file);
  // A `todo` that fails is no success either, as node has it.
  process.exitCode = 1;
  if (!isFile(event)) return;
  const sources = filesOf.get(event.name) ?? [];
  if (sources.length > 1)
    console.error(`test/support/run.ts: ${event.name} has ${sources.join(', ')}`);
  for (const test of running)
    if (sources.some((source) => test.startsWith(`${source}: `)))
      console.error(`test/support/run.ts: not ended: ${test}`);
});

function count(file = ''): void {
  ran++;
  const source = relative('.', file);
  report.ran[source] = (report.ran[source] ?? 0) + 1;
}

// All is reported and written once nothing is left to do.
process.on('exit', () => {
  rmSync(folder, { recursive: true, force: true });
  const left = folders.left();
  folders[Symbol.dispose]();
  // Where a test has failed, that is why.
  if (process.exitCode) return;
  if (left.length > 0) fail(['left behind:', ...left].join('\n  '));
  // node only knows of a group as a whole.
  const seen = new Set([...Object.keys(report.ran), ...report.skipped.map(({ file }) => file)]);
  for (const sources of filesOf.values())
    if (sources.length > 1) empty.push(...sources.filter((source) => !seen.has(source)));
  if (empty.length > 0 && namePatterns === undefined) fail(`no test in ${empty.join(', ')}`);
  if (ran === 0) fail('no test ran');
  if (!given.compare && !given.record) return;
  const expected = JSON.parse(readFileSync(EXPECTED, 'utf8')) as Expected;
  if (given.record)
    writeFileSync(EXPECTED, `${JSON.stringify(expectedFrom(report, expected), null, 2)}\n`);
  else {
    const said = differences(report, expected);
    if (said.length > 0) fail([`not as ${EXPECTED} says (--record):`, ...said].join('\n  '));
  }
});

/** Writes a module for each group of files, in place of theirs. The groups come first, and the files that take long. */
function shareProcesses(): void {
  const places = new Map([...filesOf].map(([path, [source]]) => [source, path]));
  const groups: [string, readonly string[]][] = [];
  for (const [at, sources] of groupFiles(files).entries()) {
    const path = join(folder, `group-${at + 1}.mjs`);
    const imports = sources.map((source) => {
      const place = places.get(source) as string;
      filesOf.delete(place);
      return `import './${relative(folder, place)}';\n`;
    });
    // Some of them with another machine, which costs nothing.
    const name = VARIANTS_OF_GROUPS[at % VARIANTS_OF_GROUPS.length];
    if (name !== undefined && given.variant === undefined) {
      const settings = `Object.assign(process.env, ${JSON.stringify(variantOf(name))});\n`;
      writeFileSync(join(folder, `${name}.mjs`), settings);
      imports.unshift(`import './${name}.mjs';\n`);
    }
    writeFileSync(path, imports.join(''));
    groups.push([path, sources]);
  }
  const isLong = ([, [source = '']]: [string, readonly string[]]): boolean => LONG.includes(source);
  const alone = [...filesOf];
  const inOrder = [...groups, ...alone.filter(isLong), ...alone.filter((each) => !isLong(each))];
  filesOf.clear();
  for (const [path, sources] of inOrder) filesOf.set(path, sources);
}

/** Writes a module for each file, in place of it, which runs it in a worker thread. */
function useWorkers(): void {
  for (const [at, [place, sources]] of [...filesOf].entries()) {
    const path = join(folder, `worker-${at + 1}.mjs`);
    writeFileSync(
      path,
      `import { Worker } from 'node:worker_threads';
new Worker(new URL('./${relative(folder, place)}', import.meta.url)).once('exit', (code) => {
  process.exitCode ||= code;
});
`,
    );
    filesOf.delete(place);
    filesOf.set(path, sources);
  }
}

/** Makes `python3` the program itself: where versions are switched, it is a script that starts others first. */
function findPython(): void {
  const { stdout } = spawnSync('python3', ['-c', 'import sys; print(sys.executable)'], {
    encoding: 'utf8',
  });
  const found = dirname(stdout?.trim() ?? '');
  // The folder of the system's programs would put its own node first.
  if (found === '.' || existsSync(join(found, 'node'))) return;
  process.env['PATH'] = [found, process.env['PATH']].join(delimiter);
}

/** The test files of a folder of test/, or the one file. */
function testFiles(folder: string): string[] {
  const path = join('test', folder);
  if (!existsSync(path)) fail(`there is no folder ${path}`);
  if (path.endsWith('.test.ts')) return [path];
  const found = readdirSync(path, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.test.ts'))
    .sort()
    .map((file) => join(path, file));
  if (found.length === 0) fail(`no test file in ${path}`);
  return found;
}

function fail(reason: string): never {
  console.error(`test/support/run.ts: ${reason}`);
  process.exit(1);
}
