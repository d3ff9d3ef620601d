import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { CUresult } from '../../../ffi/results.ts';
import { Context, DeviceBuffer, Stream, VirtualMemory } from '../../../src/index.ts';
import { broken, failing, keepingBooks } from '../../support/faults.ts';
import { Latch } from '../../support/latch.ts';
import { emulate } from './emulate.ts';

const MIB = 1 << 20;

test('memory that another device has worked on waits for that work, and for no later', async () => {
  emulate({ CUFFI_EMULATED_DEVICES: '2' });
  const there = Context.primary(1);
  const first = Stream.create({ context: there, nonBlocking: true });
  const second = Stream.create({ context: there, nonBlocking: true });
  using latch = new Latch(there);
  using later = new Latch(there);
  const source = DeviceBuffer.allocate(MIB, { device: 0 });
  const target = DeviceBuffer.allocate(MIB, { device: 1 });
  latch.hold(first);
  source.copyTo(target, { stream: first });
  source.close();
  const flushing = Context.primary(0).flush();
  assert.equal(Context.primary(0).pendingReleases.count, 1);
  later.hold(second);
  latch.open();
  await flushing;
  assert.equal(second.done, false);
});

test('work in borrowed streams leaves no event behind', async () => {
  const { driver, open } = keepingBooks(emulate());
  selectDriver(driver);
  using buffer = DeviceBuffer.allocate(1024);
  for (let n = 0; n < 20; n += 1) {
    const owner = Stream.create();
    buffer.fill(n, { stream: Stream.fromHandle(owner.handle) });
    await owner.synchronize();
    owner.close();
  }
  assert.equal([...open].filter((what) => what.startsWith('cuEventCreate')).length, 1);
});

test('work that cannot be marked is not queued', () => {
  const emulated = emulate();
  selectDriver(failing(emulated, 'cuEventCreate', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
  const owner = Stream.create();
  const borrowed = Stream.fromHandle(owner.handle);
  const memory = VirtualMemory.reserve(MIB);
  const buffer = memory.grow(MIB);
  using recorder = recordCalls();
  assert.throws(() => buffer.fill(1, { stream: borrowed }), { call: 'cuEventCreate' });
  assert.ok(!recorder.calls.some(({ name }) => name.startsWith('cuMemset')));
});

test('work whose mark fails counts as running until it is marked', async () => {
  const emulated = emulate();
  selectDriver(failing(emulated, 'cuEventRecord', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
  const context = Context.primary();
  using owner = Stream.create();
  using latch = new Latch(context);
  latch.hold(owner);
  const memory = VirtualMemory.reserve(MIB);
  memory.grow(MIB).fill(1, { stream: Stream.fromHandle(owner.handle) });
  memory.close();
  assert.equal(context.pendingReleases.count, 1);
  latch.open();
  await context.flush();
});

test('work that is never marked counts as running until the context was waited for', () => {
  const emulated = emulate();
  selectDriver(broken(emulated, 'cuEventRecord', CUresult.CUDA_ERROR_OUT_OF_MEMORY));
  const context = Context.primary();
  using owner = Stream.create();
  const memory = VirtualMemory.reserve(MIB);
  memory.grow(MIB).fill(1, { stream: Stream.fromHandle(owner.handle) });
  memory.close();
  assert.equal(context.releases.collect(true), false);
  context.synchronizeSync();
  assert.equal(context.releases.collect(true), true);
});
