import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { cu, driverName, selectDriver, selectionCount } from '../../../ffi/driver.ts';
import { functionNames, rows } from '../../../ffi/functions.ts';
import { LibraryNotFoundError } from '../../../ffi/library.ts';
import { resultName } from '../../../ffi/results.ts';
import type { CUstream } from '../../../ffi/types.ts';
import { programFile } from '../../support/program.ts';
import { createTestDriver } from './fixtures/test-driver.ts';

// A library that every machine has, and that has no function of the driver's.
const NO_DRIVER = 'libc.so.6';

interface Answer {
  readonly status?: number;
  readonly name?: string;
  readonly tried?: string[];
}

/** The first call of another process, under `CUFFI_DRIVER`. */
function inProcess(choice: string | undefined, trace?: string): { answer: Answer; stderr: string } {
  const env: NodeJS.ProcessEnv = { ...process.env };
  delete env['CUFFI_DRIVER'];
  delete env['CUFFI_TRACE'];
  if (choice !== undefined) env['CUFFI_DRIVER'] = choice;
  if (trace !== undefined) env['CUFFI_TRACE'] = trace;
  const { path, execArgv } = programFile(new URL('./fixtures/print-driver.ts', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [...execArgv, path], {
    encoding: 'utf8',
    env,
    timeout: 30_000,
  });
  assert.equal(status, 0, stderr);
  return { answer: JSON.parse(stdout), stderr };
}

describe('the driver in use', () => {
  test('CUFFI_DRIVER names the library to open, and no other is tried', () => {
    const missing = '/nonexistent/libcuda.so';
    assert.deepEqual(inProcess(missing).answer, { tried: [missing] });
    assert.deepEqual(inProcess(NO_DRIVER).answer, { tried: [NO_DRIVER] });
  });

  test('without CUFFI_DRIVER, empty, or cuda, libcuda is looked for in every usual place', () => {
    for (const choice of [undefined, '', 'cuda']) {
      const { name, tried } = inProcess(choice).answer;
      // On a machine with a driver it is found; the emulated one is never taken instead.
      if (tried) assert.equal(tried[0], 'libcuda.so.1');
      else assert.match(name as string, /libcuda\.so\.1$/);
      if (tried) assert.ok(tried.length > 5 && tried.every((path) => path.includes('libcuda.so')));
    }
  });

  test('CUFFI_TRACE=1 writes each call to stderr, and nothing else does', () => {
    assert.match(inProcess('emulated', '1').stderr, /cuffi: cuInit [\d.]+ us\n/);
    assert.doesNotMatch(inProcess('emulated').stderr, /cuffi:/);
  });

  test('a driver of objects is called with the arguments as they are, and its status answered', () => {
    const test = createTestDriver();
    selectDriver(test.driver);
    assert.equal(driverName(), 'test');
    test.status = 600;
    assert.equal(cu.cuStreamQuery(7 as CUstream), 600);
    assert.deepEqual(test.asked, [{ name: 'cuStreamQuery', args: [7] }]);
  });

  test('has every function of the table, and no other', () => {
    assert.deepEqual(Object.keys(cu), functionNames);
    selectDriver(createTestDriver().driver);
    for (const name of functionNames) assert.equal(typeof cu[name], 'function');
  });

  test('a function is resolved once, at its first call', () => {
    const test = createTestDriver();
    let resolved = 0;
    const driver = new Proxy(test.driver, {
      get(target, name, receiver) {
        resolved++;
        return Reflect.get(target, name, receiver);
      },
    });
    selectDriver(driver);
    assert.equal(resolved, 0);
    cu.cuInit(0);
    cu.cuInit(0);
    assert.equal(resolved, 1);
    assert.equal(cu.cuInit, cu.cuInit);
  });

  test('a driver chosen later takes the place of the one before', () => {
    const [first, second] = [createTestDriver(), createTestDriver()];
    selectDriver(first.driver);
    cu.cuInit(0);
    selectDriver(second.driver);
    cu.cuInit(0);
    assert.deepEqual([first.asked.length, second.asked.length], [1, 1]);
  });

  test('a choice that cannot be opened throws at each call, until another is made', () => {
    const test = createTestDriver();
    selectDriver('/nonexistent/libcuda.so');
    for (let i = 0; i < 2; i++) {
      assert.throws(() => cu.cuInit(0), LibraryNotFoundError);
      assert.throws(() => driverName(), {
        name: 'LibraryNotFoundError',
        message: /libcuda\.so: .*No such file.*\nCUFFI_DRIVER must be cuda/,
      });
    }
    selectDriver(test.driver);
    assert.equal(cu.cuInit(0), 0);
    assert.equal(test.asked.length, 1);
  });

  test('every choice is counted, so that what was cached under another can be told', () => {
    const before = selectionCount();
    selectDriver(createTestDriver().driver);
    assert.equal(selectionCount(), before + 1);
  });

  test('a row that moves bytes says which of its parameters counts them', () => {
    for (const name of functionNames) {
      const { bytes, struct, params } = rows[name];
      const moves = /^cuMem(cpy|set)/.test(name);
      assert.equal((bytes ?? struct) !== undefined, moves, name);
      if (struct) assert.equal(params[0]?.c, `const ${struct} *`, name);
      if (bytes?.[2] !== undefined) assert.equal(params[bytes[2]]?.c, 'size_t', name);
      if (bytes) assert.equal(params[bytes[0]]?.c, 'size_t', name);
    }
  });

  test('a status has the name of the driver, and one that is unknown its number', () => {
    assert.equal(resultName(2), 'CUDA_ERROR_OUT_OF_MEMORY');
    assert.equal(resultName(123_456), 'CUDA_ERROR_123456');
  });
});
