/** Launches where something is missing or fails: older drivers, other devices, refused calls. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { arena } from '../../../../ffi/arena.ts';
import { selectDriver } from '../../../../ffi/driver.ts';
import { emulatedKernels } from '../../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { Context, DeviceBuffer, ManagedMemory, Module, Stream } from '../../../../src/index.ts';
import { broken, keepingBooks } from '../../../support/faults.ts';
import { loadKernels, ptx } from '../../../support/kernels.ts';

const { CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER: TOO_OLD, CUDA_ERROR_OUT_OF_MEMORY } = CUresult;
const shape = { grid: 1, block: 8 };
/** What is of a context that was lost: kept, so that nothing tries to give it back. */
const lost: unknown[] = [];

const emulated = (env: NodeJS.ProcessEnv = {}): Driver =>
  createEmulatedDriver({ arena, env, kernels: emulatedKernels });

/** A driver that lacks what CUDA 11.8 and later brought. */
const older = (): Driver =>
  (
    [
      'cuLaunchKernelEx',
      'cuFuncGetParamInfo',
      'cuFuncGetName',
      'cuFuncLoad',
      'cuModuleGetFunctionCount',
      'cuModuleEnumerateFunctions',
      'cuGraphExecUpdate_v2',
    ] satisfies FunctionName[]
  ).reduce((driver, name) => broken(driver, name, TOO_OLD), emulated());

test('an older driver launches kernels too, and says what it lacks', async () => {
  selectDriver(older());
  using module = loadKernels();
  using stream = Stream.create({ nonBlocking: true });
  using to = DeviceBuffer.allocate(4);
  const narrow = module.kernel('narrow', ['pointer']);
  narrow.launch({ grid: 1, block: 7, stream }, to);
  await stream.synchronize();
  assert.equal(to.copyToHostSync()[0], 7);
  narrow.launch({ grid: 1, block: [9, 2] }, to);
  assert.equal(to.copyToHostSync()[0], 9);
  const newer = { name: 'NotSupportedError', message: /CUDA 1[12]\.\d/ };
  assert.throws(() => narrow.launch({ ...shape, cooperative: true }, to), newer);
  assert.throws(() => narrow.launch({ ...shape, stream, cooperative: true }, to), newer);
  assert.throws(() => module.kernelNames, newer);
  assert.throws(() => loadKernels({ loading: 'eager' }), newer);
  assert.throws(() => module.kernel('absent', []), /looking for kernel absent: named symbol/);
  assert.equal(Context.current(), undefined);
});

test('a launch that is refused leaves the context as it was, and says what was launched', () => {
  selectDriver(broken(emulated(), 'cuLaunchKernelEx', CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
  using module = loadKernels();
  const narrow = module.kernel('narrow', ['pointer']);
  using own = Stream.create();
  for (const stream of [own, Stream.fromHandle(own.handle), Stream.legacyDefault()]) {
    assert.throws(() => narrow.launch({ ...shape, stream }, null), {
      code: 'CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES',
      message:
        /kernel narrow \(grid 1 x 1 x 1, block 8 x 1 x 1, .*16 registers for each of 8 .*65536/,
    });
    assert.equal(Context.current(), undefined);
    assert.equal(own.done, true);
  }
});

test('a module that is not made leaves nothing behind', () => {
  for (const [name, options] of [
    ['cuModuleLoadDataEx', {}],
    ['cuFuncLoad', { loading: 'eager' }],
    ['cuModuleEnumerateFunctions', { loading: 'eager' }],
  ] as const) {
    const books = keepingBooks(broken(emulated(), name, CUDA_ERROR_OUT_OF_MEMORY));
    selectDriver(books.driver);
    assert.throws(() => loadKernels(options), { code: 'CUDA_ERROR_OUT_OF_MEMORY' }, name);
    assert.deepEqual([...books.open], [], name);
    assert.equal(Context.current(), undefined);
  }
});

test('closing a context closes its modules, and a reset forgets them', async () => {
  const books = keepingBooks(emulated());
  selectDriver(books.driver);
  const module = loadKernels();
  const kernel = module.kernel('nothing', []);
  assert.equal(books.open.size, 1);
  await Context.primary().reset();
  assert.equal(kernel.closed, true);
  assert.throws(() => kernel.launch(shape), { name: 'ClosedError', message: /reset/ });
  module.close();
  using again = loadKernels();
  again.kernel('nothing', []).launch(shape);
});

test('memory and streams of another device are refused, unless the device reaches them', async () => {
  selectDriver(emulated({ CUFFI_EMULATED_DEVICES: '2' }));
  const [near, far] = [Context.primary(0), Context.primary(1)];
  using module = loadKernels({ device: 0 });
  const narrow = module.kernel('narrow', ['pointer']);
  using stream = Stream.create({ nonBlocking: true, device: 1 });
  const distant = DeviceBuffer.allocate(4, { device: 1 });
  using managed = ManagedMemory.create({ device: 1 }).allocate(4);
  assert.throws(() => narrow.launch({ ...shape, stream }, null), {
    name: 'TypeError',
    message: /the stream is of Context of Device 1.*loaded in Context of Device 0/,
  });
  assert.throws(() => narrow.launch(shape, distant), {
    name: 'TypeError',
    message: /argument 0 of kernel narrow is in memory of Device 1 .*enablePeerAccess/,
  });
  narrow.launch(shape, managed);
  await near.synchronize();
  assert.equal(new Uint8Array(managed.buffer)[0], 8);
  if (near.device.canAccessPeer(1)) {
    near.enablePeerAccess(far);
    narrow.launch(shape, distant);
    assert.equal(distant.copyToHostSync()[0], 8);
  }
  distant.close();
});

test('a cubin runs where all that it needs is registered, and else is not supported', () => {
  selectDriver(emulated());
  const cubin = (name: string): Uint8Array => {
    const bytes = Buffer.alloc(128);
    bytes.write('\x7fELF', 'latin1');
    bytes.writeBigUInt64LE(128n, 40);
    bytes.write(`.text.${name}\0`, 64, 'latin1');
    return bytes;
  };
  assert.throws(() => Module.load(cubin('unheard_of')), { code: 'CUDA_ERROR_NOT_SUPPORTED' });
  using module = Module.load(cubin('narrow'));
  using to = DeviceBuffer.allocate(4);
  module.kernel('narrow', ['pointer']).launch({ grid: 1, block: 3 }, to);
  assert.equal(to.copyToHostSync()[0], 3);
});

test('a misaligned address ends the context, as on a GPU', async () => {
  selectDriver(emulated());
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  const to = DeviceBuffer.allocate(64);
  module.kernel('narrow', ['pointer']).launch({ ...shape, stream }, to.address + 2);
  await assert.rejects(stream.synchronize(), { code: 'CUDA_ERROR_MISALIGNED_ADDRESS' });
  assert.throws(() => to.fill(0), { code: 'CUDA_ERROR_MISALIGNED_ADDRESS', sticky: true });
  lost.push(module, stream, to);
  selectDriver(emulated());
});

test('an emulated kernel that throws is a warning, and ends its context', async () => {
  selectDriver(emulated());
  const warning = new Promise<Error & { code?: string }>((resolve) =>
    process.once('warning', resolve),
  );
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  module.kernel('trap', []).launch({ ...shape, stream });
  await assert.rejects(stream.synchronize(), { code: 'CUDA_ERROR_LAUNCH_FAILED', sticky: true });
  const { code, message } = await warning;
  assert.equal(code, 'CUFFI_EMULATED_KERNEL');
  assert.match(message, /the emulated kernel trap threw: Error: trap/);
  lost.push(module, stream);
  selectDriver(emulated());
});
