import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { OUT0 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address } from '../../ffi/types.ts';
import { Context, DeviceBuffer, PinnedBuffer, Stream } from '../../src/index.ts';
import { Latch } from '../support/latch.ts';
import { leaves } from '../support/left-open.ts';
import { collectGarbage, collectUntil, isMapped } from '../support/process-state.ts';

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => (index * 31 + (index >> 8)) & 255);

/** Whether the driver has an address for page-locked. */
const isLocked = (address: Address): boolean =>
  Context.primary().run(() => cu.cuMemHostGetFlags(OUT0, address)) === 0;

describe('PinnedBuffer', () => {
  test('a pinned buffer is zeroed, page-locked, and one ArrayBuffer of the requested size', () => {
    using pinned = PinnedBuffer.allocate(100_000);
    assert.equal(pinned.byteLength, 100_000);
    assert.equal(pinned.buffer.byteLength, 100_000);
    assert.equal(pinned.buffer, pinned.buffer);
    assert.ok(new Uint8Array(pinned.buffer).every((byte) => byte === 0));
    assert.ok(isLocked(pinned.address));
    assert.deepEqual(
      [pinned.portable, pinned.mapped, pinned.writeCombined, pinned.devicePointer],
      [true, false, false, undefined],
    );
  });

  test('bytes go to the device and come back through it, awaited, blocking, in a stream', async () => {
    using stream = Stream.create();
    using buffer = DeviceBuffer.allocate(9 << 20);
    using pinned = PinnedBuffer.allocate(2 * buffer.byteLength);
    const bytes = counting(buffer.byteLength);
    const up = new Uint8Array(pinned.buffer, 0, buffer.byteLength);
    const down = new Uint8Array(pinned.buffer, buffer.byteLength);
    up.set(bytes);
    await buffer.copyFrom(up);
    await buffer.copyToHost(down);
    assert.equal(Buffer.compare(down, bytes), 0);
    buffer.fill(0, { stream });
    buffer.copyFromSync(up, { stream });
    down.fill(0);
    buffer.copyToHostSync(down, { stream });
    assert.equal(Buffer.compare(down, bytes), 0);
  });

  test('a copy whose host memory is closed before it begins is refused, and nothing is copied', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    buffer.fill(9);
    const open = PinnedBuffer.allocate(4096);
    const view = new Uint8Array(open.buffer).fill(1);
    using latch = new Latch();
    latch.hold(stream);
    const copies = [buffer.copyFrom(view, { stream }), buffer.copyToHost(view, { stream })];
    open.close();
    assert.equal(view[0], 1, 'its release waits for the GPU');
    latch.open();
    for (const copy of copies)
      await assert.rejects(copy, {
        name: 'ClosedError',
        message: /^the host memory belongs to a closed buffer: /,
      });
    await open.context.flush();
    await assert.rejects(buffer.copyFrom(view), { name: 'ClosedError' });
    assert.deepEqual([view[0], buffer.copyToHostSync()[0]], [0, 9]);
  });

  test('mapped memory is reached by the device', async () => {
    using pinned = PinnedBuffer.allocate(4096, { mapped: true });
    assert.ok(pinned.devicePointer);
    using onDevice = DeviceBuffer.fromPointer(pinned.devicePointer, 4096, { owner: pinned });
    onDevice.fill(9);
    await pinned.context.synchronize();
    assert.deepEqual(new Set(new Uint8Array(pinned.buffer)), new Set([9]));
  });

  test('a window is the same memory, and a part of it', () => {
    using pinned = PinnedBuffer.allocate(8192);
    new Uint8Array(pinned.window(4096, 16)).fill(3);
    assert.deepEqual(
      [...new Uint8Array(pinned.buffer, 4094, 4)],
      [0, 0, 3, 3],
      'the window shows through the whole',
    );
    assert.throws(
      () => pinned.window(8000, 193),
      /^RangeError: byteLength must be an integer from 1 to 192, not 193$/,
    );
    assert.throws(
      () => pinned.window(8192, 1),
      /^RangeError: byteOffset must be an integer from 0 to 8191, not 8192$/,
    );
  });

  test('a pinned buffer may be closed twice, refuses use afterwards, and a kept view reads zeros', () => {
    const pinned = PinnedBuffer.allocate(1 << 20);
    const { address } = pinned;
    const kept = new Uint8Array(pinned.buffer).fill(5);
    pinned.close();
    pinned.close();
    assert.equal(pinned.closed, true);
    assert.equal(isLocked(address), false);
    assert.ok(kept.every((byte) => byte === 0));
    kept[0] = 1;
    for (const use of [
      () => pinned.buffer,
      () => pinned.window(0, 1),
      () => pinned.address,
      () => pinned.devicePointer,
    ])
      assert.throws(use, { name: 'ClosedError', message: /^this PinnedBuffer is closed: / });
  });

  test('the addresses are given back when the last view was collected', async () => {
    const allocate = (): { readonly address: Address; view: Uint8Array | undefined } => {
      using pinned = PinnedBuffer.allocate(16 << 20);
      return { address: pinned.address, view: new Uint8Array(pinned.buffer, 100, 1) };
    };
    const left = allocate();
    await collectGarbage();
    assert.ok(isMapped(left.address));
    assert.equal(left.view?.[0], 0);
    left.view = undefined;
    assert.ok(await collectUntil(() => !isMapped(left.address)));
  });

  test('without a view the addresses are given back at once', () => {
    const pinned = PinnedBuffer.allocate(16 << 20);
    const { address } = pinned;
    pinned.close();
    assert.equal(isMapped(address), false);
  });

  test('write-combined memory is freed when its view was collected, not before', async () => {
    const allocate = (): { readonly address: Address; view: Uint8Array | undefined } => {
      using pinned = PinnedBuffer.allocate(1 << 16, { writeCombined: true });
      return { address: pinned.address, view: new Uint8Array(pinned.buffer).fill(4) };
    };
    const left = allocate();
    await collectGarbage();
    assert.ok(isLocked(left.address));
    assert.equal(left.view?.[100], 4);
    left.view = undefined;
    assert.ok(await collectUntil(() => !isLocked(left.address)));
  });

  test('write-combined memory that nobody looked at is freed at once', () => {
    const pinned = PinnedBuffer.allocate(1 << 16, { writeCombined: true, mapped: true });
    const { address } = pinned;
    assert.ok(pinned.devicePointer);
    assert.ok(isLocked(address));
    pinned.close();
    assert.equal(isLocked(address), false);
  });

  test('a view that a BYOB reader moved outlives the buffer, and is warned of', async () => {
    leaves('driver: pinned allocation', 'write-combined memory that was moved is never freed');
    const move = async (writeCombined: boolean): Promise<Uint8Array<ArrayBuffer>> => {
      using pinned = PinnedBuffer.allocate(1 << 20, { writeCombined });
      const { buffer } = pinned;
      const source = new ReadableStream({
        type: 'bytes',
        pull(controller) {
          const request = controller.byobRequest as ReadableStreamBYOBRequest;
          (request.view as Uint8Array).fill(7);
          request.respond(1 << 20);
        },
      });
      const reader = source.getReader({ mode: 'byob' });
      const { value } = await reader.read(new Uint8Array(buffer));
      assert.equal(buffer.byteLength, 0);
      return value as Uint8Array<ArrayBuffer>;
    };
    for (const writeCombined of [false, true]) {
      const warned = once(process, 'warning');
      const moved = await move(writeCombined);
      const [warning] = await warned;
      assert.equal(warning.code, 'CUFFI_DETACHED');
      assert.match(
        warning.message,
        /^1048576 bytes \(1 MiB\) of host memory were closed after their ArrayB/,
      );
      await collectGarbage();
      assert.equal(moved[1000], writeCombined ? 7 : 0);
    }
  });

  test('closing while the GPU is held up returns at once, and unlocks when it is done', async () => {
    const pinned = PinnedBuffer.allocate(1 << 16);
    const { address, context } = pinned;
    const view = new Uint8Array(pinned.buffer).fill(6);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    pinned.close();
    assert.equal(pinned.closed, true);
    assert.ok(isLocked(address));
    assert.equal(view[0], 6);
    latch.open();
    await context.flush();
    assert.equal(isLocked(address), false);
    assert.equal(view[0], 0);
  });
});
