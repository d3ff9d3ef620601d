import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls } from '../../../../ffi/driver.ts';
import { Context, MappedMemory, Stream } from '../../../../src/index.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

test('arguments are checked before the driver is asked', () => {
  emulate();
  const memory = MappedMemory.create();
  const recorder = recordCalls();
  for (const size of [0, -1, 1.5, Number.NaN])
    assert.throws(() => memory.allocate(size), RangeError, String(size));
  assert.throws(() => memory.allocate(1, { streams: 1 } as never), /unknown option 'streams'/);
  assert.throws(() => MappedMemory.create({ wc: 1 } as never), /unknown option 'wc'/);
  assert.throws(() => MappedMemory.create({ portable: 1 as never }), TypeError);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('is refused where the device cannot reach host memory', () => {
  emulate({ CUFFI_EMULATED_ATTRIBUTES: '19=0' });
  assert.throws(() => MappedMemory.create().allocate(1), { name: 'NotSupportedError' });
});

test('stays locked and readable until work that uses it is done', async () => {
  emulate();
  const context = Context.primary();
  const buffer = MappedMemory.create().allocate(4096);
  const view = new Uint8Array(buffer.buffer);
  using stream = Stream.create({ nonBlocking: true });
  using latch = new Latch();
  latch.hold(stream);
  buffer.fill(7, { stream });
  buffer.close();
  view[0] = 3;
  assert.equal(view[0], 3);
  latch.open();
  await context.flush();
  assert.equal(view[0], 0);
});

test('a window is a part of it, and a range beyond it is refused', () => {
  emulate();
  using buffer = MappedMemory.create().allocate(8192);
  new Uint8Array(buffer.window(4096, 4096)).fill(5);
  assert.equal(new Uint8Array(buffer.buffer)[4096], 5);
  assert.throws(() => buffer.window(0, 8193), RangeError);
});
