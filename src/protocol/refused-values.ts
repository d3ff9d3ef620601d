/** Test vectors of values, and of the objects in them, that every end must refuse, with the code of its error. */
import { cut, longer, samples } from './objects.ts';
import {
  type Bytes,
  byte,
  type Fields,
  integer,
  latin1,
  length,
  number,
  type PlainWriter,
  table,
  utf16,
  type Vector,
} from './writer.ts';

/** The codes of errors. */
export const FAILED = 'ipc-failed';
export const EXCEEDED = 'limit-exceeded';
export const INVALID = 'invalid-descriptor';

/** The first number that is no longer a safe integer. */
export const UNSAFE = 2 ** 53;

export function* refusedValues(writer: PlainWriter): Iterable<Vector> {
  yield* values(writer);
  yield* controlBlocks(writer);
  yield* messages(writer);
  yield* fields(writer);
}

// ---- Values ----

function* values(writer: PlainWriter): Iterable<Vector> {
  const tagged = writer.tagged.bind(writer);
  const value = writer.value.bind(writer);
  const refused = (name: string, hex: Bytes, code = FAILED): Vector => ({
    name,
    of: 'value',
    hex,
    code,
  });
  const exceeded = (name: string, hex: Bytes): Vector => refused(name, hex, EXCEEDED);
  /** What is known only when the value is built: the connection goes on. */
  const repeated = (name: string, hex: Bytes): Vector => ({
    ...refused(name, hex),
    connection: 'goes on',
  });
  /** A list of so many parts of the same bytes. */
  const many = (tag: string, repeat: string, times: number): Bytes => [
    tagged(tag, length(times)),
    { repeat, times },
  ];

  yield refused('no value', '');
  for (const tag of [19, 255]) yield refused(`the tag ${tag}`, byte(tag));
  for (const each of [
    7,
    0.5,
    'abc',
    '水',
    { $bigint: '5' },
    { $date: 0 },
    { $binary: 'Int8Array', hex: '0102' },
  ])
    yield refused(`a value without its last byte: ${JSON.stringify(each)}`, cut(value(each), -1));
  yield refused('a string of more bytes than follow', tagged('latin1', length(5), latin1('abcd')));
  yield refused('a length of five bytes', tagged('latin1', '8180808000', latin1('a')));
  yield refused('a length that overflows', tagged('array', 'ffffffffff7f'));
  yield refused('the greatest length', tagged('array', 'ffffff7f'));
  yield refused('half a character', tagged('utf16', length(3), '610062'));
  yield refused('a bigint without digits', tagged('bigint', '00', length(0)));
  yield refused('a bigint of other digits', tagged('bigint', '00', length(2), latin1('FF')));
  yield refused('a bigint of another sign', tagged('bigint', '02', length(2), latin1('ff')));
  const digits = writer.limit('bigintDigits') + 1;
  yield exceeded('a bigint of too many digits', [
    tagged('bigint', '00', length(digits)),
    { repeat: '31', times: digits },
  ]);
  yield refused(
    'an array of more items than follow',
    tagged('array', length(3), value(1), value(2)),
  );
  yield refused('an object that ends after a name', tagged('object', length(1), value('abc')));
  yield refused(
    'an object of more names than follow',
    tagged('object', length(2), value('a'), value(1)),
  );
  yield refused('a name that is no string', tagged('object', length(1), value(7), value(null)));
  yield repeated(
    'a name twice',
    tagged('object', length(2), value('a'), value(1), value('a'), value(2)),
  );
  yield repeated(
    'a name twice, as Latin-1 and as UTF-16',
    tagged(
      'object',
      length(2),
      value('ab'),
      value(1),
      tagged('utf16', length(4), utf16('ab')),
      value(2),
    ),
  );
  const proto = '__proto__';
  yield refused('the name __proto__', tagged('object', length(1), value(proto), value(1)));
  yield refused(
    'the name __proto__ as UTF-16',
    tagged('object', length(1), tagged('utf16', length(18), utf16(proto)), value(1)),
  );
  const name = writer.limit('nameLength') + 1;
  yield exceeded('a name that is too long', [
    tagged('object', length(1)) + tagged('latin1', length(name)),
    { repeat: '61', times: name },
    value(1),
  ]);
  yield exceeded('a name of UTF-16 that is too long', [
    tagged('object', length(1)) + tagged('utf16', length(2 * name)),
    { repeat: '346c', times: name },
    value(1),
  ]);
  const types = writer.facts.binaryTypes.length;
  yield refused('binary data of an unknown type', tagged('binary', byte(types), length(1), '00'));
  yield refused('half an item', tagged('binary', byte(9), length(6), '000000000000'));
  yield refused(
    'binary data of more bytes than follow',
    tagged('binary', byte(2), length(4), '000000'),
  );
  const hole = value({ $hole: true });
  yield refused('a hole', hole);
  yield refused('a hole in an object', tagged('object', length(1), value('a'), hole));
  yield refused('a hole as the value of a Map', tagged('map', length(1), value('a'), hole));
  yield refused('a hole in a Set', tagged('set', length(1), hole));
  yield refused('a hole as a cause', tagged('error', byte(0), byte(16), hole));
  yield refused('a Map that ends after a key', tagged('map', length(1), value('abc')));
  for (const [what, first, second] of [
    ['a string', value('a'), value('a')],
    ['a number', value(1), value(1)],
    ['a number, in four bytes and in eight', value(1), tagged('float64', number(1))],
    ['null', value(null), value(null)],
    ['a bigint', value({ $bigint: '9' }), value({ $bigint: '9' })],
  ] as const) {
    yield repeated(
      `a key twice: ${what}`,
      tagged('map', length(2), first, value(1), second, value(2)),
    );
    yield repeated(`a member twice: ${what}`, tagged('set', length(2), first, second));
  }
  yield refused(
    'an error of an unknown class',
    tagged('error', byte(writer.facts.errorTypes.length), byte(0)),
  );
  yield refused('an error of unknown fields', tagged('error', byte(0), byte(32)));
  yield refused('an error whose message is no string', tagged('error', byte(0), byte(2), value(7)));
  yield refused('an error without its message', tagged('error', byte(0), byte(2)));
  yield refused(
    'an error of more errors than follow',
    tagged('error', byte(7), byte(0), length(2), value(1)),
  );

  const depth = writer.limit('valueDepth') + 1;
  const nested = (what: string, repeat: string): Vector =>
    refused(`${what} of 65 levels`, [{ repeat, times: depth }, value(1)], EXCEEDED);
  yield nested('arrays', tagged('array', length(1)));
  yield nested('objects', tagged('object', length(1), value('a')));
  yield nested('Maps', tagged('map', length(1), value('a')));
  yield nested('Sets', tagged('set', length(1)));
  yield nested('causes', tagged('error', byte(0), byte(16)));
  yield exceeded('errors in an error of 66 levels', [
    { repeat: tagged('error', byte(7), byte(0), length(1)), times: (depth + 1) / 2 },
    value(1),
  ]);
  yield exceeded('an error below 64 levels', [
    { repeat: tagged('array', length(1)), times: depth - 1 },
    tagged('error', byte(0), byte(0)),
  ]);
  yield exceeded('an empty array below 64 levels', [
    { repeat: tagged('array', length(1)), times: depth - 1 },
    tagged('array', length(0)),
  ]);
  const most = writer.limit('valueParts');
  yield exceeded('too many parts', many('array', hole, most));
  yield exceeded('too many parts, of which the last is no hole', [
    tagged('array', length(most)),
    { repeat: hole, times: most - 1 },
    value(null),
  ]);
  yield exceeded(
    'too many GPU objects',
    many('array', tagged('gpuObject'), writer.limit('valueObjects') + 1),
  );
  yield exceeded(
    'too much binary data',
    many('array', tagged('binary', byte(2), length(0)), writer.limit('valueBinaries') + 1),
  );
  yield exceeded(
    'too many Maps',
    many('array', tagged('map', length(0)), writer.limit('valueCollections') + 1),
  );
}

// ---- Control blocks ----

function* controlBlocks(writer: PlainWriter): Iterable<Vector> {
  const f = writer.field.bind(writer);
  const points = writer.points.bind(writer);
  const refused = (alone: boolean) =>
    function refusal(name: string, hex: Bytes, { code = FAILED, fds = 0 } = {}): Vector {
      return { name, of: 'control', hex, alone, fds, code };
    };
  const alone = refused(true);
  const behind = refused(false);
  const released = (lease: number, isFinal: number, behindWork = points([])): string =>
    number(lease) + byte(isFinal) + behindWork;

  yield alone('an unknown control field', byte(10));
  yield alone('the control field 0', byte(0));
  yield alone('control fields out of order', f('closing') + f('revoked', length(1), number(1)));
  yield alone('a control field twice', f('closing') + f('closing'));
  yield alone('points without a value', f('points', points([[1, 1]])));
  yield alone('no points without a value', f('points', points([])));
  yield alone('a page without its descriptor', f('timelinePage'));
  yield alone('a page with two descriptors', f('timelinePage'), { fds: 2 });
  yield alone('a page with something else', f('timelinePage') + f('closing'), { fds: 1 });
  yield alone('a descriptor with nothing', f('closing'), { fds: 1 });
  yield behind('a page with a value', f('timelinePage'));
  yield behind('closing with a value', f('closing'));
  yield behind('done with a value', f('done'));
  yield behind('begun with a value', f('begun', byte(1)));
  yield behind(
    'requests to forward with a value',
    f('forwardRequests', length(1), number(1), number(2), number(3)),
  );
  yield alone(
    'requests to forward without links',
    f('forwardRequests', length(1), number(1), number(2), number(3)),
  );
  yield alone('no releases', f('released', length(0)));
  yield alone('no revocations', f('revoked', length(0)));
  yield alone('no closed pools', f('closedPools', length(0)));
  yield alone(
    'more releases than follow',
    f('released', length(3), released(1, 1), released(2, 1)),
  );
  yield alone('a release that is neither', f('released', length(1), released(1, 2)));
  for (const lease of [0.5, -1, UNSAFE, Number.NaN, Number.POSITIVE_INFINITY])
    yield alone(`the lease ${lease}`, f('revoked', length(1), number(lease)));
  yield alone(
    'a process of no number',
    f('forwardRequests', length(1), number(1), number(-2), number(3)),
    { fds: 1 },
  );
  yield behind('a counter beyond the page', f('points', points([[512, 1]])));
  yield behind('a point at 0', f('points', points([[1, 0]])));
  yield behind('a point at half', f('points', points([[1, 1.5]])));
  yield behind('points that end in the middle', cut(f('points', points([[1, 1]])), -1));
  const point = length(1) + number(1);
  yield behind('too many points', [f('points', length(513)), { repeat: point, times: 513 }], {
    code: EXCEEDED,
  });
  const entries = writer.limit('controlEntries') + 1;
  yield alone(
    'too many revocations',
    [f('revoked', length(entries)), { repeat: number(1), times: entries }],
    { code: EXCEEDED },
  );
  const allCounters = points(Array.from({ length: 500 }, (_, index) => [index, 1]));
  yield alone(
    'too many points in releases',
    [f('released', length(5)), { repeat: released(1, 0, allCounters), times: 5 }],
    { code: EXCEEDED },
  );
  yield alone('half a pool', f('closedPools', length(1), '00'.repeat(15)));
  for (const begun of [0, 4, 5, 7, 255]) yield alone(`begun: ${begun}`, f('begun', byte(begun)));
  yield alone('begun without its byte', f('begun'));
}

// ---- Messages with a value ----

function* messages(writer: PlainWriter): Iterable<Vector> {
  const refused = (name: string, hex: Bytes, { fds = 0, code = FAILED } = {}): Vector => ({
    name,
    of: 'message',
    hex,
    fds,
    code,
  });
  const place = writer.value({ $object: 0 });
  const timeline = { fds: 2, hex: writer.object(samples.timeline) };
  const pinned = { fds: 1, hex: writer.object(samples.pinned) };
  yield refused('an object without a table', place);
  yield refused('a table without its last byte', cut(place + table(0, [pinned]), -1), { fds: 1 });
  yield refused(
    'a table of fewer objects',
    writer.value([{ $object: 0 }, { $object: 1 }]) + table(0, [pinned]),
    { fds: 1 },
  );
  yield refused('a table of more objects', place + table(0, [pinned, pinned]), { fds: 2 });
  for (const lease of [-1, 0.5, UNSAFE, Number.NaN])
    yield refused(`the first lease ${lease}`, place + table(lease, [pinned]), { fds: 1 });
  yield refused('leases that overflow', place + table(UNSAFE - 1, [pinned]), { fds: 1 });
  yield refused(
    'a link that is neither',
    place + number(0) + length(2) + byte(2) + length(1) + timeline.hex,
    { fds: 3 },
  );
  yield refused('fewer descriptors than the table has', place + table(0, [timeline]), { fds: 1 });
  yield refused('more descriptors than the table has', place + table(0, [timeline]), { fds: 3 });
  yield refused('an object without its link', place + table(0, [{ ...timeline, link: true }]), {
    fds: 2,
  });
  yield refused('descriptors without objects', writer.value(1), { fds: 1 });
  const most = writer.limit('objectByteLength');
  yield refused(
    'the fields of an object are too long',
    [place + number(0) + length(0) + byte(0) + length(most + 1), { repeat: '00', times: most + 1 }],
    { code: EXCEEDED },
  );
  const count = writer.limit('tableByteLength') / most;
  const one = length(0) + byte(0) + length(most) + '00'.repeat(most);
  yield refused(
    'a table that is too long',
    [
      writer.tagged('array', length(count)),
      { repeat: place, times: count },
      number(0),
      { repeat: one, times: count },
    ],
    { code: EXCEEDED },
  );
  const longest = writer.limit('valueByteLength');
  yield refused(
    'a value that is too long',
    [writer.tagged('latin1', length(longest)), { repeat: '61', times: longest }],
    { code: EXCEEDED },
  );
  const block = writer.limit('controlByteLength');
  yield refused(
    'a control block that is too long',
    [writer.value(null), { repeat: '00', times: block + 1 }],
    { code: EXCEEDED },
  );
  yield refused('bytes that follow the value', `${writer.value(null)}ff`);
}

// ---- The fields of objects ----

function* fields(writer: PlainWriter): Iterable<Vector> {
  const { legacy, array, pool, wholePool, virtual, event, timeline, signaler, pinned, channel } =
    samples;
  const refused = (name: string, hex: Bytes): Vector => ({
    name,
    of: 'fields',
    hex,
    code: INVALID,
  });
  /** Fields of which some are wrong: their values, or their bytes. */
  const wrong = (
    name: string,
    sample: Fields & { readonly kind: string },
    values: Fields,
    raw: Readonly<Record<string, string>> = {},
  ): Vector => {
    const fields = { ...sample, ...values };
    const hasForms = writer.facts.kinds.some(
      ({ name: kind, hasExporter }) => kind === fields.kind && hasExporter,
    );
    // Bytes that are not a field, and numbers that JSON lacks, come as bytes only.
    const isPlain = Object.keys(raw).length === 0 && isJson(fields);
    return {
      ...refused(name, writer.object(fields, raw)),
      ...(hasForms && isPlain && { json: writer.message(fields) }),
    };
  };
  const memory = (values: Fields): Fields => ({
    memory: { ...(channel['memory'] as Fields), ...values },
  });
  const layoutOf = (
    dtype: string,
    shape: readonly (number | bigint)[],
    strides: readonly (number | bigint)[],
  ) => ({
    layout: { dtype, shape, strides },
  });

  yield refused('no fields', '');
  for (const kind of [8, 255])
    yield refused(`an object of kind ${kind}`, byte(kind) + writer.fields(pinned));
  for (const [what, sample] of Object.entries({
    legacy,
    pool,
    virtual,
    event,
    signaler,
    pinned,
    channel,
  })) {
    yield refused(`${what}: the last byte is missing`, cut(writer.object(sample), -1));
    yield refused(`${what}: a byte follows`, longer(writer.object(sample)));
  }
  yield refused('timeline: a byte follows', longer(writer.object(timeline)));
  yield refused('an event in place of memory', byte(0) + writer.fields(event));
  yield refused('memory in place of an event', byte(3) + writer.fields(legacy));
  yield refused('memory in place of a channel', byte(7) + writer.fields(virtual));
  yield wrong('a device of another prefix', legacy, {}, { device: `02${'00'.repeat(16)}` });
  yield wrong('the process 0', event, { pid: 0 });
  for (const startTime of [UNSAFE, -1])
    yield wrong(`the start time ${startTime}`, event, { startTime });
  yield wrong('an unsafe pid namespace', legacy, { pidNamespace: 2n ** 63n });
  yield wrong('an allocation of no bytes', legacy, {
    baseByteLength: 0,
    byteOffset: 0,
    byteLength: 0,
  });
  yield wrong('a range of no bytes', legacy, { byteLength: 0 });
  yield wrong('an unsafe size', legacy, { baseByteLength: UNSAFE });
  yield wrong('an offset below 0', legacy, { byteOffset: -1 });
  yield wrong('an unsafe number of a buffer', legacy, { bufferId: UNSAFE });
  yield wrong('an unsafe generation', legacy, { generation: UNSAFE });
  yield wrong('a range that reaches beyond its allocation', legacy, {
    byteOffset: 2_097_152 - 1023,
  });
  yield wrong('a range whose end overflows', legacy, {
    byteOffset: UNSAFE - 1,
    byteLength: UNSAFE - 1,
    baseByteLength: UNSAFE - 1,
  });
  yield wrong('an unknown access', legacy, {}, { access: '02' });
  yield wrong('a ready event that is neither', legacy, {}, { readyEvent: '02' });
  yield wrong('a ready event without its fields', legacy, {}, { readyEvent: '01' });
  yield wrong('a ready event of no process', legacy, { readyEvent: { ...event, pid: 0 } });
  yield wrong('an unknown dtype', array, layoutOf('float33', [4], [4]));
  yield wrong('a dtype by another name', array, layoutOf('<f4', [4], [4]));
  yield wrong('raw items of a number with zeros', array, layoutOf('V012', [4], [12]));
  yield wrong('a dtype of 17 characters', array, layoutOf('a'.repeat(17), [4], [4]));
  yield wrong('65 axes', array, layoutOf('uint8', new Array(65).fill(1), new Array(65).fill(1)));
  yield wrong('an array of no items', array, layoutOf('uint8', [0], [1]));
  yield wrong('an axis below 0', array, layoutOf('uint8', [-1], [1]));
  yield wrong('an unsafe axis', array, layoutOf('uint8', [UNSAFE], [0]));
  yield wrong('an unsafe stride', array, layoutOf('uint8', [1], [-UNSAFE]));
  yield wrong('items beyond the range', array, layoutOf('uint8', [1025], [1]));
  yield wrong(
    'items beyond the range by their strides',
    array,
    layoutOf('uint8', [2, 2], [-512, 512]),
  );
  yield wrong('axes whose product is unsafe', array, layoutOf('uint8', [2 ** 30, 2 ** 30], [0, 0]));
  yield wrong(
    'items whose end overflows',
    array,
    layoutOf('uint8', [UNSAFE - 1, 2], [UNSAFE - 1, 1]),
  );
  yield wrong(
    'a layout without strides',
    array,
    {},
    { layout: `05${latin1('uint8')}01${integer(4, 8)}`, readyEvent: '' },
  );
  yield wrong('a handle that is neither', pool, {}, { handle: '02' });
  yield wrong('a pool of some size', wholePool, { baseByteLength: 1024 });
  yield wrong('a pool with a range', wholePool, { byteLength: 1 });
  yield wrong('a pool with a layout', wholePool, layoutOf('uint8', [], []));
  yield wrong('a pool with a ready event', wholePool, { readyEvent: event });
  yield wrong('memory of a pool of no bytes', pool, { byteLength: 0 });
  yield wrong('virtual memory of no pieces', virtual, { pieces: [] });
  yield wrong('virtual memory of 254 pieces', virtual, {
    pieces: new Array(254).fill(1),
    baseByteLength: 254,
    byteOffset: 0,
    byteLength: 254,
  });
  yield wrong('a piece of no bytes', virtual, { pieces: [0, 8_388_608] });
  yield wrong('pieces that do not add up', virtual, { pieces: [2_097_152, 4_194_304] });
  yield wrong('pieces that overflow', virtual, { pieces: [UNSAFE - 1, UNSAFE - 1] });
  yield wrong('more pieces than follow', virtual, {}, { pieces: `ff${integer(1, 8)}` });
  for (const last of [-1, UNSAFE]) yield wrong(`a signaler at ${last}`, signaler, { last });
  for (const byteLength of [0, -1, UNSAFE])
    yield wrong(`page-locked memory of ${byteLength} bytes`, pinned, { byteLength });
  for (const count of [0, 1025, 2 ** 32 - 1])
    yield wrong(`a channel of ${count} slots`, channel, { slots: count });
  yield wrong('slots that reach into the next', channel, { stride: 524_032 });
  yield wrong('slots beyond the memory', channel, { slots: 5 });
  yield wrong('slots whose size overflows', channel, { slots: 1024, stride: UNSAFE - 1 });
  yield wrong(
    'slots that do not begin with the memory',
    channel,
    memory({ byteOffset: 256, byteLength: 2_097_152 - 256 }),
  );
  yield wrong('a slot of no bytes', channel, { byteLength: 0 });
  yield wrong('slots at one place', channel, { stride: 0 });
  yield wrong('a channel without a layout', channel, { layout: undefined });
  yield wrong(
    'a channel of arrays that are longer than a slot',
    channel,
    layoutOf('float32', [512, 1024], [4096, 4]),
  );
  yield wrong(
    'a channel of arrays whose end overflows',
    channel,
    layoutOf('uint8', [2, 2], [UNSAFE - 1, 1]),
  );
  yield wrong('a channel of an unknown dtype', channel, layoutOf('float33', [4], [4]));
  yield wrong('a channel of a dtype by another name', channel, layoutOf('<f4', [4], [4]));
  yield wrong(
    'the memory of a channel reaches beyond its allocation',
    channel,
    memory({ byteLength: 2_097_153 }),
  );
  yield wrong('the memory of a channel is of no process', channel, memory({ pid: 0 }));
}

/** JSON has no bigint. */
function isJson(fields: Fields): boolean {
  try {
    JSON.stringify(fields);
    return true;
  } catch {
    return false;
  }
}
