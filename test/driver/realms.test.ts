/** What another realm made: a vm context, or the tests of a runner that gives each file one, as Jest. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { runInNewContext } from 'node:vm';
import {
  Context,
  DeviceBuffer,
  deviceArray,
  fromBfloat16,
  fromCudaArrayInterface,
  fromDLPack,
  Graph,
  IpcHandle,
  memoryManager,
  pin,
  Stream,
  toDeviceSync,
} from '../../src/index.ts';
import { decodeDescriptor, encodeDescriptor, getIpcHandle } from '../../src/ipc/index.ts';

/** Runs code in another realm, with these names. */
const elsewhere = <T>(code: string, names: object = {}): T => runInNewContext(`(${code})`, names);

/** An AbortSignal in JavaScript, as that of jsdom. */
class AbortSignalOfJavaScript extends EventTarget {
  aborted = false;
  reason: unknown;
  readonly [Symbol.toStringTag] = 'AbortSignal';

  throwIfAborted(): void {
    if (this.aborted) throw this.reason;
  }

  abort(reason: unknown): void {
    this.aborted = true;
    this.reason = reason;
    this.dispatchEvent(new Event('abort'));
  }
}

describe('values of another realm', () => {
  test('options, typed arrays, buffers and nested arrays of another realm are as those of this one', async () => {
    using stream = Stream.create(elsewhere('{ nonBlocking: true }'));
    using buffer = DeviceBuffer.allocate(8, elsewhere('{ stream }', { stream }));
    await buffer.copyFrom(elsewhere('new SharedArrayBuffer(8)'));
    await buffer.copyFrom(elsewhere('Uint8Array.of(1, 2).buffer'), elsewhere('{}'));
    buffer.fill(3, elsewhere('{ stream, elementByteLength: 2 }', { stream }));
    const into = elsewhere<Uint8Array>('new Uint8Array(2)');
    await buffer.copyToHost(into, { stream });
    assert.deepEqual([...into], [3, 0]);
    using nested = toDeviceSync(elsewhere<number[][]>('[[1, 2], [3, 4]]'));
    using flat = toDeviceSync(elsewhere<Float64Array>('Float64Array.of(1, 2, 3, 4)'), {
      shape: elsewhere<number[]>('[2, 2]'),
    });
    assert.deepEqual(nested.copyToHostSync(), flat.copyToHostSync());
    assert.deepEqual([...nested.slice(elsewhere('{ start: 1 }')).copyToHostSync()], [3, 4]);
  });

  test('bytes of another realm are raw items, bits, handles and descriptors', async () => {
    const bytes = (...of: number[]): Uint8Array => elsewhere(`Uint8Array.from([${of}])`);
    using records = deviceArray(2, 'V2');
    records.fill(bytes(1, 2));
    records.setSync([1], bytes(3, 4));
    assert.deepEqual([...records.copyToHostSync()], [1, 2, 3, 4]);
    using nested = toDeviceSync([bytes(5, 6), bytes(7, 8)], { dtype: 'V2' });
    assert.deepEqual([...nested.copyToHostSync()], [5, 6, 7, 8]);
    assert.throws(() => records.fill(bytes(1)), /must be a Uint8Array of 2 bytes/);
    assert.deepEqual([...fromBfloat16(elsewhere<Uint16Array>('Uint16Array.of(16256)'))], [1]);
    const handle = elsewhere<Uint8Array>('new Uint8Array(64)');
    using base = memoryManager().memalloc(16);
    assert.equal(new IpcHandle({ base, handle }).handle, handle);
    using shared = getIpcHandle(records);
    const encoded = elsewhere<Uint8Array>('Uint8Array.from(encoded)', {
      encoded: encodeDescriptor(shared.toJSON()),
    });
    assert.deepEqual(decodeDescriptor(encoded), shared.toJSON());
  });

  test('memory of another realm is pinned, and its options are not memory', () => {
    for (const kind of ['ArrayBuffer', 'SharedArrayBuffer']) {
      const memory = elsewhere<ArrayBuffer>(`new ${kind}(1 << 17)`);
      using pinned = pin(memory, elsewhere('{ portable: false }'));
      assert.deepEqual(pinned.arrays, [memory]);
    }
    const [memory, other] = [0, 1].map(() => elsewhere<ArrayBuffer>('new ArrayBuffer(0)'));
    assert.throws(() => pin(memory as ArrayBuffer, other as ArrayBuffer), /arrays\[0\] is empty/);
  });

  test('what other libraries describe may be of another realm', () => {
    using array = toDeviceSync(Int32Array.of(1, 2));
    const { address: data } = array;
    const described = elsewhere(
      `{ shape: [2], typestr: '<i4', data: [${data}, false], version: 3 }`,
    );
    assert.deepEqual(fromCudaArrayInterface(described).copyToHostSync(), Int32Array.of(1, 2));
    const tensor = elsewhere(`{
      data: ${data}, device: { type: 2, id: 0 }, ndim: 1, shape: [2], strides: [1],
      dtype: { code: 0, bits: 32, lanes: 1 }, version: { major: 1, minor: 0 },
    }`);
    assert.deepEqual(fromDLPack(tensor).copyToHostSync(), Int32Array.of(1, 2));
  });

  test('an asynchronous function of another realm is refused where it must be synchronous', () => {
    const context = Context.primary();
    assert.throws(() => context.run(elsewhere('async () => 0')), /takes a synchronous function/);
    using stream = Stream.create({ nonBlocking: true });
    assert.throws(
      () => Graph.capture(stream, elsewhere('async () => 0')),
      /takes a synchronous function/,
    );
  });

  test('an AbortSignal in JavaScript ends a wait, and what only looks a little like it is refused', async () => {
    using stream = Stream.create({ nonBlocking: true });
    const signal = new AbortSignalOfJavaScript();
    await stream.synchronize({ signal: signal as never });
    signal.abort(new Error('enough'));
    await assert.rejects(stream.synchronize({ signal: signal as never }), /enough/);
    for (const wrong of [
      {},
      { aborted: false },
      new EventTarget(),
      Object.assign(new EventTarget(), { aborted: false, throwIfAborted: () => {} }),
      new (class AbortSignal {
        readonly [Symbol.toStringTag] = 'AbortSignal';
      })(),
    ])
      await assert.rejects(async () => stream.synchronize({ signal: wrong as never }), {
        name: 'TypeError',
        message: /^signal must be an AbortSignal, not an? /,
      });
  });
});
