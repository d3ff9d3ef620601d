import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ClosedError,
  CompileError,
  CompilerNotFoundError,
  CudaError,
  CuffiError,
  DriverNotFoundError,
  IpcError,
  NotSupportedError,
  PeerGoneError,
} from '../../../src/errors.ts';

const outOfMemory = new CudaError({
  status: 2,
  call: 'cuMemAlloc_v2',
  description: 'out of memory',
  doing: 'allocating 16 bytes',
  hint: 'Ask for less.',
});

test('every error is of one family and says its own name', () => {
  const errors = {
    CuffiError: new CuffiError('x'),
    CudaError: outOfMemory,
    DriverNotFoundError: new DriverNotFoundError('x'),
    NotSupportedError: new NotSupportedError('x'),
    ClosedError: new ClosedError('x'),
    PeerGoneError: new PeerGoneError('x', { pid: 1, abandonedWaits: 0 }),
    IpcError: new IpcError('x'),
    CompileError: new CompileError('x', 'log'),
    CompilerNotFoundError: new CompilerNotFoundError('x'),
  };
  for (const [name, error] of Object.entries(errors)) {
    assert.ok(error instanceof CuffiError, name);
    assert.ok(error instanceof Error, name);
    assert.equal(error.name, name);
    assert.match(String(error.stack), new RegExp(`^${name}`));
  }
});

test('a driver error says what failed, while doing what, why, and what to do', () => {
  assert.equal(
    outOfMemory.message,
    'cuMemAlloc_v2 failed while allocating 16 bytes: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)\n' +
      'Ask for less.',
  );
  const { status, code, call, doing, hint, sticky } = outOfMemory;
  assert.deepEqual(
    { status, code, call, doing, hint, sticky },
    {
      status: 2,
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      call: 'cuMemAlloc_v2',
      doing: 'allocating 16 bytes',
      hint: 'Ask for less.',
      sticky: false,
    },
  );
});

test('without a remedy or a purpose the message is one plain line', () => {
  const error = new CudaError({ status: 1, call: 'cuInit', description: 'invalid argument' });
  assert.equal(error.message, 'cuInit failed: invalid argument (CUDA_ERROR_INVALID_VALUE, 1)');
  assert.equal(error.doing, undefined);
  assert.equal(error.hint, undefined);
});

test('a status of a newer driver keeps its number', () => {
  const error = new CudaError({ status: 98_765, call: 'cuInit', description: 'unknown error' });
  assert.equal(error.code, 'CUDA_ERROR_98765');
  assert.equal(error.status, 98_765);
});

test('is sticky for exactly the statuses after which the context is lost', () => {
  const isSticky = (status: number): boolean =>
    new CudaError({ status, call: 'cuInit', description: '' }).sticky;
  for (const status of [214, 700, 702, 710, 714, 715, 716, 717, 718, 719])
    assert.equal(isSticky(status), true, String(status));
  for (const status of [0, 1, 2, 100, 201, 400, 600, 701, 709, 801, 999])
    assert.equal(isSticky(status), false, String(status));
});

test('an IPC error repeats the driver error that it comes from', () => {
  const error = new IpcError('could not be opened', outOfMemory);
  assert.equal(error.cause, outOfMemory);
  assert.equal(error.message, `could not be opened: ${outOfMemory.message}`);
  assert.equal('cause' in new IpcError('alone'), false);
});
