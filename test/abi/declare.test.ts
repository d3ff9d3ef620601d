// Functions that the table lacks, declared and called through koffi into C.
import assert from 'node:assert/strict';
import { afterEach, before, describe, test } from 'node:test';
import {
  bytesCopied,
  cu,
  declareFunction,
  readUint32,
  recordCalls,
  selectDriver,
  types,
  writeInt32,
} from '../../ffi/index.ts';
import type { CUcontext, CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../../src/index.ts';
import { createTestDriver } from '../unit/ffi/fixtures/test-driver.ts';
import { noCompiler, openBuildFolder } from './toolchain.ts';

const SOURCE = `
unsigned int cuInit(unsigned int flags) { return 0; }
unsigned int cuDriverGetVersion(int *version) { *version = 12010; return 0; }
unsigned int cuTestApiVersion(unsigned long long context, unsigned int *version) {
  *version = (unsigned int)(context >> 20);
  return context == 1 ? 201 : 0;
}
unsigned int cuMemcpyTest(unsigned long long to, int value, unsigned long long count) {
  return (unsigned int)(value < 0 ? 1 : 0);
}
`;
const build = openBuildFolder();
let library = '';

const cuTestApiVersion = declareFunction('cuTestApiVersion', [
  types.CUcontext,
  types.out(types.uint),
]);
const cuMemcpyTest = declareFunction('cuMemcpyTest', [types.CUdeviceptr, types.int, types.size_t], {
  bytes: [2, 4],
});
const cuTestLater = declareFunction('cuTestLater', [], { since: 12_040 });
const context = (5 * 2 ** 20) as number as CUcontext;
const pointer = 4096 as CUdeviceptr;

afterEach(() => selectDriver('emulated'));

describe('declareFunction', { skip: noCompiler }, () => {
  before(() => {
    library = build.compile('declared.so', SOURCE, ['-shared', '-fPIC']);
  });

  test('C receives the arguments, and its status and what it wrote come back', () => {
    selectDriver(library);
    const version = writeInt32(0);
    assert.equal(cuTestApiVersion(context, version), 0);
    assert.equal(readUint32(version), 5);
    assert.equal(cuTestApiVersion(1 as CUcontext, version), 201);
    assert.throws(() => check(201, cuTestApiVersion), {
      name: 'CudaError',
      call: 'cuTestApiVersion',
    });
  });

  test('what is no number, and too few arguments, never reach C', () => {
    selectDriver(library);
    const call = cuMemcpyTest as (...args: unknown[]) => number;
    for (const wrong of [undefined, null, '1', {}])
      assert.throws(() => call(pointer, wrong, 1), TypeError);
    assert.throws(() => call(pointer, 1), TypeError);
  });

  test('a symbol that the driver lacks names the version that has it', () => {
    selectDriver(library);
    const status = cuTestLater();
    assert.equal(status, 36);
    assert.throws(() => check(status, cuTestLater), {
      name: 'NotSupportedError',
      message: `the function cuTestLater needs a driver of CUDA 12.4 or later, which has cuTestLater; ${library} is CUDA 12.1. Update the driver.`,
    });
  });

  test('calls are recorded with their bytes, before and after other calls', () => {
    selectDriver(library);
    cuMemcpyTest(pointer, 1, 10);
    const recorder = recordCalls();
    cuMemcpyTest(pointer, 1, 10);
    cu.cuInit(0);
    cuMemcpyTest(pointer, -1, 1);
    recorder.stop();
    cuMemcpyTest(pointer, 1, 10);
    assert.deepEqual(
      recorder.calls.map(({ name, byteLength, status }) => [name, byteLength, status]),
      [
        ['cuMemcpyTest', 40, 0],
        ['cuInit', 0, 0],
        ['cuMemcpyTest', 4, 1],
      ],
    );
    assert.equal(bytesCopied(recorder.calls), 44);
  });
});

describe('a declaration', () => {
  test('the function has the name of the symbol, and the same types give the same function', () => {
    assert.equal(cuTestLater.name, 'cuTestLater');
    assert.equal(declareFunction('cuTestLater', []), cuTestLater);
    assert.throws(() => declareFunction('cuTestLater', [types.int]), {
      name: 'TypeError',
      message: 'cuTestLater is declared already, with other types: cuTestLater()',
    });
  });

  test('the emulated driver supports none, and a driver of objects those that it has', () => {
    selectDriver('emulated');
    assert.equal(cuTestLater(), 801);
    const { driver } = createTestDriver();
    selectDriver(driver);
    assert.equal(cuTestLater(), 36);
    selectDriver({ ...driver, cuTestLater: () => 7 } as typeof driver);
    assert.equal(cuTestLater(), 7);
  });

  test('names, types and versions are checked', () => {
    assert.throws(() => declareFunction('cuMemAlloc_v2', []), /call cu\.cuMemAlloc_v2/);
    for (const name of ['', 'cudaMalloc', 'cu x', 5, 'toString'])
      assert.throws(() => declareFunction(name as string, []), /named as the driver exports it/);
    for (const params of [undefined, [undefined], ['int'], [{ c: 'int' }], types.int])
      assert.throws(() => declareFunction('cuTestWrong', params as never), /array of types/);
    for (const since of [12.4, '12040', 12, Number.NaN])
      assert.throws(
        () => declareFunction('cuTestWrong', [], { since: since as number }),
        /12040 for CUDA 12\.4/,
      );
  });
});
