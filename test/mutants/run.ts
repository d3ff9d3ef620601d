/**
 * Plants small faults, one at a time, each in a copy of the project, and runs the tests that should
 * notice it:
 *
 *     npm run test:mutants -- [word ...] [--jobs N] [--limit SECONDS] [--minutes N] [--shard I/N]
 *       [--out FOLDER] [--skip-done FILE] [--again] [--check]
 *       [--random N [--seed S] [--equivalent FILE]]
 *
 * Words keep only the faults whose id is one of them, or whose file or room contains one. What is
 * done is kept in results.jsonl of `--out` (default .out/mutants) and not done again, unless the
 * fault, the file that it changes or its tests have changed; `--skip-done` reads the results of
 * another run besides, `--again` forgets them. After `--minutes` no further faults are begun, and a
 * minute later those under way are given up. The table goes to stdout and to table.md of `--out`.
 * `--check` only looks whether all entries apply.
 *
 * `--random` plants N mutations that a program draws (random.ts) in place of the list. The seed is
 * drawn too, unless it is given. FILE is a JSON object: ids of mutations that nobody could see, with
 * the reason. The tests that run the line are recorded once for a tree. Those that run most of its file
 * come first; what they don't notice is planted together, in one run of all that may notice any of it.
 *
 * It ends with 1 where an entry does not apply or does not build, and where its tests fail without
 * it. A fault that nobody notices is no failure of the run.
 */
import { createHash, randomInt } from 'node:crypto';
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
import {
  type Coverage,
  CoverageReader,
  readCoverage,
  readEnds,
  type TestRecord,
  testsThatRun,
  writeCoverage,
} from './coverage.ts';
import { keyOf, type Mutant, mutate, readGone, readMutants, testsOf } from './mutant.ts';
import { apply } from './mutations.ts';
import { drawSample, type RandomMutant } from './random.ts';
import { addResult, isInvalid, type Result, readResults, type Status, table } from './results.ts';
import { sampleReport, sampleTable } from './sample-report.ts';
import { type Outcome, TreeCopy } from './tree-copy.ts';

/** The folders of test/ whose tests run from the sources or from what the bundle holds. */
const FOLDERS = ['unit', 'abi', 'driver', 'ipc', 'examples'];

/** How node starts the tests. */
const RUNNER =
  `--enable-source-maps --import ./test/support/tsx-if-needed.mjs test/support/run.ts --in=${FOLDERS.join(',')}`.split(
    ' ',
  );

/** Tests that run together take about half as long as one after the other, unless under load. */
const LEAST_LIMIT_MS = 30_000;
const LIMIT_FACTOR = 2;
const BASELINE_LIMIT_MS = 180_000;

/** Of a file that is recorded. */
const FIRST_LIMIT_MS = 100_000;

/** Of recording, which is done once for a tree, and of a run of all tests. */
const WHOLE_RUN_LIMIT_MS = 30 * 60_000;

/** The nearest tests of a drawn fault: as many as take no longer, and at least one. */
const NEAR_SECONDS = 10;
const NEAR_FILES = 6;

/** More planted at once would hide each other. */
const TOGETHER = 20;

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
    random: { type: 'string' },
    seed: { type: 'string', default: String(randomInt(2 ** 32)) },
    equivalent: { type: 'string' },
  },
});

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
const signal = AbortSignal.any([stop.signal, deadline.signal]);

const [shard = 1, shards = 1] = given.shard.split('/').map(Number);
const sample = given.random === undefined ? undefined : draw(Number(given.random));
const mutants = (sample ?? readMutants(lists).filter(isWanted)).filter(
  (_, index) => index % shards === shard - 1,
);
if (mutants.length === 0) throw new Error(`no fault matches ${words.join(' ')}`);
const testFiles = FOLDERS.flatMap((folder) => filesIn(join('test', folder))).filter((file) =>
  file.endsWith('.test.ts'),
);

const results = new Map<string, Result>();
const treeDigest = digestOfTree();
const allCopies: TreeCopy[] = [];
const copies = mkdtempSync(join(tmpdir(), 'cuffi-mutants-'));
process.once('exit', () => rmSync(copies, { recursive: true, force: true, maxRetries: 10 }));
let coverage: Coverage = {};
if (sample && !given.check) coverage = await recordCoverage();
const minutes = Number(given.minutes);
const began = performance.now();
if (minutes < Infinity) setTimeout(() => deadline.abort(), (minutes + 1) * 60_000).unref();
const tasks = mutants.flatMap((mutant): Task[] => {
  const source = existsSync(join(root, mutant.file)) ? read(mutant.file) : '';
  const tests = isDrawn(mutant) ? nearestTests(mutant) : testsOf(mutant, testFiles);
  const all = [...tests.near, ...tests.far];
  const key = keyOf(mutant, source, isDrawn(mutant) ? [treeDigest] : all.map(read));
  const earlier = known.get(key);
  if (earlier !== undefined && !isInvalid(earlier)) {
    results.set(mutant.id, { ...earlier, id: mutant.id });
    return [];
  }
  const text = mutate(source, mutant);
  const wrong =
    text === undefined
      ? 'its text is not there exactly once'
      : all.length === 0 && !isDrawn(mutant) && 'it has no tests';
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

// Most are noticed by the nearest tests: those of the whole room run for the others only.
const undecided = await tryAll(tasks, 'near');
if (sample === undefined) await tryAll(undecided, 'far');
else await tryTogether(undecided);

const text = sample
  ? sampleTable(given.seed, sample, results, read)
  : table(mutants, results, words.length > 0 || shards > 1 ? [] : readGone(lists));
writeFileSync(join(out, sample ? `sample-${given.seed}.md` : 'table.md'), text);
if (sample)
  writeFileSync(
    join(out, `sample-${given.seed}.json`),
    JSON.stringify(sampleReport(given.seed, sample, results, read), null, 2),
  );
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
    if (hasSkippedAll(outcome)) return ['survived', ''];
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
    const isSkipped = hasSkippedAll(outcome);
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

/** Draws the sample, of which words keep rooms, files or ids. */
function draw(count: number): RandomMutant[] {
  if (!Number.isSafeInteger(count) || count < 1) throw new Error('--random needs a number');
  const reasons = given.equivalent
    ? (JSON.parse(readFileSync(given.equivalent, 'utf8')) as Record<string, string>)
    : {};
  const ids = words.filter((word) => /^R[0-9a-f]{8}$/.test(word));
  const places = words.filter((word) => !ids.includes(word));
  const drawn = drawSample(
    root,
    count,
    given.seed,
    (place) => places.length === 0 || places.some((word) => place.includes(word)),
  );
  console.log(`seed ${given.seed}`);
  return drawn
    .filter(({ id }) => ids.length === 0 || ids.includes(id))
    .map((mutant) => {
      const equivalent = reasons[mutant.id];
      return equivalent === undefined ? mutant : { ...mutant, equivalent };
    });
}

function isDrawn(mutant: Mutant): mutant is RandomMutant {
  return 'mutation' in mutant;
}

/** The tests that run the line of a drawn fault. */
function testsOfLine({ file, line, mutation }: RandomMutant): string[] {
  const place = mutation.scope ?? line;
  // Not every line of an expression has a place of its own in the compiled program.
  const tests = [place, place - 1, place - 2]
    .map((each) => testsThatRun(coverage, file, each))
    .find(({ length }) => length > 0);
  return (tests ?? []).filter((test) => coverage[test]?.isGreen);
}

/** All tests that may notice it: of a line that no test runs, those that run others of its file. */
function testsFarOff(mutant: RandomMutant): string[] {
  const tests = testsOfLine(mutant);
  if (tests.length > 0) return tests;
  return testFiles.filter(
    (test) => coverage[test]?.isGreen && coverage[test]?.lines[mutant.file] !== undefined,
  );
}

/** Of the tests that run the line, those that tell soonest. */
function nearestTests(mutant: RandomMutant): Task['tests'] {
  const { file } = mutant;
  const mirror = join('test/unit', file.replace(/\.ts$/, '.test.ts'));
  const sorted = testsOfLine(mutant).sort((a, b) => Number(b === mirror) - Number(a === mirror));
  let seconds = 0;
  const near = sorted.slice(0, NEAR_FILES).filter((test, at) => {
    const its = coverage[test]?.seconds ?? 0;
    if (at > 0 && seconds + its > NEAR_SECONDS) return false;
    seconds += its;
    return true;
  });
  return { near, far: [] };
}

/** Runs all tests once, or reads what an earlier run of the same tree has recorded. */
async function recordCoverage(): Promise<Coverage> {
  const file = join(out, `coverage-${treeDigest}.json`);
  const found = readCoverage(file) ?? (await record());
  for (const [id, { isGreen, seconds }] of Object.entries(found)) {
    const key = `${treeDigest} ${id}`;
    if (isGreen) known.set(key, { key, id, status: 'survived', by: '', seconds });
    else console.log(`${id} is left out: it fails without any fault`);
  }
  return found;

  async function record(): Promise<Coverage> {
    console.log('all tests run without any fault first, to see which lines each of them runs');
    const [copy = new TreeCopy(root, join(copies, '0'))] = allCopies;
    allCopies[0] = copy;
    const folder = join(copies, 'coverage');
    const reader = new CoverageReader(copy.folder, folder);
    const init = 'src/python/cuffi/__init__.py';
    const trace = fileURLToPath(new URL('python_trace.py', import.meta.url));
    copy.plant(
      init,
      `${read(init)}
exec(open(${JSON.stringify(trace)}).read(), {})
`,
    );
    await bundle(copy);
    const timer = setInterval(() => reader.collect(), 2000);
    await runAll(copy, testFiles, folder, { env: { CUFFI_TEST_COVERAGE: '1' }, isShown: true });
    clearInterval(timer);
    copy.restore();
    reader.collect();
    const found = { ...reader.result() };
    // Some tests do not bear being watched, or do not bear all others beside them.
    const again = Object.keys(found).filter((test) => !found[test]?.isGreen);
    if (again.length > 0) console.log(`${again.join(', ')} failed, and run again`);
    const failing = again.length > 0 ? await failingFiles(copy, [], again) : [];
    for (const test of again)
      found[test] = { ...(found[test] as TestRecord), isGreen: !failing.includes(test) };
    writeCoverage(file, found);
    return found;
  }
}

/** Runs all tests that run one of many faults, and finds out which of them a failure notices. */
async function tryTogether(all: readonly Task[]): Promise<void> {
  const groups: Task[][] = [];
  for (const task of all) {
    const fits = groups.find(
      (group) => group.length < TOGETHER && plantTogether([...group, task]) !== undefined,
    );
    if (fits) fits.push(task);
    else groups.push([task]);
  }
  await inCopies(groups, async (copy, group) => {
    const start = performance.now();
    const undecided = new Set(group);
    const mayNotice = new Map(
      group.map(({ mutant }) => [mutant.id, isDrawn(mutant) ? testsFarOff(mutant) : []]),
    );
    const files = testFiles.filter((test) => group.some((task) => notices(test, task)));
    console.log(`${group.length} faults are planted together, and ${files.length} files run`);
    const left = (): string => `far ${digestOf([...undecided].map(({ key }) => key))}`;
    const keep = (): void => {
      const by = failing.join(' ');
      addResult(resultsFile, { key: left(), id: 'far', status: 'noticed', by, seconds: 0 });
    };
    // A run that was stopped in between goes on from here.
    const earlier = known.get(left())?.by.split(' ').filter(Boolean);
    let failing = earlier ?? (await failingFiles(copy, group, files));
    keep();
    while (failing.length > 0 && undecided.size > 0) {
      const seconds = (test: string): number => coverage[test]?.seconds ?? 0;
      const [test = ''] = failing.sort((a, b) => seconds(a) - seconds(b));
      const suspects = [...undecided].filter((task) => notices(test, task));
      const culprit = await culpritOf(copy, test, suspects);
      if (culprit === undefined) failing = failing.slice(1);
      else {
        undecided.delete(culprit);
        decide(culprit, 'noticed', test);
        failing = undecided.size === 0 ? [] : await failingFiles(copy, [...undecided], failing);
      }
      keep();
    }
    for (const task of undecided) decide(task, 'survived', '');

    function notices(test: string, { mutant }: Task): boolean {
      return mayNotice.get(mutant.id)?.includes(test) === true;
    }

    function decide({ key, mutant: { id } }: Task, status: Status, by: string): void {
      const seconds = Math.round((performance.now() - start) / 100) / 10;
      note({ key, id, status, by, seconds });
      console.log(`[far] ${id} ${status} ${by}`);
    }
  });
}

/** One of the faults with which a test file fails alone: the half that fails is halved again. */
async function culpritOf(
  copy: TreeCopy,
  test: string,
  tasks: readonly Task[],
): Promise<Task | undefined> {
  const fails = async (some: readonly Task[]): Promise<boolean> =>
    (await failingFiles(copy, some, [test])).length > 0;
  let suspects = tasks;
  if (suspects.length === 0 || !(await fails(suspects))) return undefined;
  while (suspects.length > 1) {
    const half = suspects.slice(0, suspects.length / 2);
    suspects = (await fails(half)) ? half : suspects.slice(half.length);
  }
  // Otherwise, only several together make it fail, or the machine did.
  return (await fails(suspects)) ? suspects[0] : undefined;
}

/** Of some test files, those that fail with some faults in place. */
async function failingFiles(
  copy: TreeCopy,
  tasks: readonly Task[],
  files: readonly string[],
): Promise<string[]> {
  const folder = join(copy.folder, 'ends');
  rmSync(folder, { recursive: true, force: true });
  const texts = plantTogether(tasks);
  if (texts === undefined) throw new Error('two of the faults change the same text');
  copy.plantAll(texts);
  try {
    await bundle(copy);
    await runAll(copy, files, folder);
  } finally {
    copy.restore();
  }
  const ends = readEnds(folder);
  return files.filter((file) => !ends.get(file)?.isGreen);
}

/** The files with all of the faults in them: undefined where two change the same text. */
function plantTogether(tasks: readonly Task[]): Map<string, string> | undefined {
  const mutations = tasks.flatMap(({ mutant }) => (isDrawn(mutant) ? [mutant.mutation] : []));
  // From the end, so that the places of the others stay the same.
  mutations.sort((a, b) => b.begin - a.begin);
  const texts = new Map<string, string>();
  const begins = new Map<string, number>();
  for (const mutation of mutations) {
    const { file, begin, end } = mutation;
    if (end > (begins.get(file) ?? Number.POSITIVE_INFINITY)) return undefined;
    begins.set(file, begin);
    texts.set(file, apply(texts.get(file) ?? read(file), mutation));
  }
  return texts;
}

/** Runs test files to their end, each in a process of its own, which leaves in a folder how it ended. */
function runAll(
  copy: TreeCopy,
  files: readonly string[],
  folder: string,
  {
    env = {},
    isShown = false,
  }: { readonly env?: NodeJS.ProcessEnv; readonly isShown?: boolean } = {},
): Promise<Outcome> {
  for (const file of files) {
    const place = join(folder, file.replace(/\.ts$/, '.mjs'));
    mkdirSync(place, { recursive: true });
    // A fault that makes some files hang would otherwise take as long as the slowest of all may.
    const seconds = coverage[file]?.seconds;
    const limitMs =
      seconds === undefined ? FIRST_LIMIT_MS : LEAST_LIMIT_MS + seconds * 1000 * LIMIT_FACTOR;
    writeFileSync(join(place, 'limit'), String(Math.ceil(limitMs / 1000)));
  }
  return copy.run([process.execPath, ...RUNNER, ...files], {
    limitMs: WHOLE_RUN_LIMIT_MS,
    env: { CUFFI_TEST_RECORD: folder, ...env },
    signal,
    stopAt(line) {
      if (isShown && /^\d+ s: /.test(line)) console.log(line);
      return false;
    },
  });
}

/** Of all that the tests depend on. */
function digestOfTree(): string {
  const tree = createHash('sha256');
  for (const file of ['ffi', 'src', 'test', 'docs/examples'].flatMap(filesIn))
    if (!file.startsWith('test/mutants/')) tree.update(file).update(read(file));
  return tree.digest('hex').slice(0, 24);
}

function digestOf(keys: readonly string[]): string {
  return createHash('sha256').update(keys.join()).digest('hex').slice(0, 24);
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
  const run = (): Promise<Outcome> =>
    copy.run([process.execPath, ...RUNNER, '--test-concurrency=2', ...files], {
      limitMs,
      stopAt: isFailure,
      signal,
    });
  const outcome = await run();
  const isSure = outcome.code === 0 || outcome.timedOut || !why(outcome).endsWith('.test.mjs');
  return isSure ? outcome : run();
}

function hasSkippedAll({ tail }: Outcome): boolean {
  return tail.some((line) => line.endsWith(': no test ran'));
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
