import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
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
import { FramedSocket } from '../../../../../src/ipc/wire/framed-socket.ts';
import { FrameKind } from '../../../../../src/ipc/wire/frames.ts';
import {
  HEADER_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_DEPTH,
  MAX_VALUE_PARTS,
} from '../../../../../src/ipc/wire/limits.ts';
import { encodeValue } from '../../../../../src/ipc/wire/value-encoder.ts';
import { writeObjectTable } from '../../../../../src/ipc/wire/value-message.ts';
import { Tag } from '../../../../../src/ipc/wire/value-tags.ts';
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
    fc.array(tie('value')),
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

  test('a Buffer arrives as bytes, a hole as undefined, and inherited names not at all', () => {
    assert.deepStrictEqual(roundTrip(Buffer.from('abc')), new Uint8Array([97, 98, 99]));
    assert.deepStrictEqual(
      roundTrip(new Float64Array([1, 2, 3]).subarray(1, 2)),
      new Float64Array([2]),
    );
    assert.deepStrictEqual(roundTrip(new Uint8Array(new SharedArrayBuffer(2))), new Uint8Array(2));
    assert.deepStrictEqual(roundTrip(new Array(2)), [undefined, undefined]);
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
      [{ 'not a name': { ü: new Map() } }, /^value\["not a name"\]\.ü is a Map/],
      [[new Date()], /^value\[0\] is a Date/],
      [{ error: new Error('x') }, /^value\.error is an Error/],
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
        new Map(),
        /^value is a Map, .*: only plain objects, arrays, binary data, device arrays, buffers, pools and events are$/,
      ],
    ] as const)
      await assert.rejects(pair.a.send(value), { name: 'TypeError', message });
    assert.deepEqual(roundTrip(ofArray.toJSON()), ofArray.toJSON());
  });

  test('a value that is too deep, too large or contains itself is refused', () => {
    const cycle: Record<string, unknown> = {};
    cycle['self'] = [cycle];
    assert.throws(() => encode(cycle), {
      name: 'RangeError',
      message: /^value\.self\[0\]\.self.* in itself$/,
    });
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
      () => encode({ constructor: { name: 5 }, map: new Map() }),
      /value\.map is a Map/,
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
      nested: { list: [null, undefined, true, false] },
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

  test('bytes that no encoder writes are refused', () => {
    const length = (value: number): number[] =>
      value > 127 ? [(value & 127) | 128, ...length(value >>> 7)] : [value];
    const key = (name: string): number[] => [Tag.latin1, name.length, ...Buffer.from(name)];
    const cases: readonly (readonly [readonly number[], RegExp])[] = [
      [[], /in the middle/],
      [[99], /unknown value tag/],
      [[Tag.null, 200], /unknown control field 200/],
      [[Tag.null, 1], /parts of a control message/],
      [[Tag.array, ...length(2 ** 27)], /needs more than the/],
      [[Tag.latin1, 255, 255, 255, 255, 15], /too large/],
      [[Tag.object, 1, Tag.null, Tag.null, Tag.null], /not a string/],
      [[Tag.object, 1, ...key('__proto__'), Tag.null], /"__proto__" is not allowed/],
      [[Tag.object, 2, ...key('a'), Tag.null, ...key('a'), Tag.null], /"a" is not allowed/],
      [[Tag.utf16, 1, 65], /half a character/],
      [[Tag.bigint, 0, 1, 'g'.charCodeAt(0)], /other than hexadecimal digits/],
      [[Tag.binary, 99, 0], /unknown type/],
      [[Tag.binary, 9, 3, 0, 0, 0], /Float32Array cannot have 3 bytes/],
      [new Array<number>(MAX_VALUE_DEPTH + 1).fill(Tag.array).flatMap((tag) => [tag, 1]), /deeper/],
      [[Tag.gpuObject], /in the middle/],
      [[Tag.null, ...tableOf(0, unknownObject)], /control field/],
      [
        [Tag.gpuObject, ...tableOf(0, { ...unknownObject, fdCount: 1 })],
        /0 file descriptors with a value that has 1/,
      ],
      [
        [Tag.gpuObject, ...tableOf(0, { ...unknownObject, hasLink: true })],
        /0 file descriptors with a value that has 1/,
      ],
      [[Tag.gpuObject, ...tableOf(-1, unknownObject)], /-1 is not an integer/],
      [[Tag.gpuObject, ...tableOf(2 ** 53 - 1, unknownObject)], /is not a valid range/],
      [[Tag.gpuObject, ...tableOf(0.5, unknownObject)], /0.5 is not an integer/],
      [[Tag.gpuObject, ...tableOf(0, { bytes: new Array<number>(5000).fill(0) })], /too long/],
    ];
    for (const [bytes, message] of cases)
      assert.throws(() => decode(Uint8Array.from(bytes)), { name: 'IpcError', message });
    assert.throws(() => decode(encode(1), 1), {
      name: 'IpcError',
      message: /1 file descriptors with a value/,
    });
    const many = Buffer.alloc(MAX_VALUE_PARTS + 10, Tag.null);
    many.set([Tag.array, ...length(MAX_VALUE_PARTS + 6)]);
    assert.throws(() => decode(many), { name: 'IpcError', message: /more than 1048576 parts/ });
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
