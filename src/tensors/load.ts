import { fileURLToPath } from 'node:url';
import { cu } from '../../ffi/driver.ts';
import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { type Layout, makeLayout } from '../array/layout.ts';
import { check } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { checkDeadline } from '../deadline.ts';
import { SafetensorError } from '../errors.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import type { Resource } from '../lifetime.ts';
import { checkMemoryResource, DeviceBuffer, type MemoryResource } from '../memory/buffer.ts';
import { roundUp } from '../memory/chunks.ts';
import { PinnedBuffer } from '../memory/pinned.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import { Stream } from '../stream.ts';
import {
  checkInteger,
  checkOptions,
  checkString,
  checkStrings,
  formatBytes,
  formatValue,
  messageOf,
} from '../validate.ts';
import { Checkpoint, readFully, type StoredTensor } from './checkpoint.ts';
import { arrayTypeOf } from './header.ts';
import { type PlacedTensor, TensorMap, unknownName } from './tensor-map.ts';

/** How much of the tensors is in device memory. */
export interface LoadProgress {
  readonly loadedBytes: number;
  readonly totalBytes: number;
}

/** Options of {@link loadTensors}. */
export interface LoadTensorsOptions extends PlaceOptions {
  /** Which tensors to load; no byte of others is read. Default: all. */
  readonly names?: readonly string[];
  /**
   * Where the memory comes from. Default: virtual memory, which other processes can open if the device
   * supports that.
   */
  readonly memory?: MemoryResource;
  /** How much page-locked memory the bytes pass through, in bytes. Default 16 MiB. */
  readonly stagingBytes?: number;
  /** Aborting rejects with the signal's reason, and frees all. */
  readonly signal?: AbortSignal;
  /** Called after each read that is in device memory. What it throws ends the loading. */
  readonly onProgress?: (progress: LoadProgress) => void;
}

/**
 * Loads the tensors of a safetensors file into one allocation of device memory, each at a multiple of 256
 * bytes. A path that ends in `.json` is the index of a sharded checkpoint, `model.safetensors.index.json`,
 * whose files are beside it.
 *
 * All headers are checked before anything is allocated. The event loop turns meanwhile: other threads read
 * the files, and the device copies what was read.
 *
 * @throws SafetensorError for a file that is not what the format demands; RangeError for an unknown name;
 * the system's error for a file that cannot be read; CudaError, TypeError
 * @example
 * using tensors = await loadTensors('model.safetensors', { device: 0 });
 * const weight = tensors.get('lm_head.weight');
 */
export async function loadTensors(
  path: string | URL,
  options?: LoadTensorsOptions,
): Promise<TensorMap> {
  const { names, memory, stagingBytes, signal, onProgress, ...place } = checkOptions(
    options,
    ['names', 'memory', 'stagingBytes', 'signal', 'onProgress', 'context', 'device'],
    'loadTensors',
  );
  const file = checkPath(path);
  const wanted = names === undefined ? undefined : checkStrings(names, 'names');
  const staging = checkInteger(stagingBytes ?? STAGING_BYTES, 'stagingBytes', LANES * PAGE);
  if (onProgress !== undefined && typeof onProgress !== 'function')
    throw new TypeError(`onProgress must be a function, not ${formatValue(onProgress)}`);
  checkDeadline({ signal }, 'loadTensors');
  if (memory !== undefined && (place.context || place.device !== undefined))
    throw new TypeError('give either a memory resource or a place, not both');
  const resource = memory === undefined ? undefined : checkMemoryResource(memory);
  const context = resource?.context ?? Context.resolve(place);
  signal?.throwIfAborted();

  await using checkpoint = await Checkpoint.open(file, signal);
  const plan = makePlan(chooseTensors(checkpoint, wanted));
  signal?.throwIfAborted();
  assertNotCapturing('loading tensors');
  const allocation = allocate(context, resource, plan.allocatedBytes);
  try {
    await readAll(plan, allocation.buffer, staging, signal, onProgress);
    allocation.owner.assertOpen();
  } catch (error) {
    allocation.owner.close();
    throw error;
  }
  const { metadata, fingerprint } = checkpoint;
  return new TensorMap({
    memory: allocation.owner,
    buffer: allocation.buffer,
    tensors: plan.tensors,
    byteLength: plan.byteLength,
    metadata,
    fingerprint,
  });
}

/** Returns the path that a string or a file URL names. @throws TypeError */
export const checkPath = (path: string | URL): string =>
  checkString(path instanceof URL ? fileURLToPath(path) : path, 'path');

// ---- What goes where ----

/** Kernels read vectors of up to 16 bytes, and the device fetches lines of 128: cudaMalloc aligns to 256. */
const ALIGNMENT = 256;

/** Bytes of a file, and where they go. */
interface Region {
  readonly tensor: StoredTensor;
  readonly offset: number;
}

interface Plan {
  readonly tensors: ReadonlyMap<string, PlacedTensor>;
  /** In the order of the files. No two have the same bytes. */
  readonly regions: readonly Region[];
  /** The bytes of all regions. */
  readonly byteLength: number;
  /** The same with the gaps between them. */
  readonly allocatedBytes: number;
}

function chooseTensors(
  { tensors }: Checkpoint,
  names: readonly string[] | undefined,
): ReadonlyMap<string, StoredTensor> {
  if (!names) return tensors;
  const wanted = new Set(names);
  for (const name of wanted) if (!tensors.has(name)) throw unknownName(name, tensors);
  return new Map([...tensors].filter(([name]) => wanted.has(name)));
}

/** @throws SafetensorError for a tensor that no array can be made of */
function makePlan(chosen: ReadonlyMap<string, StoredTensor>): Plan {
  const tensors = new Map<string, PlacedTensor>();
  const regions = new Map<string, Region>();
  let byteLength = 0;
  let allocatedBytes = 0;
  for (const [name, tensor] of chosen) {
    const { file, begin, end } = tensor;
    // Names are in the order of the header. Tied weights have the same bytes of the same file.
    const key = `${begin} ${end} ${file.path}`;
    let offset = begin === end ? 0 : regions.get(key)?.offset;
    if (offset === undefined) {
      offset = allocatedBytes;
      regions.set(key, { tensor, offset });
      byteLength += end - begin;
      allocatedBytes += roundUp(end - begin, ALIGNMENT);
    }
    const { dtype, shape } = arrayTypeOf(tensor);
    tensors.set(name, {
      storedDtype: tensor.dtype,
      storedShape: Object.freeze([...tensor.shape]),
      dtype,
      layout: layoutOf(name, tensor, shape, dtype.itemsize, offset),
    });
  }
  return { tensors, regions: inFileOrder([...regions.values()]), byteLength, allocatedBytes };
}

function layoutOf(
  name: string,
  { file }: StoredTensor,
  shape: readonly number[],
  itemsize: number,
  byteOffset: number,
): Layout {
  try {
    return makeLayout([...shape], itemsize, { byteOffset });
  } catch (error) {
    throw new SafetensorError(messageOf(error), file.path, name);
  }
}

const inFileOrder = (regions: Region[]): readonly Region[] =>
  regions.sort(({ tensor: a }, { tensor: b }) =>
    a.file === b.file ? a.begin - b.begin : a.file.path < b.file.path ? -1 : 1,
  );

interface Allocation {
  readonly owner: Resource;
  readonly buffer: DeviceBuffer;
}

function allocate(
  context: Context,
  memory: MemoryResource | undefined,
  allocatedBytes: number,
): Allocation {
  // Empty tensors take no bytes, and memory has at least some.
  const byteLength = Math.max(allocatedBytes, ALIGNMENT);
  if (memory || !VirtualMemory.supported(context.device)) {
    const buffer = DeviceBuffer.allocate(byteLength, memory ? { memory } : { context });
    return { owner: buffer, buffer };
  }
  const shareable = context.device.attribute('handleTypePosixFileDescriptorSupported') !== 0;
  const owner = VirtualMemory.reserve(byteLength, { context, shareable });
  try {
    // At once: a range in one chunk is shared by one file descriptor.
    return { owner, buffer: owner.grow(byteLength) };
  } catch (error) {
    owner.close();
    throw error;
  }
}

// ---- Reading ----

const STAGING_BYTES = 16 << 20;
const PAGE = 4096;
/** While a thread reads into the memory of one lane, the device copies from that of the other. */
const LANES = 2;
/** Queueing more would keep the event loop for more than about a millisecond. */
const MAX_COPIES = 256;

/** A read, and where its bytes go. */
interface Read {
  readonly file: StoredTensor['file'];
  readonly position: number;
  byteLength: number;
  readonly copies: { readonly from: number; readonly to: number; readonly byteLength: number }[];
}

/** Makes reads of regions: tensors that follow each other in a file are read at once. */
function* readsOf(regions: readonly Region[], maxByteLength: number): Generator<Read> {
  let read: Read | undefined;
  for (const { tensor, offset } of regions) {
    const { file, begin, end } = tensor;
    for (let position = begin; position < end; ) {
      if (
        read &&
        (read.file !== file ||
          read.position + read.byteLength !== position ||
          read.byteLength === maxByteLength ||
          read.copies.length === MAX_COPIES)
      ) {
        yield read;
        read = undefined;
      }
      read ??= { file, position, byteLength: 0, copies: [] };
      const byteLength = Math.min(end - position, maxByteLength - read.byteLength);
      read.copies.push({ from: read.byteLength, to: offset + (position - begin), byteLength });
      read.byteLength += byteLength;
      position += byteLength;
    }
  }
  if (read) yield read;
}

/** Reads all regions. When it settles, nothing uses the files or the memory any longer. */
async function readAll(
  { regions, byteLength }: Plan,
  buffer: DeviceBuffer,
  stagingBytes: number,
  signal: AbortSignal | undefined,
  onProgress: LoadTensorsOptions['onProgress'],
): Promise<void> {
  if (byteLength === 0) return;
  const laneBytes = Math.floor(stagingBytes / LANES / PAGE) * PAGE;
  const slotBytes = Math.min(laneBytes, roundUp(byteLength, PAGE));
  const reads = readsOf(regions, slotBytes);
  const { context } = buffer;
  let loadedBytes = 0;
  const lane = async (): Promise<void> => {
    using stream = Stream.create({ context, nonBlocking: true });
    using staging = PinnedBuffer.allocate(slotBytes, { context, portable: false });
    buffer.orderUse(stream);
    // The lanes share one generator: an error in one loop ends it for the other.
    for (const read of reads) {
      signal?.throwIfAborted();
      const bytes = new Uint8Array(staging.buffer, 0, read.byteLength);
      await readFully(read.file, bytes, read.position);
      signal?.throwIfAborted();
      for (const { from, to, byteLength } of read.copies) {
        const target = (buffer.writableAddress + to) as CUdeviceptr;
        const source = (staging.address + from) as Address;
        stream.enqueue((handle) =>
          check(
            cu.cuMemcpyHtoDAsync_v2(target, source, byteLength, handle),
            'cuMemcpyHtoDAsync_v2',
            () => `copying ${formatBytes(byteLength)} of ${read.file.path} to device`,
          ),
        );
      }
      await stream.synchronize();
      loadedBytes += read.byteLength;
      onProgress?.({ loadedBytes, totalBytes: byteLength });
    }
  };
  const lanes = await Promise.allSettled(
    Array.from({ length: byteLength > slotBytes ? LANES : 1 }, lane),
  );
  const failed = lanes.find((outcome) => outcome.status === 'rejected');
  if (failed) throw failed.reason;
}
