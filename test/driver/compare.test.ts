import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import {
  ClosedError,
  Context,
  countEqualBytes,
  Device,
  DeviceBuffer,
  Stream,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const LENGTH = 100_003;
const bytes = Uint8Array.from({ length: LENGTH }, (_, i) => i * 31 + (i >> 8));

describe('countEqualBytes', () => {
  test('equal bytes are counted on the device, wherever the buffers begin and end', async () => {
    using a = DeviceBuffer.allocate(LENGTH);
    using b = DeviceBuffer.allocate(LENGTH + 8);
    a.copyFromSync(bytes);
    for (const [offset, from, to] of [
      [0, 0, LENGTH],
      [3, 0, LENGTH],
      [4, 1, 30_002],
      [8, 99_999, 100_001],
      [1, 5, 6],
    ] as const) {
      const changed = Uint8Array.from(bytes);
      for (let at = 0; at < LENGTH; at += 997)
        changed[at] = (changed[at] as number) ^ (1 << (at % 8));
      b.subarray(offset, offset + LENGTH).copyFromSync(changed);
      const expected = bytes
        .subarray(from, to)
        .filter((byte, n) => byte === changed[from + n]).length;
      const other = b.subarray(offset + from, offset + to);
      const recorder = recordCalls();
      assert.equal(await countEqualBytes(a.subarray(from, to), other), expected);
      recorder.stop();
      assert.ok(recorder.calls.some(({ name }) => name === 'cuLaunchKernelEx'));
    }
    assert.equal(await countEqualBytes(a.subarray(0, 0), b.subarray(1, 1)), 0);
  });

  test('a comparison releases everything it needed, however it ends', async () => {
    using a = DeviceBuffer.allocate(1000);
    using b = DeviceBuffer.allocate(1000);
    for (const buffer of [a, b]) buffer.fill(1);
    await countEqualBytes(a, b);
    const context = Context.primary();
    await context.flush();
    const before = context.resources.size;
    assert.equal(await countEqualBytes(a, b), 1000);
    assert.equal(context.resources.size, before);
    const reason = new Error('given up');
    const given = new AbortController();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const open = context.resources.size;
    const counting = countEqualBytes(a, b, { stream, signal: given.signal });
    given.abort(reason);
    await assert.rejects(counting, (error) => error === reason);
    assert.equal(context.resources.size, open);
    latch.open();
    await stream.synchronize();
  });

  test('bytes are counted after the earlier work of the stream', async () => {
    using a = DeviceBuffer.allocate(1000);
    using b = DeviceBuffer.allocate(1000);
    for (const buffer of [a, b]) buffer.fill(1);
    assert.equal(await countEqualBytes(a, b), 1000);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    a.subarray(0, 10).fill(2, { stream });
    const counting = countEqualBytes(a, b, { stream });
    latch.open();
    assert.equal(await counting, 990);
  });

  test('buffers of two devices are compared on the host', {
    skip: Device.count < 2 ? 'needs a second GPU' : false,
  }, async () => {
    using a = DeviceBuffer.allocate(1000);
    using b = DeviceBuffer.allocate(1000, { device: 1 });
    a.fill(1);
    b.fill(1);
    b.subarray(5, 7).fill(2);
    assert.equal(await countEqualBytes(a, b), 998);
  });

  test('what cannot be compared is refused', async () => {
    using a = DeviceBuffer.allocate(10);
    using b = DeviceBuffer.allocate(11);
    await assert.rejects(countEqualBytes(a, b), /a has 10 bytes and b has 11/);
    await assert.rejects(countEqualBytes(a, new Uint8Array(10) as never), TypeError);
    b.close();
    await assert.rejects(countEqualBytes(a, b), ClosedError);
  });
});
