/** The emulated driver of the companion, src/python/cuffi/_emulated.py: a program of Python's with it. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { readSettings } from '../../../../ffi/emulator/settings.ts';
import { companionPath } from '../../../../src/python/companion.ts';
import { noPython } from '../../../support/python.ts';

/** Runs a program with the emulated driver, and returns what it printed. */
function run(program: string, env: NodeJS.ProcessEnv = {}): string {
  const { stdout, stderr, status } = spawnSync('python3', ['-c', program], {
    env: { ...process.env, PYTHONPATH: companionPath(), CUFFI_DRIVER: 'emulated', ...env },
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.equal(status, 0, stderr);
  return stdout.trimEnd();
}

/** Prints the error of a use of the driver, or what it returned. */
const trying = (expression: string): string => `
import cuffi
try:
    print(${expression})
except Exception as error:
    print(f'{getattr(error, "code", type(error).__name__)}: {error}')
`;

describe('the emulated driver for Python', { skip: noPython }, () => {
  test('is not loaded for another driver, nor before its first use', () => {
    const program = `
import sys, cuffi
before = 'cuffi._emulated' in sys.modules
cuffi.empty(3).close()
print(before, 'cuffi._emulated' in sys.modules)`;
    assert.equal(run(program), 'False True');
  });

  for (const [name, values] of Object.entries({
    CUFFI_EMULATED_DEVICES: ['no', '-1', '100', '1.0'],
    CUFFI_EMULATED_MEMORY: ['x', '0', '4T', '-1', '1.5G'],
  }))
    test(`refuses what ${name} may not be in the words of Node`, () => {
      for (const value of values) {
        let expected = '';
        assert.throws(
          () => readSettings({ [name]: value }),
          (error: Error) => {
            expected = error.message;
            return error instanceof RangeError;
          },
        );
        assert.equal(run(trying('cuffi.empty(3)'), { [name]: value }), `ValueError: ${expected}`);
      }
    });

  test('has the devices of the machine that are visible', () => {
    const devices = trying('[cuffi.empty(1, device=each).device for each in range(2)]');
    const env = { CUFFI_EMULATED_DEVICES: '4', CUDA_VISIBLE_DEVICES: '2,0' };
    assert.equal(run(devices, env), '[0, 1]');
  });

  test('limits allocations to the memory of the device, and frees what is closed', () => {
    const program = `
import cuffi
size = 4 << 20
first, second = cuffi.empty(size, 'uint8'), cuffi.empty(size, 'uint8')
other = cuffi.empty(size, 'uint8', device=1)
try:
    cuffi.empty(1)
except cuffi.CudaError as error:
    print(error.code)
first.close()
with cuffi.empty(4, 'uint8') as array:
    array.copy_from_host(bytes([1, 2, 3, 4]))
    print(array.copy_to_host().hex())`;
    const env = { CUFFI_EMULATED_MEMORY: '8M', CUFFI_EMULATED_DEVICES: '2' };
    assert.equal(run(program, env), 'CUDA_ERROR_OUT_OF_MEMORY\n01020304');
  });

  test('gives each slot of a shared table to one process', () => {
    const program = `
import os
from cuffi import _emulated
fd = _emulated.memfd('cuffi.test', 4096 * 8)
table = _emulated.words(_emulated.map_fd(fd, 4096 * 8), 1024 * 8)
begin, begins = os.pipe()
children = []
for _ in range(4):
    out, into = os.pipe()
    if os.fork() == 0:
        os.close(begins)
        os.read(begin, 1)
        taken = [_emulated.add_importer(fd, table, 16, 4, 1000, os.getpid(), 1, 2) for _ in range(250)]
        os.write(into, ' '.join(map(str, taken)).encode())
        os._exit(0)
    os.close(into)
    children.append(out)
os.close(begins)
taken = [int(at) for out in children for at in os.fdopen(out).read().split()]
print(len(set(taken)), min(taken), max(taken), _emulated.add_importer(fd, table, 16, 4, 1000, 1, 1, 2))`;
    assert.equal(run(program), '1000 16 4012 None');
  });
});
