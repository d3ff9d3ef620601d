/** The mutation run itself: what it plants, puts back, ends and tells. Its list is tried by itself. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { keyOf, type Mutant, mutate, readMutants, testsOf } from '../mutants/mutant.ts';
import { addResult, isInvalid, type Result, readResults, table } from '../mutants/results.ts';
import { TreeCopy } from '../mutants/tree-copy.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'cuffi-mutants-test-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const mutant: Mutant = {
  id: 'A1',
  room: 'src',
  file: 'src/a.ts',
  text: 'open();\n  close();',
  replacement: 'open();',
  plants: 'What is opened stays open.',
  near: [],
  far: ['unit/src/', 'driver/b'],
};

let trees = 0;
/** A copy of a small tree. */
function smallCopy(files: Readonly<Record<string, string>>): TreeCopy {
  trees += 1;
  const tree = join(folder, `tree-${trees}`);
  mkdirSync(tree);
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(join(tree, file, '..'), { recursive: true });
    writeFileSync(join(tree, file), text);
  }
  return new TreeCopy(tree, join(folder, `copy-${trees}`));
}

const result = (id: string, status: Result['status'], by = ''): [string, Result] => [
  id,
  { key: id, id, status, by, seconds: 1 },
];

describe('mutate', () => {
  test('mutate replaces a text that occurs exactly once', () => {
    assert.equal(mutate('{\n  open();\n  close();\n}', mutant), '{\n  open();\n}');
  });

  test('mutate returns undefined for a text that is absent, occurs twice or stays the same', () => {
    assert.equal(mutate('open();', mutant), undefined);
    assert.equal(mutate(`${mutant.text} ${mutant.text}`, mutant), undefined);
    assert.equal(mutate(mutant.text, { ...mutant, replacement: mutant.text }), undefined);
  });
});

describe('testsOf', () => {
  const files = [
    'test/unit/src/a.test.ts',
    'test/unit/src/b.test.ts',
    'test/unit/src/x/c.test.ts',
    'test/driver/b.test.ts',
    'test/driver/d.test.ts',
  ];

  test('names the test that mirrors the file first, then those of the room', () => {
    assert.deepEqual(testsOf(mutant, files), {
      near: ['test/unit/src/a.test.ts'],
      far: ['test/unit/src/b.test.ts', 'test/unit/src/x/c.test.ts', 'test/driver/b.test.ts'],
    });
  });

  test('names those beside it where no test mirrors the file, and those that the entry asks for', () => {
    const other = { ...mutant, file: 'src/x/other.ts', near: ['driver/d'] };
    assert.deepEqual(testsOf(other, files).near, [
      'test/unit/src/x/c.test.ts',
      'test/driver/d.test.ts',
    ]);
  });
});

describe('keyOf', () => {
  test('a key differs with the fault, the file and the tests, but not with the description', () => {
    const key = keyOf(mutant, 'source', ['test']);
    assert.equal(keyOf({ ...mutant, plants: 'other' }, 'source', ['test']), key);
    const others = [
      keyOf({ ...mutant, replacement: '' }, 'source', ['test']),
      keyOf(mutant, 'other', ['test']),
      keyOf(mutant, 'source', ['other']),
    ];
    assert.equal(new Set([key, ...others]).size, 4);
  });
});

describe('readMutants', () => {
  test('readMutants returns the faults of all rooms, and joins texts of several lines', () => {
    const lists = join(folder, 'lists');
    mkdirSync(lists);
    const { id, file, plants } = mutant;
    const entry = { id, file, plants, text: ['open();', '  close();'], replacement: 'open();' };
    const write = (name: string, ...mutants: object[]): void =>
      writeFileSync(
        join(lists, name),
        JSON.stringify({ room: 'src', tests: mutant.far, mutants: mutants }),
      );
    write('src.json', entry, { ...entry, id: 'A2', tests: ['driver/d'] });
    writeFileSync(join(lists, 'gone.json'), '[]');
    assert.deepEqual(readMutants(lists), [mutant, { ...mutant, id: 'A2', near: ['driver/d'] }]);
    write('other.json', entry);
    assert.throws(() => readMutants(lists), { message: 'two faults have the id A1' });
  });
});

describe('TreeCopy', () => {
  test('plants a text and puts the old one back, never through another name of the file', () => {
    const copy = smallCopy({ 'src/a.ts': 'old' });
    const path = join(copy.folder, 'src/a.ts');
    const other = join(copy.folder, 'other.ts');
    linkSync(path, other);
    copy.plant('src/a.ts', 'new');
    assert.equal(readFileSync(path, 'utf8'), 'new');
    assert.equal(readFileSync(other, 'utf8'), 'old');
    copy.restore();
    assert.equal(readFileSync(path, 'utf8'), 'old');
  });

  test('has the files and the folders of the sources, and the packages by a link', () => {
    const copy = smallCopy({ 'a.json': '', 'src/b/c.ts': '', 'dist/a.js': '', '.git/a': '' });
    assert.deepEqual(readdirSync(copy.folder).sort(), ['a.json', 'node_modules', 'src']);
    assert.deepEqual(readdirSync(join(copy.folder, 'src/b')), ['c.ts']);
  });

  test('tells the exit code and the last lines of a command', async () => {
    const outcome = await smallCopy({}).run(['sh', '-c', 'echo one; echo two; exit 3'], {
      limitMs: 20_000,
    });
    assert.deepEqual(outcome, {
      code: 3,
      timedOut: false,
      stoppedAt: undefined,
      tail: ['one', 'two'],
    });
  });

  test('ends a command at the line that says enough', async () => {
    const outcome = await smallCopy({}).run(['sh', '-c', 'echo ✖ wrong; sleep 60'], {
      limitMs: 50_000,
      stopAt: (line) => line.startsWith('✖'),
    });
    assert.equal(outcome.stoppedAt, '✖ wrong');
    assert.equal(outcome.timedOut, false);
  });

  test('ends a command that takes too long, with all that it started', async () => {
    // The second one is in a session of its own.
    const script = 'sleep 61 & setsid sleep 61 & sleep 61';
    const copy = smallCopy({});
    const outcome = await copy.run(['sh', '-c', script], {
      limitMs: 300,
      env: { MARKED: copy.folder },
    });
    assert.equal(outcome.timedOut, true);
    const left = readdirSync('/proc').filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'latin1').includes(`MARKED=${copy.folder}`);
      } catch {
        return false;
      }
    });
    assert.deepEqual(left, []);
  });

  test('ends a command when it is aborted', async () => {
    const stop = new AbortController();
    setTimeout(() => stop.abort(new Error('enough')), 100);
    const running = smallCopy({}).run(['sleep', '60'], { limitMs: 50_000, signal: stop.signal });
    await assert.rejects(running, { message: 'enough' });
  });
});

describe('results', () => {
  test('are read as they were written, without a line that was cut off', () => {
    const file = join(folder, 'results.jsonl');
    const [, noticed] = result('A1', 'noticed', 'a test');
    addResult(file, noticed);
    writeFileSync(file, `${readFileSync(file, 'utf8')}{"key":"A2"`);
    assert.deepEqual([...readResults(file)], [['A1', noticed]]);
    assert.equal(readResults(join(folder, 'none')).size, 0);
  });

  test('are told by room, with what was not noticed, ran out of time or is wrong', () => {
    const later = { ...mutant, id: 'N1', room: 'ffi' };
    const mutants = [
      mutant,
      { ...mutant, id: 'A2' },
      later,
      { ...later, id: 'N2' },
      { ...later, id: 'N3' },
      { ...later, id: 'N4', equivalent: 'nothing reads it.' },
      { ...later, id: 'N5' },
    ];
    const results = new Map([
      result('A1', 'noticed', 'a test'),
      result('A2', 'survived'),
      result('N1', 'timed out', 'the last line'),
      result('N2', 'survived'),
      result('N3', 'does not apply', 'its text is not there exactly once'),
      result('N4', 'survived'),
    ]);
    assert.equal(
      table(mutants, results, [{ id: 'A9', reason: 'its file is gone' }]),
      [
        '| room | first list | later list | all |',
        '| --- | --- | --- | --- |',
        '| src | 1 of 2 (50 %) | – | 1 of 2 (50 %) |',
        '| ffi | – | 1 of 2 (50 %) | 1 of 2 (50 %) |',
        '| **all** | 1 of 2 (50.0 %) | 1 of 2 (50.0 %) | 2 of 4 (50.0 %) |',
        '',
        'Not noticed (2):',
        '',
        '- A2 `src/a.ts`: What is opened stays open.',
        '- N2 `src/a.ts`: What is opened stays open.',
        '',
        'Noticed because the tests did not end in time (1):',
        '',
        '- N1 `src/a.ts`: What is opened stays open. (the last line)',
        '',
        'Not counted: nobody could see a difference (1):',
        '',
        '- N4 `src/a.ts` (survived): What is opened stays open. But: nothing reads it.',
        '',
        'Not counted: the entry itself is wrong (1):',
        '',
        '- N3 `src/a.ts` does not apply: its text is not there exactly once',
        '',
        'Not counted: what they changed is gone, with nothing in its place (1):',
        '',
        '- A9: its file is gone',
        '',
      ].join('\n'),
    );
    const invalid = [...results.values()].filter(isInvalid).map(({ id }) => id);
    assert.deepEqual(invalid, ['N3']);
  });

  test('a word that no fault matches fails the run', () => {
    const run = spawnSync(
      process.execPath,
      [
        '--import',
        'tsx',
        join(root, 'test/mutants/run.ts'),
        'nothing-is-called-so',
        '--out',
        folder,
      ],
      { cwd: root, encoding: 'utf8', timeout: 60_000 },
    );
    assert.notEqual(run.status, 0);
    assert.match(run.stderr, /no fault matches nothing-is-called-so/);
  });
});
