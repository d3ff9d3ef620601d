import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { IpcError } from '../../../../../src/errors.ts';
import { ByteWriter } from '../../../../../src/ipc/bytes.ts';
import {
  type AnyFields,
  type DescriptorFields,
  type IpcBufferDescriptor,
  type IpcDescriptor,
  type IpcEventDescriptor,
  type IpcKind,
  isHostFields,
} from '../../../../../src/ipc/descriptor.ts';
import {
  hostFields,
  MAX_OBJECT_BYTE_LENGTH,
  objectKinds,
} from '../../../../../src/ipc/protocol.ts';
import {
  decodeDescriptor,
  decodeFields,
  encodeDescriptor,
  encodeFields,
  parseDescriptor,
  withChecksum,
} from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { trials } from '../../../../support/iterations.ts';
import { rawBytes } from './raw-descriptor.ts';

const hex = (byteLength: number) =>
  fc
    .uint8Array({ minLength: byteLength, maxLength: byteLength })
    .map((bytes) => Buffer.from(bytes).toString('hex'));
const uuid = hex(16).map((digits) =>
  digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
);
const size = fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER });
const handle = hex(64).map((digits) => Buffer.from(digits, 'hex').toString('base64'));
const access = fc.constantFrom('read-write', 'read');
/** The extent of a layout's items, computed by hand. */
const layouts = fc
  .tuple(
    fc.constantFrom(['float32', 4], ['bool', 1], ['bfloat16', 2], ['V12', 12]),
    fc.array(fc.tuple(fc.integer({ min: 1, max: 100 }), fc.integer({ min: -1e6, max: 1e6 })), {
      maxLength: 7,
    }),
    fc.nat(64 - 7),
  )
  .map(([[dtype, itemsize], axes, ones]) => {
    const all = [...axes, ...Array.from({ length: ones }, () => [1, 3] as const)];
    return {
      layout: {
        dtype: dtype as string,
        shape: all.map(([length]) => length),
        strides: all.map(([, stride]) => stride),
      },
      least: axes.reduce(
        (reach, [length, stride]) => reach + (length - 1) * Math.abs(stride),
        itemsize as number,
      ),
    };
  });

const exporter = {
  device: fc.tuple(fc.constantFrom('GPU-', 'MIG-'), uuid).map((parts) => parts.join('')),
  machine: uuid,
  pid: fc.integer({ min: 1, max: 0xffff_ffff }),
  startTime: size,
  pidNamespace: size,
};
const identity = { access, bufferId: size, generation: size };

const sealed = (kind: IpcDescriptor['kind'], fields: fc.Arbitrary<object>) =>
  fields.map((given) => withChecksum({ kind, ...given } as never) as IpcDescriptor);

const events = sealed('event', fc.record({ ...exporter, handle }));

/** A range within an allocation. */
const withRange = <T extends object>(fields: fc.Arbitrary<T>, total?: (fields: T) => number) =>
  fc
    .tuple(
      fields,
      fc.integer({ min: 1, max: 2 ** 40 }),
      fc.nat(),
      fc.nat(),
      fc.option(layouts),
      fc.option(events),
    )
    .map(([given, some, begin, length, lie, readyEvent]) => {
      const baseByteLength = total?.(given) ?? some;
      const byteOffset = begin % baseByteLength;
      const byteLength = 1 + (length % (baseByteLength - byteOffset));
      return {
        ...given,
        baseByteLength,
        byteOffset,
        byteLength,
        ...(lie && lie.least <= byteLength && { layout: lie.layout }),
        ...(readyEvent && { readyEvent }),
      };
    });

const descriptors: fc.Arbitrary<IpcDescriptor> = fc.oneof(
  events,
  sealed('legacy', withRange(fc.record({ ...exporter, ...identity, handle }))),
  sealed('pool', withRange(fc.record({ ...exporter, ...identity, handle, pool: hex(16) }))),
  sealed(
    'virtual',
    withRange(
      fc.record({
        ...exporter,
        ...identity,
        memory: hex(16),
        firstPiece: fc.nat(),
        pieces: fc.array(fc.integer({ min: 1, max: 2 ** 40 }), { minLength: 1, maxLength: 253 }),
      }),
      ({ pieces }) => (pieces ?? []).reduce((sum, piece) => sum + piece, 0),
    ),
  ),
);

/** Offsets after the magic number. */
const VERSION_AT = 4;

/** The fields without version and checksum, which connections send. */
const fieldsOf = ({ version: _, checksum: __, ...fields }: IpcDescriptor): DescriptorFields =>
  'readyEvent' in fields
    ? { ...fields, readyEvent: fieldsOf(fields.readyEvent as IpcDescriptor) as never }
    : (fields as DescriptorFields);

const isDeeplyFrozen = (value: unknown): boolean =>
  typeof value !== 'object' ||
  value === null ||
  (Object.isFrozen(value) && Object.values(value).every(isDeeplyFrozen));

/** Values at and beyond the bounds of fields, which both forms can express. */
const edges: Readonly<Record<string, fc.Arbitrary<unknown>>> = (() => {
  const numbers = [-(2 ** 53), -1, 0, 1, 4096, 2 ** 32, 2 ** 53 - 1, 2 ** 53, 2 ** 60];
  const size = fc.constantFrom(...numbers);
  const sizes = fc.array(fc.constantFrom(...numbers, 1, 2, 3), { maxLength: 3 });
  const axes = (length: number) => fc.array(size, { minLength: length, maxLength: length });
  const dtype = fc.constantFrom(
    'float32',
    'V12',
    'V',
    'V0',
    'Float32',
    'f4',
    'nothing',
    'a'.repeat(17),
  );
  const layout = fc
    .constantFrom(0, 1, 2, 64, 65)
    .chain((ndim) => fc.record({ dtype, shape: axes(ndim), strides: axes(ndim) }));
  return {
    ...Object.fromEntries(
      ['startTime', 'baseByteLength', 'byteOffset', 'byteLength', 'bufferId', 'generation'].map(
        (name) => [name, size],
      ),
    ),
    pid: fc.constantFrom(0, 1, 2 ** 32 - 1),
    firstPiece: fc.constantFrom(0, 2 ** 32 - 1),
    device: uuid.chain((id) => fc.constantFrom(`GPU-${id}`, `MIG-${id}`, `CPU-${id}`)),
    access: fc.constantFrom('read', 'read-write', 'write'),
    handle: fc.oneof(handle, fc.constant(null)),
    pieces: fc.oneof(sizes, fc.constant(new Array<number>(254).fill(1))),
    layout: fc.oneof(
      layout,
      layouts.map(({ layout: sound }) => sound),
      fc.constant(undefined),
    ),
    readyEvent: events.chain((event) =>
      fc.constantFrom(event, { ...event, startTime: event.startTime + 1 }, undefined),
    ),
  };
})();

describe('encodeDescriptor', () => {
  test('a decoded descriptor equals the encoded one, and its bytes are shorter than its JSON', () => {
    fc.assert(
      fc.property(descriptors, (descriptor) => {
        const bytes = encodeDescriptor(descriptor);
        assert.ok(bytes.byteLength <= MAX_OBJECT_BYTE_LENGTH);
        if (descriptor.kind === 'legacy' && !('layout' in descriptor))
          assert.ok(bytes.byteLength < JSON.stringify(descriptor).length / 2);
        assert.deepEqual(decodeDescriptor(bytes), descriptor);
      }),
      trials(300, 10_000),
    );
  });

  test('an invalid descriptor cannot be encoded', () => {
    for (const wrong of [null, {}, { kind: 'legacy' }, 'x'])
      assert.throws(() => encodeDescriptor(wrong as never), IpcError);
  });
});

describe('encodeFields', () => {
  test('decoded fields equal the encoded ones, and can never change', () => {
    fc.assert(
      fc.property(descriptors, (descriptor) => {
        const decoded = decodeFields(encodeFields(descriptor));
        assert.deepEqual(decoded, fieldsOf(descriptor));
        assert.ok(isDeeplyFrozen(decoded));
      }),
      trials(300, 10_000),
    );
  });

  test('the bytes do not depend on what was encoded before, or is being written', () => {
    fc.assert(
      fc.property(descriptors, descriptors, (one, other) => {
        const bytes = encodeFields(one);
        assert.deepEqual(decodeFields(encodeFields(other)), fieldsOf(other));
        assert.deepEqual(encodeFields(one), bytes);
        const within = ByteWriter.use(4, (writer) => {
          writer.uint32(7);
          writer.bytes(encodeFields(one));
          return Buffer.from(writer.written.subarray(8));
        });
        assert.deepEqual(within, bytes);
      }),
      trials(100, 3000),
    );
  });

  test('consecutive descriptors whose exporters differ in one field keep their own exporters', () => {
    const one = {
      device: 'GPU-01234567-89ab-cdef-0123-456789abcdef',
      machine: '76543210-89ab-cdef-0123-456789abcdef',
      pid: 4242,
      startTime: 123_456,
      pidNamespace: 7,
    };
    const others = [
      { device: one.device.replace('GPU', 'MIG') },
      { device: one.device.replace('0', '1') },
      { machine: one.machine.replace('0', '1') },
      { pid: 4243 },
      { startTime: 123_457 },
      { pidNamespace: 8 },
    ];
    const of = (fields: object): DescriptorFields => ({
      kind: 'event',
      handle: Buffer.alloc(64, 1).toString('base64'),
      ...one,
      ...fields,
    });
    for (const fields of others) {
      for (const each of [of({}), of(fields), of({})])
        assert.deepEqual(decodeFields(encodeFields(each)), each);
      const bytes = [of({}), of(fields), of({})].map(encodeFields);
      assert.notDeepEqual(bytes[0], bytes[1]);
      // A later process with the same pid stays a different one after decoding.
      assert.deepEqual(bytes.map(decodeFields), [of({}), of(fields), of({})]);
    }
  });
});

describe('decodeFields', () => {
  test('truncated, extended or invented bytes throw an IpcError that says why', () => {
    const refused = (bytes: Uint8Array): void => {
      assert.throws(() => decodeFields(bytes), {
        name: 'IpcError',
        code: 'invalid-descriptor',
        message: /^these bytes are not a cuffi descriptor: ./,
      });
    };
    fc.assert(
      fc.property(descriptors, fc.nat(), (descriptor, at) => {
        const bytes = encodeFields(descriptor);
        refused(bytes.subarray(0, at % bytes.byteLength));
        refused(new Uint8Array([...bytes, 0]));
        refused(new Uint8Array([objectKinds.length, ...bytes.subarray(1)]));
      }),
      trials(300, 10_000),
    );
    // Few bytes are enough for what only connections send: the vectors have their refusals.
    const isOfHostKind = ([kind]: Uint8Array): boolean =>
      (objectKinds[kind as number] ?? '') in hostFields;
    const invented = fc.uint8Array({ maxLength: 100 }).filter((bytes) => !isOfHostKind(bytes));
    fc.assert(fc.property(invented, refused), trials(100, 10_000));
    refused(new Uint8Array(MAX_OBJECT_BYTE_LENGTH + 1));
  });

  test('a changed byte gives other valid fields or throws an IpcError', () => {
    const change = fc.integer({ min: 1, max: 255 });
    fc.assert(
      fc.property(descriptors, fc.nat(), change, (descriptor, at, by) => {
        const bytes = encodeFields(descriptor);
        const place = at % bytes.byteLength;
        bytes[place] = (bytes[place] as number) ^ by;
        let fields: AnyFields;
        try {
          fields = decodeFields(bytes);
        } catch (error) {
          assert.ok(error instanceof IpcError, String(error));
          return;
        }
        assert.notDeepEqual(fields, fieldsOf(descriptor));
        if (isHostFields(fields)) return;
        // As valid as a message that states the same.
        parseDescriptor(JSON.parse(JSON.stringify(withChecksum(fields))));
      }),
      trials(300, 10_000),
    );
  });
});

describe('decodeDescriptor', () => {
  test('corrupted, truncated, extended or invented bytes throw an IpcError', () => {
    const refused = (bytes: Uint8Array): void => {
      assert.throws(() => decodeDescriptor(bytes), IpcError);
    };
    fc.assert(
      fc.property(
        descriptors,
        fc.nat(),
        fc.integer({ min: 1, max: 255 }),
        (descriptor, at, change) => {
          const bytes = encodeDescriptor(descriptor);
          refused(bytes.subarray(0, at % bytes.byteLength));
          refused(new Uint8Array([...bytes, 0]));
          const place = at % bytes.byteLength;
          bytes[place] = (bytes[place] as number) ^ change;
          try {
            // Any flag value but 0 means the same, so nothing was corrupted.
            assert.deepEqual(decodeDescriptor(bytes), descriptor);
          } catch (error) {
            assert.ok(error instanceof IpcError, String(error));
          }
        },
      ),
      trials(300, 10_000),
    );
    fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), refused), trials(100, 10_000));
    refused(new Uint8Array(MAX_OBJECT_BYTE_LENGTH + 1));
    const [own] = fc.sample(descriptors, 1);
    const bytes = encodeDescriptor(own as IpcDescriptor);
    const version = bytes[VERSION_AT] as number;
    for (const other of [0, version - 1, version + 1, 255]) {
      bytes[VERSION_AT] = other;
      assert.throws(() => decodeDescriptor(bytes), {
        name: 'IpcError',
        code: 'version-mismatch',
        message: new RegExp(`version ${other} of the protocol, .* version ${version}\\.`),
      });
    }
    for (const wrong of [undefined, 'cufd', [1], new ArrayBuffer(8)])
      assert.throws(() => decodeDescriptor(wrong as never), TypeError);
  });

  test('decodeDescriptor and parseDescriptor agree on every descriptor', () => {
    const answer = (read: () => IpcDescriptor): unknown => {
      try {
        return read();
      } catch (error) {
        assert.ok(error instanceof IpcError, String(error));
        return error.code;
      }
    };
    const answers = new Map<unknown, number>();
    const count = (key: unknown): unknown => answers.set(key, (answers.get(key) ?? 0) + 1);
    fc.assert(
      fc.property(
        descriptors,
        fc.infiniteStream(fc.record(edges)),
        fc.infiniteStream(fc.nat()),
        fc.boolean(),
        (descriptor, values, choices, isSealed) => {
          const fields = Object.keys(edges).filter(
            (name) => name in descriptor || (name === 'layout' && descriptor.kind !== 'event'),
          );
          const [edge] = values.take(1);
          let changed: Record<string, unknown> = { ...(descriptor as object) };
          for (const choice of choices.take(2)) {
            const name = fields[choice % fields.length] as string;
            // The binary form of a required handle cannot express that it is absent.
            if (name === 'handle' && descriptor.kind !== 'pool') continue;
            changed = { ...changed, [name]: edge?.[name] };
          }
          if (isSealed) changed = { ...(withChecksum(changed as never) as object) };
          const bytes = rawBytes(changed as never);
          const expected = answer(() => parseDescriptor(JSON.parse(JSON.stringify(changed))));
          assert.deepEqual(
            answer(() => decodeDescriptor(bytes)),
            expected,
            JSON.stringify(changed),
          );
          count(typeof expected === 'string' ? expected : 'sound');
        },
      ),
      trials(1000, 20_000),
    );
    for (const kind of ['sound', 'corrupted', 'invalid-descriptor'])
      assert.ok((answers.get(kind) ?? 0) > 20, `${kind}: ${answers.get(kind)}`);
  });
});

describe('parseDescriptor', () => {
  /** A frozen copy with a getter, or a prototype, that may return a different value each time. */
  const changing = (fields: object, name: string, answer: () => unknown): object[] => {
    const own = { ...fields };
    Object.defineProperty(own, name, { enumerable: true, get: answer });
    const { [name as keyof typeof fields]: _, ...rest } = fields;
    const prototype = Object.defineProperty({}, name, { enumerable: true, get: answer });
    return [
      Object.freeze(own),
      Object.freeze(Object.assign(Object.create(prototype), rest)) as object,
    ];
  };

  const bytes = (length: number): string => Buffer.alloc(length, 0xa5).toString('base64');

  const exporter = {
    device: 'GPU-01234567-89ab-cdef-0123-456789abcdef',
    machine: '76543210-89ab-cdef-0123-456789abcdef',
    pid: 4242,
    startTime: 123_456,
    pidNamespace: 4_026_531_836,
  };
  const range = {
    baseByteLength: 4096,
    byteOffset: 256,
    byteLength: 1024,
    access: 'read-write',
    bufferId: 7,
    generation: 3,
  } as const;
  const handle = bytes(64);
  const id = '0123456789abcdef'.repeat(2);
  const buffer: IpcBufferDescriptor = withChecksum({
    kind: 'legacy',
    ...exporter,
    handle,
    ...range,
  });
  const event: IpcEventDescriptor = withChecksum({ kind: 'event', ...exporter, handle });
  const inPool = withChecksum({ kind: 'pool', ...exporter, pool: id, handle, ...range });
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  const pool = withChecksum({ ...inPool, ...nothing, handle: null });
  const virtual = withChecksum({
    kind: 'virtual',
    ...exporter,
    memory: id,
    firstPiece: 2,
    pieces: [1024, 3072],
    ...range,
    access: 'read',
  });
  const sound = [
    ['legacy', buffer],
    ['event', event],
    ['pool', inPool],
    ['pool', pool],
    ['virtual', virtual],
  ] as const;

  const refused = (kind: IpcKind, message: unknown, what: RegExp | string): void => {
    assert.throws(
      () => parseDescriptor(message, [kind]),
      (error: Error) => {
        assert.ok(error instanceof IpcError, String(error));
        assert.match(error.message, new RegExp(`^this is not a cuffi descriptor of kind ${kind}:`));
        assert.match(error.message, new RegExp(what));
        return true;
      },
      JSON.stringify(message),
    );
  };

  /** With a right checksum, if one can be computed at all. */
  function sealed(message: Record<string, unknown>): unknown {
    try {
      return withChecksum(message as never);
    } catch {
      return message;
    }
  }

  /** Asserts that a message and its bytes are refused for the same reason. */
  function refusedBothWays(what: string, message: object, expected: object): void {
    const bytesOf = rawBytes(message as never);
    assert.throws(() => parseDescriptor(message), { name: 'IpcError', ...expected }, what);
    assert.throws(() => decodeDescriptor(bytesOf), { name: 'IpcError', ...expected }, what);
  }

  test('a valid descriptor equals its parsed form, also after JSON and structured cloning', () => {
    for (const [kind, descriptor] of sound) {
      assert.deepEqual(parseDescriptor(descriptor, [kind]), descriptor);
      assert.deepEqual(parseDescriptor(JSON.parse(JSON.stringify(descriptor)), [kind]), descriptor);
      assert.deepEqual(parseDescriptor(structuredClone(descriptor), [kind]), descriptor);
    }
    const mig = withChecksum({ ...buffer, device: buffer.device.replace('GPU', 'MIG') });
    assert.deepEqual(parseDescriptor(mig, ['legacy']), mig);
  });

  test('the error names common mistakes', () => {
    refused('legacy', JSON.stringify(buffer), 'JSON\\.parse it first$');
    refused('pool', { descriptor: inPool, fds: [] }, 'pass its descriptor, and its fds');
    refused('event', Promise.resolve(event), 'await it first$');
  });

  test('a missing field is refused and named', () => {
    for (const [kind, descriptor] of sound) {
      for (const field of Object.keys(descriptor)) {
        const { [field]: _gone, ...rest } = descriptor as unknown as Record<string, unknown>;
        refused(kind, rest, field);
      }
    }
  });

  test('a field of the wrong type is refused and named', () => {
    const wrong = [undefined, true, {}, Number.NaN, 1n, Symbol.iterator, () => 1];
    for (const [kind, descriptor] of sound) {
      for (const field of Object.keys(descriptor)) {
        const value = descriptor[field as keyof typeof descriptor];
        const swapped = typeof value === 'string' ? 5 : String(value);
        // The handle of a pool itself is null.
        const others = value === null || (kind === 'pool' && field === 'handle') ? [] : [null, []];
        for (const other of [...wrong, ...others, ...(value === null ? [] : [swapped])])
          assert.throws(
            () => parseDescriptor({ ...descriptor, [field]: other }, [kind]),
            { name: 'IpcError', message: new RegExp(field) },
            `${field}: ${String(other)}`,
          );
      }
    }
  });

  test('an unknown field is refused', () => {
    for (const [kind, descriptor] of sound) {
      refused(kind, { ...descriptor, fd: 3 }, 'fd');
      const polluting = JSON.parse(
        `{"__proto__":{"admin":true},${JSON.stringify(descriptor).slice(1)}`,
      );
      refused(kind, polluting, '__proto__');
    }
    assert.equal(({} as { admin?: boolean }).admin, undefined);
  });

  test('a descriptor of another kind is refused', () => {
    refused('legacy', event, 'kind');
    refused('event', buffer, 'kind');
    refused('event', { ...buffer, kind: 'event' }, 'baseByteLength is not a field');
  });

  test('a handle that is not exactly 64 bytes in base64 is refused', () => {
    for (const length of [0, 1, 63, 65, 128])
      refused('legacy', { ...buffer, handle: bytes(length) }, '64 bytes in base64');
    for (const handle of [
      '',
      '!'.repeat(88),
      buffer.handle.slice(0, -1),
      ` ${buffer.handle}`,
      `${buffer.handle}\n`,
      buffer.handle.replace('=', '*'),
      Buffer.alloc(64, 0xfb).toString('base64url'),
      'a'.repeat(1e6),
    ])
      refused('legacy', { ...buffer, handle }, 'handle');
  });

  test('a number must be a safe integer and not negative', () => {
    for (const field of ['byteOffset', 'byteLength', 'bufferId', 'pid'])
      for (const value of [-1, 0.5, Number.POSITIVE_INFINITY, 2 ** 53, 1e300, '1'])
        refused('legacy', { ...buffer, [field]: value }, field);
    for (const field of ['byteLength', 'pid']) refused('legacy', { ...buffer, [field]: 0 }, field);
    for (const version of [-1, 1.5, '4']) refused('legacy', { ...buffer, version }, 'version');
  });

  test('a device that is not a UUID is refused', () => {
    for (const device of ['', '0', 'GPU-0', `${buffer.device}0`, `GPU-${'g'.repeat(36)}`])
      refused('legacy', { ...buffer, device }, 'UUID of a GPU');
  });

  test('a value that is not an object is refused', () => {
    for (const message of [
      null,
      undefined,
      '',
      'text',
      5,
      true,
      [],
      [buffer],
      new Map(),
      Symbol('s'),
    ])
      assert.throws(
        () => parseDescriptor(message, ['legacy']),
        { name: 'IpcError' },
        String(message),
      );
  });

  test('the checksum detects a change of any single value', () => {
    const altered = {
      handle: bytes(64).replace('pa', 'pb'),
      byteOffset: 0,
      byteLength: 1023,
      bufferId: 8,
      device: buffer.device.replace('0', '1'),
      pid: 4243,
      checksum: (buffer.checksum ^ 1) >>> 0,
    };
    for (const [field, value] of Object.entries(altered))
      assert.throws(() => parseDescriptor({ ...buffer, [field]: value }, ['legacy']), {
        name: 'IpcError',
        message: /^this legacy descriptor of process \d+ is corrupted: its checksum is wrong$/,
      });
    const reordered = Object.fromEntries(Object.entries(buffer).reverse());
    assert.deepEqual(parseDescriptor(reordered, ['legacy']), buffer);
  });

  test('any change of a message gives a valid descriptor or an IpcError', () => {
    const field = fc.constantFrom(...Object.keys(buffer), 'extra', '__proto__', 'toString');
    const value = fc.oneof(
      fc.anything(),
      fc.integer(),
      fc.double(),
      fc.string(),
      fc.base64String({ minLength: 84, maxLength: 92 }),
      fc.constantFrom(...Object.values(buffer)),
    );
    const mutation = fc.record({ field, value, remove: fc.boolean() });
    fc.assert(
      fc.property(
        fc.array(mutation, { minLength: 1, maxLength: 4 }),
        fc.boolean(),
        (mutations, isSealed) => {
          const message: Record<string, unknown> = { ...buffer };
          for (const { field: name, value: given, remove } of mutations) {
            if (remove) delete message[name];
            else {
              const traits = { value: given, enumerable: true, configurable: true, writable: true };
              Object.defineProperty(message, name, traits);
            }
          }
          try {
            const parsed = parseDescriptor(isSealed ? sealed(message) : message, ['legacy']);
            assert.equal(Buffer.from(parsed.handle, 'base64').byteLength, 64);
            for (const number of [
              parsed.byteOffset,
              parsed.byteLength,
              parsed.bufferId,
              parsed.pid,
            ])
              assert.ok(Number.isSafeInteger(number) && number >= 0);
            assert.deepEqual(Object.keys(parsed).sort(), Object.keys(buffer).sort());
          } catch (error) {
            assert.ok(error instanceof IpcError, String(error));
          }
        },
      ),
      trials(300, 10_000),
    );
  });

  test('a message that only looks constant is checked again', () => {
    for (const at of [0, 1]) {
      let answer: unknown = buffer.byteLength;
      const message = changing(buffer, 'byteLength', () => answer)[at];
      assert.equal(parseDescriptor(message, ['legacy']).byteLength, buffer.byteLength);
      answer = 1 << 30;
      assert.throws(() => parseDescriptor(message), { name: 'IpcError' });
    }
    const found = Object.freeze({ ...buffer });
    assert.deepEqual(parseDescriptor(found), buffer);
    assert.equal(parseDescriptor(found), found, 'a constant one is read once');
  });

  test('a message that can still be changed is checked again, however deep the mutable part is', () => {
    const layout = { dtype: 'uint8', shape: [16, 64], strides: [64, 1] };
    const array = withChecksum({ ...buffer, layout, readyEvent: event });
    const changes: readonly (readonly [string, () => object, (message: never) => void])[] = [
      ['a field', () => ({ ...buffer }), (m: { pid: number }) => (m.pid += 1)],
      [
        'a list',
        () => Object.freeze({ ...virtual, pieces: [...virtual.pieces] }),
        (m: { pieces: number[] }) => m.pieces.reverse(),
      ],
      [
        'a list in a layout',
        () =>
          Object.freeze({
            ...array,
            layout: Object.freeze({ ...layout, shape: [...layout.shape] }),
          }),
        (m: { layout: { shape: number[] } }) => m.layout.shape.reverse(),
      ],
      [
        'the event within',
        () => Object.freeze({ ...array, layout: undefined, readyEvent: { ...event } }),
        (m: { readyEvent: { handle: string } }) => {
          m.readyEvent.handle = bytes(64).replace('pa', 'pb');
        },
      ],
    ];
    for (const [what, make, change] of changes) {
      const message = sealed(make() as Record<string, unknown>) as object;
      const made = what === 'a field' ? message : Object.freeze(message);
      assert.deepEqual(parseDescriptor(made), made, what);
      change(made as never);
      assert.throws(() => parseDescriptor(made), { name: 'IpcError', code: 'corrupted' }, what);
    }
  });

  test('inconsistent fields are refused, as a message and as bytes', () => {
    const layout = { dtype: 'uint8', shape: [1024], strides: [1] };
    const sizes = /the pool itself has size 0, and memory of the pool has a size above 0/;
    const pieces = /the pieces must add up to baseByteLength/;
    const cases: readonly (readonly [string, object, RegExp])[] = [
      ['pieces of less', { ...virtual, pieces: [1024, 3071] }, pieces],
      ['pieces of more', { ...virtual, pieces: [1024, 3072, 1] }, pieces],
      ['one byte behind', { ...buffer, byteOffset: 4096 - 1023 }, /bytes 3073 to 4097 of an alloc/],
      ['a pool with a size', { ...pool, baseByteLength: 1 }, sizes],
      ['a pool that is an array', { ...pool, layout }, sizes],
      ['a pool with an event', { ...pool, readyEvent: event }, sizes],
      ['memory of a pool without bytes', { ...inPool, byteLength: 0 }, sizes],
      [
        'items behind the range',
        { ...buffer, layout: { ...layout, shape: [1025] } },
        /its items take 1025 bytes \(1.001 KiB\) of a range that has 1024/,
      ],
      ['no items', { ...buffer, layout: { ...layout, shape: [0] } }, /it has no items/],
      ['a dtype by another name', { ...buffer, layout: { ...layout, dtype: 'f4' } }, /is called/],
    ];
    for (const [what, fields, message] of cases)
      refusedBothWays(what, withChecksum(fields as never), { code: 'invalid-descriptor', message });
    // Exactly to the last byte.
    for (const fields of [
      { ...buffer, byteOffset: 4096 - 1024 },
      { ...buffer, layout },
    ]) {
      const descriptor = withChecksum(fields as never) as IpcBufferDescriptor;
      assert.deepEqual(parseDescriptor(descriptor), descriptor);
      assert.deepEqual(decodeDescriptor(encodeDescriptor(descriptor)), descriptor);
    }
  });

  test('a corrupted ready event is refused, even if the descriptor around it is valid', () => {
    for (const memory of [buffer, inPool, virtual]) {
      const { readyEvent, ...whole } = withChecksum({ ...memory, readyEvent: event });
      assert.deepEqual(readyEvent, event);
      const corrupted = { ...event, checksum: (event.checksum ^ 1) >>> 0 };
      assert.throws(() => parseDescriptor({ ...whole, readyEvent: corrupted }), {
        name: 'IpcError',
        code: 'corrupted',
        message: /^this event descriptor of process 4242 is corrupted/,
      });
      // In the bytes, the checksum of the descriptor covers its event too.
      const altered = { ...event, handle: bytes(64).replace('pa', 'pb') };
      refusedBothWays(
        memory.kind,
        { ...whole, readyEvent: withChecksum(altered) },
        {
          code: 'corrupted',
          message: new RegExp(`^this ${memory.kind} descriptor of process 4242`),
        },
      );
    }
  });

  test('the error for an impossible dtype name does not repeat the name', () => {
    const layout = { dtype: 'f\u001b[2J', shape: [1], strides: [1] };
    const wrong = withChecksum({ ...buffer, layout });
    assert.throws(() => decodeDescriptor(rawBytes(wrong)), {
      name: 'IpcError',
      code: 'invalid-descriptor',
      message: 'these bytes are not a cuffi descriptor: layout: that is not the name of a dtype',
    });
    assert.throws(
      () => parseDescriptor(wrong),
      (error: IpcError) => error.code === 'invalid-descriptor' && !error.message.includes('\u001b'),
    );
  });
});
