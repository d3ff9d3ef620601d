/** The commands of the bench. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { InTurn } from '../../test/support/in-turn.ts';
import { isSoak } from '../../test/support/iterations.ts';
import { programFile } from '../../test/support/program.ts';
import { planRun } from '../plan.ts';
import { type Results, readResults } from '../results.ts';
import { repeat } from '../run.ts';
import { temporaryFolder } from './files.ts';
import { caseOf, resultsOf } from './results.ts';

const MAIN = programFile(new URL('../main.ts', import.meta.url));
const DEADLINE_MS = 60_000;
const env = { ...process.env, CUFFI_DRIVER: 'emulated' };
/** Its passes have the names of TypeScript and inherit the loader, which knows what was compiled. */
const LOADER = new URL('../../test/support/tsx-if-needed.mjs', import.meta.url).href;
const OPTIONS = ['--import', LOADER];
const node = (...args: string[]): string[] => [...OPTIONS, MAIN.path, ...args];

const commands = new InTurn({ env: { CUFFI_DRIVER: 'emulated' }, execArgv: OPTIONS });
after(() => commands[Symbol.asyncDispose]());

/** Runs a command to its end in a process of several: signals are sent to processes of their own. */
async function bench(
  args: readonly string[],
  more: NodeJS.ProcessEnv = {},
): Promise<{ readonly status: number | string; readonly stdout: string; readonly stderr: string }> {
  const { text, complaints, ending } = await commands.run(
    { path: MAIN.path, args, directory: process.cwd(), env: more },
    DEADLINE_MS,
  );
  return { status: ending, stdout: text, stderr: complaints };
}

describe('npm run bench', () => {
  test('plans the suites, cases and rounds that were asked for', () => {
    const all = planRun([]);
    assert.ok(all.cases.length > 40);
    assert.ok(all.cases.some(({ suite }) => suite === 'event-loop'));
    assert.ok(!all.cases.some(({ isLarge }) => isLarge));
    assert.ok(planRun(['scale', '--large']).cases.some(({ isLarge }) => isLarge));

    const { cases, rounds, quick } = planRun([
      ...['calls', '--case', 'stream.done', '--rounds', '3', '--quick'],
    ]);
    assert.deepEqual(
      cases.map(({ suite, name }) => [suite, name]),
      [['calls', 'stream.done']],
    );
    assert.deepEqual([rounds, quick], [3, true]);
    const passesOf = (...args: string[]): number => planRun(args).passes;
    assert.deepEqual([passesOf(), passesOf('--quick'), passesOf('--rounds', '1')], [3, 1, 1]);
    const onceOf = (...args: string[]): (boolean | undefined)[] =>
      planRun(['--case', 'stream.done', '--case', 'getIpcHandle', ...args]).cases.map(
        ({ isOnce }) => isOnce,
      );
    // What has no aim, on a machine that is lent.
    assert.deepEqual(
      [onceOf(), onceOf('--within', '9')],
      [
        [false, false],
        [false, true],
      ],
    );
  });

  test('refuses what is unknown in a sentence, before anything is measured', async () => {
    assert.throws(
      () => planRun(['call']),
      /there is no command or suite 'call'; the suites are calls, /,
    );
    assert.throws(() => planRun(['--case', 'x']), /there is no case 'x'/);
    assert.throws(() => planRun(['memory', '--case', 'copyTo']), /no case of that name/);
    assert.throws(() => planRun(['--rounds', '1.5']), /a number from 1, not '1\.5'/);
    assert.throws(() => planRun(['--within', 'x']), /takes seconds, not 'x'/);
    assert.throws(() => planRun(['--json', '/nowhere/at/all.json']), /no folder \/nowhere\/at/);
    assert.throws(() => planRun(['--fast']), { message: "Unknown option '--fast'" });

    for (const [args, message] of [
      [['--fast'], /^bench: Unknown option '--fast'$/m],
      [['check'], /^bench: it takes result files$/m],
      [['compare', 'a.json'], /^bench: it takes 2 result files, not 1$/m],
      [['compare', 'a', 'b', '--threshold', '2'], /from 0 to 1, not '2'$/m],
      [['page', 'a.json'], /^bench: it takes no 'a\.json'$/m],
    ] as const) {
      const { status, stderr } = await bench(args);
      assert.equal(status, 2, stderr);
      assert.match(stderr, message);
    }
  });

  test('a run of three passes writes one file, prints each table once, and its progress to stderr', async () => {
    using folder = temporaryFolder();
    const json = join(folder.path, 'a.json');
    const { status, stdout, stderr } = await bench(
      'calls --case stream.done --case timeline.value --rounds 4 --within 60 --json'
        .split(' ')
        .concat(json),
    );
    assert.equal(status, 0, stderr);
    assert.match(stdout, /^driver: emulated/);
    assert.match(stdout, /^stream\.done: /m);
    assert.equal(stdout.match(/^stream\.done: /gm)?.length, 1);
    assert.match(stderr, /^pass 2 of 3 \[1\/2, \d+ s\] calls: stream\.done$/m);
    const { driver, quick, passes, cases } = readResults(json);
    assert.deepEqual([driver.emulated, quick, passes, cases.length], [true, false, 3, 2]);
    assert.deepEqual(
      cases.map(({ suite, contestants }) => [
        suite,
        contestants[0]?.passes.map(({ length }) => length),
      ]),
      [0, 1].map(() => ['calls', [1, 1, 2]]),
    );
  });

  test('a run that is out of time begins no case and is incomplete', async () => {
    using folder = temporaryFolder();
    const json = join(folder.path, 'a.json');
    const args = 'calls --case stream.done --rounds 3 --within 0.01 --json'.split(' ');
    const { status, stdout } = await bench([...args, json]);
    assert.equal(status, 1);
    assert.match(stdout, /^written, incomplete: /m);
    assert.deepEqual(readResults(json).cases, []);
  });

  test('an interrupted run writes what it has measured', async () => {
    using folder = temporaryFolder();
    const json = join(folder.path, 'part.json');
    const child = spawn(
      process.execPath,
      // Quick cases first, and several seconds of others after them.
      node('run', 'arrays', 'kernels', '--quick', '--rounds', '1', '--json', json),
      {
        env,
        stdio: ['ignore', 'ignore', 'pipe'],
      },
    );
    let progress = '';
    for await (const chunk of child.stderr) {
      if (`${chunk}`.includes('[3/')) child.kill('SIGINT');
      progress += chunk;
    }
    if (child.exitCode === null) await once(child, 'exit');
    assert.equal(child.exitCode, 130);
    // The case that runs is measured to its end, and perhaps one that was about to begin.
    assert.doesNotMatch(progress, /\[[6-9]\//);
    const { isComplete, cases } = readResults(json);
    assert.ok(cases.length >= 2);
    assert.equal(isComplete, false);
  });

  // A second signal while the first is obeyed: npm test sends one, the soak both.
  const interruptions = [['SIGTERM'], ['SIGTERM', 'SIGTERM']] as const;
  for (const signals of interruptions.slice(0, isSoak ? 2 : 1))
    test(`repeat stopped by ${signals.join(' and ')} writes two files that are marked as incomplete`, async () => {
      using folder = temporaryFolder();
      const files = ['a.json', 'b.json'].map((name) => join(folder.path, name));
      const what = ['calls', '--quick', '--rounds', '1'];
      const child = spawn(process.execPath, node('repeat', ...files, ...what), {
        env,
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      let printed = '';
      child.stdout.on('data', (chunk) => {
        printed += chunk;
      });
      let left: readonly NodeJS.Signals[] = signals;
      for await (const chunk of child.stderr)
        if (/^run B.*\[[2-4]\//m.test(`${chunk}`)) {
          for (const signal of left) child.kill(signal);
          left = [];
        }
      if (child.exitCode === null) await once(child, 'exit');
      assert.equal(child.exitCode, 130);
      for (const file of files) {
        const { isComplete, cases } = readResults(file);
        assert.equal(isComplete, false);
        assert.ok(cases.length >= 1);
      }
      if (signals.length === 1) assert.match(printed, /^B: .*, incomplete$/m);
    });

  test('repeat writes two files, whose passes took turns, and compares them', async () => {
    using folder = temporaryFolder();
    const files = ['a.json', 'b.json'].map((name) => join(folder.path, name));
    const what = ['calls', 'arrays', '--case', 'stream.done', '--case', 'array.slice'];
    const { stdout, stderr } = await bench(['repeat', ...files, ...what, '--rounds', '4']);
    assert.deepEqual(stderr.match(/^run ., pass .(?= of 3 \[1\/)/gm), [
      'run A, pass 1',
      'run B, pass 1',
      'run B, pass 2',
      'run A, pass 2',
      'run A, pass 3',
      'run B, pass 3',
    ]);
    for (const { passes, cases } of files.map((file) => readResults(file)))
      assert.deepEqual(
        [passes, cases.map(({ suite }) => suite), cases[0]?.contestants[0]?.samples.length],
        [3, ['calls', 'arrays'], 4],
      );
    assert.match(stdout, /^\d of 2 medians of ratios lie within/m);
    assert.match(stdout, /^\d of 6 medians of times lie within/m);
    // The tables of one run.
    assert.equal(stdout.match(/^stream\.done: /gm)?.length, 1);

    await assert.rejects(repeat(['calls', 'hand-over']), /repeat takes two result files/);
    await assert.rejects(repeat(files.slice(0, 1)), /two different result files/);
    await assert.rejects(repeat([...files, '--json', files[0] as string]), /takes no --json/);
    await assert.rejects(repeat([...files, '--within', '9']), /takes no --json and no --within/);
  });

  /**
   * A checkout whose passes report these times for `connection.message`, and a case that does not exist here.
   * They wait for permission before they begin, as those of older checkouts.
   */
  function stubCheckout(folder: string, contestants: Readonly<Record<string, number[]>>): void {
    const { machine, driver } = resultsOf([], { emulated: true });
    const cases = [
      caseOf('hand-over', 'of another time', contestants),
      caseOf('hand-over', 'connection.message', contestants),
    ];
    for (const part of ['bench/programs', 'dist/src'])
      mkdirSync(join(folder, part), { recursive: true });
    symlinkSync(
      fileURLToPath(new URL('../../node_modules', import.meta.url)),
      `${folder}/node_modules`,
    );
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
    writeFileSync(join(folder, 'dist/src/index.js'), '');
    writeFileSync(
      join(folder, 'bench/programs/pass-child.ts'),
      `process.send!({ type: 'ready' });
    process.once('message', () => {
      const machine = { ...${JSON.stringify(machine)}, cpu: process.cwd() };
      machine.commit = process.env['CUFFI_COMMIT'] ?? null;
      process.send!({ type: 'begun', driver: ${JSON.stringify(driver)}, machine, isPinned: false, skipped: [] });
      ${JSON.stringify(cases)}.forEach((result, at) =>
        process.send!({ type: 'case', at, isLast: true, result }));
      process.disconnect!();
    });`,
    );
  }

  test('repeat --before measures another checkout and lists what is slower', async () => {
    using folder = temporaryFolder();
    const [a, b] = ['a.json', 'b.json'].map((name) => join(folder.path, name)) as [string, string];
    const before = join(folder.path, 'before');
    stubCheckout(before, {
      cuffi: [1, 1, 1],
      'cuffi, 32 at once': [1e12, 1e12, 1e12],
      'process.send': [1, 1, 1e12, 1e12],
    });
    const what = ['hand-over', '--case', 'connection.message', '--quick', '--rounds', '3'];
    const { status, stdout, stderr } = await bench(['repeat', a, b, '--before', before, ...what], {
      CUFFI_COMMIT: 'this one',
    });
    assert.equal(status, 1, stderr);
    assert.match(stdout, /^1 of 3 medians of B .* faster: 1, slower: 1, in only one file: 0$/m);
    assert.deepEqual(stdout.match(/^slower \(.*\): hand-over: [^:]+/gm)?.length, 1);
    assert.match(stdout, /^slower \(.*\): hand-over: connection\.message, cuffi: /m);
    // The tables are of this checkout.
    assert.equal(stdout.match(/^connection\.message: /gm)?.length, 1);
    assert.doesNotMatch(stdout, /does a thing/);

    const [ofA, ofB] = [a, b].map((file) => readResults(file)) as [Results, Results];
    assert.deepEqual([ofA.machine.commit, ofB.machine.commit], ['unknown', 'this one']);
    assert.equal(ofA.machine.cpu, realpathSync(before));
    const names = [ofA, ofB].map(({ cases }) => cases.map(({ name }) => name));
    assert.deepEqual(names, [['connection.message'], ['connection.message']]);

    const refused = (...args: string[]): Promise<number> => repeat([a, b, ...what, ...args]);
    await assert.rejects(refused('--before'), /another built checkout/);
    rmSync(join(before, 'dist'), { recursive: true });
    await assert.rejects(refused('--before', before), /it has no dist.*Run npm ci there/);
  });

  test('a pass does not load the drawing libraries', async () => {
    const { metafile } = await build({
      entryPoints: [fileURLToPath(new URL('../programs/pass-child.ts', import.meta.url))],
      bundle: true,
      packages: 'external',
      platform: 'node',
      format: 'esm',
      metafile: true,
      write: false,
      outdir: '.',
    });
    const imported = Object.values(metafile.outputs).flatMap(({ imports }) => imports);
    assert.ok(imported.some(({ path }) => path === 'cuffi'));
    assert.ok(!imported.some(({ path }) => path.startsWith('vega')));
  });

  test('the end of a run ends its pass and the children of that', async () => {
    const measuring = spawn(
      process.execPath,
      node('scale', '--case', 'scale.consumers', '--quick'),
      {
        env,
        stdio: 'ignore',
      },
    );
    const exited = once(measuring, 'exit');
    const end = Date.now() + DEADLINE_MS;
    const killer = setTimeout(() => measuring.kill('SIGKILL'), DEADLINE_MS);
    try {
      const children = (): string[] =>
        childrenOf(measuring.pid as number, 'pass-child').flatMap((pass) =>
          childrenOf(Number(pass), 'receiver-child'),
        );
      while (measuring.exitCode === null && children().length === 0) await sleep(20);
      const [child] = children();
      measuring.kill('SIGINT');
      assert.deepEqual(await exited, [130, null]);
      // It exits when its parent has ended.
      while (existsSync(`/proc/${child}`) && Date.now() < end) await sleep(20);
      assert.ok(child !== undefined && !existsSync(`/proc/${child}`));
    } finally {
      clearTimeout(killer);
    }
  });
});

/** The children of a process that run a program. */
function childrenOf(pid: number, program: string): string[] {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ');
    return children.filter(
      (child) => child && readFileSync(`/proc/${child}/cmdline`, 'utf8').includes(program),
    );
  } catch {
    // It has ended.
    return [];
  }
}
