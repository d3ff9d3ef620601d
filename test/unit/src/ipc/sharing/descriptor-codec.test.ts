import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { IpcError } from '../../../../../src/errors.ts';
import { ByteWriter } from '../../../../../src/ipc/bytes.ts';
import type { DescriptorFields, IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { MAX_OBJECT_BYTE_LENGTH } from '../../../../../src/ipc/protocol.ts';
import {
  decodeDescriptor,
  decodeFields,
  encodeDescriptor,
  encodeFields,
  parseDescriptor,
  withChecksum,
} from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { trials } from '../../../../support/iterations.ts';
import { rawBytes } from '../raw-descriptor.ts';

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
        refused(new Uint8Array([4, ...bytes.subarray(1)]));
      }),
      trials(300, 10_000),
    );
    fc.assert(fc.property(fc.uint8Array({ maxLength: 100 }), refused), trials(100, 10_000));
    refused(new Uint8Array(MAX_OBJECT_BYTE_LENGTH + 1));
  });

  test('a changed byte gives other valid fields or throws an IpcError', () => {
    const change = fc.integer({ min: 1, max: 255 });
    fc.assert(
      fc.property(descriptors, fc.nat(), change, (descriptor, at, by) => {
        const bytes = encodeFields(descriptor);
        const place = at % bytes.byteLength;
        bytes[place] = (bytes[place] as number) ^ by;
        let fields: DescriptorFields;
        try {
          fields = decodeFields(bytes);
        } catch (error) {
          assert.ok(error instanceof IpcError, String(error));
          return;
        }
        assert.notDeepEqual(fields, fieldsOf(descriptor));
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
});

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
  test('an invalid descriptor cannot be encoded', () => {
    for (const wrong of [null, {}, { kind: 'legacy' }, 'x'])
      assert.throws(() => encodeDescriptor(wrong as never), IpcError);
  });
});

describe('decodeDescriptor', () => {
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
