/** The companion's descriptors: what Node writes, Python reads and writes again; what one refuses, both do. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import type { IpcError } from '../../src/index.ts';
import type { AnyFields } from '../../src/ipc/descriptor.ts';
import { decodeFields, encodeFields } from '../../src/ipc/sharing/descriptor-codec.ts';
import { companionPath } from '../../src/python/companion.ts';
import { iterations, trials } from '../support/iterations.ts';
import { noPython } from '../support/python.ts';
import { type Bytes, bytesOf, readVectors, vectorFolder } from '../support/vectors.ts';

const program = fileURLToPath(new URL('./fixtures/python-descriptors.py', import.meta.url));
const options = { skip: noPython, timeout: iterations(120_000, 300_000) };

/** What decoding gives: the bytes of what was read, or the error. */
interface Decoded {
  readonly encoded?: string;
  readonly again?: string;
  readonly pool?: string;
  readonly code?: string;
  readonly message?: string;
}

function decodedInPython(all: readonly Uint8Array[]): Decoded[] {
  const { status, stdout, stderr } = spawnSync('python3', [program], {
    encoding: 'utf8',
    env: { ...process.env, PYTHONPATH: companionPath() },
    input: all.map((bytes) => `${Buffer.from(bytes).toString('hex')}\n`).join(''),
    maxBuffer: 2 ** 30,
  });
  assert.equal(status, 0, stderr);
  const lines = stdout.trimEnd().split('\n');
  assert.equal(lines.length, all.length);
  return lines.map((line) => JSON.parse(line) as Decoded);
}

function decodedHere(bytes: Uint8Array): Decoded {
  try {
    const encoded = encodeFields(decodeFields(bytes)).toString('hex');
    return { encoded };
  } catch (error) {
    return { code: (error as IpcError).code, message: (error as IpcError).message };
  }
}

interface Row {
  readonly name: string;
  readonly of?: string;
  readonly hex: Bytes;
  readonly fields: AnyFields & { readonly pool?: string };
}

const rowsOf = (file: string): readonly Row[] =>
  readVectors(vectorFolder, file) as unknown as readonly Row[];
const valid = rowsOf('descriptors.json');
const refused = rowsOf('refused.json').filter(({ of }) => of === 'fields');

/** A message without what is not the same in both: sizes in words, long numbers, the list of dtypes. */
const plain = (message = 'it was read'): string =>
  message
    .replace(/ \([\d.]+ [KMG]iB\)/g, '')
    .replace(/\d{16,}/g, (digits) => digits.slice(0, 15))
    .replace(/^the (channel|array descriptor) of/, 'it is of')
    .replace(/(there is no|unknown) dtype[\s\S]*/, 'dtype');

describe('descriptors in Python', options, () => {
  test('every kind is read, and written as the same bytes', () => {
    const found = decodedInPython(valid.map(({ hex }) => bytesOf(hex)));
    for (const [at, { name, hex, fields }] of valid.entries()) {
      assert.equal(found[at]?.encoded, hex, `${name}: ${found[at]?.message}`);
      assert.equal(found[at]?.again, hex, name);
      assert.equal(found[at]?.pool, fields.pool ?? '', name);
    }
  });

  test('each refusal says the same as in Node', () => {
    const all = refused.map(({ hex }) => bytesOf(hex));
    const found = decodedInPython(all);
    for (const [at, { name }] of refused.entries()) {
      const here = decodedHere(all[at] as Uint8Array);
      assert.equal(found[at]?.code, here.code, name);
      assert.equal(plain(found[at]?.message), plain(here.message), name);
    }
  });

  test('whatever is changed in a descriptor, both read it or both refuse it', () => {
    const bases = valid.map(({ hex }) => bytesOf(hex));
    const change = fc.tuple(fc.nat(), fc.constantFrom(0, 1, 2, 7, 32, 102, 127, 128, 255));
    const changed = fc
      .tuple(
        fc.constantFrom(...bases),
        fc.array(change, { minLength: 1, maxLength: 3 }),
        fc.option(fc.nat(), { freq: 8 }),
      )
      .map(([base, changes, end]) => {
        const bytes = Buffer.from(base);
        for (const [at, value] of changes) bytes[at % bytes.byteLength] = value;
        return end === null ? bytes : bytes.subarray(0, end % bytes.byteLength);
      });
    const altered = fc.sample(changed, trials(2000, 200_000));
    const found = decodedInPython(altered);
    let readCount = 0;
    for (const [at, bytes] of altered.entries()) {
      const here = decodedHere(bytes);
      const there = found[at] as Decoded;
      const what = `${bytes.toString('hex')}\nNode: ${here.message}\nPython: ${there.message}`;
      assert.equal(there.encoded, here.encoded, what);
      assert.equal(there.code, here.code, what);
      if (there.encoded !== undefined) readCount += 1;
    }
    assert.ok(readCount > 0 && readCount < altered.length);
  });
});
