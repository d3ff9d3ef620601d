/** The companion's descriptors: what Node writes, Python reads and writes again; what one refuses, both do. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import type { IpcError } from '../../src/index.ts';
import type { AnyFields, DescriptorFields } from '../../src/ipc/descriptor.ts';
import { decodeAnyFields, encodeFields } from '../../src/ipc/sharing/descriptor-codec.ts';
import { companionPath } from '../../src/python/companion.ts';
import { iterations, trials } from '../support/iterations.ts';
import { noPython } from '../support/python.ts';

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
    const encoded = encodeFields(decodeAnyFields(bytes)).toString('hex');
    return { encoded };
  } catch (error) {
    return { code: (error as IpcError).code, message: (error as IpcError).message };
  }
}

// ---- Valid ones ----

const exporter = {
  device: 'MIG-01020304-0506-0708-090a-0b0c0d0e0f10',
  machine: '11121314-1516-1718-191a-1b1c1d1e1f20',
  pid: 4_000_000_000,
  startTime: 2 ** 53 - 1,
  pidNamespace: 4_026_531_836,
};
const handle = Buffer.from(Array.from({ length: 64 }, (_, at) => 255 - at)).toString('base64');
const event: DescriptorFields<'event'> = { kind: 'event', ...exporter, handle };
const range = {
  baseByteLength: 4096,
  byteOffset: 256,
  byteLength: 1024,
  access: 'read-write',
  bufferId: 17,
  generation: 2 ** 48 - 1,
} as const;
const layout = { dtype: 'float32', shape: [3, 2, 5], strides: [-40, 20, 4] };
const legacy: DescriptorFields<'legacy'> = { kind: 'legacy', ...exporter, handle, ...range };
const pool: DescriptorFields<'pool'> = {
  kind: 'pool',
  ...exporter,
  pool: '303132333435363738393a3b3c3d3e3f',
  handle,
  ...range,
  layout: { dtype: 'V12', shape: [], strides: [] },
};
const itself: DescriptorFields<'pool'> = {
  ...pool,
  handle: null,
  baseByteLength: 0,
  byteOffset: 0,
  byteLength: 0,
  layout: undefined,
};
const virtual: DescriptorFields<'virtual'> = {
  kind: 'virtual',
  ...exporter,
  memory: '404142434445464748494a4b4c4d4e4f',
  firstPiece: 2 ** 32 - 1,
  pieces: [1024, 3072],
  ...range,
  access: 'read',
  layout,
};
const channel: AnyFields = {
  kind: 'channel',
  slots: 4,
  stride: 1024,
  byteLength: 120,
  layout: { ...layout, strides: [40, 20, 4] },
  flags: 3,
  memory: { ...virtual, byteOffset: 0, byteLength: 4096, layout: undefined },
};
const valid: Readonly<Record<string, AnyFields>> = {
  legacy,
  'legacy with an event': { ...legacy, layout, readyEvent: event } as AnyFields,
  pool,
  'the pool itself': itself,
  virtual,
  event,
  timeline: { kind: 'timeline' },
  signaler: { kind: 'signaler', last: 2 ** 53 - 1 },
  pinned: { kind: 'pinned', byteLength: 1 },
  channel,
};

// ---- Invalid ones ----

/** The bytes of fields, of which one is replaced by others. */
function withBytes(fields: AnyFields, at: number, bytes: readonly number[]): Buffer {
  const encoded = encodeFields(fields);
  encoded.set(bytes, at);
  return encoded;
}

const ones = (count: number): number[] => new Array<number>(count).fill(255);
const zeros = (count: number): number[] => new Array<number>(count).fill(0);
/** Where the kind's own fields begin: behind the number of the kind and the exporter. */
const OWN = 54;
const HANDLE = 64;
const ID = 16;

const encoded = (fields: AnyFields, changes: object): Buffer =>
  encodeFields({ ...fields, ...changes } as AnyFields);
const withLayout = (changes: object): Buffer =>
  encoded(legacy, { layout: { ...layout, ...changes } });
/** A layout in bytes at the end of a descriptor of plain bytes. */
const withRawLayout = (...bytes: readonly number[]): Buffer =>
  Buffer.concat([encodeFields(legacy).subarray(0, -2), Buffer.from(bytes)]);
const ascii = (text: string): number[] => [text.length, ...Buffer.from(text)];

const positive = 'must be an integer from 1 to 9007199254740991, not';
const size = 'must be an integer from 0 to 9007199254740991, not';

/** What is refused, and what says so. */
const refused: readonly (readonly [name: string, bytes: Uint8Array, message: string])[] = [
  ['no bytes', Buffer.alloc(0), 'the bytes end in the middle of a value'],
  ['an unknown kind', Buffer.from([8]), 'kind: 8 is not below 8'],
  ['too many bytes', Buffer.alloc(4097), '4097 bytes are more than 4096'],
  ['bytes behind it', Buffer.concat([encodeFields(event), Buffer.alloc(2)]), '2 bytes follow its'],
  ['a prefix of a UUID', withBytes(legacy, 1, [2]), 'device: 2 is not below 2'],
  [
    'no process',
    withBytes(legacy, 34, zeros(4)),
    'pid must be an integer from 1 to 4294967295, not 0',
  ],
  ['a negative time', withBytes(legacy, 38, ones(8)), `startTime ${size} -1`],
  [
    'a namespace',
    withBytes(legacy, 46, [0, 0, 0, 0, 0, 0, 32, 0]),
    `pidNamespace ${size} 9007199254740992`,
  ],
  [
    'an invalid field before its end',
    withBytes(legacy, 34, zeros(4)).subarray(0, 40),
    'pid must be',
  ],
  [
    'an allocation without bytes',
    withBytes(legacy, OWN + HANDLE, zeros(8)),
    `baseByteLength ${positive} 0`,
  ],
  ['a negative offset', withBytes(legacy, OWN + HANDLE + 8, ones(8)), `byteOffset ${size} -1`],
  [
    'a range without bytes',
    withBytes(legacy, OWN + HANDLE + 16, zeros(8)),
    `byteLength ${positive} 0`,
  ],
  ['an access', withBytes(legacy, OWN + HANDLE + 24, [2]), 'access: 2 is not below 2'],
  ['a buffer', withBytes(legacy, OWN + HANDLE + 25, ones(8)), `bufferId ${size} -1`],
  ['a generation', withBytes(legacy, OWN + HANDLE + 33, ones(8)), `generation ${size} -1`],
  ['an event', withBytes(legacy, OWN + HANDLE + 42, [2]), 'readyEvent: 2 is above 1'],
  [
    'the process of an event',
    withBytes({ ...legacy, readyEvent: event } as AnyFields, OWN + HANDLE + 76, zeros(4)),
    'pid must be an integer',
  ],
  ['a handle of a pool', withBytes(pool, OWN + ID, [3]), 'handle: 3 is above 1'],
  ['no pieces', withBytes(virtual, OWN + ID + 4, [0]), 'pieces: the list is empty'],
  ['too many pieces', withBytes(virtual, OWN + ID + 4, [254]), 'pieces: 254 is above 253'],
  ['a piece without bytes', withBytes(virtual, OWN + ID + 5, zeros(8)), `pieces ${positive} 0`],
  [
    'the name of a dtype',
    withRawLayout(...ascii('float 32'), 0, 0),
    'layout: that is not the name',
  ],
  [
    'a long name of a dtype',
    withRawLayout(...ascii('a'.repeat(17)), 0, 0),
    'layout: that is not the name',
  ],
  ['too many axes', withRawLayout(...ascii('int8'), 65, 0), 'layout: 65 is above 64'],
  [
    'a negative length',
    withRawLayout(...ascii('int8'), 1, ...ones(8), ...zeros(9)),
    `layout ${size} -1`,
  ],
  [
    'a stride',
    withRawLayout(...ascii('int8'), 1, ...zeros(8), 0, 0, 0, 0, 0, 0, 224, 255, 0),
    'layout must be an integer from -9007199254740991 to 9007199254740991, not -9007199254740992',
  ],
  ['the last value of a signaler', Buffer.from([5, ...ones(8)]), `last ${size} -1`],
  ['page-locked memory without bytes', Buffer.from([6, ...zeros(8)]), `byteLength ${positive} 0`],
  [
    'a channel without slots',
    withBytes(channel, 1, zeros(4)),
    'slots must be an integer from 1 to 4294967295, not 0',
  ],
  ['a channel without distance', withBytes(channel, 5, zeros(8)), `stride ${positive} 0`],
  ['a timeline with fields', Buffer.from([4, 0]), '1 bytes follow its end'],
  // Together.
  [
    'a range beyond its allocation',
    encoded(legacy, { byteOffset: 3073 }),
    'names bytes 3073 to 4097 of an allocation of process 4000000000 that has 4096',
  ],
  [
    'pieces of another size',
    encoded(virtual, { pieces: [1024, 3071] }),
    'of kind virtual:\nthe pieces must add up to baseByteLength',
  ],
  [
    'pieces of another size in a channel',
    encoded(channel, { memory: { ...virtual, pieces: [1] } }),
    'the pieces must add up',
  ],
  [
    'a pool with a size',
    encoded(itself, { baseByteLength: 1 }),
    'of kind pool:\nthe pool itself has size 0',
  ],
  ['a pool with a layout', encoded(itself, { layout }), 'the pool itself has size 0'],
  ['a pool with an event', encoded(itself, { readyEvent: event }), 'the pool itself has size 0'],
  ['a pool with a range', encoded(itself, { byteLength: 1 }), 'names bytes 0 to 1 of'],
  [
    'memory of a pool without bytes',
    encoded(pool, { byteLength: 0 }),
    'the pool itself has size 0',
  ],
  ['an unknown dtype', withLayout({ dtype: 'float33' }), 'is invalid: '],
  ['another name of a dtype', withLayout({ dtype: 'f4' }), 'is invalid: '],
  ['raw items without bytes', withLayout({ dtype: 'V0' }), 'is invalid: '],
  ['raw items with two names', withLayout({ dtype: 'V04' }), 'is invalid: '],
  ['raw items that are too large', withLayout({ dtype: 'V2147483648' }), 'is invalid: '],
  ['an array without items', withLayout({ shape: [3, 0, 5] }), 'is invalid: it has no items'],
  [
    'items beyond the range',
    withLayout({ shape: [3, 2, 242] }),
    'is invalid: its items take 1068 bytes',
  ],
  [
    'too many items',
    withLayout({ shape: [2 ** 30, 2 ** 30, 1], strides: [0, 0, 4] }),
    'is invalid: ',
  ],
  [
    'items of too many bytes',
    withLayout({ shape: [2 ** 26, 2 ** 26, 1], strides: [0, 0, 4] }),
    'is invalid: ',
  ],
  [
    'too many items beside an empty axis',
    withLayout({ shape: [2 ** 30, 2 ** 30, 0], strides: [0, 0, 4] }),
    'is invalid: ',
  ],
];

describe('descriptors in Python', options, () => {
  test('every kind is read, and written as the same bytes', () => {
    const bytes = Object.values(valid).map((fields) => encodeFields(fields));
    const found = decodedInPython(bytes);
    for (const [at, name] of Object.keys(valid).entries()) {
      const hex = bytes[at]?.toString('hex');
      assert.equal(found[at]?.encoded, hex, `${name}: ${found[at]?.message}`);
      assert.equal(found[at]?.again, hex, name);
      const isPool = name.includes('pool');
      assert.equal(found[at]?.pool, isPool ? pool.pool : '', name);
    }
  });

  test('each refusal names the field, as in Node', () => {
    const found = decodedInPython(refused.map(([, bytes]) => bytes));
    for (const [at, [name, bytes, message]] of refused.entries()) {
      const { code, message: said = 'it was read' } = found[at] as Decoded;
      assert.ok(said.includes(message), `${name}: ${said}`);
      assert.equal(code, 'invalid-descriptor', name);
      const here = decodedHere(bytes);
      assert.equal(here.code, code, name);
      assert.ok(here.message?.includes(message), `${name}: ${here.message}`);
    }
  });

  test('whatever is changed in a descriptor, both read it or both refuse it', () => {
    const bases = Object.values(valid).map((fields) => encodeFields(fields));
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
