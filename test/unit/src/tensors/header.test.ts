import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { bfloat16, float8_e4m3fn, float32, uint8 } from '../../../../src/dtype.ts';
import { SafetensorError } from '../../../../src/errors.ts';
import {
  arrayTypeOf,
  formatHeader,
  headerByteLength,
  parseHeader,
  tensorDtypeOf,
} from '../../../../src/tensors/header.ts';

/** Parses a header whose file has so many bytes behind it. */
const parse = (header: string, dataByteLength = 0): ReturnType<typeof parseHeader> => {
  const bytes = Buffer.from(header);
  return parseHeader(bytes, 8 + bytes.byteLength + dataByteLength, 'a.safetensors');
};
const entry = (dtype: string, shape: unknown, offsets: unknown): string =>
  JSON.stringify({ dtype, shape, data_offsets: offsets });

describe('parseHeader', () => {
  test('reads names, dtypes, shapes and where the bytes are', () => {
    const text = `{"__metadata__":{"format":"pt"},"a":${entry('F32', [2, 3], [0, 24])},"b":${entry('BF16', [], [24, 26])}}  `;
    const { tensors, metadata } = parse(text, 26);
    const start = 8 + text.length;
    assert.deepEqual(
      [...tensors],
      [
        ['a', { dtype: 'F32', shape: [2, 3], begin: start, end: start + 24 }],
        ['b', { dtype: 'BF16', shape: [], begin: start + 24, end: start + 26 }],
      ],
    );
    assert.deepEqual([...metadata], [['format', 'pt']]);
    assert.deepEqual(parse('{}'), { tensors: new Map(), metadata: new Map() });
  });

  test('takes names as data, and of a name that occurs twice the last entry', () => {
    const names = ['__proto__', 'constructor', '', 'a\u0000b', '🙂'];
    const members = names.map((name) => `${JSON.stringify(name)}:${entry('U8', [0], [0, 0])}`);
    const { tensors } = parse(`{${members}}`);
    assert.deepEqual([...tensors.keys()], names);
    assert.equal(tensors.get('__proto__')?.dtype, 'U8');
    const twice = parse(`{"a":${entry('F64', [1], [0, 8])},"a":${entry('U8', [2], [0, 2])}}`, 2);
    assert.deepEqual(twice.tensors.get('a')?.shape, [2]);
    const { metadata } = parse('{"__metadata__":{"__proto__":"x"}}');
    assert.deepEqual([...metadata], [['__proto__', 'x']]);
  });

  test('accepts tied weights and empty tensors anywhere between others', () => {
    const tied = `{"a":${entry('U8', [4], [0, 4])},"b":${entry('F32', [1], [0, 4])},"c":${entry('U8', [4], [4, 8])}}`;
    assert.equal(parse(tied, 8).tensors.size, 3);
    const empty = `{"a":${entry('U8', [0, 9], [0, 0])},"b":${entry('U8', [2], [0, 2])},"c":${entry('F64', [0], [2, 2])},"d":${entry('U8', [1], [2, 3])},"e":${entry('U8', [0], [3, 3])}}`;
    assert.equal(parse(empty, 3).tensors.size, 5);
  });

  const huge = 2 ** 53 - 1;
  const refused: readonly (readonly [
    header: string,
    data: number,
    message: RegExp,
    tensor?: string,
  ])[] = [
    ['', 0, /does not begin with \{/],
    [' {}', 0, /does not begin with \{/],
    ['[]', 0, /does not begin with \{/],
    ['\ufeff{}', 0, /does not begin with \{/],
    ['{', 0, /is not JSON in UTF-8/],
    ['{}}', 0, /is not JSON in UTF-8/],
    ['{}', 1, /the last 1 bytes of the file belong to no tensor/],
    ['{"__metadata__":[]}', 0, /__metadata__ must be an object of JSON, not a list/],
    ['{"__metadata__":null}', 0, /__metadata__ must be an object of JSON, not null/],
    ['{"__metadata__":{"a":1}}', 0, /__metadata__: the value of "a" must be a string, not 1/],
    ['{"a":7}', 0, /its entry must be an object, not 7/, 'a'],
    ['{"a":{}}', 0, /unknown dtype undefined/, 'a'],
    [
      '{"a":{"__proto__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}',
      0,
      /unknown dtype/,
      'a',
    ],
    [`{"a":${entry('F99', [1], [0, 1])}}`, 1, /unknown dtype "F99"; known: BOOL,U8/, 'a'],
    [`{"a":${entry('toString', [1], [0, 1])}}`, 1, /unknown dtype "toString"/, 'a'],
    [`{"a":${entry('U8', 1, [0, 1])}}`, 1, /its shape must be a list of integers/, 'a'],
    [`{"a":${entry('U8', [-1], [0, 1])}}`, 1, /its shape must be a list of integers/, 'a'],
    [`{"a":${entry('U8', [0.5], [0, 1])}}`, 1, /its shape must be a list of integers/, 'a'],
    [`{"a":${entry('U8', ['1'], [0, 1])}}`, 1, /its shape must be a list of integers/, 'a'],
    ['{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', 0, /its shape must be/, 'a'],
    [`{"a":${entry('U8', [1], [0])}}`, 1, /its data_offsets must be two integers/, 'a'],
    [`{"a":${entry('U8', [1], [0, 1, 2])}}`, 1, /its data_offsets must be two integers/, 'a'],
    [`{"a":${entry('U8', [1], [-1, 0])}}`, 1, /its data_offsets must be two integers/, 'a'],
    [`{"a":${entry('U8', [1], [0, 2 ** 53])}}`, 1, /its data_offsets must be two integers/, 'a'],
    [`{"a":${entry('U8', [1], [1, 0])}}`, 1, /its bytes end at 0, before they begin at 1/, 'a'],
    [
      `{"a":${entry('U8', [3], [0, 3])}}`,
      2,
      /its bytes end at 3, and the file has 2: it was trunc/,
      'a',
    ],
    [
      `{"a":${entry('F32', [2], [0, 4])}}`,
      4,
      /its 4 bytes are not those of shape \[2\] and dtype F32/,
      'a',
    ],
    [
      `{"a":${entry('F32', [], [0, 8])}}`,
      8,
      /its 8 bytes are not those of shape \[\] and dtype F32/,
      'a',
    ],
    [`{"a":${entry('U8', [huge, huge, huge], [0, 1])}}`, 1, /its 1 bytes are not those of/, 'a'],
    // 2^64 bytes, which are 0 in 64 bits.
    [`{"a":${entry('U8', [2 ** 32, 2 ** 32], [0, 0])}}`, 0, /its 0 bytes are not those of/, 'a'],
    // 3 items of 4 bits are one byte and a half.
    [
      `{"a":${entry('F4', [3], [0, 1])}}`,
      1,
      /its 1 bytes are not those of shape \[3\] and dtype F4/,
      'a',
    ],
    [`{"a":${entry('U8', [1], [1, 2])}}`, 2, /1 bytes before it belong to no tensor/, 'a'],
    [
      `{"a":${entry('U8', [2], [0, 2])},"b":${entry('U8', [1], [3, 4])}}`,
      4,
      /1 bytes before it/,
      'b',
    ],
    [
      `{"a":${entry('U8', [2], [0, 2])},"b":${entry('U8', [2], [1, 3])}}`,
      3,
      /its bytes overlap/,
      'b',
    ],
    // Neither the same beginning nor the same end make weights tied.
    [
      `{"a":${entry('U8', [2], [0, 2])},"b":${entry('U8', [3], [0, 3])}}`,
      3,
      /its bytes overlap/,
      'b',
    ],
    [
      `{"a":${entry('U8', [3], [0, 3])},"b":${entry('U8', [2], [1, 3])}}`,
      3,
      /its bytes overlap/,
      'b',
    ],
    [`{"a":${entry('U8', [2], [0, 2])}}`, 3, /the last 1 bytes of the file belong to no tensor/],
  ];
  for (const [header, data, message, tensor] of refused)
    test(`refuses ${JSON.stringify(header)} before ${data} bytes`, () => {
      assert.throws(
        () => parse(header, data),
        (error) => {
          assert.ok(error instanceof SafetensorError);
          assert.equal(error.code, 'invalid-safetensors');
          assert.match(error.message, message);
          assert.deepEqual([error.path, error.tensor], ['a.safetensors', tensor]);
          assert.match(error.message, tensor ? /^tensor "a|b" of a\.saf/ : /^a\.safetensors: /);
          return true;
        },
      );
    });

  test('refuses bytes that are not UTF-8', () => {
    const bytes = Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]);
    assert.throws(() => parseHeader(bytes, 15, 'a'), /its header is not JSON in UTF-8/);
  });

  test('a name as long as the file does not fill the message', () => {
    const name = 'x'.repeat(100_000);
    assert.throws(
      () => parse(`{"${name}":1}`),
      (error) =>
        error instanceof SafetensorError && error.message.length < 400 && error.tensor === name,
    );
  });

  test('a shape of very many axes is refused in no time', () => {
    const shape = new Array(200_000).fill(2 ** 52);
    assert.throws(
      () => parse(`{"a":${entry('U8', shape, [0, 1])}}`, 1),
      /its 1 bytes are not those/,
    );
  });
});

describe('headerByteLength', () => {
  const prefix = (size: bigint): Buffer => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(size);
    return bytes;
  };
  test('is at most 100 MB, and ends within the file', () => {
    assert.equal(headerByteLength(prefix(92n), 100, 'a'), 92);
    assert.equal(headerByteLength(prefix(100_000_000n), 2 ** 40, 'a'), 100_000_000);
    const refuse = (size: bigint, file: number, message: RegExp): void =>
      assert.throws(() => headerByteLength(prefix(size), file, 'a'), message);
    refuse(93n, 100, /its header has 93 bytes, and the file only 100: it was truncated/);
    refuse(100_000_001n, 2 ** 40, /more than the 100000000 that are allowed/);
    refuse(2n ** 64n - 1n, 2 ** 40, /its header has 18446744073709551615 bytes, more than/);
    assert.throws(() => headerByteLength(Buffer.alloc(7), 7, 'a'), /it has 7 bytes, and the size/);
  });
});

describe('arrayTypeOf', () => {
  const typeOf = (dtype: string, shape: number[], byteLength: number): unknown => {
    const { tensors } = parse(`{"a":${entry(dtype, shape, [0, byteLength])}}`, byteLength);
    return arrayTypeOf(tensors.get('a') as never);
  };
  test('is a dtype of cuffi, or raw bytes; items that are not whole bytes have one axis', () => {
    assert.deepEqual(typeOf('BF16', [2], 4), { dtype: bfloat16, shape: [2] });
    assert.deepEqual(typeOf('F8_E4M3', [2, 1], 2), { dtype: float8_e4m3fn, shape: [2, 1] });
    assert.deepEqual(typeOf('F8_E8M0', [2, 1], 2), { dtype: uint8, shape: [2, 1] });
    assert.deepEqual(typeOf('F4', [2, 3], 3), { dtype: uint8, shape: [3] });
    assert.deepEqual(typeOf('F6_E3M2', [4], 3), { dtype: uint8, shape: [3] });
    assert.deepEqual([tensorDtypeOf(float32), tensorDtypeOf(uint8)], ['F32', 'U8']);
  });
});

describe('formatHeader', () => {
  test('is padded with spaces to a multiple of 8, and is read back', () => {
    const entries = [
      { name: '__proto__', dtype: 'F32', shape: [1], byteLength: 4 },
      { name: 'é', dtype: 'U8', shape: [], byteLength: 1 },
    ] as const;
    const metadata = new Map([['__proto__', 'x']]);
    const bytes = formatHeader(entries, metadata);
    assert.equal(bytes.byteLength % 8, 0);
    assert.equal(headerByteLength(bytes.subarray(0, 8), 1000, 'a'), bytes.byteLength - 8);
    const read = parseHeader(bytes.subarray(8), bytes.byteLength + 5, 'a');
    assert.deepEqual([...read.tensors.keys()], ['__proto__', 'é']);
    assert.deepEqual(read.metadata, metadata);
    assert.equal(formatHeader([], new Map()).toString('latin1', 8), '{}      ');
  });

  test('refuses names that are not tensors, occur twice, or are no Unicode text', () => {
    const format = (...names: string[]): Buffer =>
      formatHeader(
        names.map((name) => ({ name, dtype: 'U8', shape: [0], byteLength: 0 })),
        new Map(),
      );
    assert.throws(
      () => format('__metadata__'),
      /TypeError: a tensor cannot be called __metadata__/,
    );
    assert.throws(() => format('a', 'a'), /TypeError: two tensors are called "a"/);
    assert.throws(() => format('\ud800'), /TypeError: .* half of a surrogate pair/);
  });
});
