import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { timeoutError } from '../../../src/deadline.ts';
import {
  ClosedError,
  CompileError,
  CompilerNotFoundError,
  CudaError,
  CuffiError,
  copyIpcError,
  DriverNotFoundError,
  IpcError,
  NotSupportedError,
  PeerGoneError,
  prefixMessage,
  thrownFrom,
  withDeepStack,
} from '../../../src/errors.ts';

const outOfMemory = new CudaError({
  status: 2,
  call: 'cuMemAlloc_v2',
  description: 'out of memory',
  doing: 'allocating 16 bytes',
  hint: 'Ask for less.',
});

describe('CuffiError', () => {
  test('every error has the base class CuffiError, and its own name and code', () => {
    const errors: Readonly<Record<string, readonly [error: CuffiError, code: string]>> = {
      CuffiError: [new CuffiError('x'), 'invalid-state'],
      CudaError: [outOfMemory, 'CUDA_ERROR_OUT_OF_MEMORY'],
      DriverNotFoundError: [new DriverNotFoundError('x'), 'driver-not-found'],
      NotSupportedError: [new NotSupportedError('x'), 'not-supported'],
      ClosedError: [new ClosedError('x'), 'closed'],
      PeerGoneError: [new PeerGoneError('x', { pid: 1, abandonedWaits: 0 }), 'peer-gone'],
      IpcError: [new IpcError('x'), 'ipc-failed'],
      CompileError: [new CompileError('x', 'log'), 'compile-failed'],
      CompilerNotFoundError: [new CompilerNotFoundError('x'), 'compiler-not-found'],
    };
    for (const [name, [error, code]] of Object.entries(errors)) {
      assert.ok(error instanceof CuffiError, name);
      assert.ok(error instanceof Error, name);
      assert.deepEqual([error.name, error.code], [name, code]);
      assert.match(String(error.stack), new RegExp(`^${name}`));
    }
    assert.equal(new IpcError('x', undefined, 'exporter-gone').code, 'exporter-gone');
  });
});

/** What Node prints of an error, without the lines of its stack. */
const printed = (error: Error): string =>
  inspect(error)
    .split('\n')
    .filter((line) => !/^ +at .*[^{]$/.test(line))
    .join('\n');

describe('an error that is printed', () => {
  const everything: readonly CuffiError[] = [
    new CuffiError('it is so'),
    outOfMemory,
    new CudaError({ status: 218, call: 'cuLink', description: 'bad PTX', log: 'line 1: error' }),
    new DriverNotFoundError('it is so'),
    new NotSupportedError('it is so'),
    new ClosedError('it is so'),
    new PeerGoneError('it is so', { pid: 1, abandonedWaits: 0 }),
    new PeerGoneError('it is so: oh', { pid: 1, abandonedWaits: 0, exitCode: 1, stderr: 'oh\n' }),
    new PeerGoneError('it is so', { pid: 1, abandonedWaits: 2, signal: 'SIGKILL' }),
    new IpcError('it is so', undefined, 'mig'),
    new CompileError('it is so', 'the log'),
    new CompilerNotFoundError('it is so'),
  ];

  test('says each thing once, and nothing that is undefined', () => {
    for (const error of everything) {
      const text = printed(error);
      assert.doesNotMatch(text, /undefined|\[cause\]|name:/, text);
      for (const line of error.message.split('\n'))
        assert.equal(text.split(line).length, 2, `${line} in ${text}`);
      assert.ok(text.startsWith(`${error.name}: `), text);
      assert.ok(text.includes(`code: '${error.code}'`), text);
    }
  });

  test('still has the details that the message repeats', () => {
    const { hint, doing, log } = outOfMemory;
    assert.deepEqual([hint, doing, log], ['Ask for less.', 'allocating 16 bytes', undefined]);
    assert.equal((everything[2] as CudaError).log, 'line 1: error');
    assert.equal((everything[7] as PeerGoneError).stderr, 'oh\n');
    assert.equal((everything[10] as CompileError).log, 'the log');
    assert.equal((everything[6] as PeerGoneError).exitCode, undefined);
  });

  test('begins with words that are put before its message later', () => {
    const error = new IpcError('it cannot be shared', undefined, 'mig');
    prefixMessage(error, 'value.layers[3]');
    assert.equal(error.message, 'value.layers[3]: it cannot be shared');
    assert.match(printed(error), /^IpcError: value\.layers\[3\]: it cannot be shared\n/);
  });

  test('is copied with its code, its message and the cause of that', () => {
    const copy = copyIpcError(new IpcError('it cannot be opened', outOfMemory, 'mig'));
    const { code, message, cause } = new IpcError('it cannot be opened', outOfMemory, 'mig');
    assert.deepEqual([copy.code, copy.message, copy.cause], [code, message, cause]);
    assert.equal('cause' in copyIpcError(new IpcError('alone')), false);
  });
});

describe('the stack of an error', () => {
  test('reaches the caller however many calls of cuffi lie between', () => {
    const deep = (calls: number): CuffiError =>
      calls === 0 ? new ClosedError('deep') : deep(calls - 1);
    function lineOfTheCaller(): CuffiError {
      return deep(25);
    }
    const { stackTraceLimit } = Error;
    assert.match(lineOfTheCaller().stack ?? '', /\n {4}at lineOfTheCaller /);
    assert.equal(Error.stackTraceLimit, stackTraceLimit);
  });

  test('is no longer for errors that cuffi does not make, whatever has made one of its own', () => {
    const { stackTraceLimit } = Error;
    for (const make of [
      () => new CuffiError('x'),
      () => new IpcError('x', outOfMemory),
      () => withDeepStack(() => new TypeError('x')),
      () => timeoutError('a wait', 5, 'why'),
      () => {
        assert.throws(() => withDeepStack(() => assert.fail('not made')));
      },
    ]) {
      make();
      assert.equal(Error.stackTraceLimit, stackTraceLimit, String(make));
    }
  });

  test('is made as the program asks: none, or however its limit is frozen', () => {
    const { stackTraceLimit } = Error;
    try {
      Error.stackTraceLimit = 0;
      assert.doesNotMatch(new ClosedError('none').stack ?? '', /\n/);
      assert.equal(Error.stackTraceLimit, 0);
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  });

  test('begins at the caller of a function that starts a recursion', () => {
    const recursive = (calls: number): Error =>
      calls === 0 ? thrownFrom(entry, new TypeError('x')) : recursive(calls - 1);
    function entry(): Error {
      return recursive(50);
    }
    function lineOfTheCaller(): Error {
      return entry();
    }
    const { stack } = lineOfTheCaller();
    assert.match(stack ?? '', /^TypeError: x\n {4}at lineOfTheCaller /);
    // Not called by that, the error keeps the stack that it has.
    assert.match(thrownFrom(entry, new TypeError('y')).stack ?? '', /errors\.test/);
  });
});

describe('CudaError', () => {
  test('the message says what failed, during what, why, and what to do', () => {
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

  test('without a hint or a purpose the message is one plain line', () => {
    const error = new CudaError({ status: 1, call: 'cuInit', description: 'invalid argument' });
    assert.equal(error.message, 'cuInit failed: invalid argument (CUDA_ERROR_INVALID_VALUE, 1)');
    assert.equal(error.doing, undefined);
    assert.equal(error.hint, undefined);
  });

  test('an unknown status of a newer driver keeps its number', () => {
    const error = new CudaError({ status: 98_765, call: 'cuInit', description: 'unknown error' });
    assert.equal(error.code, 'CUDA_ERROR_98765');
    assert.equal(error.status, 98_765);
  });

  test('an error is sticky for exactly the statuses after which the context is lost', () => {
    const isSticky = (status: number): boolean =>
      new CudaError({ status, call: 'cuInit', description: '' }).sticky;
    for (const status of [214, 700, 702, 710, 714, 715, 716, 717, 718, 719])
      assert.equal(isSticky(status), true, String(status));
    for (const status of [0, 1, 2, 100, 201, 400, 600, 701, 709, 801, 999])
      assert.equal(isSticky(status), false, String(status));
  });
});

describe('IpcError', () => {
  test('the message repeats the driver error that is the cause', () => {
    const error = new IpcError('could not be opened', outOfMemory);
    assert.equal(error.cause, outOfMemory);
    assert.equal(error.message, `could not be opened: ${outOfMemory.message}`);
    assert.equal('cause' in new IpcError('alone'), false);
  });
});
