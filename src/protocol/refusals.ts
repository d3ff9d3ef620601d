/** Test vectors of what every end must refuse, with the code of its error. */
import { altered, cut, longer, samples } from './objects.ts';
import { EXCEEDED, FAILED, INVALID, refusedValues, UNSAFE } from './refused-values.ts';
import {
  type Bytes,
  byte,
  type Fields,
  length,
  type MessageRecord,
  number,
  type PlainWriter,
  table,
  type Vector,
} from './writer.ts';

const CORRUPTED = 'corrupted';
const MISMATCH = 'version-mismatch';
const NO_FD = 'no-file-descriptor';

export function* refusals(writer: PlainWriter): Iterable<Vector> {
  for (const row of all(writer)) {
    const { connection = outcomeOf(row), ...rest } = row;
    yield connection ? { ...rest, connection } : rest;
  }
}

/** What becomes of a connection that it comes over: what an object is concerns its value alone. */
function outcomeOf({ of, use }: Vector): 'ends' | 'goes on' | undefined {
  if (of === 'descriptor' || of === 'json') return undefined;
  if (use === 'counters') return 'ends';
  const ending = ['value', 'control', 'message', 'hello', 'frames', 'messages'];
  return ending.includes(of as string) ? 'ends' : 'goes on';
}

function* all(writer: PlainWriter): Iterable<Vector> {
  yield* refusedValues(writer);
  yield* descriptors(writer);
  yield* json(writer);
  yield* hellos(writer);
  yield* frames(writer);
  yield* records(writer);
  yield* sharedMemory();
  yield* exporters(writer);
  yield* conversations(writer);
  yield* channels();
}

// ---- Descriptors that a program passes on ----

function* descriptors(writer: PlainWriter): Iterable<Vector> {
  const refused = (
    name: string,
    hex: string,
    code = INVALID,
    versions?: readonly number[],
  ): Vector => ({
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

function* json(writer: PlainWriter): Iterable<Vector> {
  const refused = (
    name: string,
    value: unknown,
    code = INVALID,
    versions?: readonly number[],
  ): Vector => ({
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
  const changed = (name: string, change: Fields, code = INVALID): Vector =>
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

function* hellos(writer: PlainWriter): Iterable<Vector> {
  const refused = (
    name: string,
    hex: string,
    code = FAILED,
    versions?: readonly number[],
  ): Vector => ({ name: `hello: ${name}`, of: 'hello', hex, code, ...(versions && { versions }) });
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
  const long = 'x'.repeat(writer.limit('packageNameByteLength') + 1);
  yield refused('of too much text', writer.hello(version, version, long));
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

function* frames(writer: PlainWriter): Iterable<Vector> {
  const frame = (hex: Bytes, fds = 0) => ({ hex, fds });
  const refused = (
    name: string,
    list: readonly (Bytes | ReturnType<typeof frame>)[],
    code = FAILED,
    versions?: readonly number[],
  ): Vector => ({
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

function* records(writer: PlainWriter): Iterable<Vector> {
  const refused = (name: string, record: MessageRecord, slotByteLength = 64): Vector => ({
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
  yield refused('the most axes that a record can state', {
    ...layout('uint8', 1),
    ndim: 2 ** 32 - 1,
  });
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
  for (const other of ['<f4', 'f4', 'V04', 'torch.float32', 'int'])
    yield refused(`a dtype by another name: ${other}`, layout(other, 1));
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
    '"\u0001"',
    '1 2',
    '1\0',
    ' ',
    '[Infinity]',
  ])
    yield refused(`meta ${JSON.stringify(meta)}`, { meta });
  yield refused('meta that is not UTF-8', { metaHex: '22ff22' });
  yield refused('meta of a half of a pair in UTF-8', { metaHex: '22eda08022' });
  yield refused('meta in UTF-16 with a mark of its byte order', { metaHex: 'fffe' + '3100' });
  yield refused('meta in UTF-16', { metaHex: '22006100' + '2200' });
  yield refused('meta with a mark of its byte order', { metaHex: 'efbbbf' + '312e35' });
}

// ---- Shared memory, and what comes with objects ----

function* sharedMemory(): Iterable<Vector> {
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
  const parts = {
    timeline: ['page', 'lifeline'],
    signaler: ['page', 'lifeline', 'write end'],
    pinned: ['pinned'],
    virtual: ['memory'],
    pool: ['memory'],
    channel: ['ring', 'seat', 'receives', 'sends', 'memory'],
  } as const;
  for (const [kind, fds] of Object.entries(parts))
    for (const [at, part] of fds.entries())
      for (const given of STRANGE.filter((one) => one !== part))
        yield {
          name: `${kind} whose ${part} is a ${given}`,
          of: 'fds',
          kind,
          fds: fds.map((fd, index) => (index === at ? given : fd)),
          code: part === 'memory' ? NO_FD : FAILED,
        };
  for (const given of ['sparse pages', 'longer pages', 'unsealed pages'])
    yield {
      name: `pinned whose memory is ${given}`,
      of: 'fds',
      kind: 'pinned',
      fds: [given],
      code: FAILED,
    };
  for (const [kind, fds] of [
    ['virtual', []],
    ['virtual', ['memory', 'memory']],
    ['pool', []],
    ['timeline', []],
    ['channel', []],
    ['channel', ['ring', 'seat', 'receives', 'sends', 'memory', 'memory']],
  ] as const)
    yield { name: `${kind} with ${fds.length} descriptors`, of: 'fds', kind, fds, code: NO_FD };
}

/** What comes in place of a descriptor. */
const STRANGE = [
  'device',
  'file',
  'folder',
  'path',
  'fifo',
  'lifeline',
  'write end',
  'socket',
  'datagram socket',
  'named socket',
  'unsealed memory',
  'page for reading',
];

// ---- Who has made an object ----

/** Objects of a process that is not what they say. `$here` and `$other` are this process and one that lives. */
function* exporters(writer: PlainWriter): Iterable<Vector> {
  const kinds = { legacy: samples.legacy, pool: samples.pool, event: samples.event } as const;
  const live = {
    device: '$here',
    machine: '$here',
    pid: '$other',
    startTime: '$other',
    pidNamespace: '$here',
  };
  const refused = (
    name: string,
    kind: Fields,
    values: Fields,
    code: string,
    fds: readonly string[] = kind['kind'] === 'pool' || kind['kind'] === 'virtual'
      ? ['memory']
      : [],
  ): Vector => ({
    name: `${kind['kind']} ${name}`,
    of: 'exporter',
    fields: { ...kind, ...live, ...values },
    // Its first 54 bytes are the kind and the exporter.
    hex: writer.object({ ...kind, access: values['access'] ?? kind['access'] }),
    fds,
    code,
  });
  const { virtual, legacy, event } = samples;
  const whole = { ...virtual, pieces: [2_097_152], baseByteLength: 2_097_152, byteLength: 1024 };
  const machine = '0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0';
  const device = 'GPU-00112233-4455-6677-8899-aabbccddeeff';
  const own = { pid: '$here', startTime: '$here' };
  for (const kind of [...Object.values(kinds), whole]) {
    yield refused('of another machine', kind, { machine }, 'other-machine');
    yield refused('on a GPU that nobody sees', kind, { device }, 'device-not-visible');
    yield refused(
      'of another machine, on a GPU of that',
      kind,
      { machine, device },
      'other-machine',
    );
    const slice = device.replace('GPU', 'MIG');
    yield refused('on a slice that nobody sees', kind, { device: slice }, 'mig');
    yield refused('of the process that it comes to', kind, own, 'same-process');
  }
  const parts = ['ring', 'seat', 'receives', 'sends', 'memory'];
  for (const [name, values, code] of [
    ['of another machine, on a GPU of that', { machine, device }, 'other-machine'],
    ['on a GPU that nobody sees', { device }, 'device-not-visible'],
    ['of the process that it comes to', own, 'same-process'],
  ] as const)
    yield {
      ...refused(name, whole, values, code, parts),
      name: `channel in memory ${name}`,
      isChannel: true,
    };
  for (const kind of Object.values(kinds)) {
    yield refused('of a process that has ended', kind, { startTime: 1 }, 'exporter-gone');
    yield refused('of no process', kind, { pid: 2 ** 32 - 1 }, 'exporter-gone');
  }
  for (const kind of [legacy, event])
    yield refused(
      'of the same number in another pid namespace',
      kind,
      { pid: '$here', pidNamespace: 1 },
      'same-pid',
    );
  for (const kind of [kinds.legacy, kinds.pool])
    yield refused('that is read-only', kind, { access: 'read' }, 'not-supported');
  for (const kind of Object.values(kinds))
    yield refused('that the driver does not know', kind, {}, FAILED);
}

// ---- Messages that do not follow from those before ----

function* conversations(writer: PlainWriter): Iterable<Vector> {
  type Part = readonly [body: Bytes, header?: Fields, fds?: readonly string[]];
  const refused = (name: string, parts: readonly Part[], code = FAILED): Vector => ({
    name,
    of: 'messages',
    frames: parts.map(([body, header = {}, fds = []], sequence) => {
      const byteLength = lengthOf(body);
      const head = writer.header({ byteLength, sequence, ...header });
      return { hex: typeof body === 'string' ? head + body : [head, ...body], fds };
    }),
    code,
  });
  const f = writer.field.bind(writer);
  const control = { kind: 'control' };
  const nothing = writer.value(null);
  const release = number(7) + byte(1) + writer.points([]);
  const page: Part = [f('timelinePage'), control, ['page']];
  const place = writer.value({ $object: 0 });
  const objectOf = (lease: number): string => place + table(lease, [{ fds: 0, hex: '' }]);
  yield refused('the release of what was never sent', [
    [f('released', length(1), release), control],
  ]);
  yield refused('the revocation of what never came', [
    [f('revoked', length(1), number(7)), control],
  ]);
  yield refused('a request to keep what was never sent', [
    [f('forwardRequests', length(1), number(7), number(1), number(1)), control, ['lifeline']],
  ]);
  yield refused('points before their page', [[nothing + f('points', writer.points([[0, 1]]))]]);
  yield refused('a second page', [page, page]);
  for (const given of ['device', 'socket', 'unsealed memory', 'page for reading'])
    yield refused(`a page of counters that is a ${given}`, [[f('timelinePage'), control, [given]]]);
  for (const kind of ['response', 'failure', 'unserved'])
    yield refused(`a ${kind} that nobody asked for`, [[nothing, { kind, request: 1 }]]);
  for (const kind of ['cancellation', 'unserved'])
    yield refused(`a ${kind} that is not null`, [[writer.value(1), { kind, request: 1 }]]);
  for (const kind of ['cancellation', 'unserved', 'verification'])
    yield refused(`a ${kind} with an object`, [[objectOf(0), { kind, request: 1 }]]);
  for (const [first, second] of [
    ['request', 'request'],
    ['request', 'verification'],
  ])
    yield refused(`a ${second} of the number of a ${first} that waits`, [
      [nothing, { kind: first, request: 7 }],
      [nothing, { kind: second, request: 7 }],
    ]);
  const text = writer.limit('verificationByteLength') - 3;
  yield refused(
    'a verification that is too long',
    [
      [
        [writer.tagged('latin1', length(text)), { repeat: '78', times: text }],
        { kind: 'verification', request: 1 },
      ],
    ],
    EXCEEDED,
  );
  for (const second of [4, 3])
    yield refused(`an object of lease ${second} behind one of lease 4`, [
      [objectOf(4)],
      [objectOf(second)],
    ]);
}

const lengthOf = (bytes: Bytes): number =>
  typeof bytes === 'string'
    ? bytes.length / 2
    : bytes.reduce(
        (sum, part) =>
          sum + (typeof part === 'string' ? part.length : part.repeat.length * part.times) / 2,
        0,
      );

// ---- Words of a channel ----

/** Words that a hostile producer stores, before the consumer opens the channel or before it receives. */
function* channels(): Iterable<Vector> {
  const refused = (
    name: string,
    deliver: 'all' | 'one',
    words: { readonly ring?: Fields; readonly seat?: Fields },
    when: 'opens' | 'receives' = 'receives',
  ): Vector => ({
    name: `channel: ${name}`,
    of: 'channel',
    deliver,
    slots: 2,
    when,
    ...words,
    code: FAILED,
  });
  const unsafe = String(2n ** 53n);
  const greatest = String(2n ** 63n - 1n);
  const published = 0;
  const [start, granted, grant] = [4, 5, 8 + 2];
  for (const word of [unsafe, greatest, String(2n ** 64n - 1n)]) {
    yield refused(`a first message of ${word}`, 'all', { seat: { [start]: word } }, 'opens');
    yield refused(`${word} messages`, 'all', { ring: { [published]: word } });
    yield refused(`a grant of message ${word}`, 'one', {
      ring: { [published]: '1' },
      seat: { [granted]: '1', [grant]: word },
    });
    yield refused(`a grant of one of ${word} messages`, 'one', {
      ring: { [published]: word },
      seat: { [granted]: '1' },
    });
  }
  yield refused('more messages than slots', 'all', { ring: { [published]: '3' } });
  yield refused('a grant of a message that was not published', 'one', {
    ring: { [published]: '1' },
    seat: { [granted]: '1', [grant]: '1' },
  });
}
