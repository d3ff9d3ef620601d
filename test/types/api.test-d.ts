/** Checked by tsc alone: what the public classes promise by their types. */
import { expectTypeOf } from 'expect-type';
import type { DeviceAttribute } from '../../ffi/attributes.ts';
import type { CUdeviceptr, CUevent, CUstream } from '../../ffi/types.ts';
import {
  allocatePitched,
  type BaseMemoryManager,
  type BufferOptions,
  type Context,
  CudaError,
  CudaEvent,
  CuffiError,
  copyPitched,
  type Device,
  type DeviceArray,
  DeviceBuffer,
  DriverMemoryManager,
  type float32,
  HostOnlyMemoryManager,
  type HostVisibleBuffer,
  type IpcError,
  ManagedMemory,
  MappedMemory,
  type MemoryInfo,
  type MemoryPointer,
  memoryManager,
  type PinnedArrays,
  PinnedBuffer,
  pin,
  Stream,
  setMemoryManager,
} from '../../src/index.ts';
import {
  type ChildPeer,
  exportIpc,
  getIpcHandle,
  type ImportedPool,
  IpcArrayHandle,
  type IpcBufferDescriptor,
  type IpcBufferHandle,
  type IpcDescriptor,
  type IpcEventDescriptor,
  listen,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
  type Peer,
  type ReadyExport,
  spawnPeer,
} from '../../src/ipc/index.ts';

declare const buffer: DeviceBuffer;
declare const floats: DeviceArray<typeof float32>;
declare const stream: Stream;
declare const event: CudaEvent;
declare const device: Device;
declare const context: Context;

// A copy to the host gives back what it was given, or bytes.
expectTypeOf(buffer.copyToHost()).resolves.toEqualTypeOf<Uint8Array<ArrayBuffer>>();
expectTypeOf(buffer.copyToHost(undefined, { stream })).resolves.toEqualTypeOf<
  Uint8Array<ArrayBuffer>
>();
expectTypeOf(buffer.copyToHost(new Float32Array(4))).resolves.toExtend<Float32Array>();
expectTypeOf(buffer.copyToHost(new Float32Array(4))).resolves.not.toExtend<Uint8Array>();
expectTypeOf(buffer.copyToHost(new BigInt64Array(4))).resolves.toExtend<BigInt64Array>();
expectTypeOf(buffer.copyToHost(new ArrayBuffer(4))).resolves.toEqualTypeOf<ArrayBuffer>();
expectTypeOf(buffer.copyToHost(Buffer.alloc(4))).resolves.toExtend<Buffer>();
expectTypeOf(buffer.copyToHostSync()).toEqualTypeOf<Uint8Array<ArrayBuffer>>();
expectTypeOf(buffer.copyToHostSync(new Uint16Array(4))).toExtend<Uint16Array>();
expectTypeOf(buffer.copyFrom(new Uint8Array(4))).toEqualTypeOf<Promise<void>>();
expectTypeOf(buffer.copyFromSync(new SharedArrayBuffer(4))).toEqualTypeOf<void>();
// @ts-expect-error plain arrays have no memory to copy
void buffer.copyFrom([1, 2, 3]);
// @ts-expect-error nor have strings
buffer.copyToHostSync('text');

// Rows lie in buffers or host memory, and their extent has a width.
const rows = { memory: buffer, rowPitch: 512 };
expectTypeOf(copyPitched({ memory: new Int16Array(9) }, rows, { width: 6 })).toEqualTypeOf<
  Promise<void>
>();
expectTypeOf(allocatePitched(100, 10).buffer).toEqualTypeOf<DeviceBuffer>();
// @ts-expect-error no extent
void copyPitched(rows, rows, { height: 2 });
// @ts-expect-error no such element
allocatePitched(100, 10, { elementByteLength: 2 });

// Handles come out branded.
expectTypeOf(buffer.address).toEqualTypeOf<CUdeviceptr>();
expectTypeOf(stream.handle).toEqualTypeOf<CUstream>();
expectTypeOf(event.handle).toEqualTypeOf<CUevent>();

// Only known attributes have a name.
expectTypeOf(device.attribute).parameter(0).toEqualTypeOf<DeviceAttribute>();
expectTypeOf<'multiprocessorCount'>().toExtend<DeviceAttribute>();
expectTypeOf<'MultiprocessorCount'>().not.toExtend<DeviceAttribute>();
expectTypeOf<string>().not.toExtend<DeviceAttribute>();
expectTypeOf(device.attribute('warpSize')).toEqualTypeOf<number>();
// @ts-expect-error no such limit
context.limit('stack');

// Options are those that there are.
expectTypeOf(DeviceBuffer.allocate).parameter(1).toEqualTypeOf<BufferOptions | undefined>();
// @ts-expect-error no such option
Stream.create({ nonblocking: true });
// @ts-expect-error a width of 3 bytes
buffer.fill(0, { elementByteLength: 3 });
// @ts-expect-error an event is no stream
buffer.fill(0, { stream: event });
// @ts-expect-error a stream is no event
stream.wait(stream);

// Made through their own functions only, and never changed.
// @ts-expect-error the constructor is private
new Stream();
// @ts-expect-error read only
buffer.byteLength = 5;
expectTypeOf<DeviceBuffer>().toExtend<Disposable>();
expectTypeOf<Stream>().not.toExtend<CudaEvent>();
expectTypeOf<CudaEvent>().not.toExtend<Stream>();

// Awaiting and blocking twins.
expectTypeOf(stream.synchronize({ signal: AbortSignal.abort() })).toEqualTypeOf<Promise<void>>();
expectTypeOf(stream.synchronizeSync()).toEqualTypeOf<void>();
expectTypeOf(stream.onDone).toEqualTypeOf<
  (callback: (error: Error | undefined) => void) => () => void
>();
expectTypeOf(stream.autoSynchronize()).toExtend<AsyncDisposable>();
expectTypeOf(CudaEvent.elapsedMs(event, event)).toEqualTypeOf<number>();

// What is shared keeps its kind; what arrives may be anything.
expectTypeOf(getIpcHandle(buffer)).toEqualTypeOf<IpcBufferDescriptor>();
expectTypeOf(getIpcHandle(event)).toEqualTypeOf<IpcEventDescriptor>();
expectTypeOf(getIpcHandle(floats)).toEqualTypeOf<IpcArrayHandle<typeof float32>>();
expectTypeOf(getIpcHandle(floats).open()).toEqualTypeOf<DeviceArray<typeof float32>>();
expectTypeOf(getIpcHandle(buffer, { stream })).toEqualTypeOf<IpcBufferHandle>();
expectTypeOf(IpcArrayHandle.from({}).open()).toEqualTypeOf<DeviceArray>();
expectTypeOf<IpcArrayHandle>().toExtend<IpcBufferDescriptor>();
expectTypeOf(exportIpc(buffer, { stream })).toEqualTypeOf<ReadyExport>();
// @ts-expect-error an event has no work to wait for
exportIpc(event, { stream });
expectTypeOf(openIpcBuffer).parameter(0).toEqualTypeOf<unknown>();
expectTypeOf(openIpcBuffer({})).toEqualTypeOf<DeviceBuffer>();
expectTypeOf(openIpcEvent({})).toEqualTypeOf<CudaEvent>();
// @ts-expect-error a stream is not shared
getIpcHandle(stream);

// Errors are one family.
expectTypeOf<CudaError>().toExtend<CuffiError>();
expectTypeOf<IpcError>().toExtend<CuffiError>();
expectTypeOf<CuffiError>().toExtend<Error>();
expectTypeOf<CudaError>().toHaveProperty('status').toEqualTypeOf<number>();
expectTypeOf<CudaError>().toHaveProperty('sticky').toEqualTypeOf<boolean>();
declare const error: unknown;
if (error instanceof CudaError) expectTypeOf(error.code).toEqualTypeOf<string>();
if (error instanceof CuffiError) expectTypeOf(error.message).toEqualTypeOf<string>();

// Memory that the CPU sees too says so by its type, and stays a device buffer.
expectTypeOf(MappedMemory.create().allocate(1)).toEqualTypeOf<HostVisibleBuffer>();
expectTypeOf(ManagedMemory.create().allocate(1)).toExtend<DeviceBuffer>();
expectTypeOf<HostVisibleBuffer['buffer']>().toEqualTypeOf<ArrayBuffer>();
expectTypeOf<PinnedBuffer['devicePointer']>().toEqualTypeOf<CUdeviceptr | undefined>();
expectTypeOf(pin(new Uint8Array(1), new Float32Array(1))).toEqualTypeOf<PinnedArrays>();
expectTypeOf(pin(new ArrayBuffer(1), { portable: false })).toEqualTypeOf<PinnedArrays>();
// @ts-expect-error options come last
pin({ portable: false }, new Uint8Array(1));
// @ts-expect-error no such option
PinnedBuffer.allocate(1, { pinned: true });

// A manager's class is set, not an instance of it; a half-done one must be completed.
setMemoryManager(DriverMemoryManager);
// @ts-expect-error it has no device half
setMemoryManager(HostOnlyMemoryManager);
// @ts-expect-error a class, not an instance
setMemoryManager(new DriverMemoryManager(context));
expectTypeOf(memoryManager(context)).toEqualTypeOf<BaseMemoryManager>();
expectTypeOf(memoryManager().getMemoryInfo()).toEqualTypeOf<MemoryInfo>();
expectTypeOf(memoryManager().memalloc(1).view(0)).toEqualTypeOf<MemoryPointer>();

// What is shared says by its type what it is; an imported pool gives nothing out.
expectTypeOf(exportIpc(buffer).descriptor).toEqualTypeOf<IpcDescriptor>();
expectTypeOf<IpcBufferDescriptor>().toExtend<IpcDescriptor>();
expectTypeOf<IpcEventDescriptor>().toExtend<IpcDescriptor>();
expectTypeOf(openIpcPool({})).toEqualTypeOf<ImportedPool>();
expectTypeOf<ReturnType<ImportedPool['allocate']>>().toEqualTypeOf<never>();
expectTypeOf(buffer.access).toEqualTypeOf<'read-write' | 'read'>();
expectTypeOf(buffer.readOnly()).toEqualTypeOf<DeviceBuffer>();
// @ts-expect-error neither a number nor a handle can be shared
exportIpc(buffer.address);
// What another process sends is unknown until it was looked at.
declare const peer: Peer;
expectTypeOf(peer.receive({ timeoutMs: 1 })).resolves.toBeUnknown();
expectTypeOf(peer.send({ buffer })).toEqualTypeOf<Promise<void>>();
expectTypeOf(peer[Symbol.asyncIterator]().next).returns.resolves.toHaveProperty('value');
expectTypeOf(spawnPeer('x.js', { args: ['a'], stdio: 'ignore' })).toEqualTypeOf<ChildPeer>();
expectTypeOf<ChildPeer>().toExtend<Peer>();
expectTypeOf(
  listen('x', { allow: ({ uid }) => uid === 1 }).accept(),
).resolves.toEqualTypeOf<Peer>();
// @ts-expect-error a listener has no timeout of its own
listen('x', { timeoutMs: 1 });
