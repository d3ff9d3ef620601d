/** Test vectors of what every end must refuse, with the code of its error. */
import { altered, cut, longer, samples } from './objects.ts';
import {
  type Bytes,
  byte,
  type Fields,
  integer,
  latin1,
  length,
  type MessageRecord,
  number,
  type PlainWriter,
  table,
  utf16,
} from './writer.ts';

type Refusal = { readonly name: string } & { readonly [field: string]: unknown };

/** The codes of errors. */
const FAILED = 'ipc-failed';
const EXCEEDED = 'limit-exceeded';
const INVALID = 'invalid-descriptor';
const CORRUPTED = 'corrupted';
const MISMATCH = 'version-mismatch';
const NO_FD = 'no-file-descriptor';

/** The first number that is no longer a safe integer. */
const UNSAFE = 2 ** 53;

export function* refusals(writer: PlainWriter): Iterable<Refusal> {
  yield* values(writer);
  yield* controlBlocks(writer);
  yield* messages(writer);
  yield* fields(writer);
  yield* descriptors(writer);
  yield* json(writer);
  yield* hellos(writer);
  yield* frames(writer);
  yield* records(writer);
  yield* sharedMemory();
}

// ---- Values ----

function* values(writer: PlainWriter): Iterable<Refusal> {
  const tagged = writer.tagged.bind(writer);
  const value = writer.value.bind(writer);
  const refused = (name: string, hex: Bytes, code = FAILED): Refusal => ({
    name,
    of: 'value',
    hex,
    code,
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
  yield refused(
    'a bigint of too many digits',
    [tagged('bigint', '00', length(digits)), { repeat: '31', times: digits }],
    EXCEEDED,
  );
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
  yield refused(
    'a name twice',
    tagged('object', length(2), value('a'), value(1), value('a'), value(2)),
  );
  yield refused(
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
  yield refused(
    'a name that is too long',
    [
      tagged('object', length(1)) + tagged('latin1', length(name)),
      { repeat: '61', times: name },
      value(1),
    ],
    EXCEEDED,
  );
  yield refused(
    'a name of UTF-16 that is too long',
    [
      tagged('object', length(1)) + tagged('utf16', length(2 * name)),
      { repeat: '346c', times: name },
      value(1),
    ],
    EXCEEDED,
  );
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
    yield refused(
      `a key twice: ${what}`,
      tagged('map', length(2), first, value(1), second, value(2)),
    );
    yield refused(`a member twice: ${what}`, tagged('set', length(2), first, second));
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
  const nested = (what: string, repeat: string): Refusal =>
    refused(`${what} of 65 levels`, [{ repeat, times: depth }, value(1)], EXCEEDED);
  yield nested('arrays', tagged('array', length(1)));
  yield nested('objects', tagged('object', length(1), value('a')));
  yield nested('Maps', tagged('map', length(1), value('a')));
  yield nested('Sets', tagged('set', length(1)));
  yield nested('causes', tagged('error', byte(0), byte(16)));
  yield refused(
    'errors in an error of 66 levels',
    [{ repeat: tagged('error', byte(7), byte(0), length(1)), times: (depth + 1) / 2 }, value(1)],
    EXCEEDED,
  );
  yield refused(
    'an error below 64 levels',
    [{ repeat: tagged('array', length(1)), times: depth - 1 }, tagged('error', byte(0), byte(0))],
    EXCEEDED,
  );
  yield refused(
    'an empty array below 64 levels',
    [{ repeat: tagged('array', length(1)), times: depth - 1 }, tagged('array', length(0))],
    EXCEEDED,
  );
  yield refused('too many parts', many('array', hole, writer.limit('valueParts')), EXCEEDED);
  yield refused(
    'too many GPU objects',
    many('array', tagged('gpuObject'), writer.limit('valueObjects') + 1),
    EXCEEDED,
  );
  yield refused(
    'too much binary data',
    many('array', tagged('binary', byte(2), length(0)), writer.limit('valueBinaries') + 1),
    EXCEEDED,
  );
  yield refused(
    'too many Maps',
    many('array', tagged('map', length(0)), writer.limit('valueCollections') + 1),
    EXCEEDED,
  );
}

// ---- Control blocks ----

function* controlBlocks(writer: PlainWriter): Iterable<Refusal> {
  const f = writer.field.bind(writer);
  const points = writer.points.bind(writer);
  const refused = (alone: boolean) =>
    function refusal(name: string, hex: Bytes, { code = FAILED, fds = 0 } = {}): Refusal {
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

function* messages(writer: PlainWriter): Iterable<Refusal> {
  const refused = (name: string, hex: Bytes, { fds = 0, code = FAILED } = {}): Refusal => ({
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

function* fields(writer: PlainWriter): Iterable<Refusal> {
  const { legacy, array, pool, wholePool, virtual, event, timeline, signaler, pinned, channel } =
    samples;
  const refused = (name: string, hex: Bytes): Refusal => ({
    name,
    of: 'fields',
    hex,
    code: INVALID,
  });
  /** Fields of which some are wrong: their values, or their bytes. */
  const wrong = (
    name: string,
    sample: Fields,
    values: Fields,
    raw: Readonly<Record<string, string>> = {},
  ): Refusal => refused(name, writer.object({ ...sample, ...values }, raw));
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
  yield wrong('a channel of an unknown dtype', channel, layoutOf('float33', [4], [4]));
  yield wrong('a channel of a dtype by another name', channel, layoutOf('<f4', [4], [4]));
  yield wrong(
    'the memory of a channel reaches beyond its allocation',
    channel,
    memory({ byteLength: 2_097_153 }),
  );
  yield wrong('the memory of a channel is of no process', channel, memory({ pid: 0 }));
}

// ---- Descriptors that a program passes on ----

function* descriptors(writer: PlainWriter): Iterable<Refusal> {
  const refused = (
    name: string,
    hex: string,
    code = INVALID,
    versions?: readonly number[],
  ): Refusal => ({
    name: `bytes: ${name}`,
    of: 'descriptor',
    hex,
    code,
    ...(versions && { versions }),
  });
  const fieldsHex = writer.object(samples.array);
  const bytes = writer.descriptor(fieldsHex);
  const { version } = writer;
  yield refused('none', '');
  yield refused('the header alone', cut(bytes, 9));
  yield refused('another magic number', altered(bytes, 0, '43'));
  yield refused('the last byte is missing', cut(bytes, -1));
  yield refused('a byte follows', longer(bytes));
  for (const other of [3, version + 1, 0])
    yield refused(`version ${other}`, writer.descriptor(fieldsHex, other), MISMATCH, [
      other,
      version,
    ]);
  yield refused('another checksum', altered(bytes, 5, '00000000'), CORRUPTED);
  yield refused('a byte of the handle is altered', altered(bytes, 9 + 54 + 10, 'ff'), CORRUPTED);
  yield refused(
    'the checksum of another version',
    writer.descriptor(fieldsHex, version, writer.checksum(fieldsHex, 3)),
    CORRUPTED,
  );
  for (const kind of ['timeline', 'pinned', 'channel'] as const)
    yield refused(`the kind ${kind}`, writer.descriptor(writer.object(samples[kind])));
  const beyond = writer.object({ ...samples.array, byteOffset: 2_097_152 });
  yield refused('a range beyond its allocation', writer.descriptor(beyond));
}

function* json(writer: PlainWriter): Iterable<Refusal> {
  const refused = (
    name: string,
    value: unknown,
    code = INVALID,
    versions?: readonly number[],
  ): Refusal => ({
    name: `JSON: ${name}`,
    of: 'json',
    json: value,
    code,
    ...(versions && { versions }),
  });
  const { version } = writer;
  const readyEvent = samples.event;
  const valid = writer.message({ ...samples.array, readyEvent });
  const validEvent = valid['readyEvent'] as Fields;
  const changed = (name: string, change: Fields, code = INVALID): Refusal =>
    refused(name, { ...valid, ...change }, code);
  const without = (name: string): Fields =>
    Object.fromEntries(Object.entries(valid).filter(([key]) => key !== name));
  for (const [name, value] of [
    ['null', null],
    ['an array', [valid]],
    ['text', JSON.stringify(valid)],
    ['nothing', {}],
  ] as const)
    yield refused(name, value);
  for (const name of ['kind', 'version', 'checksum', 'device', 'handle', 'byteLength'])
    yield refused(`without ${name}`, without(name));
  yield changed('an unknown field', { more: 1 });
  yield changed('an unknown kind', { kind: 'memory' });
  for (const kind of ['timeline', 'channel']) yield changed(`the kind ${kind}`, { kind });
  yield changed('the kind of an event', { kind: 'event' });
  for (const other of [3, version + 1])
    yield refused(`version ${other}`, { ...valid, version: other }, MISMATCH, [other, version]);
  yield changed('a version as text', { version: String(version) });
  yield changed('another checksum', { checksum: 1 }, CORRUPTED);
  yield changed('another size', { byteLength: 1020 }, CORRUPTED);
  yield changed('a checksum that is no number of 32 bits', { checksum: 2 ** 32 });
  yield changed('a process as text', { pid: '4242' });
  yield changed('half a process', { pid: 4242.5 });
  yield changed('an unsafe size', { baseByteLength: UNSAFE });
  yield changed('an offset below 0', { byteOffset: -1 });
  yield changed('a device in capitals', { device: (valid['device'] as string).toUpperCase() });
  yield changed('a device of another prefix', {
    device: (valid['device'] as string).replace('GPU', 'CPU'),
  });
  yield changed('a machine that is no boot id', { machine: '0f1e2d3c' });
  yield changed('an unknown access', { access: 'write' });
  yield changed('a handle of 63 bytes', { handle: Buffer.alloc(63).toString('base64') });
  yield changed('a handle that is not base64', { handle: '!'.repeat(88) });
  yield changed('a handle in another base64', {
    handle: `${(valid['handle'] as string).slice(0, -3)}x==`,
  });
  yield changed('fewer strides than axes', {
    layout: { dtype: 'float32', shape: [16, 16], strides: [4] },
  });
  yield changed('an unknown field of a layout', {
    layout: { dtype: 'float32', shape: [], strides: [], order: 'C' },
  });
  yield changed('an axis as text', { layout: { dtype: 'float32', shape: ['16'], strides: [4] } });
  yield changed('a layout that is text', { layout: 'float32' });
  yield changed('memory in place of a ready event', { readyEvent: writer.message(samples.legacy) });
  yield changed(
    'a ready event of another checksum',
    { readyEvent: { ...validEvent, checksum: 1 } },
    CORRUPTED,
  );
  const beyond = writer.message({ ...samples.array, byteOffset: 2_097_152 });
  yield refused('a range beyond its allocation', beyond);
  const pieces = writer.message({ ...samples.virtual, pieces: [1] });
  yield refused('pieces that do not add up', pieces);
  yield refused('pieces that are no list', { ...writer.message(samples.virtual), pieces: 1 });
}

// ---- The first frame ----

function* hellos(writer: PlainWriter): Iterable<Refusal> {
  const refused = (
    name: string,
    hex: string,
    code = FAILED,
    versions?: readonly number[],
  ): Refusal => ({ name: `hello: ${name}`, of: 'hello', hex, code, ...(versions && { versions }) });
  const { version } = writer;
  const body = writer.value(null);
  // As cuffi of version 3 sent them.
  const recorded = {
    'a value':
      '63750301000000002400000000000000000000000b0306056672616d65040100000006046e616d65060161060562797465730c0203010203',
    'a request': '63750305010000000a00000000000000010000000a010606737461747573',
    closing: '637503020200000001000000000000000000000005',
    done: '637503020300000001000000000000000000000008',
  };
  for (const [name, hex] of Object.entries(recorded))
    yield refused(`${name} of version 3, as it was sent`, hex, MISMATCH, [3, version]);
  yield refused('a value of version 0', writer.wholeFrame(body, { version: 0 }), MISMATCH, [
    0,
    version,
  ]);
  for (const [min, max] of [
    [3, 3],
    [1, 3],
    [version + 1, version + 1],
    [version + 2, 255],
    [0, 0],
  ] as const)
    yield refused(`versions ${min} to ${max}`, writer.hello(min, max, 'another end'), MISMATCH, [
      min,
      max,
      version,
    ]);
  yield refused('a value', writer.wholeFrame(body));
  yield refused('a value of a later version', writer.wholeFrame(body, { version: version + 1 }));
  yield refused('without versions', writer.wholeFrame('', { kind: 'hello' }));
  yield refused('with one version', writer.wholeFrame(byte(version), { kind: 'hello' }));
  yield refused(
    'whose least version is above the greatest',
    writer.hello(version + 1, version, ''),
  );
  yield refused(
    'another magic number',
    writer.wholeFrame(byte(version) + byte(version), { kind: 'hello', magic: 'CU' }),
  );
  yield refused('half a header', cut(writer.hello(version, version, ''), 10));
}

// ---- Frames ----

function* frames(writer: PlainWriter): Iterable<Refusal> {
  const frame = (hex: Bytes, fds = 0) => ({ hex, fds });
  const refused = (
    name: string,
    list: readonly (Bytes | ReturnType<typeof frame>)[],
    code = FAILED,
    versions?: readonly number[],
  ): Refusal => ({
    name,
    of: 'frames',
    frames: list.map((each) => (typeof each === 'object' && 'hex' in each ? each : frame(each))),
    code,
    ...(versions && { versions }),
  });
  const whole = writer.wholeFrame.bind(writer);
  const body = writer.value(null);
  const { version } = writer;
  const newest = Object.values(writer.frame).reduce((a, b) => Math.max(a, b));
  yield refused('a frame without a body', [whole('')]);
  yield refused('half a header', [cut(whole(body), 10)]);
  yield refused('another magic number', [whole(body, { magic: 'CU' })]);
  for (const other of [3, version + 1])
    yield refused(`a frame of version ${other} behind the hello`, [
      whole(body, { version: other }),
    ]);
  for (const code of [0, 4, newest + 1, 255])
    yield refused(`a frame of kind ${code}`, [whole(body, { code, request: 1 })]);
  yield refused('a request number with a value', [whole(body, { request: 1 })]);
  yield refused('a request number with a control block', [
    whole(writer.field('closing'), { kind: 'control', request: 1 }),
  ]);
  for (const kind of ['verification', 'request', 'response', 'failure', 'cancellation', 'unserved'])
    yield refused(`a frame of kind ${kind} without a number`, [whole(body, { kind })]);
  yield refused('the second message first', [whole(body, { sequence: 1 })]);
  yield refused('a message twice', [whole(body), whole(body)]);
  yield refused('a message is missing', [whole(body), whole(body, { sequence: 2 })]);
  yield refused('the middle of a message first', [
    writer.header({ byteLength: 2, offset: 1 }) + byte(0),
  ]);
  yield refused('fewer bytes than the header says', [writer.header({ byteLength: 3 }) + body]);
  yield refused('more bytes than the header says', [
    writer.header({ byteLength: 1 }) + body + body,
  ]);
  yield refused('a message of no bytes', [writer.header({ byteLength: 0 }) + body]);

  const part = writer.constant('packetByteLength') - writer.constant('headerByteLength');
  const full = { repeat: '78', times: part };
  const byteLength = part + 1;
  const first = [writer.header({ byteLength }), full];
  const second = (header: Partial<Parameters<PlainWriter['header']>[0]>): Bytes =>
    writer.header({ byteLength, offset: part, ...header }) + byte(0x78);
  yield refused('a frame that is too long', [
    [writer.header({ byteLength }), { repeat: '78', times: part + 1 }],
  ]);
  yield refused('a control block of two frames', [
    [writer.header({ kind: 'control', byteLength }), full],
  ]);
  yield refused('a second frame of another kind', [
    first,
    second({ kind: 'response', request: 1 }),
  ]);
  yield refused('a second frame of another length', [
    first,
    second({ byteLength: byteLength + 1 }) + byte(0x78),
  ]);
  yield refused('a second frame of another message', [first, second({ sequence: 1 })]);
  yield refused('a second frame that leaves a gap', [
    first,
    writer.header({ byteLength: part + 2, offset: part + 1 }) + byte(0x78),
  ]);
  yield refused('a second frame of another request', [
    [writer.header({ kind: 'request', request: 1, byteLength }), full],
    second({ kind: 'request', request: 2 }),
  ]);
  yield refused('the first frame twice', [first, first]);
  yield refused('descriptors in the middle of a message', [first, frame(second({}), 1)]);
  const most = ['valueByteLength', 'tableByteLength', 'controlByteLength'].reduce(
    (sum, name) => sum + writer.limit(name),
    0,
  );
  yield refused(
    'a message that is too long',
    [[writer.header({ byteLength: most + 1 }), full]],
    EXCEEDED,
  );
  yield refused(
    'the longest message that a header can state',
    [[writer.header({ byteLength: 2 ** 32 - 1 }), full]],
    EXCEEDED,
  );
}

// ---- Records ----

function* records(writer: PlainWriter): Iterable<Refusal> {
  const refused = (name: string, record: MessageRecord, slotByteLength = 64): Refusal => ({
    name: `record: ${name}`,
    of: 'record',
    slotByteLength,
    hex: writer.record(record),
    code: FAILED,
  });
  const layout = (dtype: string, ...shape: readonly (number | bigint)[]): MessageRecord => ({
    layout: { dtype, shape },
  });
  yield refused('65 axes', { ...layout('uint8', 1), ndim: 65 });
  yield refused('an axis below 0', layout('uint8', -1));
  yield refused('an unsafe axis', layout('uint8', UNSAFE));
  yield refused('an unsafe axis of an array of no items', layout('uint8', 2 ** 53, 0));
  yield refused(
    'axes whose product is unsafe, of an array of no items',
    layout('uint8', 2 ** 30, 2 ** 30, 0),
  );
  yield refused('items that are longer than the slot', layout('float32', 17));
  yield refused('items whose size overflows', layout('uint8', 2 ** 32, 2 ** 32));
  yield refused('an unknown dtype', layout('float33', 1));
  yield refused('a dtype by another name', layout('<f4', 1));
  yield refused('no dtype', layout('', 1));
  yield refused('a dtype with a zero in it', layout('uint8\0x', 1));
  yield refused('raw items of no bytes', layout('V0', 1));
  yield refused('meta longer than 1 KiB', { meta: '"x"', metaByteLength: 1025 });
  yield refused('meta of the greatest length', { meta: '"x"', metaByteLength: 2 ** 32 - 1 });
  for (const meta of [
    '{',
    'undefined',
    'NaN',
    'Infinity',
    '-Infinity',
    "'a'",
    '[1,]',
    '01',
    '"\n"',
  ])
    yield refused(`meta ${JSON.stringify(meta)}`, { meta });
  yield refused('meta that is not UTF-8', { metaHex: '22ff22' });
  yield refused('meta of a half of a pair in UTF-8', { metaHex: '22eda08022' });
  yield refused('meta in UTF-16', { metaHex: '22006100' + '2200' });
  yield refused('meta with a mark of its byte order', { metaHex: 'efbbbf' + '312e35' });
}

// ---- Shared memory, and what comes with objects ----

function* sharedMemory(): Iterable<Refusal> {
  const sizes = { counters: 4096, timeline: 4096, ring: 8192, seat: 4096 } as const;
  const seals = ['shrink', 'grow'];
  for (const [use, byteLength] of Object.entries(sizes))
    for (const [name, memory] of [
      ['that may shrink and grow', { type: 'memfd', byteLength, seals: [] }],
      ['that may shrink', { type: 'memfd', byteLength, seals: ['grow'] }],
      ['that may grow', { type: 'memfd', byteLength, seals: ['shrink'] }],
      ['that is smaller', { type: 'memfd', byteLength: byteLength - 4096, seals }],
      ['that is longer', { type: 'memfd', byteLength: byteLength + 4096, seals }],
      ['that is a file', { type: 'file', byteLength }],
      ['that is a pipe', { type: 'pipe' }],
    ] as const)
      yield {
        name: `memory of ${use} ${name}`,
        of: 'memory',
        use,
        byteLength,
        memory,
        code: FAILED,
      };
  for (const [name, lifeline] of [
    ['is the write end', 'write end'],
    ['has a name', 'fifo'],
    ['is a socket', 'socket'],
    ['is a file', 'file'],
    ['is only a path', 'path'],
  ] as const)
    yield { name: `a lifeline that ${name}`, of: 'lifeline', lifeline, code: FAILED };
  for (const [kind, count] of [
    ['timeline', 1],
    ['timeline', 3],
    ['signaler', 2],
    ['pinned', 0],
    ['pinned', 2],
    ['channel', 4],
  ] as const)
    yield {
      name: `${kind} with ${count} descriptors`,
      of: 'object',
      kind,
      fds: count,
      code: NO_FD,
    };
}
