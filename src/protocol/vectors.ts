/**
 * Test vectors of the protocol: bytes, and what every end must read in them. test/protocol/README.md
 * says what the entries mean. Those of a released version are never edited, only added.
 */
import type { Facts } from './facts.ts';
import { objects, samples } from './objects.ts';
import { refusals } from './refusals.ts';
import { words } from './words.ts';
import {
  type Bytes,
  byte,
  integer,
  type Json,
  latin1,
  length,
  number,
  PlainWriter,
  table,
  utf16,
  type Vector,
} from './writer.ts';

/** Returns the text of each file of vectors, by its path in the repository. */
export function vectors(facts: Facts): ReadonlyMap<string, string> {
  const writer = new PlainWriter(facts);
  const files: readonly (readonly [string, string, Iterable<Vector>])[] = [
    ['values', 'Bytes of a value, and the value.', values(writer)],
    ['control-blocks', 'Bytes of a control block, and its fields.', controlBlocks(writer)],
    ['descriptors', 'Descriptors of objects: their fields, as bytes and as JSON.', objects(writer)],
    [
      'messages',
      'Messages with a value: its objects, and the control block behind.',
      messages(writer),
    ],
    ['frames', 'Frames, and the messages that they make up.', frames(writer)],
    ['hellos', 'First frames, and the version that both ends then speak.', hellos(writer)],
    [
      'words',
      'Words of shared memory after operations, and what a reader then finds.',
      words(writer),
    ],
    ['records', 'Records of messages of a channel.', records(writer)],
    ['refused', 'What every end must refuse, and the code of its error.', refusals(writer)],
  ];
  return new Map(
    files.map(([name, about, entries]) => [
      `test/protocol/${name}.json`,
      `${JSON.stringify({ version: writer.version, about }).slice(0, -1)}, "vectors": [\n${[
        ...entries,
      ]
        .map((entry) => JSON.stringify(entry))
        .join(',\n')}\n]}\n`,
    ]),
  );
}

// ---- Values ----

function* values(writer: PlainWriter): Iterable<Vector> {
  /** A value whose bytes any end writes as they are here. */
  const same = (name: string, value: Json): Vector => ({
    name,
    hex: writer.value(value),
    value,
    roundtrip: true,
  });
  /** Bytes that are read, but that an end need not write so. */
  const read = (name: string, hex: Bytes, value: Json): Vector => ({
    name,
    hex,
    value,
    roundtrip: false,
  });
  const tagged = writer.tagged.bind(writer);

  yield same('undefined', { $undefined: true });
  yield same('null', null);
  yield same('false', false);
  yield same('true', true);
  for (const each of [0, -1, 2 ** 31 - 1, -(2 ** 31)]) yield same(`the integer ${each}`, each);
  for (const each of [2 ** 31, -(2 ** 31) - 1, 2 ** 53 - 1, 1 - 2 ** 53, 0.1, 5e-324, 1.5e300])
    yield same(`the number ${each}`, each);
  for (const each of ['-0', 'NaN', 'Infinity', '-Infinity']) yield same(each, { $number: each });
  yield read('an integer as eight bytes', tagged('float64', number(5)), 5);
  yield same('an empty string', '');
  yield same('a string of ASCII', 'frame 1');
  yield same('a string of UTF-16', '水とグラフィックス');
  yield same('a string beyond the basic plane', '🎈');
  yield same('a string with a lone surrogate', 'a\ud800b');
  yield same('a string of 200 bytes', 'x'.repeat(200));
  yield read('a string of Latin-1', tagged('latin1', length(4), latin1('grün')), 'grün');
  yield read('Latin-1 as UTF-16', tagged('utf16', length(8), utf16('grün')), 'grün');
  yield read('a length of more bytes than needed', tagged('latin1', '81808000', latin1('a')), 'a');
  for (const each of [
    0n,
    -1n,
    2n ** 63n - 1n,
    -(2n ** 63n),
    2n ** 63n,
    -(2n ** 63n) - 1n,
    2n ** 200n,
  ])
    yield same(`the bigint ${each}`, { $bigint: String(each) });
  yield read('a bigint with leading zeros', tagged('bigint', '00', length(3), latin1('00f')), {
    $bigint: '15',
  });

  yield same('an empty array', []);
  yield same('nested arrays', [1, [2, [3, null]], true]);
  yield same('an array with holes', [{ $hole: true }, 'x', { $hole: true }]);
  yield same('an empty object', {});
  yield same('an object', { frame: 1, name: 'a', nested: { b: [null, false] } });
  yield same('an object with names of any characters', { '': 1, 'a b': 2, 水: 3 });
  yield read(
    'a name of 16,383 characters',
    [tagged('object', length(1), byte(6), length(16_383)), { repeat: '61', times: 16_383 }, '01'],
    { ['a'.repeat(16_383)]: null },
  );
  const items: readonly (readonly [string, string])[] = [
    ['ArrayBuffer', '00ff'],
    ['DataView', '0102'],
    ['Uint8Array', '0001ff'],
    ['Int8Array', '7f80'],
    ['Uint8ClampedArray', '00ff'],
    ['Uint16Array', '0100ffff'],
    ['Int16Array', '0100ffff'],
    ['Uint32Array', '01000000ffffffff'],
    ['Int32Array', '01000000ffffffff'],
    ['Float32Array', '0000803f000000c0'],
    ['Float64Array', number(0.5) + number(-2)],
    ['BigUint64Array', integer(2n ** 64n - 1n, 8)],
    ['BigInt64Array', integer(-1, 8)],
  ];
  for (const [$binary, hex] of items) yield same(`binary data: ${$binary}`, { $binary, hex });
  yield same('binary data without bytes', { $binary: 'Float64Array', hex: '' });
  for (const each of [0, 1_234_567_890_123, -1]) yield same(`the date ${each}`, { $date: each });
  yield same('an invalid date', { $date: null });
  yield same('an empty Map', { $map: [] });
  yield same('a Map', {
    $map: [
      ['a', 1],
      [2, { $set: ['x', 3] }],
      [{ $bigint: '7' }, null],
    ],
  });
  yield same('a Map with an object as a key', { $map: [[{ a: 1 }, 2]] });
  yield same('a Set', { $set: ['a', 1, null, 0.5] });
  yield same('an error', {
    $error: {
      type: 'Error',
      name: 'Custom',
      message: 'why',
      stack: 'Custom: why\n  at a',
      code: 'closed',
    },
  });
  yield same('an error with a cause', {
    $error: {
      type: 'Error',
      name: 'Custom',
      message: 'why',
      stack: '',
      code: 'c',
      cause: { $error: { type: 'Error', name: 'Inner', message: '水', stack: '', code: 'd' } },
    },
  });
  for (const type of writer.facts.errorTypes.filter((one) => one !== 'AggregateError'))
    yield read(`an error of class ${type}`, writer.value({ $error: { type, message: 'm' } }), {
      $error: { type, message: 'm' },
    });
  const aggregate: Json = {
    $error: {
      type: 'AggregateError',
      message: 'both',
      errors: [{ $error: { type: 'TypeError', message: 'a' } }, 'b'],
      cause: { $error: { type: 'Error', message: 'c' } },
    },
  };
  yield read('an error of several', writer.value(aggregate), aggregate);
  yield read('an error of nothing', writer.value({ $error: { type: 'Error' } }), {
    $error: { type: 'Error' },
  });

  const most = writer.limit('valueDepth');
  const deepest = (inner: Json): Json => {
    let value = inner;
    for (let level = 0; level < most; level += 1) value = [value];
    return value;
  };
  yield same('arrays of 64 levels', deepest(1));
  yield same('what is not a level below 64 levels', deepest({ $bigint: String(2n ** 70n) }));
  yield same('binary data below 64 levels', deepest({ $binary: 'Uint8Array', hex: '01' }));
  yield same('a date below 64 levels', deepest({ $date: 0 }));
}

// ---- Control blocks ----

function* controlBlocks(writer: PlainWriter): Iterable<Vector> {
  const points = [
    [0, 1],
    [511, 4_000_000_000],
  ] as const;
  const ids = ['000102030405060708090a0b0c0d0e0f', 'ff'.repeat(16)];
  const f = writer.field.bind(writer);
  const parts = {
    points: f('points', writer.points(points)),
    released: f(
      'released',
      length(2),
      number(7) + byte(1) + writer.points([]),
      number(2 ** 53 - 1) + byte(0) + writer.points(points),
    ),
    revoked: f('revoked', length(2), number(0), number(300)),
    forwardRequests: f('forwardRequests', length(1), number(3), number(4321), number(98_765)),
    closedPools: f('closedPools', length(2), ...ids),
  };
  const fields = {
    points,
    released: [
      { lease: 7, final: true, points: [] },
      { lease: 2 ** 53 - 1, final: false, points },
    ],
    revoked: [0, 300],
    forwardRequests: [{ lease: 3, pid: 4321, startTime: 98_765 }],
    closedPools: ids,
  };
  const alone = (name: string, hex: string, block: object, fds = 0): Vector => ({
    name,
    hex,
    alone: true,
    fds,
    block,
    roundtrip: true,
  });
  const behind = (name: string, hex: string, block: object): Vector => ({
    ...alone(name, hex, block),
    alone: false,
  });
  yield behind('nothing behind a value', '', {});
  yield behind('points', parts.points, { points });
  yield behind('releases behind a value', parts.released, { released: fields.released });
  const all = ['points', 'released', 'revoked', 'closedPools'] as const;
  yield behind(
    'all that may come with a value',
    all.map((name) => parts[name]).join(''),
    Object.fromEntries(all.map((name) => [name, fields[name]])),
  );
  yield alone('a page of counters', f('timelinePage'), { timelinePage: true }, 1);
  yield alone('releases', parts.released, { released: fields.released });
  yield alone('revocations', parts.revoked, { revoked: fields.revoked });
  yield alone(
    'requests to forward',
    parts.forwardRequests,
    { forwardRequests: fields.forwardRequests },
    1,
  );
  yield alone('closed pools', parts.closedPools, { closedPools: ids });
  yield alone('closing', f('closing'), { closing: true });
  yield alone('done', f('done'), { done: true });
  for (const begun of [1, 2, 3, 6])
    yield alone(`begun: ${begun}`, f('begun', byte(begun)), { begun });
  const { points: _, ...others } = fields;
  yield alone(
    'all that may come alone',
    parts.released +
      parts.revoked +
      f('closing') +
      parts.forwardRequests +
      parts.closedPools +
      f('done') +
      f('begun', byte(3)),
    { ...others, closing: true, done: true, begun: 3 },
    1,
  );
}

// ---- Messages with a value ----

function* messages(writer: PlainWriter): Iterable<Vector> {
  const { pinned, legacy, timeline, virtual } = samples;
  const entry = (fields: { readonly kind: string }, fds: number, link = false) => ({
    fds,
    link,
    hex: writer.object(fields),
  });
  const message = (
    name: string,
    value: Json,
    firstLease: number | null,
    entries: readonly ReturnType<typeof entry>[],
    control = '',
    block = {},
  ): Vector => ({
    name,
    hex: writer.value(value) + (firstLease === null ? '' : table(firstLease, entries)) + control,
    fds: entries.reduce((sum, { fds, link }) => sum + fds + (link ? 1 : 0), 0),
    value,
    firstLease,
    objects: entries,
    block,
  });
  yield message('a value without objects', { a: 1 }, null, []);
  yield message(
    'a value with releases',
    null,
    null,
    [],
    writer.field('revoked', length(1), number(5)),
    {
      revoked: [5],
    },
  );
  yield message('one object', { $object: 0 }, 0, [entry(pinned, 1)]);
  yield message(
    'objects in a value, in order',
    { first: { $object: 0 }, more: [{ $object: 1 }, 'x', { $object: 2 }] },
    41,
    [entry(legacy, 0), entry(timeline, 2), entry(virtual, 3)],
  );
  yield message('an object that was forwarded', [{ $object: 0 }], 2 ** 40, [
    entry(virtual, 3, true),
  ]);
  const points = [[3, 17]] as const;
  yield message(
    'an object behind points',
    { $object: 0 },
    9,
    [entry(legacy, 0)],
    writer.field('points', writer.points(points)),
    { points },
  );
}

// ---- Frames ----

function* frames(writer: PlainWriter): Iterable<Vector> {
  const whole = writer.wholeFrame.bind(writer);
  const nothing = writer.value(null);
  const one = (
    name: string,
    kind: string,
    hex: string,
    { request = 0, fds = 0, sequence = 0 } = {},
  ): Vector => ({
    name,
    frames: [{ hex: whole(hex, { kind, request, sequence }), fds }],
    messages: [{ kind: writer.frame[kind], request, hex, fds }],
  });
  yield one('a value', 'value', writer.value({ frame: 1, name: 'a' }));
  yield one('a value with descriptors', 'value', writer.value([1]), { fds: 3 });
  yield one('a control block', 'control', writer.field('closing'));
  yield one('a request', 'request', writer.value(['status']), { request: 1 });
  yield one('the last number of a request', 'request', writer.value(0), { request: 2 ** 32 - 1 });
  yield one('the answer to a request', 'response', writer.value('ready'), { request: 1 });
  const failure = writer.value({ $error: { type: 'RangeError', message: 'no such frame' } });
  yield one('the failure of a request', 'failure', failure, { request: 1 });
  yield one('the cancellation of a request', 'cancellation', nothing, { request: 1 });
  yield one('the refusal of a request', 'unserved', nothing, { request: 1 });
  const question = writer.value(samples.legacy as Json);
  yield one('a question about a descriptor', 'verification', question, { request: 2 });
  const object = table(7, [{ fds: 0, hex: writer.object(samples.legacy) }]);
  const confirmation = writer.value({ $object: 0 }) + object;
  yield one('the object of a descriptor', 'response', confirmation, { request: 2 });
  const gone = { type: 'Error', name: 'IpcError', message: 'it has ended', code: 'exporter-gone' };
  yield one('the refusal of a descriptor', 'failure', writer.value({ $error: gone }), {
    request: 2,
  });

  const bodies = ['value', 'request', 'response', 'control'].map((kind, sequence) => ({
    kind,
    sequence,
    request: kind === 'request' || kind === 'response' ? 7 : 0,
    hex: kind === 'control' ? writer.field('done') : writer.value(sequence),
  }));
  yield {
    name: 'messages one after the other',
    frames: bodies.map(({ hex, ...header }) => ({ hex: whole(hex, header), fds: 0 })),
    messages: bodies.map(({ kind, request, hex }) => ({
      kind: writer.frame[kind],
      request,
      hex,
      fds: 0,
    })),
  };

  const part = writer.constant('packetByteLength') - writer.constant('headerByteLength');
  for (const [name, count] of [
    ['a message that fills a frame', part - 4],
    ['a message of two frames', part - 3],
    ['a message of three frames', 2 * part],
  ] as const) {
    const start = writer.tagged('latin1', length(count));
    const byteLength = start.length / 2 + count;
    const at = (offset: number) =>
      writer.header({ kind: 'request', request: 3, byteLength, offset });
    const first = Math.min(part, byteLength) - start.length / 2;
    const rest = Array.from({ length: Math.ceil(byteLength / part) - 1 }, (_, index) => ({
      hex: [
        at((index + 1) * part),
        { repeat: '78', times: Math.min(part, byteLength - (index + 1) * part) },
      ],
      fds: 0,
    }));
    yield {
      name,
      frames: [{ hex: [at(0) + start, { repeat: '78', times: first }], fds: 1 }, ...rest],
      messages: [
        {
          kind: writer.frame['request'],
          request: 3,
          hex: [start, { repeat: '78', times: count }],
          fds: 1,
        },
      ],
    };
  }
}

// ---- The first frame ----

function* hellos(writer: PlainWriter): Iterable<Vector> {
  const { version } = writer;
  for (const [min, max, text] of [
    [version, version, 'cuffi 0.3.0 in /app/node_modules/cuffi'],
    [version, version, ''],
    [version, version, 'ein Ende in Größe 水'],
    [version, version, 'x'.repeat(writer.limit('packageNameByteLength'))],
    [version, version + 5, 'a later end'],
    [1, version, 'an end of many versions'],
    [0, 255, 'an end of all versions'],
  ] as const)
    yield {
      name: `versions ${min} to ${max}, ${text === '' ? 'without text' : text.slice(0, 40)}`,
      hex: writer.hello(min, max, text),
      min,
      max,
      text,
      chosen: version,
    };
}

// ---- Records ----

function* records(writer: PlainWriter): Iterable<Vector> {
  for (const [name, slotByteLength, record] of [
    ['neither a layout nor meta', 64, {}],
    ['a slot that was given back', 64, { skipped: true }],
    ['meta', 64, { meta: '{"frame":1,"tags":["a",null,true],"größe":0.5}' }],
    ['meta of 1 KiB', 64, { meta: JSON.stringify('x'.repeat(1022)) }],
    ['meta null', 64, { meta: 'null' }],
    ['a layout', 64, { layout: { dtype: 'float32', shape: [4, 2] } }],
    ['a layout of no axes', 8, { layout: { dtype: 'complex64', shape: [] } }],
    ['a layout of no items', 1, { layout: { dtype: 'uint8', shape: [3, 0] } }],
    ['a layout of raw items', 48, { layout: { dtype: 'V12', shape: [4] } }],
    ['a layout of 64 axes', 2, { layout: { dtype: 'bfloat16', shape: new Array(64).fill(1) } }],
    ['meta of half a character', 64, { meta: '"\\ud800x"' }],
    [
      'a layout of no items beside the longest axis',
      1,
      {
        layout: { dtype: 'int8', shape: [0, 2 ** 53 - 1] },
      },
    ],
    ['a layout and meta', 64, { layout: { dtype: 'bool', shape: [64] }, meta: '[1,"水"]' }],
  ] as const)
    yield { name, slotByteLength, hex: writer.record(record), record, roundtrip: true };
  for (const meta of [' \t\n\r{"a": [1, 2.5e3]} ', '{"a":1,"a":2}', '"\u007f\u2028\\u0000"'])
    yield {
      name: `meta as another end may write it: ${JSON.stringify(meta)}`,
      slotByteLength: 64,
      hex: writer.record({ meta }),
      record: { meta },
      roundtrip: false,
    };
}
