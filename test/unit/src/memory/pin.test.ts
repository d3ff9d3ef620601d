import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CU_MEMHOSTREGISTER_PORTABLE } from '../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { addressOf } from '../../../../ffi/native.ts';
import { Context, pin, Stream } from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { broken, failing, keepingBooks } from '../../../support/faults.ts';
import { Latch } from '../../../support/latch.ts';
import { leaves } from '../../../support/left-open.ts';
import { collectGarbage, collectUntil } from '../../../support/process-state.ts';
import { emulate } from '../emulate.ts';

/** Arrays of one page each that share no page. */
const apart = (count: number): Uint8Array[] => {
  const memory = new ArrayBuffer(count << 17);
  return Array.from({ length: count }, (_, at) => new Uint8Array(memory, at << 17, 4096));
};

describe('pin', () => {
  test('values that cannot be pinned are refused before any driver call', () => {
    emulate();
    const [array] = apart(1);
    const growable = new (
      SharedArrayBuffer as unknown as new (
        byteLength: number,
        options: object,
      ) => SharedArrayBuffer
    )(4096, { maxByteLength: 8192 });
    const resizable = new (
      ArrayBuffer as unknown as new (
        byteLength: number,
        options: object,
      ) => ArrayBuffer
    )(4096, { maxByteLength: 8192 });
    const recorder = recordCalls();
    const refused = (args: unknown[], name: string, message: RegExp): void =>
      assert.throws(() => pin(...(args as [Uint8Array])), { name, message });
    refused([], 'TypeError', /give at least one typed array/);
    refused([{}], 'TypeError', /give at least one typed array/);
    refused([[1, 2]], 'TypeError', /arrays\[0\] must be a typed array/);
    refused([array, 'text'], 'TypeError', /arrays\[1\] must be a typed array/);
    refused([array, null], 'TypeError', /arrays\[1\] must be a typed array/);
    refused([array, new Float32Array(0)], 'RangeError', /arrays\[1\] is empty/);
    refused([resizable], 'TypeError', /arrays\[0\] is resizable/);
    refused([new Uint8Array(resizable)], 'TypeError', /arrays\[0\] is resizable/);
    refused([new Uint8Array(growable)], 'TypeError', /arrays\[0\] is growable/);
    refused([array, array], 'TypeError', /arrays\[1\] is the same as arrays\[0\]/);
    refused([array, { pinned: true }], 'TypeError', /unknown option 'pinned'/);
    refused([array, { portable: 1 }], 'TypeError', /portable must be true or false/);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('pin() takes typed arrays, buffers and shared buffers, and options last', () => {
    emulate();
    const context = Context.primary();
    const shared = new SharedArrayBuffer(1 << 16);
    const plain = new ArrayBuffer(1 << 20);
    using first = pin(plain, { context, portable: false });
    assert.deepEqual(first.arrays, [plain]);
    using second = pin(new Uint8Array(shared, 8192, 100));
    assert.equal(second.context, context);
  });

  test('what a failed pin() had locked can be pinned again at once', async () => {
    emulate();
    const [first, second] = apart(2) as [Uint8Array, Uint8Array];
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    using busy = pin(second);
    assert.throws(() => pin(first, second), /^RangeError: arrays\[1\] shares a page/);
    using again = pin(first);
    latch.open();
    await again.context.flush();
    assert.deepEqual([busy.closed, again.closed], [false, false]);
    assert.throws(() => pin(first), /^RangeError: arrays\[0\] shares a page/);
  });

  test('pin() locks each array in place, with the given flags, in the given context', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const arrays = apart(2) as [Uint8Array, Uint8Array];
    for (const [options, flags, context] of [
      [{}, CU_MEMHOSTREGISTER_PORTABLE, first],
      [{ portable: false }, 0, first],
      [{ device: 1, portable: true }, CU_MEMHOSTREGISTER_PORTABLE, second],
      [{ context: second, portable: false }, 0, second],
    ] as const) {
      recorder.calls.length = 0;
      pin(...arrays, options).close();
      const told = (name: 'cuMemHostRegister_v2' | 'cuMemHostUnregister'): unknown[] =>
        recorder.of(name).map((call) => [...call.args, call.context]);
      const [a, b] = arrays.map(addressOf);
      assert.deepEqual(told('cuMemHostRegister_v2'), [
        [a, 4096, flags, context.handle],
        [b, 4096, flags, context.handle],
      ]);
      assert.deepEqual(
        told('cuMemHostUnregister').map((call) => (call as unknown[])[0]),
        [b, a],
      );
    }
  });

  test('pin() locks all arrays or none, and unlocks the others on failure', () => {
    const driver = emulate();
    const context = Context.primary();
    const arrays = apart(3);
    for (const nth of [1, 2, 3]) {
      const { driver: booked, open } = keepingBooks(
        failing(driver, 'cuMemHostRegister_v2', nth, 999),
      );
      selectDriver(booked);
      assert.throws(() => pin(...arrays, { context }), { name: 'CudaError', status: 999 });
      assert.deepEqual([...open], []);
      assert.equal(context.resources.size, 0);
      const pinned = pin(...arrays, { context });
      assert.equal(open.size, 3);
      pinned.close();
      pinned.close();
      assert.deepEqual([...open], []);
    }
  });

  test('arrays stay alive while pinned, and dropped PinnedArrays are unpinned', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    const memory = (() => {
      // Pins one page inside each, because the heap may place the two arrays next to each other.
      const array = new Uint8Array(1 << 20).subarray(1 << 19);
      const pinned = pin(array, { context });
      return { array: new WeakRef(array.buffer), pinned };
    })();
    await collectGarbage();
    assert.ok(memory.array.deref());
    (() => {
      pin(new Uint8Array(1 << 20).subarray(1 << 18, 1 << 19), { context });
    })();
    assert.equal(open.size, 2);
    assert.ok(await collectUntil(() => open.size === 1));
    memory.pinned.close();
    assert.equal(open.size, 0);
  });

  test('a failed unlock causes a warning, and the memory stays locked and alive', async () => {
    leaves('entry of src/memory/page-lock.ts failedUnlocks', 'it stays locked');
    const driver = emulate();
    const context = Context.primary();
    const [array] = apart(1) as [Uint8Array];
    selectDriver(broken(driver, 'cuMemHostUnregister', 999));
    const pinned = pin(array, { context });
    assert.throws(() => pinned.close(), { name: 'CudaError', call: 'cuMemHostUnregister' });
    selectDriver(driver);
    assert.equal(pinned.closed, true);
    assert.throws(() => pin(array, { context }), /shares a page/);
  });

  test('a reset unpins all arrays, and unreferenced ones can be collected', async () => {
    emulate();
    const context = Context.primary();
    const dropped = (() => {
      const [array] = apart(1) as [Uint8Array];
      const pinned = pin(array);
      context.resetSync();
      assert.equal(pinned.closed, true);
      pin(array).close();
      pin(array);
      context.resetSync();
      return new WeakRef(array.buffer);
    })();
    await collectGarbage();
    assert.ok(dropped.deref() === undefined);
  });
});
