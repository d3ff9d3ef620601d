// The runner of these tests, run on folders that are planted for it.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, relative } from 'node:path';
import { PassThrough } from 'node:stream';
import { describe, type run as runFiles, test } from 'node:test';
import { differences, expectedFrom, type Report, type Skip } from '../support/expected.ts';
import { until } from '../support/iterations.ts';
import { type Output, Reporter } from '../support/reporter.ts';
import { Planted, root, run, start } from './planted-tests.ts';

/** Whether a process runs; one that has ended may still be waited for by its parent. */
function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

/** A test that starts a process, writes the pids of both, refuses to end, and blocks or waits. */
const hanging = (pids: string, end: string): string => `
import { spawn } from 'node:child_process';
import { renameSync, writeFileSync } from 'node:fs';
test('ends', () => {});
test('hangs', () => {
  const { pid } = spawn('sleep', ['1000'], { stdio: 'inherit' });
  process.on('SIGTERM', () => {});
  writeFileSync('${pids}.new', JSON.stringify([process.pid, pid]));
  renameSync('${pids}.new', '${pids}');
  ${end}
});
`;
const BLOCKS = 'Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);';
const WAITS = 'return new Promise(() => setInterval(() => {}, 1000));';

describe('the runner', { concurrency: 2 }, () => {
  test('ends a file that takes too long, and one that is killed, with all that they started', async () => {
    const names = ['blocks.test.ts', 'waits.test.ts', 'killed.test.ts'];
    using planted = new Planted();
    for (const name of names)
      planted.write(
        name,
        hanging(planted.path(`${name}.pids`), name.startsWith('b') ? BLOCKS : WAITS),
      );
    const running = run(planted.name, '--test-timeout=10000', '--test-concurrency=3');
    const all = await Promise.all(names.map((name) => planted.pids(`${name}.pids`)));
    process.kill(all[2]?.[0] as number, 'SIGKILL');
    const { code, output } = await running;
    assert.equal(code, 1, output);
    for (const name of names.slice(0, 2))
      assert.match(output, new RegExp(`longer than 10 s: .*${name.replace('.ts', '.mjs')}`));
    assert.match(output, /not ended: .*waits\.test\.ts: hangs/);
    assert.deepEqual(all.flat().filter(isRunning), []);
  });

  test('killed itself, leaves nothing that runs', async () => {
    using planted = new Planted();
    planted.write('waits.test.ts', hanging(planted.path('pids'), WAITS));
    // It can't remove its folders.
    const child = start(planted.name, [], { TMPDIR: planted.folder });
    const pids = await planted.pids('pids');
    child.kill('SIGKILL');
    await until(() => !pids.some(isRunning));
    assert.equal(pids.length, 2);
  });

  test('kills what a file leaves behind', async () => {
    using planted = new Planted();
    planted.write(
      'leaves.test.ts',
      hanging(planted.path('pids'), 'setTimeout(() => process.exit(0), 10);'),
    );
    const { code, output } = await run(planted.name);
    assert.equal(code, 0, output);
    assert.deepEqual((await planted.pids('pids')).filter(isRunning), []);
  });

  test('fails where a file has left files or processes, lists them, and removes them', async () => {
    using planted = new Planted();
    planted.write(
      'leaves.test.ts',
      `import { spawn } from 'node:child_process';
      import { mkdirSync, renameSync, writeFileSync } from 'node:fs';
      import { tmpdir } from 'node:os';
      test('leaves', () => {
        writeFileSync(tmpdir() + '/forgotten', '');
        mkdirSync(process.env.XDG_RUNTIME_DIR + '/cuffi');
        writeFileSync(process.env.XDG_RUNTIME_DIR + '/cuffi/socket', '');
        const child = spawn('sleep', ['1001'], { detached: true, stdio: 'ignore' });
        child.unref();
        const name = '${planted.path('left')}';
        writeFileSync(name + '.new', JSON.stringify([tmpdir(), child.pid]));
        renameSync(name + '.new', name);
      });`,
    );
    const { code, output } = await run(planted.name);
    const [temporary, pid] = await planted.pids('left');
    assert.equal(code, 1, output);
    assert.match(
      output,
      new RegExp(
        'run.ts: left behind:\n  TMPDIR/forgotten\n  XDG_RUNTIME_DIR/cuffi/socket\n' +
          `  process ${pid}: sleep 1001 \n`,
      ),
    );
    await until(() => !isRunning(pid as number));
    assert.equal(existsSync(dirname(String(temporary))), false);
  });

  test('fails where a folder is missing or empty, and where a `todo` fails', async () => {
    using planted = new Planted();
    assert.deepEqual(await run('unit,unti'), {
      code: 1,
      output: 'test/support/run.ts: there is no folder test/unti\n',
    });
    assert.deepEqual(await run(`unit,${planted.name}`), {
      code: 1,
      output: `test/support/run.ts: no test file in ${relative(root, planted.folder)}\n`,
    });
    planted.write(
      'todo.test.ts',
      "test('later', { todo: true }, () => { throw new Error('no'); });",
    );
    const { code, output } = await run(planted.name);
    assert.equal(code, 1, output);
    assert.match(output, /todo 1/);
  });
});

describe('what the runner prints', () => {
  test('is each failure with its details and a summary, and what a file prints if it fails', async () => {
    using planted = new Planted();
    planted.write(
      'fails.test.ts',
      `console.log('of the failing');
      test('is wrong', () => { throw new Error('why', { cause: 'the cause' }); });`,
    );
    planted.write(
      'passes.test.ts',
      `console.log('of the passing');
      for (const name of ['a', 'b']) test(name, { skip: 'no tool' }, () => {});
      test('c', { skip: 'no time' }, () => {});
      test('passes', () => {});`,
    );
    const [quiet, verbose] = await Promise.all([run(planted.name), run(planted.name, '--verbose')]);
    assert.equal(quiet.code, 1);
    const lines = quiet.output
      .replaceAll(`${relative(root, planted.folder)}/`, '')
      .replaceAll(/[\d.]+ ?(m?s\b)|(duration_ms) .*/g, '$1$2')
      .split('\n')
      .filter((line) => !/^ +at /.test(line) && line !== '');
    // Which of the two took longer.
    const [, slow = '', quick = ''] = lines.splice(lines.indexOf('The longest files:'), 3);
    assert.deepEqual([slow, quick].sort(), [' s  fails.test.ts', ' s  passes.test.ts']);
    assert.deepEqual(lines, [
      'driver: emulated, no GPU is used',
      'fails.test.ts has printed:',
      'of the failing',
      ...[
        '✖ is wrong (ms)',
        '  fails.test.ts:3:7',
        '  Error: why',
        "    [cause]: 'the cause'",
        '  }',
      ],
      ...['Failures:', '✖ is wrong (ms)', '  fails.test.ts:3:7'],
      ...['Skipped:', '     2  no tool', '     1  no time'],
      'Lines printed by files that passed, hidden without --verbose: 1',
      '2 of 2 files in s',
      ...['ℹ tests 5', 'ℹ suites 0', 'ℹ pass 1', 'ℹ fail 1', 'ℹ cancelled 0', 'ℹ skipped 3'],
      ...['ℹ todo 0', 'ℹ duration_ms'],
    ]);
    assert.match(verbose.output, /of the passing.*✔ passes.*✖ is wrong/s);
  });

  const filesOf = new Map(
    Array.from({ length: 40 }, (_, at) => [`${at}.mjs`, [`${at}.test.ts`]] as const),
  );
  const details = { duration_ms: 1, passed: true };
  /** Reports as many files as there are, of which one fails. */
  async function printed(output: Omit<Output, 'write'>): Promise<string> {
    let text = '';
    const events = new PassThrough();
    new Reporter({ ...output, write: (more) => (text += more) }, filesOf).listen(
      events as unknown as ReturnType<typeof runFiles>,
    );
    for (const name of filesOf.keys()) {
      events.emit('test:dequeue', { name });
      const isWrong = name === '9.mjs';
      const file = name.replace('mjs', 'test.ts');
      if (isWrong)
        events.emit('test:fail', { name: 'is wrong', file, line: 1, column: 2, details });
      events.emit('test:complete', { name, details: { ...details, passed: !isWrong } });
    }
    await once(events.end(), 'end');
    return text;
  }

  test('is a line for each tenth of the files, where it goes to a file', async () => {
    const lines = (await printed({})).split('\n').filter((line) => line.includes(' of 40 files; '));
    assert.deepEqual(
      lines.map((line) => line.replace(/^[\d.]+ s: /, '')),
      ['4 of 40 files; ', '8 of 40 files; '],
    );
    const failed = /^[\d.]+ s: (\d+) of 40 files, 1 with failures; $/gm;
    const after = [...(await printed({})).matchAll(failed)].map(([, done]) => Number(done));
    assert.deepEqual(after, [12, 16, 20, 24, 28, 32, 36]);
  });

  test('is one line that is rewritten, on a terminal', async () => {
    const text = (await printed({ isTTY: true, columns: 20 })).replaceAll('\r\x1b[K', '<erase>');
    const [before = '', after = ''] = text.split('✖ is wrong (1ms)');
    assert.match(before, /^([^\n\r]{0,19}<erase>){9}\n$/);
    assert.match(after, /<erase>\nFailures:\n$/);
    assert.match(text, /\n40 of 40 files in [\d.]+ s\n$/);
  });
});

describe('what is expected of a whole run', () => {
  const report: Report = {
    ran: { 'test/a/one.test.ts': 15, 'test/a/two.test.ts': 4, 'test/b/three.test.ts': 2 },
    skipped: [
      { file: 'test/a/one.test.ts', test: 'runs PTX', reason: 'needs a GPU' },
      { file: 'test/b/three.test.ts', test: 'NumPy reads it', reason: 'NumPy is not installed' },
    ],
  };
  const tools = { python3: '^python3 cannot|^NumPy is not' };
  const expected = expectedFrom(report, { tests: {}, tools, skips: [] });

  /** The report with something changed, and what is said of it. */
  const changed = (change: (report: { ran: Report['ran']; skipped: Skip[] }) => void): string[] => {
    const copy = structuredClone(report);
    change(copy);
    return differences(copy, expected);
  };

  test('is what it was recorded from', () => {
    assert.deepEqual(differences(report, expected), []);
    assert.deepEqual(expected.tests, { 'test/a': 18, 'test/b': 3 });
    assert.deepEqual(expected.skips[1]?.tool, 'python3');
    assert.deepEqual(expectedFrom(report, expected), expected);
  });

  test('notices that tests have vanished', () => {
    assert.deepEqual(
      changed(({ ran }) => delete ran['test/a/two.test.ts']),
      ['test/a has 16 tests, and must have 18'],
    );
    assert.deepEqual(
      changed(({ ran }) => {
        ran['test/b/three.test.ts'] = 1;
      }),
      ['test/b has 2 tests, and must have 3'],
    );
    assert.deepEqual(
      changed(({ ran }) => delete ran['test/b/three.test.ts']),
      ['test/b has 1 tests, and must have 3'],
    );
  });

  test('notices a folder for whose tests no number, or too small a one, is committed', () => {
    assert.deepEqual(
      changed(({ ran }) => {
        ran['test/c/new.test.ts'] = 1;
        ran['test/a/new.test.ts'] = 20;
      }),
      [
        'test/a has 40 tests, and only 18 must be there',
        'test/c has 1 tests, and only 0 must be there',
      ],
    );
  });

  test('notices a skip more, one fewer, and one for another reason', () => {
    assert.deepEqual(
      changed(({ skipped }) => {
        skipped.push({ file: 'test/a/two.test.ts', test: 'new', reason: 'too hard' });
      }),
      ['test/a/two.test.ts: new was skipped: too hard'],
    );
    assert.deepEqual(
      changed(({ skipped }) => skipped.shift()),
      ['test/a/one.test.ts: runs PTX was not skipped: needs a GPU'],
    );
    assert.deepEqual(
      changed(({ skipped }) => {
        skipped[0] = { ...(skipped[0] as Skip), reason: 'too hard' };
      }),
      ['test/a/one.test.ts: runs PTX was skipped for another reason: too hard'],
    );
  });

  test('lets a test run whose tool is here, and no other reason stand for a tool', () => {
    const runs = structuredClone(report);
    runs.skipped.pop();
    runs.ran['test/b/three.test.ts'] = 3;
    assert.deepEqual(differences(runs, expected), []);
    assert.deepEqual(expectedFrom(runs, expected), expected);
    assert.deepEqual(
      changed(({ skipped }) => {
        skipped[1] = { ...(skipped[1] as Skip), reason: 'python3 cannot be started: ENOENT' };
      }),
      [],
    );
    assert.deepEqual(
      changed(({ skipped }) => {
        skipped[1] = { ...(skipped[1] as Skip), reason: 'too hard' };
      }),
      ['test/b/three.test.ts: NumPy reads it was skipped for another reason: too hard'],
    );
  });
});
