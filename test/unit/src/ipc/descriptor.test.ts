import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { IpcError } from '../../../../src/errors.ts';
import type {
  IpcBufferDescriptor,
  IpcEventDescriptor,
  IpcKind,
} from '../../../../src/ipc/descriptor.ts';
import {
  decodeDescriptor,
  encodeDescriptor,
  parseDescriptor,
  withChecksum,
} from '../../../../src/ipc/sharing/descriptor-codec.ts';
import { trials } from '../../../support/iterations.ts';
import { rawBytes } from './raw-descriptor.ts';

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

describe('parseDescriptor', () => {
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
    refused('event', { ...buffer, kind: 'event' }, 'baseByteLength is no field');
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
