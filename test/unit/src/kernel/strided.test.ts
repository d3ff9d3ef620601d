/** When cuffi's own kernels are used, and what is done where they cannot be. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { CUresult } from '../../../../ffi/results.ts';
import {
  Context,
  type DeviceArray,
  deviceArray,
  Stream,
  toDeviceSync,
} from '../../../../src/index.ts';
import { broken, failing } from '../../../support/faults.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

const values = Float32Array.from({ length: 300 }, (_, i) => i);

/** A copy that is for a kernel; answers the names of the driver's calls. */
function transpose(array: DeviceArray, into: DeviceArray, stream?: Stream): string[] {
  const recorder = recordCalls();
  array.T.copyTo(into, stream ? { stream } : {});
  recorder.stop();
  return recorder.calls.map(({ name }) => name);
}

const LOAD = 'cuModuleLoadDataEx';
const LAUNCH = 'cuLaunchKernelEx';
const COPY = 'cuMemcpy3DAsync_v2';

test('the kernels are loaded at their first use in a context, and again after a reset', async () => {
  emulate();
  for (const round of [1, 2]) {
    using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
    using into: DeviceArray = deviceArray([15, 20], array.dtype);
    const [first, second] = [transpose(array, into), transpose(array, into)];
    assert.deepEqual([first.includes(LOAD), first.includes(LAUNCH)], [true, true], `${round}`);
    assert.deepEqual([second.includes(LOAD), second.includes(LAUNCH)], [false, true]);
    assert.deepEqual(await into.T.copyToHost(), values);
    await Context.primary().reset();
  }
});

test('while work is under way nothing is loaded, and the driver copies', async () => {
  emulate();
  using stream = Stream.create({ nonBlocking: true });
  using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
  using into: DeviceArray = deviceArray([15, 20], array.dtype);
  using latch = new Latch();
  latch.hold(stream);
  const names = transpose(array, into, stream);
  assert.deepEqual([names.includes(LOAD), names.includes(COPY)], [false, true]);
  latch.open();
  await stream.synchronize();
  assert.deepEqual(await into.T.copyToHost(), values);
  assert.ok(transpose(array, into, stream).includes(LAUNCH));
});

test('a driver that refuses modules is asked once, and copies', async () => {
  selectDriver(
    broken(emulate(), 'cuModuleLoadDataEx', CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
  );
  using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
  using into: DeviceArray = deviceArray([15, 20], array.dtype);
  const [first, second] = [transpose(array, into), transpose(array, into)];
  assert.deepEqual([first.includes(LOAD), second.includes(LOAD)], [true, false]);
  assert.deepEqual([first.includes(COPY), second.includes(COPY)], [true, true]);
  assert.deepEqual(await into.T.copyToHost(), values);
});

test('a stream of another device has the driver copy', async () => {
  emulate({ CUFFI_EMULATED_DEVICES: '2' });
  using stream = Stream.create({ device: 1 });
  using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
  using into: DeviceArray = deviceArray([15, 20], array.dtype);
  assert.ok(!transpose(array, into, stream).includes(LAUNCH));
  await stream.synchronize();
  assert.deepEqual(await into.T.copyToHost(), values);
});

test('where there was no memory for the kernels, they are loaded another time', async () => {
  selectDriver(failing(emulate(), LOAD, 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
  using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
  using into: DeviceArray = deviceArray([15, 20], array.dtype);
  const [first, second] = [transpose(array, into), transpose(array, into)];
  assert.deepEqual([first.includes(COPY), second.includes(LAUNCH)], [true, true]);
  assert.deepEqual(await into.T.copyToHost(), values);
});
