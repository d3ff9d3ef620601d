import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import {
  Context,
  CudaError,
  Device,
  DeviceBuffer,
  driverVersion,
  float32,
  float64,
  link,
  Module,
  Stream,
  toDevice,
  toFloat16,
} from '../../src/index.ts';
import { emulated, onHardware } from '../support/driver.ts';
import { COLLECTED, loadKernels, ptx } from '../support/kernels.ts';
import { Latch } from '../support/latch.ts';
import { stateBesideCode } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';

const needsGpu = emulated && 'the emulated driver has no such launches: they need a GPU';
const SAXPY = ['float32', 'float32*', 'float32*', 'uint32'] as const;
const { major, minor } = driverVersion();
/** Whether the driver tells the parameters of kernels. */
const tells = major > 12 || (major === 12 && minor >= 4);

function valueOrError<T>(call: () => T): T | Error {
  try {
    return call();
  } catch (error) {
    return error as Error;
  }
}

describe('Kernel', () => {
  test('a kernel runs in the order of its stream, on arrays and buffers', async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    using stream = Stream.create({ nonBlocking: true });
    using x = await toDevice(new Float32Array([1, 2, 3, 4]));
    using y = await toDevice(new Float32Array([10, 10, 10, 10]));
    using latch = new Latch();
    latch.hold(stream);
    saxpy.launch({ grid: 1, block: 32, stream }, 2, x, y, 4);
    y.slice({ stop: 2 }).fill(0, { stream });
    saxpy.launch({ grid: [1, 1, 1], block: [2, 1], stream }, 1, x.buffer, y.address, 4);
    latch.open();
    await stream.synchronize();
    assert.deepEqual(await y.copyToHost(), new Float32Array([1, 2, 16, 18]));
    // The default stream, a borrowed one, and views by their own addresses.
    saxpy.launch({ grid: 1, block: 4 }, 1, x, y, 1);
    const borrowed = Stream.fromHandle(stream.handle);
    await Context.primary().synchronize();
    saxpy.launch({ grid: 1, block: 4, stream: borrowed }, 10, x.slice({ start: 3 }), y, 1);
    await borrowed.synchronize();
    assert.equal(await y.get(0), 42);
  });

  test('every type of parameter arrives as it was given', async () => {
    using module = loadKernels();
    const collect = module.kernel('collect', ['int64*', ...COLLECTED]);
    using results = DeviceBuffer.allocate(128);
    const triple = new DataView(new ArrayBuffer(8));
    triple.setInt32(0, -7, true);
    triple.setInt16(4, -8, true);
    triple.setUint8(6, 255);
    const shape = { grid: 1, block: 1 };
    const read = (): bigint[] => [...new BigInt64Array(results.copyToHostSync().buffer)];
    const bits = (value: number): readonly [bigint, bigint] => {
      const view = new DataView(new ArrayBuffer(8));
      view.setFloat32(0, value);
      const single = BigInt(view.getInt32(0));
      view.setFloat64(0, value);
      return [single, view.getBigInt64(0)];
    };
    const struct = [-7n, -8n, 255n];

    collect.launch(
      shape,
      results,
      true,
      -128,
      -32_768,
      -(2 ** 31),
      -(2n ** 63n),
      255,
      65_535,
      2 ** 32 - 1,
      2n ** 64n - 1n,
      1.5,
      1.5,
      Math.PI,
      triple,
      null,
    );
    assert.deepEqual(read(), [
      1n,
      -128n,
      -32_768n,
      -(2n ** 31n),
      -(2n ** 63n),
      255n,
      65_535n,
      2n ** 32n - 1n,
      -1n,
      BigInt(toFloat16(1.5)),
      bits(1.5)[0],
      bits(Math.PI)[1],
      ...struct,
      0n,
    ]);

    collect.launch(
      shape,
      results,
      false,
      127,
      32_767,
      2 ** 31 - 1,
      -(2 ** 53 - 1),
      0,
      0,
      0,
      2 ** 53 - 1,
      -2,
      Number.NaN,
      Number.NEGATIVE_INFINITY,
      triple.buffer,
      results,
    );
    assert.deepEqual(read(), [
      0n,
      127n,
      32_767n,
      2n ** 31n - 1n,
      -(2n ** 53n - 1n),
      0n,
      0n,
      0n,
      2n ** 53n - 1n,
      BigInt(toFloat16(-2)),
      bits(Number.NaN)[0],
      bits(Number.NEGATIVE_INFINITY)[1],
      ...struct,
      BigInt(results.address),
    ]);
  });

  test('a launch refuses arguments that do not fit, before any driver call', async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    const shape = { grid: 1, block: 1 };
    using x = await toDevice(new Float32Array(4));
    using doubles = await toDevice(new Float64Array(4));
    const launch =
      (...args: unknown[]) =>
      () =>
        (saxpy.launch as (...args: unknown[]) => void)(shape, ...args);
    const refuses = (name: string, message: RegExp, ...args: unknown[]): void =>
      assert.throws(launch(...args), { name, message });
    refuses(
      'TypeError',
      /takes 4 arguments \(float32, float32\*, float32\*, uint32\), not 3/,
      1,
      x,
      x,
    );
    refuses(
      'TypeError',
      /argument 0 of kernel saxpy must be a number, for float32, not "1"/,
      '1',
      x,
      x,
      4,
    );
    refuses('TypeError', /argument 1 .*host memory: copy it/, 1, new Float32Array(4), x, 4);
    refuses(
      'TypeError',
      /argument 2 .* points to float32: its items are float64/,
      1,
      x,
      doubles,
      4,
    );
    refuses('TypeError', /argument 1 /, 1, undefined, x, 4);
    refuses('TypeError', /argument 3 /, 1, x, x, 4n);
    refuses('RangeError', /argument 3 .* from 0 to 2\^32 - 1, not -1/, 1, x, x, -1);
    refuses('RangeError', /argument 3 /, 1, x, x, 1.5);
    refuses('RangeError', /argument 1 /, 1, -4096, x, 4);
    const closed = DeviceBuffer.allocate(16);
    closed.close();
    refuses('ClosedError', /DeviceBuffer is closed/, 1, closed, x, 4);
    assert.throws(() => module.kernel('saxpy', ['float32', 'float*' as 'float32*']), TypeError);
    assert.throws(() => module.kernel('saxpy', [{ bytes: 0 }]), RangeError);
    assert.throws(() => module.kernel('', []), TypeError);
    // What the caller does with its own list afterwards changes nothing.
    const triple = { bytes: 8 };
    const collect = module.kernel('collect', [
      'int64*',
      ...COLLECTED.slice(0, 12),
      triple,
      'pointer',
    ]);
    triple.bytes = 4096;
    assert.deepEqual(collect.params[13], { bytes: 8 });
  });

  test('a launch refuses parameters that the kernel does not have', {
    skip: !tells && 'this driver does not tell the parameters of kernels',
  }, () => {
    using module = loadKernels();
    assert.throws(() => module.kernel('saxpy', ['float32']), /takes 4 parameters, not 1/);
    assert.throws(
      () => module.kernel('saxpy', ['float64', 'pointer', 'pointer', 'uint32']),
      /parameter 0 of kernel saxpy has 4 bytes: float64 has 8/,
    );
  });

  test('a launch refuses shapes that the device or the kernel cannot have, with the numbers of both', () => {
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const touch = module.kernel('touch_shared', ['pointer', 'uint32']);
    using to = DeviceBuffer.allocate(4);
    assert.equal(narrow.attributes.maxThreadsPerBlock, 64);
    assert.throws(() => narrow.launch({ grid: 1, block: [65] }, to), {
      name: 'RangeError',
      message: /a block of 65 x 1 x 1 has 65 threads: kernel narrow can have 64/,
    });
    const most = Device.get(0).attribute('maxSharedMemoryPerBlockOptin');
    assert.throws(
      () => touch.launch({ grid: 1, block: 1, sharedBytes: most + 1 }, to, 1),
      new RegExp(`RangeError: sharedBytes is ${most + 1}: .* can have ${most} `),
    );
    for (const wrong of [
      { grid: 0, block: 1 },
      { grid: 1.5, block: 1 },
      { grid: [1, 70_000], block: 1 },
      { grid: 1, block: [1, 1, 65] },
      { grid: 1, block: 1, sharedBytes: -1 },
      { grid: [2, 3], block: 1, cluster: 2, cooperative: true, sharedBytes: 0.5 },
      { grid: [3, 2], block: 1, cluster: [2, 2] },
    ] as const)
      assert.throws(() => narrow.launch(wrong, to), RangeError, JSON.stringify(wrong));
    for (const wrong of [
      {},
      undefined,
      { grid: 1 },
      { grid: [], block: 1 },
      { grid: [1, 1, 1, 1], block: 1 },
      { grid: 1, block: 1, shared: 4 },
      { grid: 1, block: 1, stream: {} },
      { grid: 1, block: 1, cooperative: 1 },
    ])
      assert.throws(() => narrow.launch(wrong as never, to), TypeError, JSON.stringify(wrong));
  });

  test('more shared memory than 48 KiB is there when it is asked for', async () => {
    using module = loadKernels();
    const touch = module.kernel('touch_shared', ['pointer', 'uint32']);
    using to = DeviceBuffer.allocate(4);
    const most = Device.get(0).attribute('maxSharedMemoryPerBlockOptin');
    for (const sharedBytes of [1024, most, 2048]) {
      to.fill(0);
      touch.launch({ grid: 1, block: 1, sharedBytes }, to, sharedBytes);
      assert.equal(to.copyToHostSync()[0], 7);
    }
    assert.equal(touch.attributes.maxDynamicSharedBytes, most);
  });

  test('globals are buffers that are closed with their module', async () => {
    const module = loadKernels();
    const weights = module.global('weights');
    assert.equal(weights.byteLength, 16);
    const bytes = await weights.copyToHost();
    assert.deepEqual(new Float32Array(bytes.buffer), new Float32Array([1, 2, 3, 4]));
    const counter = module.global('counter');
    counter.copyFromSync(new Uint32Array([9]));
    assert.deepEqual(counter.copyToHostSync(), new Uint8Array([9, 0, 0, 0]));
    assert.throws(() => module.global('absent'), { code: 'CUDA_ERROR_NOT_FOUND' });
    module.close();
    assert.equal(weights.closed, true);
    assert.throws(() => weights.address, { name: 'ClosedError' });
  });

  test('a module that is closed behind work is unloaded when that is done', async () => {
    const before = stateBesideCode();
    const context = Context.primary();
    const module = loadKernels({
      loading: tells ? 'eager' : 'lazy',
      jit: { optimizationLevel: 3 },
    });
    const saxpy = module.kernel('saxpy', SAXPY);
    {
      using stream = Stream.create({ nonBlocking: true });
      using x = DeviceBuffer.allocate(16);
      using latch = new Latch();
      x.fill(0, { stream });
      latch.hold(stream);
      saxpy.launch({ grid: 1, block: 1, stream }, 1, x, x, 4);
      module.close();
      module.close();
      assert.equal(saxpy.closed, true);
      assert.throws(() => saxpy.launch({ grid: 1, block: 1 }, 1, x, x, 1), { name: 'ClosedError' });
      assert.throws(() => saxpy.attributes, { name: 'ClosedError' });
      assert.throws(() => module.kernel('saxpy', SAXPY), { name: 'ClosedError' });
      assert.equal(context.pendingReleases.count, 1);
      latch.open();
      await stream.synchronize();
    }
    await context.flush();
    assert.deepEqual(stateBesideCode(), before);
  });

  test('what cannot be loaded says why, and leaves nothing behind', () => {
    const before = stateBesideCode();
    const refused = (
      source: string | Uint8Array,
    ): { code?: string; log?: string; message: string } => {
      try {
        Module.load(source).close();
      } catch (error) {
        return error as Error;
      }
      return assert.fail('it was loaded');
    };
    assert.equal(
      refused(ptx.replace('.version 7.4', '.version 99.0')).code,
      'CUDA_ERROR_UNSUPPORTED_PTX_VERSION',
    );
    const unversioned = refused(ptx.replace('.version 7.4', '.address_size 64'));
    assert.equal(unversioned.code, 'CUDA_ERROR_INVALID_IMAGE');
    assert.match(
      unversioned.message,
      /begin with "\.address_size .* neither PTX, a cubin nor a fatbin/s,
    );
    // Whether the compiler is asked at all is the driver's affair.
    assert.ok(unversioned.message.includes(unversioned.log ?? ''));
    const broken = refused(`.version 7.4\n.target sm_70\n.address_size 64\n.entry k({ret;}`);
    assert.equal(broken.code, 'CUDA_ERROR_INVALID_PTX');
    assert.match(broken.log ?? '', /error/i);
    assert.ok(broken.message.includes(broken.log ?? '-'));
    // What the compiler wrote for one is not told of the next.
    assert.notEqual(refused(ptx.replace('.version 7.4', '')).log, broken.log);
    for (const empty of ['', '  ', '\0', new Uint8Array(0)])
      assert.throws(() => Module.load(empty), TypeError);
    const elf = Buffer.alloc(64);
    elf.write('\x7fELF', 'latin1');
    elf.writeBigUInt64LE(4096n, 40);
    assert.throws(
      () => Module.load(elf),
      /truncated: the cubin has 4096 bytes, but only 64 are given/,
    );
    assert.throws(() => Module.load(ptx, { loading: 'soon' as 'lazy' }), TypeError);
    assert.throws(() => Module.load(ptx, { jit: { maxRegisters: 0 } }), RangeError);
    {
      using module = loadKernels();
      assert.throws(() => module.kernel('absent', []), {
        code: 'CUDA_ERROR_NOT_FOUND',
        message: tells ? /a module that has .*saxpy/ : /absent/,
      });
    }
    assert.deepEqual(stateBesideCode(), before);
  });

  test('a module is loaded from a file, and from bytes without a zero at the end', async () => {
    const path = new URL('../support/ptx/kernels.ptx', import.meta.url);
    using module = await Module.fromFile(path);
    using again = Module.fromFileSync(path);
    if (tells) assert.ok(module.kernelNames.includes('saxpy'));
    using x = DeviceBuffer.allocate(4);
    again.kernel('narrow', ['pointer']).launch({ grid: 1, block: 32 }, x);
    assert.equal(x.copyToHostSync()[0], 32);
  });

  test('a fatbin is loaded as it is', { skip: needsGpu }, () => {
    const fatbin = readFileSync(new URL('../support/ptx/nine.fatbin', import.meta.url));
    assert.throws(() => Module.load(fatbin.subarray(0, -1)), /truncated: the fatbin has/);
    using module = Module.load(fatbin);
    using to = DeviceBuffer.allocate(4);
    module.kernel('nine', ['pointer']).launch({ grid: 1, block: 1 }, to);
    assert.deepEqual(to.copyToHostSync(), new Uint8Array([9, 0, 0, 0]));
  });

  test('a kernel of code that was not linked is found once it is, and an error says so', {
    skip:
      !emulated && Device.get().computeCapability.major !== 9 && 'the code is for devices of 9.0',
  }, () => {
    const cubin = readFileSync(new URL('../support/ptx/relocatable.cubin', import.meta.url));
    const code = 'CUDA_ERROR_NOT_FOUND';
    {
      using part = Module.load(cubin);
      const linkFirst = /^The code was compiled to be linked .*: link it first: [^ ]*\.$/;
      // A driver of version 580 finds it (H200), though the code is not linked.
      const found = valueOrError(() => part.kernel('relocatable', ['pointer']));
      if (emulated || found instanceof Error) {
        assert.ok(found instanceof CudaError);
        assert.equal(found.code, code);
        assert.match(found.hint ?? '', linkFirst);
      } else assert.equal(found.name, 'relocatable');
      assert.throws(() => part.kernel('none', ['pointer']), { code, hint: linkFirst });
      assert.throws(() => part.kernel('scaled', ['pointer']), {
        code,
        hint: /link it first: .* C\+\+ mangles the names of kernels: use _Z6scaledPj, or/,
      });
      assert.throws(() => part.global('none'), { code, hint: linkFirst });
    }
    // Linking is not emulated.
    if (emulated) return;
    using module = Module.load(link([cubin]));
    using to = DeviceBuffer.allocate(4);
    module.kernel('relocatable', ['pointer']).launch({ grid: 1, block: 1 }, to);
    assert.deepEqual(to.copyToHostSync(), new Uint8Array([42, 0, 0, 0]));
    assert.throws(() => module.kernel('scaled', ['pointer']), /mangles .*: use _Z6scaledPj, or/);
  });

  test('the error for a name that C++ mangles names the mangled one', () => {
    using module = Module.load(
      '.version 7.0\n.target sm_70\n.address_size 64\n.visible .entry _Z3setPj(.param .u64 p) { ret; }\n' +
        '.visible .entry _Z13setabcdefghijPj(.param .u64 p) { ret; }\n',
    );
    assert.throws(() => module.kernel('set', ['pointer']), {
      code: 'CUDA_ERROR_NOT_FOUND',
      hint: tells
        ? 'C++ mangles the names of kernels: use _Z3setPj, or declare the kernel extern "C".'
        : 'C++ mangles the names of kernels: declare the kernel extern "C", or use the name in the PTX.',
    });
    assert.throws(() => module.kernel('se', ['pointer']), {
      hint: 'C++ mangles the names of kernels: declare the kernel extern "C", or use the name in the PTX.',
    });
  });

  test('the compiler tells the resources of each kernel where it is asked to', {
    skip: needsGpu,
  }, () => {
    // What the driver compiled before it takes from its cache, without a word.
    const anew = `${ptx}\n// ${randomUUID()}\n`;
    using module = Module.load(anew, { jit: { verbose: true, lineInfo: true, maxRegisters: 32 } });
    assert.match(module.log, /saxpy/);
    assert.match(module.log, /registers/);
  });

  for (const [name, status] of [
    ['trap', 719],
    ['stray', 700],
  ] as const)
    test(`a kernel that ends its context is a sticky error: ${name}`, () => {
      const { path, execArgv } = programFile(new URL('./fixtures/trap.ts', import.meta.url));
      const { stdout, stderr, signal } = spawnSync(process.execPath, [...execArgv, path, name], {
        encoding: 'utf8',
        timeout: 60_000,
        killSignal: 'SIGKILL',
      });
      assert.equal(signal, null, stderr);
      const { current, reset, ...attempts } = JSON.parse(stdout) as Record<string, unknown>;
      assert.deepEqual({ current, reset }, { current: true, reset: { threw: false } });
      // The driver's own trap returns 719 or 715, an illegal instruction.
      const told = (attempts['wait'] as { readonly status: number }).status;
      assert.ok(told === status || (name === 'trap' && told === 715), `${told}`);
      const expected = { isCuda: true, status: told, sticky: true, saysWhatToDo: true };
      for (const [what, attempt] of Object.entries(attempts))
        assert.deepEqual(attempt, expected, what);
    });

  test('occupancy is asked only about what a launch can have', () => {
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const most = Device.get(0).attribute('maxSharedMemoryPerBlockOptin');
    for (const [block, options, message] of [
      [65, {}, /a block of 65 x 1 x 1 has 65 threads: kernel narrow can have 64/],
      [[32, 4], {}, /has 128 threads/],
      [0, {}, /block along x/],
      [32, { sharedBytes: most + 1 }, /sharedBytes is/],
    ] as const)
      for (const ask of [
        () => narrow.maxActiveBlocks(block, options),
        () => narrow.maxCooperativeBlocks(block, options),
        () => narrow.maxActiveClusters(2, block, options),
        () => narrow.maxClusterBlocks(block, options),
      ])
        assert.throws(ask, { name: 'RangeError', message }, String(ask));
    for (const wrong of ['64', [], [1, 1, 1, 1], undefined] as unknown[]) {
      assert.throws(() => narrow.maxActiveBlocks(wrong as 1), TypeError);
      assert.throws(() => narrow.maxActiveClusters((wrong ?? null) as 1, 32), TypeError);
    }
    assert.throws(() => narrow.maxActiveBlocks(1, { shared: 1 } as object), /unknown option/);
    const closed = loadKernels();
    const kernel = closed.kernel('narrow', ['pointer']);
    closed.close();
    assert.throws(() => kernel.maxActiveBlocks(1), { name: 'ClosedError' });
    assert.throws(() => kernel.maxClusterBlocks(1), { name: 'ClosedError' });
  });

  test('occupancy tells how much of the device a kernel can use', { skip: needsGpu }, () => {
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const active = narrow.maxActiveBlocks(64);
    assert.ok(active >= 1 && active <= Device.get(0).attribute('maxBlocksPerMultiprocessor'));
    assert.equal(
      narrow.maxCooperativeBlocks([8, 8]),
      active * Device.get(0).attribute('multiprocessorCount'),
    );
    assert.ok(narrow.maxActiveBlocks(64, { sharedBytes: 96 << 10 }) < active);
    const { blockSize, minGridSize } = narrow.suggestedBlockSize({ maxBlockSize: 64 });
    assert.ok(blockSize >= 1 && blockSize <= 64 && minGridSize >= 1);
  });

  test('a cooperative grid waits for itself, and one that does not fit says how many blocks do', {
    skip: needsGpu,
  }, async () => {
    using module = loadKernels();
    const gather = module.kernel('gather_all', ['pointer', 'pointer']);
    using counts = DeviceBuffer.allocate(8);
    counts.fill(0);
    const most = gather.maxCooperativeBlocks(32);
    gather.launch({ grid: most, block: 32, cooperative: true }, counts, counts.address + 4);
    const [arrived, passed] = new Uint32Array((await counts.copyToHost()).buffer);
    assert.deepEqual([arrived, passed], [most, most]);
    assert.throws(
      () =>
        gather.launch({ grid: most + 1, block: 32, cooperative: true }, counts, counts.address + 4),
      {
        code: 'CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE',
        message: new RegExp(`at most ${most} blocks`),
      },
    );
  });

  test('blocks form clusters on devices that have them', {
    skip:
      needsGpu ||
      (Device.get(0).attribute('clusterLaunch') === 0 && 'this device does not support clusters'),
  }, async () => {
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    using to = DeviceBuffer.allocate(4);
    for (const cluster of [2, [4, 2], 16]) {
      to.fill(0);
      narrow.launch({ grid: [16, 2], block: 64, cluster: cluster as 2 }, to);
      assert.equal((await to.copyToHost())[0], 64, `clusters of ${String(cluster)}`);
    }
  });

  test('clusters are counted as they would run on the device', {
    skip: needsGpu,
  }, () => {
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    if (Device.get(0).attribute('clusterLaunch') === 0) {
      const lacking = { name: 'NotSupportedError', message: /does not support clusters/ };
      assert.throws(() => narrow.maxActiveClusters(2, 64), lacking);
      assert.throws(() => narrow.maxClusterBlocks(64), lacking);
      return;
    }
    assert.equal(narrow.maxClusterBlocks(64), 8);
    const [twos, eights] = [narrow.maxActiveClusters(2, 64), narrow.maxActiveClusters([4, 2], 64)];
    assert.ok(eights >= 1 && twos >= eights, `${twos} of 2 blocks, ${eights} of 8`);
    assert.ok(narrow.maxActiveClusters(8, 64, { sharedBytes: 96 << 10 }) < eights);
    // Whether there is no such cluster, or none of them fits, is the driver's affair.
    const most = (() => {
      try {
        return narrow.maxActiveClusters(1024, 64);
      } catch (error) {
        assert.ok(error instanceof CudaError);
        return 0;
      }
    })();
    assert.equal(most, 0);
  });

  test('what is not registered answers NOT_SUPPORTED, and names what to do', {
    skip: onHardware && 'a GPU runs every kernel',
  }, () => {
    using module = loadKernels();
    assert.throws(() => module.kernel('count', ['pointer']).launch({ grid: 1, block: 1 }, null), {
      code: 'CUDA_ERROR_NOT_SUPPORTED',
      message: /registerKernel/,
    });
  });

  test('a kernel knows its dtype: float32 and float64 do not mix', async () => {
    using module = loadKernels();
    const typed = module.kernel('saxpy', SAXPY);
    using x = await toDevice([1], { dtype: float32 });
    using wrong = await toDevice([1], { dtype: float64 });
    // @ts-expect-error: its items are float64
    assert.throws(() => typed.launch({ grid: 1, block: 1 }, 1, wrong, x, 1), TypeError);
    typed.launch({ grid: 1, block: 1 }, 1, { address: x.address }, x, 1);
    assert.equal(await x.get(0), 2);
  });
});
