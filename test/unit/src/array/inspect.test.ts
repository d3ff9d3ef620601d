import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { toDeviceSync } from '../../../../src/index.ts';
import { broken } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

describe('a printed array', () => {
  test('shows up to six values, and how many are left', () => {
    emulate();
    const shown: readonly (readonly [size: number, text: string])[] = [
      [1, '[0]'],
      [6, '[0, 1, 2, 3, 4, 5]'],
      [7, '[0, 1, 2, 3, 4, 5, … 1 more]'],
      [100, '[0, 1, 2, 3, 4, 5, … 94 more]'],
    ];
    for (const [size, text] of shown) {
      using array = toDeviceSync(Int32Array.from({ length: size }, (_, at) => at));
      assert.ok(inspect(array).includes(text), inspect(array));
    }
    using matrix = toDeviceSync(Int32Array.from({ length: 12 }, (_, at) => at)).reshape([4, 3]);
    assert.ok(inspect(matrix.T).includes('[0, 3, 6, 9, 1, 4, … 6 more]'), inspect(matrix.T));
  });

  test('whose values cannot be read says so, and leaves no stream', () => {
    const emulated = emulate();
    using array = toDeviceSync(Int32Array.of(1, 2, 3));
    const recorder = recordCalls();
    for (const name of [
      'cuMemcpyDtoHAsync_v2',
      'cuMemcpyDtoH_v2',
      'cuStreamSynchronize',
    ] as const) {
      selectDriver(broken(emulated, name, CUresult.CUDA_ERROR_INVALID_VALUE));
      assert.match(inspect(array), /\[(1, 2, 3|cannot be read)\]/, name);
    }
    selectDriver(emulated);
    recorder.stop();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name).length;
    assert.ok(count('cuStreamCreateWithPriority') > 0);
    assert.equal(count('cuStreamDestroy_v2'), count('cuStreamCreateWithPriority'));
  });
});
