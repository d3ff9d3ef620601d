/**
 * Plants small faults, one at a time, each in a copy of the project, and runs the tests that should
 * notice it:
 *
 *     npm run test:mutants -- [word ...] [--jobs N] [--limit SECONDS] [--minutes N] [--shard I/N]
 *       [--out FOLDER] [--skip-done FILE] [--again] [--check]
 *
 * Words keep only the faults whose id is one of them, or whose file or room contains one. What is
 * done is kept in results.jsonl of `--out` (default .out/mutants) and not done again, unless the
 * fault, the file that it changes or its tests have changed; `--skip-done` reads the results of
 * another run besides, `--again` forgets them. After `--minutes` no further faults are begun, and a
 * minute later those under way are given up. The table goes to stdout and to table.md of `--out`.
 * `--check` only looks whether all entries apply.
 *
 * It ends with 1 where an entry does not apply or does not build, and where its tests fail without
 * it. A fault that nobody notices is no failure of the run.
 */
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { keyOf, type Mutant, mutate, readGone, readMutants, testsOf } from './mutant.ts';
import { addResult, isInvalid, type Result, readResults, type Status, table } from './results.ts';
import { type Outcome, TreeCopy } from './tree-copy.ts';

/** The folders of test/ whose tests run from the sources or from what the bundle holds. */
const FOLDERS = ['unit', 'abi', 'driver', 'ipc', 'examples'];

/** Tests that run together take about half as long as one after the other, unless under load. */
const LEAST_LIMIT_MS = 30_000;
const LIMIT_FACTOR = 2;
const BASELINE_LIMIT_MS = 180_000;

/** What is noted of a test file that skips all, as for lack of a compiler. */
const ALL_SKIPPED = 'all skipped';

interface Task {
  readonly mutant: Mutant;
  readonly key: string;
  /** Of the file, with the fault in it. */
  readonly text: string;
  readonly tests: ReturnType<typeof testsOf>;
}

const root = fileURLToPath(new URL('../..', import.meta.url));
const lists = fileURLToPath(new URL('list', import.meta.url));

const { values: given, positionals: words } = parseArgs({
  allowPositionals: true,
  options: {
    jobs: { type: 'string', default: String(availableParallelism()) },
    limit: { type: 'string' },
    minutes: { type: 'string', default: 'Infinity' },
    shard: { type: 'string', default: '1/1' },
    out: { type: 'string', default: join(root, '.out/mutants') },
    'skip-done': { type: 'string', multiple: true, default: [] },
    again: { type: 'boolean', default: false },
    check: { type: 'boolean', default: false },
  },
});

const began = performance.now();
const out = resolve(given.out);
mkdirSync(out, { recursive: true });
const resultsFile = join(out, 'results.jsonl');
if (given.again) rmSync(resultsFile, { force: true });
for (const file of given['skip-done'])
  if (!existsSync(file)) throw new Error(`there is no ${file}`);
const known = new Map(
  [...given['skip-done'], resultsFile].flatMap((file) => [...readResults(file)]),
);

const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.on(signal, () => stop.abort(new Error(`ended by ${signal}`)));

/** Runs still active a minute after the last start are stopped, and the next call tries them again. */
const deadline = new AbortController();
const minutes = Number(given.minutes);
if (minutes < Infinity) setTimeout(() => deadline.abort(), (minutes + 1) * 60_000).unref();
const signal = AbortSignal.any([stop.signal, deadline.signal]);

const [shard = 1, shards = 1] = given.shard.split('/').map(Number);
const mutants = readMutants(lists)
  .filter(isWanted)
  .filter((_, index) => index % shards === shard - 1);
if (mutants.length === 0) throw new Error(`no fault matches ${words.join(' ')}`);
const testFiles = FOLDERS.flatMap((folder) => filesIn(join('test', folder))).filter((file) =>
  file.endsWith('.test.ts'),
);

const results = new Map<string, Result>();
const treeDigest = digestOfTree();
const allCopies: TreeCopy[] = [];
const tasks = mutants.flatMap((mutant): Task[] => {
  const source = existsSync(join(root, mutant.file)) ? read(mutant.file) : '';
  const tests = testsOf(mutant, testFiles);
  const all = [...tests.near, ...tests.far];
  const key = keyOf(mutant, source, all.map(read));
  const earlier = known.get(key);
  if (earlier !== undefined && !isInvalid(earlier)) {
    results.set(mutant.id, { ...earlier, id: mutant.id });
    return [];
  }
  const text = mutate(source, mutant);
  const wrong =
    text === undefined
      ? 'its text is not there exactly once'
      : all.length === 0 && 'it has no tests';
  if (text === undefined || wrong) {
    note({ key, id: mutant.id, status: 'does not apply', by: String(wrong), seconds: 0 });
    console.log(`${mutant.id} does not apply to ${mutant.file}: ${wrong}`);
    return [];
  }
  return [{ mutant, key, text, tests }];
});
for (const word of new Set(mutants.flatMap(({ near, far }) => [...near, ...far])))
  if (!testFiles.some((file) => file.includes(word))) console.log(`no test file matches ${word}`);
console.log(`${mutants.length} faults, ${results.size} of them done before`);

if (given.check) process.exit([...results.values()].some(isInvalid) ? 1 : 0);

const copies = mkdtempSync(join(tmpdir(), 'cuffi-mutants-'));
try {
  // Most are noticed by the nearest tests: those of the whole room run for the others only.
  const left = await tryAll(tasks, 'near');
  await tryAll(left, 'far');
} finally {
  rmSync(copies, { recursive: true, force: true, maxRetries: 10 });
}

const text = table(mutants, results, words.length > 0 || shards > 1 ? [] : readGone(lists));
writeFileSync(join(out, 'table.md'), text);
console.log(`\n${text}`);
const left = mutants.length - results.size;
if (left > 0) console.log(`${left} faults are left: run it again`);
if ([...results.values()].some(isInvalid)) process.exitCode = 1;

/** Runs the nearest tests, or those of the room. @returns the faults that they did not notice */
async function tryAll(all: readonly Task[], stage: 'near' | 'far'): Promise<Task[]> {
  const survivors: Task[] = [];
  const isLast = stage === 'far';
  const todo = all.filter((task) => {
    const isDone = task.tests[stage].length === 0 || (!isLast && known.has(`${task.key} near`));
    if (isDone) settle(task, 'survived', '', 0);
    return !isDone;
  });
  const baseline = await runBaseline(todo.flatMap(({ tests }) => tests[stage]));
  let count = 0;
  await inCopies(todo, async (copy, task) => {
    const start = performance.now();
    const [status, by] = await tryMutant(copy, task, task.tests[stage], baseline);
    const seconds = Math.round((performance.now() - start) / 100) / 10;
    settle(task, status, by, seconds);
    const progress = `${stage} ${++count}/${todo.length}`;
    console.log(`[${progress}] ${task.mutant.id} ${status}, ${seconds} s ${by}`);
  });
  return survivors;

  function settle(
    { mutant, key, ...rest }: Task,
    status: Status,
    by: string,
    seconds: number,
  ): void {
    if (status === 'survived' && !isLast) {
      survivors.push({ mutant, key, ...rest });
      addResult(resultsFile, { key: `${key} near`, id: mutant.id, status, by, seconds });
    } else note({ key, id: mutant.id, status, by, seconds });
  }
}

async function tryMutant(
  copy: TreeCopy,
  { mutant, text }: Task,
  tests: readonly string[],
  baseline: ReadonlyMap<string, Result>,
): Promise<[Status, string]> {
  const red = tests.filter((test) => baseline.get(test)?.status !== 'survived');
  if (red.length > 0) return ['tests fail without it', red.join(', ')];
  const usable = tests.filter((test) => baseline.get(test)?.by !== ALL_SKIPPED);
  if (usable.length === 0) return ['survived', ''];
  copy.plant(mutant.file, text);
  try {
    const built = await bundle(copy);
    if (built.code !== 0)
      return ['does not build', built.tail.find((line) => line.includes('rror')) ?? ''];
    const seconds = tests.reduce((sum, test) => sum + (baseline.get(test)?.seconds ?? 0), 0);
    const limitMs = LEAST_LIMIT_MS + seconds * 1000 * LIMIT_FACTOR;
    const outcome = await runTests(
      copy,
      usable,
      given.limit ? Number(given.limit) * 1000 : limitMs,
    );
    if (outcome.timedOut) return ['timed out', outcome.tail.at(-1) ?? ''];
    return outcome.code === 0 ? ['survived', ''] : ['noticed', why(outcome)];
  } finally {
    copy.restore();
  }
}

/** Runs each test file that is needed without any fault. The same tree is never asked twice. */
async function runBaseline(needed: readonly string[]): Promise<Map<string, Result>> {
  const found = new Map<string, Result>();
  const missing = [...new Set(needed)].filter((file) => {
    const earlier = known.get(`${treeDigest} ${file}`);
    if (earlier?.status !== 'survived') return true;
    found.set(file, earlier);
    return false;
  });
  if (missing.length > 0) console.log(`${missing.length} test files run without any fault first`);
  const built = new Set<TreeCopy>();
  await inCopies(missing, async (copy, file) => {
    if (!built.has(copy)) await bundle(copy);
    built.add(copy);
    const start = performance.now();
    let outcome = await runTests(copy, [file], BASELINE_LIMIT_MS);
    if (outcome.code !== 0) outcome = await runTests(copy, [file], BASELINE_LIMIT_MS);
    const seconds = Math.round((performance.now() - start) / 100) / 10;
    const key = `${treeDigest} ${file}`;
    const isSkipped = outcome.tail.some((line) => line.endsWith(': no test ran'));
    const isGreen = outcome.code === 0 || isSkipped;
    const by = isSkipped ? ALL_SKIPPED : isGreen ? '' : why(outcome);
    if (isSkipped) console.log(`${file} is left out: it skips all of its tests here`);
    const result: Result = { key, id: file, status: isGreen ? 'survived' : 'noticed', by, seconds };
    found.set(file, result);
    known.set(key, result);
    addResult(resultsFile, result);
    if (!isGreen) console.log(`${file} fails without any fault: ${by}`);
  });
  return found;
}

/** Of all that the tests depend on. */
function digestOfTree(): string {
  const tree = createHash('sha256');
  for (const file of ['ffi', 'src', 'test', 'docs/examples'].flatMap(filesIn))
    if (!file.startsWith('test/mutants/')) tree.update(file).update(read(file));
  return tree.digest('hex').slice(0, 24);
}

/** Whether more may be begun. */
function hasTime(): boolean {
  return performance.now() - began < minutes * 60_000;
}

/** Gives each task to one of the copies, of which there are as many as jobs. */
async function inCopies<T>(
  items: readonly T[],
  task: (copy: TreeCopy, item: T) => Promise<void>,
): Promise<void> {
  const queue = [...items];
  const jobs = Math.min(Number(given.jobs), items.length);
  const ended = await Promise.allSettled(Array.from({ length: jobs }, (_, n) => work(n)));
  for (const each of ended) if (each.status === 'rejected') throw each.reason;

  async function work(n: number): Promise<void> {
    const copy = allCopies[n] ?? new TreeCopy(root, join(copies, String(n)));
    allCopies[n] = copy;
    for (let item = queue.shift(); item !== undefined && hasTime(); item = queue.shift()) {
      try {
        await task(copy, item);
      } catch (error) {
        if (!deadline.signal.aborted || stop.signal.aborted) throw error;
      }
    }
  }
}

function bundle(copy: TreeCopy): Promise<Outcome> {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: { bundle: string } };
  rmSync(join(copy.folder, 'dist'), { recursive: true, force: true });
  const PATH = `${join(root, 'node_modules/.bin')}:${process.env['PATH']}`;
  return copy.run(['sh', '-c', scripts.bundle], {
    limitMs: BASELINE_LIMIT_MS,
    env: { PATH },
    signal,
  });
}

/**
 * Runs test files until the first failure. A file that fails as a whole may have met a machine under
 * load: it counts if it fails twice.
 */
async function runTests(
  copy: TreeCopy,
  files: readonly string[],
  limitMs: number,
): Promise<Outcome> {
  const command =
    `--enable-source-maps --import ./test/support/tsx-if-needed.mjs test/support/run.ts ` +
    `--in=${FOLDERS.join(',')} --test-concurrency=2`;
  const run = (): Promise<Outcome> =>
    copy.run([process.execPath, ...command.split(' '), ...files], {
      limitMs,
      stopAt: isFailure,
      signal,
    });
  const outcome = await run();
  const isSure = outcome.code === 0 || outcome.timedOut || !why(outcome).endsWith('.test.mjs');
  return isSure ? outcome : run();
}

function isFailure(line: string): boolean {
  return /^\s*✖ /.test(line) && !line.includes('# TODO');
}

/** The first test that failed, else the last words. */
function why({ stoppedAt, timedOut, tail }: Outcome): string {
  return (stoppedAt ?? `${timedOut ? 'no end: ' : ''}${tail.at(-1) ?? ''}`)
    .trim()
    .replace(/^✖ | \([\d.]+ms\)$/g, '')
    .replace(/\.out\/test-[^/]+\//, '');
}

function note(result: Result): void {
  results.set(result.id, result);
  addResult(resultsFile, result);
}

function isWanted({ id, file, room }: Mutant): boolean {
  return (
    words.length === 0 || words.some((word) => id === word || `${room} ${file}`.includes(word))
  );
}

function filesIn(folder: string): string[] {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length))
    .sort();
}

function read(file: string): string {
  return readFileSync(join(root, file), 'utf8');
}
