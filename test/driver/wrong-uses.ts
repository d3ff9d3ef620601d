/** Common mistakes, each with what cuffi says to it. Messages: pids and other numbers vary. */
import { spawnSync } from 'node:child_process';
import { delimiter } from 'node:path';
import {
  Context,
  CudaEvent,
  compileSync,
  Device,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  dtype,
  float32,
  fromCudaArrayInterface,
  fromDLPack,
  Graph,
  type int32,
  type Kernel,
  MemoryPool,
  Module,
  PinnedBuffer,
  pin,
  Stream,
  toDevice,
  VirtualMemory,
} from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  connect,
  decodeDescriptor,
  getIpcHandle,
  IpcArrayHandle,
  type Listener,
  listen,
  openIpc,
  openIpcArray,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
  type Peer,
  parentPeer,
  type SpawnPeerOptions,
  spawnPeer,
  spawnPython,
  Timeline,
  tritonRegion,
} from '../../src/ipc/index.ts';
import { companionPath } from '../../src/python/companion.ts';
import { loadKernels } from '../support/kernels.ts';
import { programFile } from '../support/program.ts';

/** What the mistakes are made with. */
export interface Tools {
  readonly buffer: DeviceBuffer;
  readonly array: DeviceArray<typeof float32>;
  readonly integers: DeviceArray<typeof int32>;
  readonly stream: Stream;
  readonly pool: MemoryPool;
  readonly kernel: Kernel;
  readonly module: Module;
}

/** A use that TypeScript, too, would refuse. */
// biome-ignore lint/suspicious/noExplicitAny: that is the mistake
const any = (value: unknown): any => value;
const child = (name: string): string =>
  programFile(new URL(`./fixtures/${name}`, import.meta.url)).path;

/** Throws what a program prints: to stdout or, if that is nothing, to stderr. */
function said(name: string, env: NodeJS.ProcessEnv = {}, args: readonly string[] = []): never {
  const program = programFile(new URL(`./fixtures/${name}`, import.meta.url));
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--expose-gc', ...program.execArgv, program.path, ...args],
    { env: { ...process.env, ...env }, encoding: 'utf8', timeout: 60_000 },
  );
  throw new Error((stdout || stderr).trim());
}

/** Throws what cuInit says if it returns a status. */
const cuInitSaid = (status: number): never =>
  said('available.ts', {
    CUFFI_DRIVER: 'emulated',
    CUFFI_EMULATED_FAULTS: `cuInit:*=${status}`,
  });

/** Throws what Python's companion says to a few lines. */
function pythonSaid(lines: string, env: NodeJS.ProcessEnv = {}): never {
  const path = [companionPath() as string, process.env['PYTHONPATH'] ?? ''].join(delimiter);
  const script = [
    'import cuffi',
    'try:',
    ...lines.split('\n').map((line) => `    ${line}`),
    'except Exception as error: print(f"{type(error).__name__}: {error}")',
  ].join('\n');
  const { stdout, stderr } = spawnSync('python3', ['-c', script], {
    env: { ...process.env, PYTHONPATH: path, ...env },
    encoding: 'utf8',
    timeout: 60_000,
  });
  throw new Error((stdout || stderr).trim());
}

/** The mistakes that are made in Python. */
export const inPython: readonly string[] = [
  'Python: connect to nobody',
  'Python: connect to nobody within a time-out',
  'Python: no driver',
  'Python: cuInit is refused by the operating system (304)',
  'Python: accept(), within a time-out',
  'Python: a listener after its with block',
  'Python: a listener after close()',
  'a Python child that never calls cuffi.parent(), within a time-out',
  'a Python child that never calls cuffi.parent(), and ends',
];

/** Runs a use, and ends the peer that it is made with. */
async function withChild(
  name: string,
  use: (peer: Peer) => Promise<unknown>,
  options: SpawnPeerOptions = { stdio: 'ignore' },
): Promise<unknown> {
  const peer = spawnPeer(child(name), options);
  try {
    return await use(peer);
  } finally {
    peer.process.kill('SIGKILL');
    await peer.ended;
    peer.close();
  }
}

/** As {@link withChild}, with a Python program. */
async function withPython(name: string, use: (peer: Peer) => Promise<unknown>): Promise<unknown> {
  const peer = spawnPython(new URL(`./fixtures/${name}`, import.meta.url));
  try {
    return await use(peer);
  } finally {
    peer.process.kill('SIGKILL');
    await peer.ended;
    peer.close();
  }
}

/** Sends an object to a child that keeps it, and uses that here. */
const withHolder = <T>(object: T, use: (object: T) => Promise<unknown>): Promise<unknown> =>
  withChild('holder.ts', async (peer) => {
    await peer.send(any(object));
    // It has the object, and all that it will take of that.
    await peer.receive({ timeoutMs: 20_000 });
    return await use(object);
  });

const ring = { slots: 2, byteLength: 1024, deliver: 'all' } as const;

/** Each mistake, by what it is. */
export const uses: Readonly<Record<string, (tools: Tools) => unknown>> = {
  // ---- Starting ----
  'an unknown value of CUFFI_DRIVER': () => said('available.ts', { CUFFI_DRIVER: 'emulate' }),
  'a device that is not there': () => Device.get(99),
  'a device by its name': () => Context.primary(any('cuda:0')),
  'an attribute of the device, misspelled': () => Device.get().attribute(any('multiprocessorCont')),
  'a class made by new': () => new (any(Stream))(),
  'a buffer made by new': () => new (any(DeviceBuffer))(1024),
  // ---- Memory ----
  'a size as a string': () => DeviceBuffer.allocate(any('16')),
  'a size of 0': () => DeviceBuffer.allocate(0),
  'a size that is not whole': () => DeviceBuffer.allocate(1.5),
  'more than the device has': () => DeviceBuffer.allocate(2 ** 50),
  'an array of numbers copied to a buffer': ({ buffer }) => buffer.copyFrom(any([1, 2, 3])),
  'more copied to a buffer than fits': ({ buffer }) => buffer.copyFrom(new Uint8Array(1000)),
  'the class in place of an array to copy into': ({ buffer }) =>
    buffer.copyToHost(any(Float32Array)),
  'the class in place of an array, of a device array': ({ array }) =>
    array.copyToHost(any(Float32Array)),
  'an array that is too long to copy into': ({ buffer }) =>
    buffer.copyToHost(new Float32Array(100)),
  'fill with more than a byte': ({ buffer }) => buffer.fill(300),
  'fill with a string': ({ buffer }) => buffer.fill(any('x')),
  'a range that ends before it begins': ({ buffer }) => buffer.subarray(10, 5),
  'a range beyond the end': ({ buffer }) => buffer.subarray(0, 1000),
  'JSON of a buffer in place of its handle': ({ buffer }) =>
    openIpcBuffer(JSON.parse(JSON.stringify(buffer))),
  'a clone of a buffer': ({ buffer }) => structuredClone(buffer),
  'a clone of an array': ({ array }) => structuredClone({ array }),
  'an index of an array': ({ array }) => any(array)[0],
  'an assignment to an index of an array': ({ array }) => {
    any(array)[1] = 7;
  },
  'an array that is iterated': ({ array }) => [...any(array)],
  'a number added to an array': ({ array }) => any(array) + 1,
  'a number added to a buffer': ({ buffer }) => any(buffer) + 64,
  'a buffer after close': () => {
    const buffer = DeviceBuffer.allocate(16);
    buffer.close();
    return buffer.fill(0);
  },
  'more than the maximum of a pool': () => {
    using pool = MemoryPool.create({ maxSize: 4 << 20 });
    return pool.allocate(64 << 20);
  },
  'an option of a pool by another name': () => MemoryPool.create(any({ sharable: true })),
  'an option of a stream, misspelled': () => Stream.create(any({ nonblocking: true })),
  'page-locking what is no binary data': () => pin(any([1, 2, 3])),
  'page-locked memory of no size': () => PinnedBuffer.allocate(0),
  'virtual memory beyond what was reserved': () => {
    using memory = VirtualMemory.reserve(2 << 20);
    return memory.grow(64 << 20);
  },
  // ---- Arrays ----
  'toDevice of nothing': () => any(toDevice)(),
  'toDevice of an object': () => toDevice(any({})),
  'toDevice of ragged arrays': () => toDevice(any([[1, 2], [3]])),
  'toDevice of strings': () => toDevice(any(['a', 'b'])),
  'a shape with a negative length': () => deviceArray([2, -1], float32),
  'a dtype that does not exist': () => any(dtype)('float23'),
  'a dtype by the name of a class': () => deviceArray([2], any(Float32Array)),
  'JavaScript’s slice(0, 2) of an array': ({ integers }) => integers.slice(0, 2),
  'reshape with lengths side by side': ({ array }) => any(array).reshape(3, 2),
  'reshape to another count': ({ array }) => array.reshape([4, 2]),
  'transpose with axes side by side': ({ array }) => any(array).transpose(1, 0),
  'an index beyond the end': ({ array }) => array.at(5),
  'set(0, 5)': ({ array }) => any(array).set(0, 5),
  'setSync(0, 5)': ({ array }) => any(array).setSync(0, 5),
  'fill(1.5) of integers': ({ integers }) => integers.fill(1.5),
  'fromCudaArrayInterface of the object around it': () =>
    fromCudaArrayInterface({
      __cuda_array_interface__: { shape: [1], typestr: '<f4', data: [1, false], version: 3 },
    }),
  'fromCudaArrayInterface of an array of this library': ({ array }) =>
    fromCudaArrayInterface(array),
  'fromDLPack of something else': () => fromDLPack({}),
  'copy between arrays of different shapes': ({ array }) => {
    using other = deviceArray([5], float32);
    array.copyTo(other);
  },
  // ---- Kernels ----
  'a kernel that the module does not have': ({ module }) => module.kernel('scal', any([])),
  'a launch without a grid': ({ kernel }) => kernel.launch(any({}), any([])),
  'a launch with an option misspelled': ({ kernel }) => any(kernel).launch({ grid: 1, blocks: 1 }),
  'a launch with too few arguments': ({ kernel }) => any(kernel).launch({ grid: 1, block: 1 }, 1),
  'a launch with a host array': ({ kernel, array }) =>
    any(kernel).launch({ grid: 1, block: 1 }, 2, new Float32Array(4), array, 4),
  'CUDA C++ loaded as a module': () => Module.load('extern "C" __global__ void f() {}'),
  'a file name loaded as a module': () => Module.load('kernel.ptx'),
  'compile of no string': () => compileSync(any(undefined)),
  'a wait while a graph is captured': ({ stream }) =>
    Graph.capture(stream, () => stream.synchronizeSync()),
  'the time between events that were not recorded': () => {
    using first = CudaEvent.create({ timing: true });
    using second = CudaEvent.create({ timing: true });
    return CudaEvent.elapsedMs(first, second);
  },
  // ---- Sharing ----
  'getIpcHandle of pool memory': ({ pool }) => {
    using buffer = pool.allocate(16);
    return getIpcHandle(buffer);
  },
  'getIpcHandle of a number': () => getIpcHandle(any(5)),
  'tritonRegion of pool memory': ({ pool }) => {
    using buffer = pool.allocate(16);
    return tritonRegion(buffer);
  },
  'tritonRegion of a transposed array': ({ array }) => tritonRegion(array.T),
  'tritonRegion with the server’s ordinal by another name': ({ buffer }) =>
    tritonRegion(buffer, any({ device: 1 })),
  'a buffer opened as an event': ({ buffer }) => openIpcEvent({ ...getIpcHandle(buffer) }),
  'an event opened as a buffer': () => {
    using event = CudaEvent.create({ interprocess: true });
    return openIpcBuffer({ ...getIpcHandle(event) });
  },
  'a buffer opened as a pool': ({ buffer }) => openIpcPool({ ...getIpcHandle(buffer) }),
  'a buffer opened as an array': ({ buffer }) => openIpcArray({ ...getIpcHandle(buffer) }),
  'IpcArrayHandle.from({})': () => IpcArrayHandle.from({}),
  'what is not a descriptor': () => openIpc({}),
  'a descriptor as a string': () => openIpc('{"kind":"legacy"}'),
  'JSON in place of an encoded descriptor': () => decodeDescriptor(any('{"kind":"legacy"}')),
  'a buffer opened by the process that made it': ({ buffer }) =>
    openIpcBuffer({ ...getIpcHandle(buffer) }),
  'an event that is not interprocess': () => {
    using event = CudaEvent.create();
    return getIpcHandle(event);
  },
  // ---- Peers ----
  'spawnPeer of a file: string': () => spawnPeer('file:///srv/worker.js'),
  'spawnPeer of a number': () => spawnPeer(any(5)),
  'parentPeer() in a process without a parent': () => parentPeer(),
  'connect to nobody': () => connect('nobody-listens-here'),
  'connect to nobody within a time-out': () => connect('nobody-listens-here', { timeoutMs: 30 }),
  'connect to an address of TCP': () => connect(any({ host: 'localhost', port: 80 })),
  'a second listen in the same process': () => {
    using listener = listen('wrong-uses');
    using second = listen('wrong-uses');
    return [listener, second];
  },
  'a child that never calls parentPeer(), and ends': () =>
    withChild('silent.ts', (peer) => peer.receive({ timeoutMs: 20_000 })),
  'a child that never calls parentPeer(), within a time-out': () =>
    withChild('idle.ts', (peer) => peer.receive({ timeoutMs: 100 })),
  'a request to a child that never calls parentPeer()': () =>
    withChild('silent.ts', (peer) => any(peer).request(1, { timeoutMs: 20_000 })),
  'a script that is not there': () =>
    withChild('missing.ts', (peer) => peer.receive({ timeoutMs: 20_000 })),
  'send of a function': () => withChild('idle.ts', (peer) => peer.send(any({ done: () => 1 }))),
  'send of a stream': ({ stream }) => withChild('idle.ts', (peer) => peer.send(any({ stream }))),
  'send of what contains itself': () => {
    const value: { self?: unknown } = {};
    value.self = value;
    return withChild('idle.ts', (peer) => peer.send(any(value)));
  },
  'send of pool memory that cannot be shared': () => {
    using pool = MemoryPool.create({ maxSize: 4 << 20 });
    using buffer = pool.allocate(16);
    return withChild('idle.ts', (peer) => peer.send(buffer));
  },
  'an option of receive in seconds': () =>
    withChild('idle.ts', (peer) => peer.receive(any({ timeout: 5 }))),
  // ---- Used after it was closed ----
  'a buffer after its using scope': () => {
    let kept: DeviceBuffer;
    {
      using buffer = DeviceBuffer.allocate(16);
      kept = buffer;
    }
    return kept.fill(0);
  },
  'an array after its using scope': () => {
    let kept: DeviceArray;
    {
      using array = deviceArray([2], float32);
      kept = array;
    }
    return kept.fill(0);
  },
  'a view after the close() of its array': () => {
    const array = deviceArray([2], float32);
    const view = array.slice(0);
    array.close();
    return view.fill(0);
  },
  'a buffer after the close() of its pool': () => {
    const pool = MemoryPool.create({ maxSize: 4 << 20 });
    const buffer = pool.allocate(16);
    pool.close({ buffers: true });
    return buffer.fill(0);
  },
  'a stream after close()': () => {
    const stream = Stream.create();
    stream.close();
    return stream.synchronizeSync();
  },
  'a kernel after the using scope of its module': ({ stream }) => {
    let kept: Kernel;
    {
      using module = loadKernels();
      kept = module.kernel('stray', ['pointer']);
    }
    return any(kept).launch({ grid: 1, block: 1, stream }, 0);
  },
  'page-locked memory after its using scope': () => {
    let kept: PinnedBuffer;
    {
      using buffer = PinnedBuffer.allocate(16);
      kept = buffer;
    }
    return kept.buffer;
  },
  'a channel after its using scope': () => {
    let kept: Channel;
    {
      using channel = Channel.create(ring);
      kept = channel;
    }
    return kept.acquire();
  },
  'a wait for a slot of a channel that is closed meanwhile': async () => {
    const channel = Channel.create({ ...ring, slots: 1 });
    using _slot = await channel.acquire();
    const acquiring = channel.acquire();
    channel.close();
    return acquiring;
  },
  'a timeline after close()': () => {
    const timeline = Timeline.create();
    timeline.close();
    return timeline.value;
  },
  'a listener after its using scope': () => {
    let kept: Listener;
    {
      using listener = listen('wrong-uses-closed');
      kept = listener;
    }
    return kept.accept();
  },
  'a peer after close()': () =>
    withChild('idle.ts', async (peer) => {
      peer.close();
      await peer.send(1);
    }),
  'a wait of a peer whose using scope ends': () =>
    withChild('idle.ts', async (peer) => {
      let receiving: Promise<unknown>;
      {
        using scoped = peer;
        receiving = scoped.receive();
      }
      await receiving;
    }),
  'a peer after the end of the other process': () =>
    withChild('silent.ts', async (peer) => {
      await peer.ended;
      await peer.request(1);
    }),
  // ---- How errors print ----
  'a ClosedError, printed': () => said('printed.ts', {}, ['closed']),
  'the ClosedError of a peer, printed': () => said('printed.ts', {}, ['peer']),
  'a PeerGoneError, printed': () => said('printed.ts', {}, ['gone']),
  'a CudaError, printed': () => said('printed.ts', {}, ['cuda']),
  'the stack of a missing driver': () =>
    said('printed.ts', { CUFFI_DRIVER: '/nowhere/libcuda.so.1' }, ['stack']),
  'the stack of a time-out': () => said('printed.ts', {}, ['timeout']),
  'an array that is dropped without close()': () => said('dropped.ts', {}, ['array']),
  'a pinned array that is dropped without close()': () => said('dropped.ts', {}, ['pinned']),
  'a channel that is dropped without close()': () => said('dropped.ts', {}, ['channel']),
  // ---- Children ----
  'a child that throws': () =>
    withChild('throwing.ts', (peer) => peer.receive({ timeoutMs: 20_000 }), {}),
  'a child, without a GPU': () => said('no-gpu.ts', { CUFFI_DRIVER: '/nowhere/libcuda.so.1' }),
  'SIGTERM of a parent of two': () => said('parent-ends.ts'),
  'a Python child that never calls cuffi.parent(), within a time-out': () =>
    withPython('idle.py', (peer) => peer.receive({ timeoutMs: 100 })),
  'a Python child that never calls cuffi.parent(), and ends': () =>
    withPython('silent.py', (peer) => peer.receive({ timeoutMs: 20_000 })),
  // ---- Time-outs ----
  'a slot of a channel, within a time-out, that this process has': async () => {
    using channel = Channel.create(ring);
    using _first = await channel.acquire();
    using _second = await channel.acquire();
    return await channel.acquire({ timeoutMs: 50 });
  },
  'a slot of a channel, within a time-out, that a consumer has': async () => {
    using channel = Channel.create(ring);
    return await withHolder(channel, async () => {
      for (let n = 0; n < 2; n += 1) (await channel.acquire()).publish();
      return await channel.acquire({ timeoutMs: 100 });
    });
  },
  'a slot, with deliver: one, within a time-out, that a consumer has': async () => {
    using channel = Channel.create({ ...ring, deliver: 'one' });
    return await withHolder(channel, async () => {
      for (let n = 0; n < 2; n += 1) (await channel.acquire()).publish();
      return await channel.acquire({ timeoutMs: 2000 });
    });
  },
  'a slot, with deliver: one and no consumer, within a time-out': async () => {
    using channel = Channel.create({ ...ring, deliver: 'one' });
    for (let n = 0; n < 2; n += 1) (await channel.acquire()).publish();
    return await channel.acquire({ timeoutMs: 50 });
  },
  'drained(), within a time-out': async () => {
    using channel = Channel.create(ring);
    return await withHolder(channel, async () => {
      (await channel.acquire()).publish();
      return await channel.drained({ timeoutMs: 100 });
    });
  },
  'a message of a channel, within a time-out': () =>
    withChild('giver.ts', async (peer) => {
      const channel = (await any(peer).receive()) as ChannelConsumer;
      return await channel.receive({ timeoutMs: 50 });
    }),
  'a message that was taken ahead, within a time-out': async () => {
    using stream = Stream.create({ nonBlocking: true });
    return await withChild('giver.ts', async (peer) => {
      for (let n = 0; n < 2; n += 1) await peer.receive();
      const channel = (await any(peer).receive()) as ChannelConsumer;
      for await (const slot of channel.ahead(stream)) return await slot.filled({ timeoutMs: 50 });
      return undefined;
    });
  },
  'a value of a timeline, within a time-out': async () => {
    using timeline = Timeline.create();
    timeline.signal(2);
    await timeline.reached(2);
    return await timeline.reached(3, { timeoutMs: 50 });
  },
  'a value of a timeline of another process, within a time-out': () =>
    withChild('giver.ts', async (peer) => {
      await peer.receive();
      const timeline = (await any(peer).receive()) as Timeline;
      return await timeline.reached(1, { timeoutMs: 50 });
    }),
  'accept(), within a time-out': async () => {
    using listener = listen('wrong-uses-accept');
    return await listener.accept({ timeoutMs: 50 });
  },
  'a request to a peer that does not serve, within a time-out': () =>
    withChild('holder.ts', (peer) => any(peer).request(1, { timeoutMs: 1 })),
  // ---- The machine ----
  'cuInit is refused by the operating system (304)': () => cuInitSaid(304),
  'cuInit finds a device that another process has for itself (46)': () => cuInitSaid(46),
  'cuInit finds another version of the kernel driver (803)': () => cuInitSaid(803),
  'cuInit is refused by forward compatibility (804)': () => cuInitSaid(804),
  'cuInit fails for an unknown reason (999)': () => cuInitSaid(999),
  'memory of a device that is not visible, over a connection': () =>
    said('not-visible.ts', { CUFFI_DRIVER: 'emulated', CUFFI_EMULATED_DEVICES: '1' }),
  'dtype: float': () => any(deviceArray)([2], 'float'),
  'dtype: double': () => any(deviceArray)([2], 'double'),
  'dtype: half': () => any(dtype)('half'),
  'dtype: f32': () => any(dtype)('f32'),
  // ---- Python ----
  'Python: connect to nobody': () => pythonSaid("cuffi.connect('nobody-listens-here')"),
  'Python: connect to nobody within a time-out': () =>
    pythonSaid("cuffi.connect('nobody-listens-here', timeout=0.1)"),
  'Python: no driver': () =>
    pythonSaid('cuffi.CudaEvent()', { CUFFI_DRIVER: '/nowhere/libcuda.so.1' }),
  'Python: cuInit is refused by the operating system (304)': () =>
    pythonSaid("raise cuffi.CudaError('cuInit', 304)"),
  'Python: accept(), within a time-out': () =>
    pythonSaid(
      "with cuffi.listen('wrong-uses-python') as listener:\n    listener.accept(timeout=0.05)",
    ),
  'Python: a listener after its with block': () =>
    pythonSaid("with cuffi.listen('wrong-uses-python') as kept: pass\nkept.accept()"),
  'Python: a listener after close()': () =>
    pythonSaid("kept = cuffi.listen('wrong-uses-python')\nkept.close()\nkept.accept()"),
  // ---- Faults of kernels ----
  'a fault of a kernel, found by a later call': () => said('late-fault.ts'),
};
