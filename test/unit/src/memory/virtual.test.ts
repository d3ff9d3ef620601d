import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { Context, Device, VirtualMemory } from '../../../../src/index.ts';
import { failing, keepingBooks } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

const MIB = 1 << 20;

test('wrong options are refused before the driver is asked', () => {
  emulate();
  const recorder = recordCalls();
  assert.throws(() => VirtualMemory.reserve(1, { size: 1 } as never), /unknown option 'size'/);
  assert.throws(() => VirtualMemory.reserve(1, { shareable: 1 as never }), TypeError);
  for (const size of [0, -1, 0.5, 2 ** 53])
    assert.throws(() => VirtualMemory.reserve(size), RangeError);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('a device without it is told of in words', () => {
  emulate({ CUFFI_EMULATED_ATTRIBUTES: '102=0' });
  assert.throws(() => VirtualMemory.reserve(MIB), {
    name: 'NotSupportedError',
    message: /has no virtual memory management/,
  });
  for (const device of [Device.get(), 0, undefined])
    assert.equal(VirtualMemory.supported(device), false);
  assert.throws(() => VirtualMemory.supported('0' as never), /^TypeError: device must be a Device/);
  emulate({ CUFFI_EMULATED_ATTRIBUTES: '103=0' });
  assert.equal(VirtualMemory.supported(), true);
  VirtualMemory.reserve(MIB).close();
  assert.throws(() => VirtualMemory.reserve(MIB, { shareable: true }), {
    name: 'NotSupportedError',
    message: /does not make virtual memory that can be shared/,
  });
});

test('a growth that fails leaves nothing behind, and may be tried again', () => {
  const steps: readonly FunctionName[] = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess'];
  for (const step of steps) {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(failing(driver, step, 2, 1));
    const memory = VirtualMemory.reserve(16 * MIB);
    memory.grow(MIB);
    const before = new Set(open);
    assert.throws(() => memory.grow(8 * MIB), { call: step, status: 1 });
    assert.deepEqual(new Set(open), before, step);
    assert.deepEqual([memory.byteLength, memory.mappedByteLength], [MIB, 2 * MIB]);
    assert.equal(memory.grow(8 * MIB).byteLength, 8 * MIB);
    memory.close();
    assert.deepEqual([...open], []);
  }
});

test('is taken down newest part first, and the addresses as they were reserved', () => {
  emulate();
  const memory = VirtualMemory.reserve(15 * MIB);
  memory.grow(MIB);
  memory.grow(6 * MIB);
  const recorder = recordCalls();
  memory.close();
  recorder.stop();
  assert.deepEqual(
    recorder.calls.map(({ name }) => name).filter((name) => name.startsWith('cuMem')),
    ['cuMemUnmap', 'cuMemRelease', 'cuMemUnmap', 'cuMemRelease', 'cuMemAddressFree'],
  );
});

test('a step of taking it down that fails holds up no other, and is thrown', () => {
  const driver = emulate();
  const memory = VirtualMemory.reserve(15 * MIB);
  memory.grow(MIB);
  memory.grow(6 * MIB);
  selectDriver(failing(driver, 'cuMemRelease', 1, 999));
  const recorder = recordCalls();
  assert.throws(() => memory.close(), { call: 'cuMemRelease', status: 999 });
  recorder.stop();
  assert.deepEqual(
    recorder.calls.map(({ name }) => name).filter((name) => name.startsWith('cuMem')),
    ['cuMemUnmap', 'cuMemRelease', 'cuMemUnmap', 'cuMemRelease', 'cuMemAddressFree'],
  );
});

test('a reset of the context closes it, and frees nothing twice', async () => {
  emulate();
  const memory = VirtualMemory.reserve(16 * MIB);
  const buffer = memory.grow(MIB);
  buffer.fill(1);
  await Context.primary().reset();
  const recorder = recordCalls();
  memory.close();
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
  assert.equal(buffer.closed, true);
  assert.throws(() => memory.address, /its context was reset/);
});

test('prints what it is', () => {
  emulate();
  const memory = VirtualMemory.reserve(4 * MIB);
  memory.grow(10);
  assert.equal(inspect(memory), `VirtualMemory(10 of ${4 * MIB} bytes)`);
  memory.close();
  assert.equal(inspect(memory), `VirtualMemory(10 of ${4 * MIB} bytes, closed)`);
});
