// Drivers back to CUDA 11.4: stand-ins in C without the newer symbols, and the emulated driver of that
// version under the library itself. The examples run on it too, in test/examples.
import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { cu, selectDriver } from '../../ffi/driver.ts';
import { type FunctionName, functionNames, rows } from '../../ffi/functions.ts';
import { check } from '../../src/check.ts';
import {
  Context,
  Device,
  driverVersion,
  Graph,
  MemoryPool,
  Module,
  Stream,
  toDevice,
} from '../../src/index.ts';
import { ipcSupport } from '../../src/ipc/index.ts';
import { canUseStreams } from '../../src/ipc/timeline/words.ts';
import { loadKernels, ptx } from '../support/kernels.ts';
import { emulate } from '../unit/src/emulate.ts';
import { buildStandIn } from './stand-in.ts';
import { noCompiler, openBuildFolder } from './toolchain.ts';

const build = openBuildFolder();
const versions = [11_040, 11_060, 11_080, 12_030, 12_040];

const isNewer = (name: FunctionName, version: number): boolean => (rows[name].since ?? 0) > version;

const call = (name: FunctionName): number =>
  (cu[name] as (...args: unknown[]) => number)(
    ...rows[name].params.map(({ ffi }) =>
      ffi === 'handle64' ? { reserved: new Uint8Array(64) } : 0,
    ),
  );

describe('a libcuda without newer symbols', { skip: noCompiler }, () => {
  for (const version of versions)
    test(`of ${version}: what it lacks is refused with its version, all else is called`, () => {
      selectDriver(build && buildStandIn(build, `${version}.so`, (name) => isNewer(name, version)));
      for (const name of functionNames) {
        const status = call(name);
        assert.equal(status, isNewer(name, version) ? 36 : 0, name);
        if (status === 0) continue;
        const since = String(rows[name].since);
        const named = `${Number(since.slice(0, 2))}.${Number(since.slice(2)) / 10}`;
        assert.throws(() => check(status, name), {
          name: 'NotSupportedError',
          message: new RegExp(
            `^the function ${name} needs a driver of CUDA ${named} or later, which has ${name}; /.*\\.so is CUDA `,
          ),
        });
      }
    });
});

describe('cuffi on a driver of CUDA 11.4', () => {
  afterEach(() => selectDriver('emulated'));

  test('the emulated driver of 11.4 lacks what came later, functions and attributes', () => {
    emulate({ CUFFI_EMULATED_VERSION: '11.4' });
    assert.deepEqual(driverVersion(), { major: 11, minor: 4 });
    const missing = functionNames.filter((name) => call(name) === 36);
    assert.deepEqual(
      missing,
      functionNames.filter((name) => isNewer(name, 11_040)),
    );
    assert.throws(() => Device.get(0).attribute('canUse64BitStreamMemOps'), {
      code: 'CUDA_ERROR_INVALID_VALUE',
    });
    emulate({ CUFFI_EMULATED_VERSION: '12.0' });
    assert.equal(Device.get(0).attribute('canUse64BitStreamMemOps'), 1);
    assert.equal(cu.cuGraphExecUpdate_v2(0 as never, 0 as never, 0 as never) === 36, false);
    for (const wrong of ['11.3', '13.1', '12', 'new'])
      assert.throws(() => emulate({ CUFFI_EMULATED_VERSION: wrong }), /from 11\.4 to 13\.0/);
  });

  test('memory, strided copies, launches and graphs work; what cannot says which version can', async () => {
    emulate({ CUFFI_EMULATED_VERSION: '11.4' });
    const support = ipcSupport(Device.get(0));
    assert.deepEqual(
      Object.values(support).map(({ supported }) => supported),
      [true, true, true, true],
    );
    assert.equal(canUseStreams(Device.get(0)), false);

    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    using pooled = pool.allocate(64);
    pooled.fill(1);
    const array = await toDevice(new Float32Array([1, 2, 3, 4, 5, 6]), { shape: [2, 3] });
    // Not contiguous: a built-in kernel copies it.
    assert.deepEqual([...(await array.transpose().copyToHost())], [1, 4, 2, 5, 3, 6]);

    using module = loadKernels();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = pool.allocate(4);
    using other = pool.allocate(4);
    await Context.primary().synchronize();
    const narrow = module.kernel('narrow', ['pointer']);
    using graph = Graph.capture(stream, () => narrow.launch({ grid: 1, block: 7, stream }, buffer));
    graph.launch({ stream });
    graph.setArguments(graph.kernelNode(narrow), other);
    graph.launch({ stream });
    graph.update(stream, () => narrow.launch({ grid: 1, block: 5, stream }, buffer));
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual([(await buffer.copyToHost())[0], (await other.copyToHost())[0]], [5, 7]);

    const needs = (version: string): object => ({
      name: 'NotSupportedError',
      message: new RegExp(`needs a driver of CUDA ${version} or later.*; test is CUDA 11\\.4`),
    });
    assert.throws(() => module.kernelNames, needs('12\\.4'));
    assert.throws(() => Module.load(ptx, { loading: 'eager' }), needs('12\\.4'));
    const cooperative = { grid: 1, block: 1, cooperative: true, stream };
    assert.throws(() => narrow.launch(cooperative, buffer), needs('11\\.6'));
  });
});
