/** What the driver receives for launches, kernel limits, occupancy and JIT options. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena, writeInt32 } from '../../../../ffi/arena.ts';
import * as constants from '../../../../ffi/constants.ts';
import { selectDriver } from '../../../../ffi/driver.ts';
import { emulatedKernels } from '../../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { viewMemory } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { Context, type JitOptions, type LaunchConfig, Stream } from '../../../../src/index.ts';
import { type PlainCall, recordCallsOf } from '../../../support/arguments.ts';
import { loadKernels } from '../../../support/kernels.ts';

const CLUSTERS = { CUFFI_EMULATED_ATTRIBUTES: '120=1' };

const emulated = (env: NodeJS.ProcessEnv = {}): Driver =>
  createEmulatedDriver({ arena, env, kernels: emulatedKernels });

/** A launch as the driver reads it: 56 bytes, and 72 for each attribute. */
function configAt(address: number) {
  const view = new DataView(viewMemory(address as Address, 56));
  const words = (at: number, from = view): number[] =>
    [0, 4, 8].map((offset) => from.getUint32(at + offset, true));
  const count = view.getUint32(48, true);
  const attributes = Number(view.getBigUint64(40, true));
  return {
    grid: words(0),
    block: words(12),
    sharedBytes: view.getUint32(24, true),
    stream: Number(view.getBigUint64(32, true)),
    attributes: Array.from({ length: count }, (_, n) => {
      const attribute = new DataView(viewMemory((attributes + 72 * n) as Address, 72));
      return [attribute.getUint32(0, true), ...words(8, attribute)];
    }),
  };
}

/** A driver that accepts and records every launch. */
function takingLaunches(env: NodeJS.ProcessEnv = {}) {
  const launches: ReturnType<typeof configAt>[] = [];
  const driver: Driver = {
    ...emulated(env),
    cuLaunchKernelEx(config) {
      launches.push(configAt(config));
      return 0;
    },
  };
  return { driver, launches };
}

const [CLUSTER, COOPERATIVE] = [4, 2];

describe('LaunchConfigStruct', () => {
  test('each launch option reaches the driver, alone and with the others', () => {
    const { driver, launches } = takingLaunches(CLUSTERS);
    selectDriver(driver);
    using module = loadKernels();
    using stream = Stream.create({ nonBlocking: true });
    const nothing = module.kernel('nothing', []);
    const { handle } = stream;
    const told = (config: LaunchConfig): ReturnType<typeof configAt> | undefined => {
      launches.length = 0;
      nothing.launch(config);
      assert.equal(launches.length, 1);
      return launches[0];
    };
    const plain = { grid: [1, 1, 1], block: [1, 1, 1], sharedBytes: 0, stream: 0, attributes: [] };
    const one = { grid: 1, block: 1 };
    // Launches with many options come first, so that leftovers would show in later ones.
    assert.deepEqual(
      told({
        grid: [4, 6, 8],
        block: [2, 3, 5],
        sharedBytes: 96,
        stream,
        cluster: [2, 3, 1],
        cooperative: true,
      }),
      {
        grid: [4, 6, 8],
        block: [2, 3, 5],
        sharedBytes: 96,
        stream: handle,
        attributes: [
          [CLUSTER, 2, 3, 1],
          // Only the first word counts.
          [COOPERATIVE, 1, 0, 0],
        ],
      },
    );
    assert.deepEqual(told(one), plain);
    for (const [sizes, told3] of [
      [7, [7, 1, 1]],
      [[7], [7, 1, 1]],
      [
        [7, 2],
        [7, 2, 1],
      ],
      [
        [7, 2, 3],
        [7, 2, 3],
      ],
    ] as const) {
      assert.deepEqual(told({ ...one, grid: sizes }), { ...plain, grid: told3 });
      assert.deepEqual(told({ ...one, block: sizes }), { ...plain, block: told3 });
    }
    assert.deepEqual(told({ ...one, sharedBytes: 128 }), { ...plain, sharedBytes: 128 });
    assert.deepEqual(told({ ...one, stream }), { ...plain, stream: handle });
    const cooperative = told({ ...one, cooperative: true })?.attributes;
    assert.deepEqual(
      cooperative?.map(([id, value]) => [id, value]),
      [[COOPERATIVE, 1]],
    );
    assert.deepEqual(told({ ...one, cooperative: false }), plain);
    assert.deepEqual(told({ ...one, grid: 6, cluster: 3 }), {
      ...plain,
      grid: [6, 1, 1],
      attributes: [[CLUSTER, 3, 1, 1]],
    });
  });

  test('the driver gets all 64 bits of a stream handle', () => {
    const { driver, launches } = takingLaunches();
    selectDriver({ ...driver, cuEventRecord: () => 0, cuStreamIsCapturing: () => 0 });
    using module = loadKernels();
    const handle = 0x7f01_2345_6780;
    const stream = Stream.fromHandle(handle, { device: 0 });
    module.kernel('nothing', []).launch({ grid: 1, block: 1, stream });
    assert.deepEqual(
      launches.map((launch) => launch.stream),
      [handle],
    );
  });
});

describe('KernelLimits', () => {
  test('clusters of more than eight blocks are enabled once before the launch', () => {
    const { driver, launches } = takingLaunches(CLUSTERS);
    const told = recordCallsOf(driver, 'cuFuncSetAttribute');
    using module = loadKernels();
    const kernel = module.kernel('nothing', []);
    const allowed: PlainCall = [
      'cuFuncSetAttribute',
      kernel.handle,
      constants.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
      1,
    ];
    for (const cluster of [1, 8, [2, 2, 2]] as const)
      kernel.launch({ grid: [8, 8, 8], block: 1, cluster });
    assert.deepEqual(told, []);
    for (const cluster of [9, [3, 3], 16] as const)
      kernel.launch({ grid: [144, 9], block: 1, cluster });
    assert.deepEqual(told, [allowed]);
    assert.equal(launches.length, 6);
  });

  test('a device without clusters gets no cluster call', () => {
    const { driver, launches } = takingLaunches();
    selectDriver(driver);
    using module = loadKernels();
    const kernel = module.kernel('nothing', []);
    const lacking = {
      name: 'NotSupportedError',
      message: /^Device 0 .* does not support clusters$/,
    };
    assert.throws(() => kernel.launch({ grid: 2, block: 1, cluster: 2 }), lacking);
    assert.throws(() => kernel.maxActiveClusters(2, 32), lacking);
    assert.throws(() => kernel.maxClusterBlocks(32), lacking);
    assert.deepEqual(launches, []);
  });

  test('static shared memory reduces the limit of dynamic shared memory', () => {
    const { driver, launches } = takingLaunches();
    const OWN = 1000;
    const told = recordCallsOf(
      {
        ...driver,
        cuFuncGetAttribute(out, attribute, handle) {
          if (attribute !== constants.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
            return driver.cuFuncGetAttribute(out, attribute, handle);
          writeInt32(OWN, out);
          return 0;
        },
      },
      'cuFuncSetAttribute',
    );
    using module = loadKernels();
    const { device } = Context.primary();
    const most = device.attribute('maxSharedMemoryPerBlockOptin') - OWN;
    const refused = {
      name: 'RangeError',
      message:
        `sharedBytes is ${most + 1}: a block of kernel nothing can have ${most} (the device's ` +
        `${most + OWN} less ${OWN} of its own)`,
    };
    const allowed = (handle: unknown, byteLength: number): PlainCall => [
      'cuFuncSetAttribute',
      handle,
      constants.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
      byteLength,
    ];
    const kernel = module.kernel('nothing', []);
    for (const sharedBytes of [49_152, 50_000, 49_999, most])
      kernel.launch({ grid: 1, block: 1, sharedBytes });
    assert.deepEqual(told, [allowed(kernel.handle, 50_000), allowed(kernel.handle, most)]);
    assert.throws(() => kernel.launch({ grid: 1, block: 1, sharedBytes: most + 1 }), refused);
    assert.throws(() => kernel.maxActiveBlocks(32, { sharedBytes: most + 1 }), refused);
    assert.throws(() => kernel.suggestedBlockSize({ sharedBytes: most + 1 }), refused);
    assert.equal(launches.length, 4);
  });
});

describe('Kernel occupancy', () => {
  test('occupancy queries reach the driver, and return its results', () => {
    const said =
      (...numbers: number[]) =>
      (...outs: readonly number[]): 0 => {
        for (const [at, number] of numbers.entries()) writeInt32(number, outs[at] as Address);
        return 0;
      };
    const shapes: ReturnType<typeof configAt>[] = [];
    const withShape =
      (answer: number) =>
      (out: Address, _handle: number, config: number): 0 => {
        shapes.push(configAt(config));
        return said(answer)(out);
      };
    const told = recordCallsOf(
      {
        ...emulated(CLUSTERS),
        cuOccupancyMaxActiveBlocksPerMultiprocessor: said(5),
        cuOccupancyMaxPotentialBlockSize: said(40, 640),
        cuOccupancyMaxActiveClusters: withShape(7),
        cuOccupancyMaxPotentialClusterSize: withShape(8),
      },
      'cuOccupancyMaxActiveBlocksPerMultiprocessor',
      'cuOccupancyMaxPotentialBlockSize',
    );
    using module = loadKernels();
    using stream = Stream.create();
    const kernel = module.kernel('nothing', []);
    const { handle } = kernel;
    // The query has no stream, although the launch before had one.
    kernel.launch({ grid: 1, block: 1, stream });
    const last = (): unknown[] => told.at(-1)?.slice(2) ?? [];
    assert.equal(kernel.maxActiveBlocks([8, 4, 2], { sharedBytes: 256 }), 5);
    assert.deepEqual(last(), [handle, 64, 256]);
    const { device } = kernel.context;
    assert.equal(kernel.maxCooperativeBlocks(96), 5 * device.attribute('multiprocessorCount'));
    assert.deepEqual(last(), [handle, 96, 0]);
    const suggested = kernel.suggestedBlockSize({ sharedBytes: 512, maxBlockSize: 700 });
    assert.deepEqual(suggested, { minGridSize: 40, blockSize: 640 });
    assert.deepEqual(last().slice(1), [handle, 0, 512, 700]);
    kernel.suggestedBlockSize();
    assert.deepEqual(last().slice(1), [handle, 0, 0, 0]);
    assert.equal(kernel.maxActiveClusters([2, 2], [8, 4], { sharedBytes: 64 }), 7);
    assert.equal(kernel.maxClusterBlocks([8, 8], { sharedBytes: 32 }), 8);
    assert.deepEqual(shapes, [
      {
        grid: [2, 2, 1],
        block: [8, 4, 1],
        sharedBytes: 64,
        stream: 0,
        attributes: [[CLUSTER, 2, 2, 1]],
      },
      { grid: [1, 1, 1], block: [8, 8, 1], sharedBytes: 32, stream: 0, attributes: [] },
    ]);
    assert.equal(Context.current(), undefined);
  });
});

describe('JitOptions', () => {
  test('each compiler option reaches the driver with its value, and no other does', () => {
    const real = emulated();
    let told: [option: number, value: number][] = [];
    selectDriver({
      ...real,
      cuModuleLoadDataEx(out, image, count, options, values) {
        const numbers = new Uint32Array(viewMemory(options, 4 * count));
        const words = new BigUint64Array(viewMemory(values, 8 * count));
        told = Array.from(numbers, (option, at): [number, number] => [option, Number(words[at])]);
        return real.cuModuleLoadDataEx(out, image, count, options, values);
      },
    });
    const LOGS = new Set([
      constants.CU_JIT_INFO_LOG_BUFFER,
      constants.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
      constants.CU_JIT_ERROR_LOG_BUFFER,
      constants.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]);
    const toldFor = (jit: JitOptions): unknown => {
      using _ = loadKernels({ jit });
      return told.filter(([option]) => !LOGS.has(option));
    };
    const cases: readonly (readonly [JitOptions, number, number])[] = [
      [{ maxRegisters: 255 }, constants.CU_JIT_MAX_REGISTERS, 255],
      [{ optimizationLevel: 0 }, constants.CU_JIT_OPTIMIZATION_LEVEL, 0],
      [{ lineInfo: true }, constants.CU_JIT_GENERATE_LINE_INFO, 1],
      [{ debug: true }, constants.CU_JIT_GENERATE_DEBUG_INFO, 1],
      [{ verbose: true }, constants.CU_JIT_LOG_VERBOSE, 1],
    ];
    assert.deepEqual(
      toldFor(Object.assign({}, ...cases.map(([jit]) => jit))),
      cases.map(([, option, value]) => [option, value]),
    );
    for (const [jit, option, value] of cases) assert.deepEqual(toldFor(jit), [[option, value]]);
    assert.deepEqual(toldFor({}), []);
    assert.deepEqual(toldFor({ lineInfo: false, debug: false, verbose: false }), []);
  });
});
