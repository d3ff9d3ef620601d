/** The test vectors of the protocol: cuffi, its companion for Python, and an end that was written from the page. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { readFacts } from '../../../../src/protocol/facts.ts';
import { vectors } from '../../../../src/protocol/vectors.ts';
import { companionPath } from '../../../../src/python/companion.ts';
import { noPython } from '../../../support/python.ts';
import { readVectors, type Vector, vectorFolder, vectorHash } from '../../../support/vectors.ts';
import { failuresOf } from './run-vectors.ts';

/** Vectors of a released version are never edited: a change here adds to them. */
const HASH = '65d747c80d80bfc17fd02ee74c547c5a4144619b049943edd93898abde323f4f';

const files = [...vectors(readFacts()).keys()].map((path) => path.replace('test/protocol/', ''));
const fixtures = fileURLToPath(new URL('../../../ipc/fixtures/', import.meta.url));

/** The ends in Python, by their arguments before the folder. */
const ends = {
  'the companion for Python': ['vectors.py'],
  'an end that was written from docs/protocol.md': ['protocol.py', '--vectors'],
} as const;

/** Runs the vectors of a folder in Python. Returns what is wrong, and the exit code. */
function runPython(
  [program, ...args]: readonly string[],
  folder: string,
  ...options: readonly string[]
): { readonly failures: readonly string[]; readonly status: number | null } {
  const { stdout, stderr, status } = spawnSync(
    'python3',
    ['-B', join(fixtures, program as string), ...args, folder, ...options],
    {
      env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
      encoding: 'utf8',
      timeout: 60_000,
    },
  );
  assert.equal(stderr, '');
  return { failures: stdout.split('\n').filter((line) => line !== ''), status };
}

describe('vectors', () => {
  for (const file of files)
    test(`${file} is read and written as it says`, () => {
      assert.deepEqual(failuresOf(vectorFolder, file), []);
    });

  test('are those that were released, and have names of their own', () => {
    assert.equal(
      vectorHash(vectorFolder),
      HASH,
      'add to the vectors, and state their hash here and in Python',
    );
    for (const file of files) {
      const names = readVectors(vectorFolder, file).map(({ name }) => name);
      assert.deepEqual(
        names.filter((name, at) => names.indexOf(name) < at),
        [],
      );
    }
  });

  test('say of each kind of input what must be refused, with the code', () => {
    const refused = readVectors(vectorFolder, 'refused.json') as (Vector & {
      of: string;
      code: string;
    })[];
    assert.ok(refused.length >= 60);
    assert.deepEqual([...new Set(refused.map(({ of }) => of))].sort(), [
      'channel',
      'control',
      'descriptor',
      'exporter',
      'fds',
      'fields',
      'frames',
      'hello',
      'json',
      'lifeline',
      'memory',
      'message',
      'messages',
      'object',
      'record',
      'value',
    ]);
    assert.deepEqual([...new Set(refused.map(({ code }) => code))].sort(), [
      'corrupted',
      'device-not-visible',
      'exporter-gone',
      'invalid-descriptor',
      'ipc-failed',
      'limit-exceeded',
      'mig',
      'no-file-descriptor',
      'not-supported',
      'other-machine',
      'same-pid',
      'same-process',
      'version-mismatch',
    ]);
  });

  for (const [end, program] of Object.entries(ends))
    test(`${end} reads, writes and refuses all of them`, { skip: noPython }, () => {
      assert.deepEqual(runPython(program, vectorFolder), { failures: [], status: 0 });
    });
});

// ---- A byte that is altered ----

type Altered = Record<string, unknown> & { readonly name: string };

const flipped = (hex: string, at: number, bits: number): string => {
  const bytes = Buffer.from(hex, 'hex');
  const index = at < 0 ? bytes.length + at : at;
  bytes[index] = (bytes[index] as number) ^ bits;
  return bytes.toString('hex');
};

const lastByte = (vector: Altered): Altered => ({
  ...vector,
  hex: flipped(vector['hex'] as string, -1, 1),
});

/** Of each file a vector, and how a byte of it is altered. */
const alterations: Readonly<Record<string, readonly [string, (vector: Altered) => Altered]>> = {
  'values.json': ['a string of ASCII', lastByte],
  'control-blocks.json': ['revocations', lastByte],
  'descriptors.json': [
    'plain device memory',
    (vector) => ({ ...vector, hex: flipped(vector['hex'] as string, 20, 4) }),
  ],
  'messages.json': ['objects in a value, in order', lastByte],
  'frames.json': [
    'a request',
    (vector) => {
      const [frame] = vector['frames'] as { hex: string }[];
      return { ...vector, frames: [{ ...frame, hex: flipped(frame?.hex ?? '', -1, 1) }] };
    },
  ],
  'hellos.json': [
    'versions 4 to 9, a later end',
    (vector) => ({ ...vector, hex: flipped(vector['hex'] as string, 20, 2) }),
  ],
  'words.json': ['a timeline at 7', (vector) => ({ ...vector, words: { 0: '6' } })],
  'records.json': [
    'meta',
    (vector) => ({ ...vector, hex: flipped(vector['hex'] as string, 550, 1) }),
  ],
  'refused.json': [
    'the tag 19',
    (vector) => ({ ...vector, hex: flipped(vector['hex'] as string, 0, 16) }),
  ],
};

describe('a byte of a vector that is altered', () => {
  /** One vector of each file, altered or not. */
  function withCopy(isAltered: boolean, use: (folder: string) => void): void {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-vectors-'));
    try {
      for (const [file, [name, alter]] of Object.entries(alterations)) {
        const vector = readVectors(vectorFolder, file).find((one) => one.name === name) as Altered;
        const written = isAltered ? alter(vector) : vector;
        writeFileSync(join(folder, file), JSON.stringify({ vectors: [written] }));
      }
      use(folder);
    } finally {
      rmSync(folder, { recursive: true });
    }
  }

  const all = Object.entries(alterations)
    .map(([file, [name]]) => `${file}: ${name}`)
    .sort();
  const named = (failures: readonly string[]): string[] =>
    failures.map((failure) => failure.split(': ').slice(0, 2).join(': ')).sort();

  test('is noticed in each file', () => {
    const failuresIn = (folder: string): string[] =>
      files.flatMap((file) => failuresOf(folder, file).map((failure) => `${file}: ${failure}`));
    assert.equal(all.length, files.length);
    withCopy(false, (folder) => assert.deepEqual(failuresIn(folder), []));
    withCopy(true, (folder) => assert.deepEqual(named(failuresIn(folder)), all));
  });

  for (const [end, program] of Object.entries(ends))
    test(`is noticed in each file by ${end}, also without the hash`, { skip: noPython }, () => {
      withCopy(false, (folder) => {
        assert.deepEqual(runPython(program, folder, '--no-hash'), { failures: [], status: 0 });
        const { failures, status } = runPython(program, folder);
        assert.match(failures.join(), /^the hash of the vectors is [0-9a-f]{64}$/);
        assert.equal(status, 1);
      });
      withCopy(true, (folder) => {
        const { failures, status } = runPython(program, folder, '--no-hash');
        assert.deepEqual(named(failures), all);
        assert.equal(status, 1);
      });
    });
});
