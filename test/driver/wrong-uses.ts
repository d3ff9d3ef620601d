/** Common mistakes, each with what cuffi says to it. Messages: pids and other numbers vary. */
import { spawnSync } from 'node:child_process';
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
  connect,
  decodeDescriptor,
  getIpcHandle,
  IpcArrayHandle,
  listen,
  openIpc,
  openIpcArray,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
  type Peer,
  parentPeer,
  spawnPeer,
  tritonRegion,
} from '../../src/ipc/index.ts';
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

/** Throws what a program prints. */
function said(name: string, env: NodeJS.ProcessEnv = {}): never {
  const program = programFile(new URL(`./fixtures/${name}`, import.meta.url));
  const { stdout, stderr } = spawnSync(process.execPath, [...program.execArgv, program.path], {
    env: { ...process.env, ...env },
    encoding: 'utf8',
  });
  throw new Error((stdout || stderr).trim());
}

/** Runs a use, and ends the peer that it is made with. */
async function withChild(name: string, use: (peer: Peer) => Promise<unknown>): Promise<unknown> {
  const peer = spawnPeer(child(name), { stdio: 'ignore' });
  try {
    return await use(peer);
  } finally {
    peer.process.kill('SIGKILL');
    await peer.ended;
    peer.close();
  }
}

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
  // ---- Faults of kernels ----
  'a fault of a kernel, found by a later call': () => said('late-fault.ts'),
};
