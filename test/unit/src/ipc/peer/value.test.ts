import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { closeFd } from '../../../../../ffi/linux/libc.ts';
import { IpcError } from '../../../../../src/errors.ts';
import {
  DeviceBuffer,
  IpcHandle,
  MemoryPointer,
  MemoryPool,
  Stream,
  toDeviceSync,
} from '../../../../../src/index.ts';
import { ByteWriter } from '../../../../../src/ipc/bytes.ts';
import { exportIpc, getIpcHandle } from '../../../../../src/ipc/index.ts';
import {
  FrameKind,
  HEADER_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_PARTS,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { FramedSocket } from '../../../../../src/ipc/wire/framed-socket.ts';
import { encodeValue, formatPath } from '../../../../../src/ipc/wire/value-encoder.ts';
import { writeObjectTable } from '../../../../../src/ipc/wire/value-message.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { trials } from '../../../../support/iterations.ts';
import { emulate } from '../../emulate.ts';
import { peerPair, RawPeer, readMessage, tableOf, unknownObject } from './support.ts';

const noObjects = {
  includes: (_object: object): _object is never => false,
  alternativeTo: () => 'only plain data is',
};
const encode = (value: unknown): Buffer =>
  ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
    assert.deepEqual(encodeValue(writer, value, noObjects), []);
    return Buffer.from(writer.written.subarray(HEADER_BYTE_LENGTH));
  });
const decode = (bytes: Uint8Array, fdCount = 0): unknown =>
  readMessage(bytes, fdCount).value.buildAll([]);
const roundTrip = (value: unknown): unknown => decode(encode(value));

const hole = Symbol('hole');
const { value: anyValue } = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constantFrom(null, undefined, true, false, -0, Number.NaN, Number.NEGATIVE_INFINITY),
    fc.integer(),
    fc.double(),
    fc.bigInt(),
    fc.bigInt({ min: -(1n << 200n), max: 1n << 200n }),
    fc.string({ unit: 'binary' }),
    fc.string({ unit: 'grapheme-ascii', minLength: 10, maxLength: 300 }),
    fc.string().map((text) => `${text}\ud800`),
    fc.uint8Array(),
    fc.int16Array(),
    fc.float32Array(),
    fc.float64Array(),
    fc.bigUint64Array(),
    fc.uint8Array().map((bytes) => bytes.slice().buffer),
    fc.uint8Array().map((bytes) => new DataView(bytes.slice().buffer)),
    fc.date({ noInvalidDate: false }),
    fc.array(tie('value')),
    fc.array(fc.option(tie('value'), { nil: hole })).map((items) => {
      const sparse = new Array<unknown>(items.length);
      for (const [at, item] of items.entries()) if (item !== hole) sparse[at] = item;
      return sparse;
    }),
    fc.array(fc.tuple(tie('value'), tie('value'))).map((entries) => new Map(entries)),
    fc.array(tie('value')).map((members) => new Set(members)),
    fc
      .tuple(fc.constantFrom(Error, TypeError, RangeError), fc.string(), tie('value'))
      .map(([Type, message, cause]) => new Type(message, { cause })),
    fc
      .tuple(fc.string(), fc.array(tie('value')))
      .map(([message, errors]) => new AggregateError(errors, message)),
    fc.dictionary(
      fc.string({ unit: 'grapheme' }).filter((key) => key !== '__proto__'),
      tie('value'),
      { noNullPrototype: true },
    ),
  ),
}));

describe('encodeValue', () => {
  test('decoding returns the same values of the same types', () => {
    fc.assert(
      fc.property(anyValue, (value) => {
        assert.deepStrictEqual(roundTrip(value), value);
      }),
      trials(300, 10_000),
    );
  });

  test('a Buffer arrives as bytes, a hole as a hole, and inherited names not at all', () => {
    assert.deepStrictEqual(roundTrip(Buffer.from('abc')), new Uint8Array([97, 98, 99]));
    assert.deepStrictEqual(
      roundTrip(new Float64Array([1, 2, 3]).subarray(1, 2)),
      new Float64Array([2]),
    );
    assert.deepStrictEqual(roundTrip(new Uint8Array(new SharedArrayBuffer(2))), new Uint8Array(2));
    assert.deepStrictEqual(roundTrip(new Array(2)), new Array(2));
    const last = new Array(3).fill(1, 2);
    assert.deepStrictEqual(Object.keys(roundTrip(last) as unknown[]), ['2']);
    assert.deepStrictEqual(roundTrip(Object.assign(Object.create(null), { a: 1 })), { a: 1 });
    assert.deepStrictEqual(roundTrip({ constructor: 1, toString: 2 }), {
      constructor: 1,
      toString: 2,
    });
  });

  test('a part that cannot be sent is refused with its path', () => {
    class Model {}
    const cases: readonly (readonly [unknown, RegExp])[] = [
      [() => 1, /^value is a function, which cannot be sent$/],
      [{ a: [1, Symbol('x')] }, /^value\.a\[1\] is a symbol/],
      [{ model: { layers: [0, 1, 2, new Model()] } }, /^value\.model\.layers\[3\] is a Model/],
      [{ 'not a name': { ü: new WeakMap() } }, /^value\["not a name"\]\.ü is a WeakMap/],
      [[/x/], /^value\[0\] is a RegExp/],
      [new Map([['models', [() => 1]]]), /^value\.get\("models"\)\[0\] is a function/],
      [new Map([[{ id: 1 }, () => 1]]), /^value\.values\(\)\[0\] is a function/],
      [
        {
          ids: new Map([
            [1, 2],
            [() => 1, 3],
          ] as [unknown, unknown][]),
        },
        /^value\.ids\.keys\(\)\[1\] is a function/,
      ],
      [new Set(['a', Symbol('b')]), /^value\.values\(\)\[1\] is a symbol/],
      [new Error('x', { cause: { why: () => 1 } }), /^value\.cause\.why is a function/],
      [new AggregateError([1, () => 1]), /^value\.errors\[1\] is a function/],
      [{ late: Promise.resolve() }, /^value\.late is a Promise, .*: only plain data is$/],
      [{ shared: new SharedArrayBuffer(4) }, /^value\.shared is a SharedArrayBuffer/],
      [JSON.parse('{"a":{"__proto__":1}}'), /^value\.a\.__proto__ has a name/],
    ];
    for (const [value, message] of cases)
      assert.throws(() => encode(value), { name: 'TypeError', message });
  });

  test('what is not sent is refused with what to send instead', async () => {
    emulate();
    using pair = peerPair();
    using array = toDeviceSync(new Float32Array(4));
    using buffer = DeviceBuffer.allocate(64);
    using stream = Stream.create();
    using ofArray = getIpcHandle(array);
    using ofBuffer = getIpcHandle(buffer, { stream });
    using parcel = exportIpc(buffer, { stream });
    const { context } = buffer;
    using base = new MemoryPointer({ context, pointer: buffer.address, byteLength: 64 });
    const ofManager = new IpcHandle({ base, handle: new Uint8Array(64) });
    for (const [value, message] of [
      [ofArray, /is an IpcArrayHandle, .*: send the array itself, or toJSON\(\) of this as data/],
      [
        { ofBuffer },
        /^value\.ofBuffer is an IpcBufferHandle, .*: send the buffer itself, or toJSON/,
      ],
      [[parcel], /^value\[0\] is a ReadyExport, .*: send the memory itself, with \{ stream \}$/],
      [ofManager, /^value is an IpcHandle, .*: send the buffer itself$/],
      [{ late: Promise.resolve() }, /^value\.late is a Promise, .*: await it first$/],
      [
        new WeakMap(),
        /^value is a WeakMap, .*: only plain objects, arrays, Maps, Sets, Dates, errors, binary data, device arrays, buffers, pools and events are$/,
      ],
    ] as const)
      await assert.rejects(pair.a.send(value as unknown), { name: 'TypeError', message });
    assert.deepEqual(roundTrip(ofArray.toJSON()), ofArray.toJSON());
  });

  test('a value that is too deep or too large is refused', () => {
    const nested = (depth: number): unknown => {
      let value: unknown = 1;
      for (let n = 0; n < depth; n++) value = [value];
      return value;
    };
    // As `send` says.
    assert.deepEqual(roundTrip(nested(64)), nested(64));
    assert.throws(() => encode(nested(65)), {
      name: 'RangeError',
      message: /deeper than 64 levels/,
    });
    assert.throws(() => encode(new Uint8Array(MAX_VALUE_BYTE_LENGTH)), RangeError);
    assert.throws(() => encode('x'.repeat(MAX_VALUE_BYTE_LENGTH)), RangeError);
    assert.throws(() => encode(new Array(MAX_VALUE_PARTS)), {
      name: 'RangeError',
      message: /typed arrays/,
    });
    const largest = new Uint8Array(MAX_VALUE_BYTE_LENGTH - 6).fill(3);
    assert.deepEqual(roundTrip(largest), largest);
  });

  test('a cycle is refused as one, with where it begins', () => {
    const cycle: Record<string, unknown> = {};
    cycle['self'] = [cycle];
    const inner: Record<string, unknown> = { name: 'inner' };
    inner['map'] = new Map([['back', inner]]);
    const set = new Set<unknown>();
    set.add([set]);
    const error = new Error('x');
    error.cause = { error };
    const all = new AggregateError([]);
    all.errors.push(all);
    for (const [value, message] of [
      [cycle, /^value\.self\[0\] is a cycle, which cannot be sent: it is value again\. Send an id/],
      [{ inner }, /^value\.inner\.map\.get\("back"\) is a cycle, .* it is value\.inner again/],
      [set, /^value\.values\(\)\[0\]\[0\] is a cycle, .* it is value again/],
      [error, /^value\.cause\.error is a cycle, .* it is value again/],
      [all, /^value\.errors\[0\] is a cycle, .* it is value again/],
    ] as const)
      assert.throws(() => encode(value), { name: 'TypeError', message });
    // The same object twice is no cycle: it arrives as two objects.
    const twice = { a: 1 };
    assert.deepEqual(roundTrip([twice, twice]), [{ a: 1 }, { a: 1 }]);
  });

  test('an error arrives as its class, with what it says and its own stack', () => {
    class ModelError extends RangeError {
      override readonly name = 'ModelError';
      readonly code = 'too-large';
      readonly secret = 'not sent';
    }
    const cause = new TypeError('deep');
    const sent = new ModelError('no model', { cause });
    const read = roundTrip(sent) as ModelError;
    assert.equal(Object.getPrototypeOf(read), Error.prototype);
    assert.deepEqual(
      [read.name, read.message, read.stack, read.code, read.secret],
      ['ModelError', 'no model', sent.stack, 'too-large', undefined],
    );
    assert.ok(read.cause instanceof TypeError);
    assert.equal((read.cause as TypeError).stack, cause.stack);
    assert.deepEqual(Object.keys(read), ['code']);
    assert.equal(`${read}`, 'ModelError: no model');
    for (const error of [
      new SyntaxError('a'),
      new ReferenceError('b'),
      new EvalError('c'),
      new URIError('d'),
      new AggregateError([new Error('e')], 'f'),
    ]) {
      const found = roundTrip(error) as Error;
      assert.equal(Object.getPrototypeOf(found), Object.getPrototypeOf(error));
      assert.deepEqual(found, error);
      assert.equal(found.stack, error.stack);
    }
    // Without a stack none of this process takes its place, and none is captured for later.
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = 7;
    const bare = new Error('bare');
    delete bare.stack;
    assert.equal((roundTrip(bare) as Error).stack, undefined);
    assert.equal(Error.stackTraceLimit, 7);
    Error.stackTraceLimit = stackTraceLimit;
    assert.equal(Object.hasOwn(roundTrip(new Error('no cause')) as Error, 'cause'), false);
    assert.equal(
      Object.hasOwn(roundTrip(new Error('x', { cause: undefined })) as Error, 'cause'),
      true,
    );
    // Properties that are no texts are left out.
    assert.equal(
      (roundTrip(Object.assign(new Error('y'), { code: 5 })) as ModelError).code,
      undefined,
    );
    // One of another realm.
    const other = roundTrip(runInNewContext('new RangeError("elsewhere")')) as Error;
    assert.ok(other instanceof RangeError);
    assert.equal(other.message, 'elsewhere');
  });

  test('plain data of another realm is sent as that of this one, its class instances are refused', () => {
    const value = {
      list: [1, { a: null }],
      bytes: Uint8Array.of(1, 2),
      buffer: Uint8Array.of(3).buffer,
      map: new Map([['k', { v: new Set([1]) }]]),
      date: new Date(7),
    };
    const other = runInNewContext(`({
      list: [1, { a: null }],
      bytes: Uint8Array.of(1, 2),
      buffer: Uint8Array.of(3).buffer,
      map: new Map([['k', { v: new Set([1]) }]]),
      date: new Date(7),
    })`);
    assert.deepEqual(roundTrip(other), value);
    const failed = Object.assign(runInNewContext('new TypeError("it", { cause: { n: 1 } })'), {
      stack: 'there',
    });
    assert.deepEqual((roundTrip({ failed }) as { failed: Error }).failed.cause, { n: 1 });
    for (const [code, name] of [
      ['new (class Model {})()', 'a Model'],
      ['new (class Object {})()', 'an Object'],
      ['Object.create({})', 'an Object'],
      ['Object.create(Object.create(null))', 'an object'],
      ['new WeakMap()', 'a WeakMap'],
      ['new SharedArrayBuffer(8)', 'a SharedArrayBuffer'],
      ['Promise.resolve()', 'a Promise'],
    ] as const)
      assert.throws(() => encode({ a: runInNewContext(code) }), {
        name: 'TypeError',
        message: `value.a is ${name}, which cannot be sent: only plain data is`,
      });
  });

  test('Maps, Sets and Dates of subclasses are sent as what the engine knows', () => {
    class Odd extends Map<string, number> {
      override get size(): number {
        return 7;
      }
      override *[Symbol.iterator](): MapIterator<[string, number]> {}
      override entries(): MapIterator<[string, number]> {
        return new Map<string, number>().entries();
      }
    }
    const odd = new Odd([['a', 1]]);
    assert.deepStrictEqual(roundTrip(odd), new Map([['a', 1]]));
    class OddDate extends Date {
      override getTime(): number {
        return 9;
      }
    }
    assert.deepStrictEqual(roundTrip(new OddDate(5)), new Date(5));
    assert.deepStrictEqual(roundTrip(new Set([Number.NaN, -0])), new Set([Number.NaN, 0]));
    // What a getter adds meanwhile is not sent, and breaks nothing.
    const map = new Map<string, unknown>();
    map.set('first', {
      get more() {
        map.set('second', 2);
        return 1;
      },
    });
    assert.deepStrictEqual(roundTrip(map), new Map([['first', { more: 1 }]]));
  });

  test('objects in Maps, Sets and errors arrive in their places, in order', () => {
    class Marked {}
    const [one, two, three, four] = [new Marked(), new Marked(), new Marked(), new Marked()];
    const objects = {
      includes: (object: object): object is Marked => object instanceof Marked,
      alternativeTo: () => '',
    };
    const map = new Map<unknown, unknown>([
      ['first', 1],
      [one, two],
      ['last', { deep: three }],
    ]);
    const set = new Set<unknown>(['a', three, 'b', new Set([four])]);
    const bytes = ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      const value = {
        map,
        set,
        error: new Error('e', { cause: four }),
        named: new Map([['x', one]]),
      };
      const placed = encodeValue(writer, value, objects);
      assert.deepEqual(
        placed.map(({ path }) => formatPath(path)),
        [
          'value.map.keys()[1]',
          'value.map.values()[1]',
          'value.map.get("last").deep',
          'value.set.values()[1]',
          'value.set.values()[3].values()[0]',
          'value.error.cause',
          'value.named.get("x")',
        ],
      );
      return Buffer.from(writer.written.subarray(HEADER_BYTE_LENGTH));
    });
    const table = tableOf(0, ...new Array<typeof unknownObject>(7).fill(unknownObject));
    const { value } = readMessage(Buffer.from([...bytes, ...table]));
    const built = value.buildAll([1, 2, 3, 4, 5, 6, 7].map((n) => `object ${n}`));
    assert.deepStrictEqual(built, {
      map: new Map<unknown, unknown>([
        ['first', 1],
        ['object 1', 'object 2'],
        ['last', { deep: 'object 3' }],
      ]),
      set: new Set(['a', 'object 4', 'b', new Set(['object 5'])]),
      error: new Error('e', { cause: 'object 6' }),
      named: new Map([['x', 'object 7']]),
    });
    const { map: builtMap, set: builtSet } = built as { map: typeof map; set: typeof set };
    assert.deepEqual([...builtMap.keys()], ['first', 'object 1', 'last']);
    assert.deepEqual([...builtSet].slice(0, 3), ['a', 'object 4', 'b']);
  });

  test('a name, key or member that is repeated behind an object fails the value, however often it is built', () => {
    const { latin1, gpuObject, map, set } = Tag;
    const a = [latin1, 1, 65];
    const table = tableOf(0, unknownObject);
    const one = {};
    for (const bytes of [
      [set, 3, gpuObject, ...a, ...a],
      [map, 3, gpuObject, Tag.null, ...a, Tag.null, ...a, Tag.null],
      [map, 3, ...a, Tag.null, gpuObject, Tag.null, ...a, Tag.null],
    ]) {
      const { value } = readMessage(Uint8Array.from([...bytes, ...table]));
      for (let times = 0; times < 2; times++)
        assert.throws(() => value.buildAll([one]), {
          name: 'IpcError',
          message: /the same key or member twice/,
        });
    }
    // Two objects of the sender may be one here.
    const twice = [set, 2, gpuObject, gpuObject, ...tableOf(0, unknownObject, unknownObject)];
    const { value } = readMessage(Uint8Array.from(twice));
    assert.deepEqual(value.buildAll([one, one]), new Set([one]));
  });

  test('a value may send another one while it is encoded', () => {
    const value = {
      a: 1,
      get b() {
        return (roundTrip({ inner: 'x' }) as { inner: string }).inner;
      },
      c: 3,
    };
    assert.deepEqual(roundTrip(value), { a: 1, b: 'x', c: 3 });
  });

  test('returns the objects in order, each with its path, and the values around them', () => {
    const first = { is: 'first' };
    const second = { is: 'second' };
    class Marked {}
    const [one, two] = [Object.assign(new Marked(), first), Object.assign(new Marked(), second)];
    const objects = {
      includes: (object: object): object is Marked => object instanceof Marked,
      alternativeTo: () => '',
    };
    const bytes = ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      const placed = encodeValue(writer, { a: [1, one], b: { c: two }, d: one }, objects);
      assert.deepEqual(
        placed.map(({ object, path }) => [object, path]),
        [
          [one, ['a', 1]],
          [two, ['b', 'c']],
          [one, ['d']],
        ],
      );
      return Buffer.from(writer.written.subarray(HEADER_BYTE_LENGTH));
    });
    const table = tableOf(0, unknownObject, unknownObject, unknownObject);
    const { value, objects: read } = readMessage(Buffer.from([...bytes, ...table]));
    assert.equal(read.entries.length, 3);
    assert.deepEqual(value.buildAll(['x', 'y', 'z']), { a: [1, 'x'], b: { c: 'y' }, d: 'z' });
  });

  test('a table of objects that is too large is refused, with what to do', () => {
    const entry = { bytes: new Uint8Array(4000), fdCount: 0, hasLink: false };
    ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      const entries = new Array<typeof entry>(1047).fill(entry);
      writeObjectTable(writer, { firstLease: 0, entries });
    });
    const entries = new Array<typeof entry>(1049).fill(entry);
    assert.throws(
      () =>
        ByteWriter.use(HEADER_BYTE_LENGTH, (writer) =>
          writeObjectTable(writer, { firstLease: 0, entries }),
        ),
      { name: 'RangeError', message: /more than 4194304 bytes .*: send fewer at a time$/ },
    );
  });

  test('a value that is sent while another is encoded goes out first, with the pool they share', async () => {
    emulate();
    using other = new RawPeer();
    const fdCounts = (): number[] => {
      const counts = [];
      for (let next = other.receive(); typeof next === 'object'; next = other.receive()) {
        next.fds.forEach(closeFd);
        // A timeline page may come first.
        if (next.data[3] === FrameKind.value) counts.push(next.fds.length);
      }
      return counts;
    };
    const pool = MemoryPool.create({ maxSize: 4 << 20, shareable: true });
    const x = pool.allocate(64);
    const y = pool.allocate(64);
    const sends: Promise<void>[] = [];
    await other.peer.send({
      x,
      get between() {
        sends.push(other.peer.send({ name: 'inner', y }));
        return 'between';
      },
      again: x,
    });
    await Promise.all(sends);
    // The descriptor of the pool goes with the first that arrives.
    assert.deepEqual(fdCounts(), [1, 0]);
    // What fails takes back what it alone was to bring, and nothing of what has gone out.
    const second = MemoryPool.create({ maxSize: 4 << 20, shareable: true });
    const z = second.allocate(64);
    const failing = {
      z,
      get sends() {
        sends.push(other.peer.send(z));
        throw new Error('no value');
      },
    };
    await assert.rejects(other.peer.send(failing), /no value/);
    await Promise.all(sends);
    await other.peer.send(z);
    assert.deepEqual(fdCounts(), [1, 0]);
    other.send(Uint8Array.of(8), { kind: FrameKind.control });
    await nextLoopIteration();
    other.peer.close();
    for (const buffer of [x, y, z]) buffer.close();
    second.close();
    pool.close();
  });

  test('binary data is sent as the type that the engine knows', () => {
    class Odd extends Uint8Array {
      override get byteLength(): number {
        return 3;
      }
      override get [Symbol.toStringTag](): 'Uint8Array' {
        return 'Float32Array' as 'Uint8Array';
      }
    }
    const odd = Odd.of(1, 2, 3, 4, 5);
    assert.deepStrictEqual(roundTrip({ odd }), { odd: Uint8Array.of(1, 2, 3, 4, 5) });
    assert.throws(
      () => encode({ constructor: { name: 5 }, map: new WeakMap() }),
      /value\.map is a WeakMap/,
    );
    const nameless = Object.create({ constructor: { name: 5 } }) as object;
    assert.throws(() => encode({ nameless }), {
      name: 'TypeError',
      message: /^value\.nameless is an object, which cannot be sent/,
    });
  });

  test('every change on the way results in an IpcError or another plain value', () => {
    const sample = encode({
      text: 'hello',
      wide: 'wörld',
      numbers: [1, -2.5, 3n, 1n << 90n],
      data: new Float32Array([1, 2]),
      nested: { list: [null, undefined, true, false, new Date(5)] },
      map: new Map<unknown, unknown>([
        ['a', new Set([1, 'b'])],
        [{ k: 1 }, new TypeError('no', { cause: new AggregateError([1, 2], 'all') })],
      ]),
    });
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(sample.length - 1), fc.nat(255)), { minLength: 1, maxLength: 4 }),
        fc.nat(sample.length),
        (changes, end) => {
          const bytes = Uint8Array.from(sample);
          for (const [at, byte] of changes) bytes[at] = byte;
          for (const input of [bytes, bytes.subarray(0, end)]) {
            try {
              decode(input);
            } catch (error) {
              assert.ok(error instanceof IpcError, String(error));
            }
          }
        },
      ),
      trials(300, 10_000),
    );
    fc.assert(
      fc.property(fc.uint8Array(), (bytes) => {
        try {
          decode(bytes);
        } catch (error) {
          assert.ok(error instanceof IpcError, String(error));
        }
      }),
      trials(300, 10_000),
    );
    assert.equal(({} as { admin?: boolean }).admin, undefined);
  });

  test('a pool is sent again if the value with it was not', async (t) => {
    emulate();
    const pool = MemoryPool.create({ maxSize: 4 << 20, shareable: true });
    using other = new RawPeer();
    const post = t.mock.method(FramedSocket.prototype, 'post', () => {
      throw new IpcError('no descriptor is left');
    });
    await assert.rejects(other.peer.send(pool), /no descriptor is left/);
    post.mock.restore();
    await other.peer.send(pool);
    const message = other.receive() as { readonly fds: readonly number[] };
    assert.equal(message.fds.length, 1);
    message.fds.forEach(closeFd);
    other.send(Uint8Array.of(8), { kind: FrameKind.control });
    await nextLoopIteration();
    other.peer.close();
    pool.close();
  });
});
