/** When the built-in kernels are used, and what happens if they cannot be. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { stringAt } from '../../../../ffi/native.ts';
import { CUresult } from '../../../../ffi/results.ts';
import type { Address } from '../../../../ffi/types.ts';
import {
  Context,
  type DeviceArray,
  deviceArray,
  Stream,
  toDeviceSync,
} from '../../../../src/index.ts';
import { queueStridedCopy, type StridedCopy } from '../../../../src/kernel/builtin-kernels.ts';
import { broken, failing } from '../../../support/faults.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

const values = Float32Array.from({ length: 300 }, (_, i) => i);

/** Makes a copy that a kernel should do; returns the names of the driver's calls. */
function transpose(array: DeviceArray, into: DeviceArray, stream?: Stream): string[] {
  const recorder = recordCalls();
  array.T.copyTo(into, stream ? { stream } : {});
  recorder.stop();
  return recorder.calls.map(({ name }) => name);
}

const LOAD = 'cuModuleLoadDataEx';
const LAUNCH = 'cuLaunchKernelEx';
const COPY = 'cuMemcpy3DAsync_v2';

describe('builtinKernel', () => {
  test('the kernels are loaded at first use in a context, and again after a reset', async () => {
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

  test('nothing is loaded while work is queued, and the driver copies', async () => {
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

  test('a driver that rejects modules is asked once, and copies', async () => {
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

  test('the driver copies in a stream of another device', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using stream = Stream.create({ device: 1 });
    using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
    using into: DeviceArray = deviceArray([15, 20], array.dtype);
    assert.ok(!transpose(array, into, stream).includes(LAUNCH));
    await stream.synchronize();
    assert.deepEqual(await into.T.copyToHost(), values);
  });

  test('the kernels are loaded later if there was no memory for them', async () => {
    selectDriver(failing(emulate(), LOAD, 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    using array: DeviceArray = toDeviceSync(values, { shape: [20, 15] });
    using into: DeviceArray = deviceArray([15, 20], array.dtype);
    const [first, second] = [transpose(array, into), transpose(array, into)];
    assert.deepEqual([first.includes(COPY), second.includes(LAUNCH)], [true, true]);
    assert.deepEqual(await into.T.copyToHost(), values);
  });
});

describe('queueStridedCopy and queueStridedFill', () => {
  test('a launch uses the longest word that fits, and wide indices only if needed', () => {
    const emulated = emulate();
    let name = '';
    selectDriver({
      ...emulated,
      cuModuleGetFunction(out, module, at) {
        name = stringAt(at as unknown as Address);
        return emulated.cuModuleGetFunction(out, module, at);
      },
      cuLaunchKernelEx: () => 0,
    });
    const [at, far] = [2 ** 40, 2 ** 31];
    const chosen = (place: Partial<StridedCopy>): string => {
      name = '';
      // A new context each time, because each loads a kernel once.
      Context.primary().resetSync();
      const axes = [{ length: 3, source: 32, target: 64 }];
      const copy = {
        context: Context.primary(),
        target: at,
        source: at,
        width: 16,
        axes,
        ...place,
      };
      assert.equal(queueStridedCopy(copy, undefined), true);
      return name;
    };
    const axis = (length: number, source: number, target: number) => ({
      axes: [{ length, source, target }],
    });
    assert.equal(chosen({}), 'cuffi_copy_16_32');
    // The least aligned of start, width and strides determines the word length.
    for (const word of [8, 4, 2, 1]) {
      const kernel = `cuffi_copy_${word}_32`;
      for (const place of [
        { target: at + word },
        { source: at + word },
        { width: word },
        axis(3, 32 + word, 64),
        axis(3, 32, 64 + word),
      ])
        assert.equal(chosen(place), kernel);
    }
    for (const [place, bits] of [
      [axis(3, far - 16, 64), 32],
      [axis(3, 64, 16 - far), 32],
      [axis(3, far, 64), 64],
      [axis(3, 64, far), 64],
      [axis(3, 64, -far), 64],
      [axis(far - 1, 16, 16), 32],
      [axis(far, 16, 16), 64],
    ] as const)
      assert.equal(chosen(place), `cuffi_copy_16_${bits}`, JSON.stringify(place));
    // More words than that, along several short axes.
    const axes = [0, 1, 2, 3].map(() => ({ length: 256, source: 16, target: 16 }));
    assert.equal(chosen({ axes }), 'cuffi_copy_16_64');
  });
});
