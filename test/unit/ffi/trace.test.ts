import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { writeStruct } from '../../../ffi/arena.ts';
import { cu, recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { bytesCopied } from '../../../ffi/trace.ts';
import type { Address, CUdeviceptr, CUstream } from '../../../ffi/types.ts';
import { createTestDriver } from './fixtures/test-driver.ts';

const pointer = 4096 as CUdeviceptr;
const host = 8192 as Address;
const stream = 0 as CUstream;

const driver = createTestDriver();
selectDriver(driver.driver);

describe('recordCalls', () => {
  test('records the name, the bytes, the status and the duration of each call, in order', () => {
    const recorder = recordCalls();
    cu.cuInit(0);
    driver.status = 1;
    cu.cuMemcpyHtoD_v2(pointer, host, 100);
    driver.status = 0;
    cu.cuMemcpyDtoDAsync_v2(pointer, pointer, 1000, stream);
    cu.cuMemAlloc_v2(host, 5000);
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name, byteLength, status }) => ({ name, byteLength, status })),
      [
        { name: 'cuInit', byteLength: 0, status: 0 },
        { name: 'cuMemcpyHtoD_v2', byteLength: 100, status: 1 },
        { name: 'cuMemcpyDtoDAsync_v2', byteLength: 1000, status: 0 },
        { name: 'cuMemAlloc_v2', byteLength: 0, status: 0 },
      ],
    );
    for (const { durationMs } of recorder.calls) assert.ok(durationMs >= 0);
  });

  test('gives each record to a function, which then has them alone', () => {
    const seen: string[] = [];
    {
      using recorder = recordCalls(({ name, status }) => seen.push(`${name} ${status}`));
      cu.cuInit(0);
      assert.deepEqual([seen, recorder.calls], [['cuInit 0'], []]);
    }
    cu.cuInit(0);
    assert.equal(seen.length, 1);
    assert.throws(() => recordCalls('stderr' as never), TypeError);
  });

  test('counts elements of a fill in bytes, and fills are no copies', () => {
    using recorder = recordCalls();
    cu.cuMemsetD8Async(pointer, 0, 10, stream);
    cu.cuMemsetD16Async(pointer, 0, 10, stream);
    cu.cuMemsetD32Async(pointer, 0, 10, stream);
    cu.cuMemcpyDtoH_v2(host, pointer, 7);
    assert.deepEqual(
      recorder.calls.map(({ byteLength }) => byteLength),
      [10, 20, 40, 7],
    );
    assert.equal(bytesCopied(recorder.calls), 7);
  });

  test('counts what 2-D and 3-D copies and fills move, from their struct or their rows', () => {
    using recorder = recordCalls();
    cu.cuMemcpy2DUnaligned_v2(writeStruct('CUDA_MEMCPY2D', { WidthInBytes: 10, Height: 3 }));
    cu.cuMemcpy3DAsync_v2(
      writeStruct('CUDA_MEMCPY3D', { WidthInBytes: 10, Height: 3, Depth: 2 }),
      stream,
    );
    cu.cuMemcpy2DUnaligned_v2(host);
    cu.cuMemsetD2D16Async(pointer, 512, 0, 10, 3, stream);
    assert.deepEqual(
      recorder.calls.map(({ byteLength }) => byteLength),
      [30, 60, 0, 60],
    );
  });

  test('the driver is called as before: same arguments, same answer', () => {
    using _ = recordCalls();
    driver.asked.length = 0;
    driver.status = 600;
    assert.equal(cu.cuStreamQuery(7 as CUstream), 600);
    driver.status = 0;
    assert.deepEqual(driver.asked, [{ name: 'cuStreamQuery', args: [7] }]);
  });

  test('after stop() nothing is recorded, and calls go straight to the driver again', () => {
    const recorder = recordCalls();
    cu.cuInit(0);
    assert.notEqual(cu.cuInit, driver.driver.cuInit);
    recorder.stop();
    recorder.stop();
    cu.cuInit(0);
    assert.equal(recorder.calls.length, 1);
    assert.equal(cu.cuInit, driver.driver.cuInit);
  });

  test('nested recorders each record what happens while they run', () => {
    const outer = recordCalls();
    cu.cuInit(0);
    const inner = recordCalls();
    cu.cuStreamQuery(stream);
    outer.stop();
    cu.cuStreamSynchronize(stream);
    inner.stop();
    cu.cuInit(0);
    const names = (recorder: typeof outer): string[] => recorder.calls.map(({ name }) => name);
    assert.deepEqual(names(outer), ['cuInit', 'cuStreamQuery']);
    assert.deepEqual(names(inner), ['cuStreamQuery', 'cuStreamSynchronize']);
  });

  test('a driver chosen while a recorder runs is recorded too', () => {
    using recorder = recordCalls();
    selectDriver(createTestDriver().driver);
    cu.cuInit(0);
    assert.equal(recorder.calls.length, 1);
    selectDriver(driver.driver);
  });
});
