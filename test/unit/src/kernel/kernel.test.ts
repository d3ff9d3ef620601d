/** Launches with older drivers, with other devices, and with failing calls. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena } from '../../../../ffi/arena.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { emulatedKernels, registerKernel } from '../../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { viewMemory } from '../../../../ffi/native.ts';
import { CUresult } from '../../../../ffi/results.ts';
import type { Address } from '../../../../ffi/types.ts';
import {
  Context,
  cudaArrayInterface,
  DeviceBuffer,
  fromBuffer,
  fromCudaArrayInterface,
  Graph,
  ManagedMemory,
  MemoryPool,
  Module,
  Stream,
  VirtualMemory,
} from '../../../../src/index.ts';
import { allowAccess } from '../../../../src/memory/physical-memory.ts';
import { broken, keepingBooks } from '../../../support/faults.ts';
import { loadKernels, ptx } from '../../../support/kernels.ts';
import { Latch } from '../../../support/latch.ts';

const { CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER: TOO_OLD, CUDA_ERROR_OUT_OF_MEMORY } = CUresult;
const shape = { grid: 1, block: 8 };
/** Resources of a lost context, kept so that they are not collected and released. */
const lost: unknown[] = [];

const emulated = (env: NodeJS.ProcessEnv = {}): Driver =>
  createEmulatedDriver({ arena, env, kernels: emulatedKernels });

/** A driver without the functions of CUDA 11.8 and later. */
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

describe('Kernel', () => {
  test('an older driver launches kernels too, and errors name what it lacks', async () => {
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

  /** The arguments of each launch, in the order in which the launches ran. */
  function seenLaunches(name: string): unknown[] {
    const seen: unknown[] = [];
    registerKernel(name, {
      params: ['uint32', 'pointer'],
      run({ grid, block }, [number, address]) {
        seen.push([grid[0], block[0], number, address]);
      },
    });
    return seen;
  }

  const twoParameters = (name: string): string =>
    `.version 7.0\n.target sm_70\n.address_size 64\n.visible .entry ${name}(.param .u32 a, .param .u64 b) { ret; }`;

  test('a launch whose argument launches the same kernel keeps its own shape and arguments', async () => {
    const seen = seenLaunches('nested');
    selectDriver(emulated());
    using module = Module.load(twoParameters('nested'));
    using stream = Stream.create({ nonBlocking: true });
    using memory = DeviceBuffer.allocate(64);
    const { address } = memory;
    const nested = module.kernel('nested', ['uint32', 'pointer']);
    const other = {
      get address() {
        nested.launch({ grid: 7, block: 6, stream }, 2, memory);
        assert.throws(() => nested.launch({ grid: 7, block: 6 }, -1, memory), RangeError);
        return address + 8;
      },
    };
    nested.launch({ grid: 3, block: 5, stream }, 1, other);
    // Also a shape whose items have getters.
    const grid: [number] = [4];
    Object.defineProperty(grid, 0, {
      get() {
        nested.launch({ grid: 9, block: [2, 2], stream }, 4, memory);
        return 8;
      },
    });
    nested.launch({ block: 1, grid, stream }, 3, memory);
    const graph = Graph.capture(stream, () =>
      nested.launch({ grid: 1, block: 1, stream }, 0, memory),
    );
    graph.setArguments(graph.kernelNode(nested), 5, other);
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(seen, [
      [7, 6, 2, address],
      [3, 5, 1, address + 8],
      [9, 2, 4, address],
      [8, 1, 3, address],
      [7, 6, 2, address],
      [1, 1, 5, address + 8],
    ]);
    graph.close();
    await Context.primary().flush();
  });

  test('a launch does not use resources that a getter of an argument closes', async () => {
    const seen = seenLaunches('closing');
    selectDriver(emulated());
    using stream = Stream.create({ nonBlocking: true });
    using memory = DeviceBuffer.allocate(64);
    const { address } = memory;
    const closing = (close: () => void): { readonly address: number } => ({
      get address() {
        close();
        return address;
      },
    });
    const shape = { grid: 1, block: 1, stream };
    const load = () => {
      const module = Module.load(twoParameters('closing'));
      return { module, kernel: module.kernel('closing', ['uint32', 'pointer']) };
    };
    const { module, kernel } = load();
    const again = load();
    using _ = again.module;
    const closed = { name: 'ClosedError' };
    // The module, the stream, and memory whose address was already read.
    const launch = kernel.launch.bind(kernel) as (...args: unknown[]) => void;
    const own = Stream.create({ nonBlocking: true });
    assert.throws(
      () =>
        launch(
          { ...shape, stream: own },
          1,
          closing(() => own.close()),
        ),
      closed,
    );
    using kernels = loadKernels();
    const pointers = kernels.kernel('saxpy', ['float32', 'pointer', 'pointer', 'uint32']);
    const view = DeviceBuffer.allocate(64);
    for (const first of [view, view.subarray(8)])
      assert.throws(
        () =>
          pointers.launch(
            shape,
            1,
            first,
            closing(() => view.close()),
            0,
          ),
        closed,
      );
    const graph = Graph.capture(stream, () => kernel.launch(shape, 1, memory));
    const node = graph.kernelNode(kernel);
    assert.throws(
      () =>
        graph.setArguments(
          node,
          2,
          closing(() => graph.update(stream, () => kernel.launch(shape, 3, memory))),
        ),
      { name: 'TypeError', message: /an update replaced it/ },
    );
    assert.throws(
      () =>
        graph.setArguments(
          graph.kernelNode(kernel),
          2,
          closing(() => graph.close()),
        ),
      closed,
    );
    assert.throws(
      () =>
        launch(
          shape,
          1,
          closing(() => module.close()),
        ),
      closed,
    );
    for (const call of ['launch', 'upload'] as const) {
      const other = Graph.capture(stream, () => again.kernel.launch(shape, 0, address));
      const options = {
        get stream() {
          other.close();
          return stream;
        },
      };
      assert.throws(() => other[call](options), closed);
    }
    const updated = Graph.capture(stream, () => again.kernel.launch(shape, 0, address));
    const work = (): void => {
      again.kernel.launch(shape, 0, address);
      updated.close();
    };
    assert.throws(() => updated.update(stream, work), closed);
    assert.throws(
      () => again.module.kernel('closing', [closingParameter(() => again.module.close())] as never),
      closed,
    );
    await stream.synchronize();
    assert.deepEqual(seen, []);
    await Context.primary().flush();
  });

  /** An argument that calls a function when it is read. */
  const closingParameter = (close: () => void): object => ({
    get bytes() {
      close();
      return 4;
    },
  });

  test('attributes, and launches in created streams, do not change the current context', () => {
    selectDriver(emulated());
    using module = loadKernels();
    using stream = Stream.create({ nonBlocking: true });
    const calledIn = (use: () => unknown): readonly string[] => {
      const recorder = recordCalls();
      use();
      recorder.stop();
      return [...new Set(recorder.calls.map(({ name }) => name))];
    };
    const nothing = module.kernel('nothing', []);
    assert.deepEqual(
      calledIn(() => nothing.launch({ ...shape, stream })),
      ['cuLaunchKernelEx'],
    );
    assert.deepEqual(
      calledIn(() => [
        module.kernel('nothing', []).attributes,
        module.global('weights'),
        module.kernelNames,
      ]).filter((name) => name.startsWith('cuCtx')),
      [],
    );
    assert.ok(calledIn(() => nothing.launch(shape)).includes('cuCtxPushCurrent_v2'));
  });

  test('a compiler log belongs to its own code only, at any length', () => {
    const real = emulated();
    const words = 'x'.repeat(20_000);
    // As the driver does: writes text to the buffer, and its length.
    let turn = 0;
    selectDriver({
      ...real,
      cuModuleLoadDataEx(out, image, count, options, values) {
        const view = (address: number, byteLength: number): DataView =>
          new DataView(viewMemory(address as Address, byteLength));
        const optionAt = (at: number): number => view(options, 4 * count).getUint32(4 * at, true);
        const valueAt = (at: number): number =>
          Number(view(values, 8 * count).getBigUint64(8 * at, true));
        assert.deepEqual([0, 1, 2, 3].map(optionAt), [3, 4, 5, 6]);
        assert.deepEqual([valueAt(1), valueAt(3)], [16_384, 16_384]);
        const written = turn === 0 ? `${words.slice(0, 16_383)}\0` : 'short\0';
        if (turn < 2)
          new Uint8Array(viewMemory(valueAt(0) as Address, 16_384)).set(Buffer.from(written));
        view(values, 8 * count).setBigUint64(8, 7n, true);
        turn += 1;
        return real.cuModuleLoadDataEx(out, image, count, options, values);
      },
    });
    for (const log of [words.slice(0, 16_383), 'short', '']) {
      using module = loadKernels();
      assert.equal(module.log, log);
    }
  });

  test('errors for invalid code, shapes and kernels say what to do', () => {
    selectDriver(emulated());
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const launch = narrow.launch.bind(narrow) as (...args: unknown[]) => void;
    const load = Module.load.bind(Module) as (source: unknown) => Module;
    const register = registerKernel as (...args: unknown[]) => void;
    const cases: readonly (readonly [() => unknown, RegExp])[] = [
      [
        () => launch(),
        /^TypeError: launch: the first argument must be \{ grid, block \}, not undefined/,
      ],
      [() => launch(8, null), /not 8$/],
      [() => narrow.maxActiveClusters(0, 32), /^RangeError: cluster along x, .* not 0$/],
      [() => load(undefined), /^TypeError: source must be PTX as a string, or bytes of code/],
      [() => load(new Uint8Array([1, 2, 3])), /^TypeError: source is neither text, a cubin/],
      [() => load('__global__ void f() {}'), /Use compile\(\) for CUDA C\+\+/],
      [() => register('f'), /^TypeError: registerKernel: kernel f must be \{ params, run \}/],
      [() => register('f', { params: ['u8'], run() {} }), /parameter 0 of kernel f must be/],
    ];
    for (const [use, message] of cases) assert.throws(use, (error) => message.test(String(error)));
  });

  test('a rejected launch leaves the context usable, and its error names the launch', () => {
    selectDriver(
      broken(emulated(), 'cuLaunchKernelEx', CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    );
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

  test('a module that fails to load leaves nothing behind', () => {
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

  test('closing a context closes its modules, and a reset invalidates them', async () => {
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

  test('memory and streams of another device throw, unless the device has access', async () => {
    selectDriver(emulated({ CUFFI_EMULATED_DEVICES: '2' }));
    const [near, far] = [Context.primary(0), Context.primary(1)];
    using module = loadKernels({ device: 0 });
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ nonBlocking: true, device: 1 });
    const distant = DeviceBuffer.allocate(4, { device: 1 });
    using managed = ManagedMemory.create({ device: 1 }).allocate(4);
    assert.throws(() => narrow.launch({ ...shape, stream }, null), {
      name: 'TypeError',
      message: /the stream belongs to Context of Device 1.*loaded in Context of Device 0/,
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

  test('memory of another device stays allocated until the kernel has run', async () => {
    selectDriver(emulated({ CUFFI_EMULATED_DEVICES: '2' }));
    const [near, far] = [Context.primary(0), Context.primary(1)];
    near.enablePeerAccess(far);
    using module = loadKernels({ device: 0 });
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ nonBlocking: true });
    const distant = DeviceBuffer.allocate(4, { device: 1 });
    using latch = new Latch();
    latch.hold(stream);
    narrow.launch({ ...shape, stream }, distant);
    distant.close();
    assert.equal(far.pendingReleases.count, 1);
    latch.open();
    await far.flush();
  });

  test('memory of another device’s pool is accepted only if the pool allows access', async () => {
    selectDriver(emulated({ CUFFI_EMULATED_DEVICES: '2' }));
    using module = loadKernels({ device: 0 });
    const narrow = module.kernel('narrow', ['pointer']);
    using pool = MemoryPool.create({ device: 1, maxSize: 1 << 20 });
    const distant = pool.allocate(4);
    await Context.primary(1).synchronize();
    const refused = {
      name: 'TypeError',
      message: /is in memory of Device 1 .*setAccess of its pool/,
    };
    assert.throws(() => narrow.launch(shape, distant), refused);
    pool.setAccess(0, 'read-write');
    narrow.launch(shape, distant);
    await Context.primary(0).synchronize();
    assert.equal((await distant.copyToHost())[0], 8);
    pool.setAccess(0, 'none');
    assert.throws(() => narrow.launch(shape, distant), refused);
    // Borrowed memory of the pool is no other memory.
    Context.primary(0).enablePeerAccess(Context.primary(1));
    const borrowed = [
      DeviceBuffer.fromPointer(distant.address, 4, { device: 1, owner: distant }),
      fromCudaArrayInterface(cudaArrayInterface(fromBuffer(distant, 1, 'uint32'))),
    ];
    for (const each of [distant, ...borrowed])
      assert.throws(() => narrow.launch(shape, each), refused);
    pool.setAccess(0, 'read-write');
    for (const each of borrowed) narrow.launch(shape, each);
    await Context.primary(0).synchronize();
    distant.close();
    await Context.primary(1).flush();
  });

  test('a cubin runs if its kernels are registered, and otherwise is not supported', () => {
    selectDriver(emulated());
    const cubin = (name: string): Uint8Array => {
      const bytes = Buffer.alloc(128);
      bytes.write('\x7fELF', 'latin1');
      bytes.writeBigUInt64LE(128n, 40);
      bytes.write(`.text.${name}\0`, 64, 'latin1');
      return bytes;
    };
    assert.throws(() => Module.load(cubin('unheard_of')), { code: 'CUDA_ERROR_NOT_SUPPORTED' });
    const fatbin = Buffer.alloc(16);
    fatbin.writeUInt32LE(0xba_55_ed_50);
    assert.throws(() => Module.load(fatbin), { code: 'CUDA_ERROR_NOT_SUPPORTED' });
    using module = Module.load(cubin('narrow'));
    using to = DeviceBuffer.allocate(4);
    module.kernel('narrow', ['pointer']).launch({ grid: 1, block: 3 }, to);
    assert.equal(to.copyToHostSync()[0], 3);
  });

  test('a misaligned address corrupts the context, as on a GPU', async () => {
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

  test('a kernel can read read-only memory, and corrupts its context by writing to it', async () => {
    selectDriver(emulated());
    const module = Module.load(ptx);
    const stream = Stream.create({ nonBlocking: true });
    const memory = VirtualMemory.reserve(1 << 20);
    const buffer = memory.grow(64);
    const to = DeviceBuffer.allocate(64);
    buffer.fill(0);
    to.fill(0);
    await Context.primary().synchronize();
    allowAccess(
      { address: buffer.address, byteLength: memory.mappedByteLength },
      to.context.device,
      'read',
    );
    const saxpy = module.kernel('saxpy', ['float32', 'pointer', 'pointer', 'uint32']);
    saxpy.launch({ ...shape, stream }, 1, buffer, to, 8);
    await stream.synchronize();
    module.kernel('narrow', ['pointer']).launch({ ...shape, stream }, buffer);
    await assert.rejects(stream.synchronize(), {
      code: 'CUDA_ERROR_ILLEGAL_ADDRESS',
      sticky: true,
    });
    lost.push(module, stream, memory, buffer, to);
    selectDriver(emulated());
  });

  test('an emulated kernel that throws emits a warning and corrupts its context', async () => {
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
});
