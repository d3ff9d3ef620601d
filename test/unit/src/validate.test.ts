import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { runInNewContext } from 'node:vm';
import { closeFd, createMemfd, isOpenFd } from '../../../ffi/linux/libc.ts';
import * as cuda from '../../../src/index.ts';
import * as ipc from '../../../src/ipc/index.ts';
import {
  checkBoolean,
  checkHostMemory,
  checkInstance,
  checkInteger,
  checkOptions,
  checkString,
  checkStrings,
  isError,
  messageOf,
} from '../../../src/validate.ts';

interface Known {
  readonly stream?: number;
  readonly device?: number;
}
const options = (given: unknown, known: readonly (keyof Known)[] = ['stream', 'device']) =>
  checkOptions<Known>(given as Known, known, 'Thing.make');

describe('checkOptions', () => {
  test('options may be absent, empty, or have known names', () => {
    assert.deepEqual(options(undefined), {});
    assert.deepEqual(options({}), {});
    assert.deepEqual(options({ stream: 1, device: undefined }), { stream: 1 });
    const bare: object = Object.assign(Object.create(null), { device: 2 });
    assert.deepEqual(options(bare), { device: 2 });
  });

  test('the result is a copy, for which each option is read once', () => {
    let reads = 0;
    const given = {
      device: 5,
      get stream() {
        reads += 1;
        return reads;
      },
    };
    const checked = options(given);
    given.device = 6;
    assert.deepEqual([checked.stream, checked.stream, checked.device, reads], [1, 1, 5, 1]);
  });

  test('an unknown option is rejected, and the error lists the known ones', () => {
    assert.throws(() => options({ stream: 1, strem: 2 }), {
      name: 'TypeError',
      message: "Thing.make: unknown option 'strem' (did you mean 'stream'?); known: stream, device",
    });
    assert.throws(() => options({ x: 1 }, []), { message: /known: none$/ });
  });

  test('options of another realm count as those of this one', () => {
    assert.deepEqual(options(runInNewContext('({ stream: 1 })')), { stream: 1 });
    assert.deepEqual(options(runInNewContext('Object.create(null, {})')), {});
    assert.throws(() => options(runInNewContext('({ strem: 1 })')), /unknown option 'strem'/);
  });

  test('only plain objects of another realm are taken, and nothing that imitates them', () => {
    const elsewhere = (code: string): unknown => runInNewContext(code);
    for (const [given, shown] of [
      [elsewhere('[]'), 'an Array'],
      [elsewhere('new Map()'), 'a Map'],
      [elsewhere('new (class Options {})()'), 'an Options'],
      [elsewhere('new (class Object {})()'), 'an Object'],
      [
        elsewhere(
          'new (class Object extends null { constructor() { return { __proto__: new.target.prototype }; } })()',
        ),
        'an Object',
      ],
      [elsewhere('Object.create({})'), 'an Object'],
      [elsewhere('Object.create(Object.create(null))'), 'an object'],
      [elsewhere('Object.create({ constructor: Object, __proto__: null })'), 'an Object'],
      [
        elsewhere('Object.create({ constructor: function Object() {}, __proto__: null })'),
        'an Object',
      ],
      [
        elsewhere('Object.create({ constructor: Object.bind(), __proto__: null })'),
        'a bound Object',
      ],
      [elsewhere('new Proxy(new (class Options {})(), {})'), 'an Options'],
      [elsewhere('(() => 0)'), 'a function'],
      [elsewhere('new Error()'), 'an Error'],
    ] as const)
      assert.throws(() => options(given), {
        name: 'TypeError',
        message: `Thing.make: options must be a plain object, not ${shown}`,
      });
  });

  test('options that are not a plain object are rejected with what they are', () => {
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
});

describe('checkInteger', () => {
  test('an integer is a number, whole, safe, and in range', () => {
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
});

describe('formatValue', () => {
  test('a message stays short, whatever the value is', () => {
    const long = 'x'.repeat(1e6);
    assert.throws(
      () => checkInteger(long, 'n'),
      (error: Error) => error.message.length < 100,
    );
    assert.throws(() => checkInteger(Object.create(null), 'n'), {
      message: 'n must be a number, not an object',
    });
  });

  test('a message says what the value is, whatever its constructor and its text are', () => {
    const thrower = (): never => {
      throw new Error('asked');
    };
    const throwing = { toString: thrower, valueOf: thrower, [Symbol.toPrimitive]: thrower };
    for (const [given, told] of [
      [{ constructor: { name: 5 } }, 'an object'],
      [{ constructor: 'Thing' }, 'an object'],
      [{ constructor: null }, 'an object'],
      [Object.defineProperty({}, 'constructor', { get: thrower }), 'an object'],
      [new (class {})(), 'an object'],
      [new (class Thing {})(), 'a Thing'],
      [throwing, 'an Object'],
      [Object.assign(() => {}, throwing), 'a function'],
      [Symbol('s'), 'Symbol(s)'],
    ] as const)
      for (const check of [
        () => checkInteger(given, 'n'),
        () => checkBoolean(given, 'n', true),
        () => checkString(given, 'n'),
        () => checkStrings(given, 'n'),
        () => checkInstance(given, Error, 'n'),
        () => checkHostMemory(given, 'n'),
      ])
        assert.throws(check, (error: Error) => {
          assert.ok(error instanceof TypeError, String(error));
          assert.ok(error.message.endsWith(`, not ${told}`), error.message);
          return true;
        });
  });
});

describe('checkBoolean', () => {
  test('a boolean is true, false, or its default', () => {
    assert.equal(checkBoolean(undefined, 'b', true), true);
    assert.equal(checkBoolean(false, 'b', true), false);
    for (const value of [0, 1, null, 'true'])
      assert.throws(() => checkBoolean(value, 'b', false), {
        name: 'TypeError',
        message: /^b must be true or false/,
      });
  });
});

describe('checkInstance', () => {
  test('an instance has the class itself, or one derived from it', () => {
    const error = new RangeError();
    assert.equal(checkInstance(error, Error, 'e'), error);
    assert.throws(() => checkInstance({ message: '' }, Error, 'e'), {
      name: 'TypeError',
      message: 'e must be an Error, not an Object',
    });
  });
});

describe('checkHostMemory', () => {
  test('host memory is returned as bytes without a copy, whatever holds it', () => {
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

  test('host memory is what the engine knows, whatever the properties of a view claim', () => {
    const real = new ArrayBuffer(16);
    const other = new ArrayBuffer(64);
    for (const view of [new Float32Array(real, 4, 2), new DataView(real, 4, 8)]) {
      Object.defineProperties(view, {
        buffer: { value: other },
        byteOffset: { value: 0 },
        byteLength: { value: 64 },
        length: { value: 16 },
        [Symbol.toStringTag]: { value: 'Uint8Array' },
      });
      const seen = checkHostMemory(view, 'source');
      assert.equal(seen.buffer, real);
      assert.deepEqual([seen.byteOffset, seen.byteLength], [4, 8]);
    }
    const growing = new (
      ArrayBuffer as unknown as new (
        length: number,
        options: object,
      ) => ArrayBuffer
    )(8, { maxByteLength: 16 });
    Object.defineProperty(growing, 'resizable', { value: false });
    assert.throws(() => checkHostMemory(growing, 'into'), /is resizable/);
    const fake: unknown = Object.create(ArrayBuffer.prototype, { resizable: { value: false } });
    assert.throws(() => checkHostMemory(fake, 'into'), /must be a typed array/);
  });

  test('memory that may move, detached memory, and other values are rejected', () => {
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
});

describe('assertInternal', () => {
  test('new rejects a class whose objects cuffi makes, and names the call that makes them', () => {
    // Errors, and what a memory manager of one's own makes.
    const madeByNew =
      /Error$|^(AutoFree|Mapped|Memory|Pinned)Pointer$|^IpcHandle$|^(Base|Driver|HostOnly)MemoryManager$/;
    const all: Readonly<Record<string, unknown>> = { ...cuda, ...ipc };
    /** Whether there is such a call; `module.kernel` is one of an object. */
    const isThere = (call: string): boolean => {
      const [first = '', method] = call.split('.');
      if (method === undefined) return all[first] !== undefined;
      return (
        ['module', 'timeline', 'channel', 'peer'].includes(first) ||
        Object.hasOwn(all[first] as object, method)
      );
    };
    let count = 0;
    for (const [name, type] of Object.entries(all)) {
      const isClass = typeof type === 'function' && /^class\b/.test(String(type));
      if (!isClass || madeByNew.test(name)) continue;
      const made = type as unknown as new () => object;
      const says = new RegExp(`^an? ${name} cannot be created with new: use (.+)$`);
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

  test('a rejected new keeps no reference to its arguments', () => {
    const fd = createMemfd('given', 1);
    const makePeer = ipc.Peer as unknown as new (...args: unknown[]) => object;
    for (const credentials of [{}, { pid: 1 }, { pid: '1', uid: 0 }, null, [], () => {}]) {
      assert.throws(() => new makePeer(fd, credentials), {
        name: 'TypeError',
        message: /^a Peer cannot be created with new/,
      });
      assert.ok(isOpenFd(fd));
    }
    closeFd(fd);
  });
});

describe('isError', () => {
  test('errors of every realm are errors, DOMExceptions too, and nothing that imitates them', () => {
    const elsewhere = (code: string): unknown => runInNewContext(code);
    for (const error of [
      new RangeError('it'),
      new DOMException('it', 'AbortError'),
      Object.assign(Object.create(Error.prototype), { message: 'it' }),
      elsewhere("new RangeError('it')"),
      elsewhere("new (class Own extends Error {})('it')"),
      // As a DOMException of another realm: it has that realm's prototypes, but is none of its errors.
      elsewhere("Object.assign(Object.create(TypeError.prototype), { message: 'it' })"),
    ]) {
      assert.equal(isError(error), true);
      assert.equal(messageOf(error), 'it');
    }
    for (const thrown of [
      'it',
      undefined,
      null,
      { message: 'it' },
      elsewhere("({ name: 'Error', message: 'it' })"),
      elsewhere('new (class Error {})()'),
      elsewhere('Object.create({ constructor: Error })'),
      elsewhere('Object.create({ constructor: function Error() {} })'),
    ]) {
      assert.equal(isError(thrown), false, String(thrown));
      assert.equal(messageOf(thrown), String(thrown));
    }
  });
});
