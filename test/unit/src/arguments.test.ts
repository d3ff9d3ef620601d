import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  checkBoolean,
  checkHostMemory,
  checkInstance,
  checkInteger,
  checkOptions,
} from '../../../src/arguments.ts';
import * as cuda from '../../../src/index.ts';
import * as ipc from '../../../src/ipc/index.ts';

interface Known {
  readonly stream?: number;
  readonly device?: number;
}
const options = (given: unknown, known: readonly (keyof Known)[] = ['stream', 'device']) =>
  checkOptions<Known>(given as Known, known, 'Thing.make');

test('options may be left out, be empty, or hold what is known', () => {
  assert.deepEqual(options(undefined), {});
  assert.deepEqual(options({}), {});
  const given = { stream: 1 };
  assert.equal(options(given), given);
});

test('an unknown option is refused, and the known ones are named', () => {
  assert.throws(() => options({ stream: 1, strem: 2 }), {
    name: 'TypeError',
    message: "Thing.make: unknown option 'strem'; known: stream, device",
  });
  assert.throws(() => options({ x: 1 }, []), { message: /known: none$/ });
});

test('options that are no plain object are refused with what they are', () => {
  for (const [given, shown] of [
    [null, 'null'],
    [5, '5'],
    ['5', '"5"'],
    [true, 'true'],
    [5n, '5n'],
  ] as const)
    assert.throws(() => options(given), {
      name: 'TypeError',
      message: `Thing.make: options must be a plain object, not ${shown}`,
    });
  for (const given of [[], [1], () => ({})])
    assert.throws(() => options(given), TypeError, String(given));
});

test('an integer is of the right type, whole, safe, and in range', () => {
  for (const value of [0, 1, Number.MAX_SAFE_INTEGER])
    assert.equal(checkInteger(value, 'n'), value);
  for (const value of ['1', 1n, null, undefined, true, {}, Symbol('s'), [1]])
    assert.throws(() => checkInteger(value, 'n'), {
      name: 'TypeError',
      message: /^n must be a number/,
    });
  for (const value of [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53, Number.MIN_VALUE])
    assert.throws(() => checkInteger(value, 'n'), {
      name: 'RangeError',
      message: `n must be an integer of at least 0, not ${value}`,
    });
  assert.equal(checkInteger(-3, 'n', -3, 3), -3);
  assert.throws(() => checkInteger(4, 'n', -3, 3), {
    message: 'n must be an integer from -3 to 3, not 4',
  });
});

test('a message stays short, whatever was given', () => {
  const long = 'x'.repeat(1e6);
  assert.throws(
    () => checkInteger(long, 'n'),
    (error: Error) => error.message.length < 100,
  );
  assert.throws(() => checkInteger(Object.create(null), 'n'), {
    message: 'n must be a number, not a object',
  });
});

test('a boolean is exactly that, or its default', () => {
  assert.equal(checkBoolean(undefined, 'b', true), true);
  assert.equal(checkBoolean(false, 'b', true), false);
  for (const value of [0, 1, null, 'true'])
    assert.throws(() => checkBoolean(value, 'b', false), {
      name: 'TypeError',
      message: /^b must be true or false/,
    });
});

test('an instance is of the class itself or of one derived from it', () => {
  const error = new RangeError();
  assert.equal(checkInstance(error, Error, 'e'), error);
  assert.throws(() => checkInstance({ message: '' }, Error, 'e'), {
    name: 'TypeError',
    message: 'e must be an Error, not an Object',
  });
});

test('host memory is seen as bytes without a copy, whatever holds it', () => {
  const buffer = new ArrayBuffer(16);
  const bytes = new Uint8Array(buffer);
  bytes.set([1, 2, 3, 4, 5, 6, 7, 8]);
  const shared = new SharedArrayBuffer(4);
  for (const [value, byteOffset, byteLength] of [
    [buffer, 0, 16],
    [bytes.subarray(2, 5), 2, 3],
    [new Float64Array(buffer, 8, 1), 8, 8],
    [new DataView(buffer, 3, 2), 3, 2],
    [Buffer.from(buffer, 4, 4), 4, 4],
    [shared, 0, 4],
  ] as const) {
    const seen = checkHostMemory(value, 'source');
    assert.equal(seen.buffer, ArrayBuffer.isView(value) ? value.buffer : value);
    assert.deepEqual([seen.byteOffset, seen.byteLength], [byteOffset, byteLength]);
  }
});

test('memory that may move, is gone, or is none is refused', () => {
  for (const value of [null, undefined, 'text', 5, [1, 2], {}, { byteLength: 4 }])
    assert.throws(() => checkHostMemory(value, 'source'), {
      name: 'TypeError',
      message: /^source must be a typed array, DataView, ArrayBuffer or Buffer, not /,
    });
  const Resizable = ArrayBuffer as unknown as new (
    byteLength: number,
    options: { maxByteLength: number },
  ) => ArrayBuffer;
  const resizable = new Resizable(8, { maxByteLength: 16 });
  for (const value of [resizable, new Uint8Array(resizable), new DataView(resizable)])
    assert.throws(() => checkHostMemory(value, 'into'), /^TypeError: into is resizable/);
  const detached = new ArrayBuffer(8);
  const views = [new Uint8Array(detached), new DataView(detached), new Float32Array(detached, 4)];
  structuredClone(detached, { transfer: [detached] });
  for (const value of [detached, ...views])
    assert.throws(() => checkHostMemory(value, 'into'), TypeError);
});

test('what a call makes is refused to new, with the call that makes it', () => {
  // Errors, and what a memory manager of one's own makes.
  const madeByNew =
    /Error$|^(AutoFree|Mapped|Memory|Pinned)Pointer$|^IpcHandle$|^(Base|Driver|HostOnly)MemoryManager$/;
  const all: Readonly<Record<string, unknown>> = { ...cuda, ...ipc };
  /** Whether there is such a call; `module.kernel` is one of an object. */
  const isThere = (call: string): boolean => {
    const [first = '', method] = call.split('.');
    if (method === undefined) return all[first] !== undefined;
    return first === 'module' || Object.hasOwn(all[first] as object, method);
  };
  let count = 0;
  for (const [name, type] of Object.entries(all)) {
    const isClass = typeof type === 'function' && /^class\b/.test(String(type));
    if (!isClass || madeByNew.test(name)) continue;
    const made = type as unknown as new () => object;
    const says = new RegExp(`^an? ${name} is not made by new, but by (.+)$`);
    assert.throws(
      () => new made(),
      (error) => {
        assert.ok(error instanceof TypeError);
        const [, calls = ''] = says.exec(error.message) ?? [];
        assert.ok(calls.split(/, | or /).every(isThere), `${name}: ${error.message}`);
        return true;
      },
      name,
    );
    count += 1;
  }
  assert.ok(count > 20);
});
