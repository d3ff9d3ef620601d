/** Copies of two and three dimensions. */
import {
  CU_MEMORYTYPE_ARRAY,
  CU_MEMORYTYPE_DEVICE,
  CU_MEMORYTYPE_HOST,
  CU_MEMORYTYPE_UNIFIED,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { addressOf } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { StructName } from '../structs.ts';
import type { Contexts } from './context.ts';
import { MAX_STAGED_BYTES } from './copy.ts';
import type { HostMemory } from './host-memory.ts';
import type { Memory } from './memory.ts';
import type { Stream, StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_SUPPORTED,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
} = CUresult;

type Fields = Readonly<Record<string, number>>;

/** The source or target of a copy: its first byte, and the distances of rows and slices. */
interface CopyOperand {
  readonly address: number;
  readonly pitch: number;
  readonly slice: number;
  readonly type: number;
  readonly device: number;
}

interface Extent3d {
  readonly width: number;
  readonly height: number;
  readonly depth: number;
}

const byteSpan = ({ pitch, slice }: CopyOperand, { width, height, depth }: Extent3d): number =>
  slice * (depth - 1) + pitch * (height - 1) + width;

/** Reads the operand from the struct fields with a prefix. Returns the status if they are invalid. */
function parseOperand(
  fields: Fields,
  prefix: 'src' | 'dst',
  box: Extent3d,
  device: number,
): CopyOperand | Status {
  const field = (name: string): number => fields[`${prefix}${name}`] ?? 0;
  const type = field('MemoryType');
  if (type === CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  const types = [CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED];
  if (!types.includes(type)) return CUDA_ERROR_INVALID_VALUE;
  const [x, y, z] = [field('XInBytes'), field('Y'), field('Z')];
  const isFlat = box.height === 1 && box.depth === 1 && y === 0 && z === 0;
  // Without a pitch, rows are contiguous.
  const pitch = field('Pitch') || x + box.width;
  // The driver accepts pitches above the device's attribute.
  if (!isFlat && pitch < x + box.width) return CUDA_ERROR_INVALID_VALUE;
  const rows = field('Height');
  if ((box.depth > 1 || z > 0) && rows < y + box.height) return CUDA_ERROR_INVALID_VALUE;
  const start = field(type === CU_MEMORYTYPE_HOST ? 'Host' : 'Device');
  // The driver ignores what is for other types of memory.
  for (const name of ['Host', 'Device', 'Array', 'LOD']) field(name);
  const slice = pitch * rows;
  return { address: start + z * slice + y * pitch + x, pitch, slice, type, device };
}

export type Copy3dFunctions = Pick<
  Driver,
  | 'cuMemcpy2DUnaligned_v2'
  | 'cuMemcpy2DAsync_v2'
  | 'cuMemcpy3D_v2'
  | 'cuMemcpy3DAsync_v2'
  | 'cuMemcpy3DPeerAsync'
>;

export function copy3dFunctions(
  memory: Memory,
  queues: StreamQueues,
  host: HostMemory,
  contexts: Contexts,
): Copy3dFunctions {
  const copies = new Copies3d(memory, queues, host, contexts);
  const now = (name: StructName, address: number): Status =>
    copies.run(name, address, queues.legacy(contexts.current), true);
  const queued = (name: StructName, address: number, stream: number): Status =>
    copies.run(name, address, queues.get(stream), false);
  return {
    cuMemcpy2DUnaligned_v2: (address) => now('CUDA_MEMCPY2D', address),
    cuMemcpy3D_v2: (address) => now('CUDA_MEMCPY3D', address),
    cuMemcpy2DAsync_v2: (address, stream) => queued('CUDA_MEMCPY2D', address, stream),
    cuMemcpy3DAsync_v2: (address, stream) => queued('CUDA_MEMCPY3D', address, stream),
    cuMemcpy3DPeerAsync: (address, stream) => queued('CUDA_MEMCPY3D_PEER', address, stream),
  };
}

/** Copies rows and slices, described by structs. */
class Copies3d {
  readonly #memory: Memory;
  readonly #queues: StreamQueues;
  readonly #host: HostMemory;
  readonly #contexts: Contexts;

  constructor(memory: Memory, queues: StreamQueues, host: HostMemory, contexts: Contexts) {
    this.#memory = memory;
    this.#queues = queues;
    this.#host = host;
    this.#contexts = contexts;
  }

  /** Runs the copy of a struct in a stream. @param isNow whether the call has no stream, and waits */
  run(name: StructName, address: number, queue: Stream | undefined, isNow: boolean): Status {
    if (!queue) return CUDA_ERROR_INVALID_HANDLE;
    const fields: Fields | undefined = this.#host.readStruct(name, address);
    if (!fields) return CUDA_ERROR_INVALID_VALUE;
    const { WidthInBytes: width = 0, Height: height = 0, Depth: depth = 1 } = fields;
    const box = { width, height, depth };
    let [toDevice, fromDevice] = [queue.context.device, queue.context.device];
    if (name === 'CUDA_MEMCPY3D_PEER') {
      const target = this.#contexts.get(fields['dstContext'] ?? 0);
      const source = this.#contexts.get(fields['srcContext'] ?? 0);
      if (!target?.alive || !source?.alive) return CUDA_ERROR_INVALID_CONTEXT;
      [toDevice, fromDevice] = [target.device, source.device];
    }
    if (width === 0 || height === 0 || depth === 0) {
      // Nothing is copied, wherever from.
      this.#host.takeUnread();
      return CUDA_SUCCESS;
    }
    const to = parseOperand(fields, 'dst', box, toDevice);
    if (typeof to === 'number') return to;
    const from = parseOperand(fields, 'src', box, fromDevice);
    if (typeof from === 'number') return from;
    return this.#copy(queue, to, from, box, isNow);
  }

  #copy(queue: Stream, to: CopyOperand, from: CopyOperand, box: Extent3d, isNow: boolean): Status {
    const memory = this.#memory;
    const queues = this.#queues;
    const isToDevice = memory.canWrite(to.address, byteSpan(to, box), to.device);
    const isFromDevice = memory.canRead(from.address, byteSpan(from, box), from.device);
    // The driver accepts unknown memory only if it may be host memory.
    const mustBeDevice = ({ type, address }: CopyOperand): boolean =>
      type === CU_MEMORYTYPE_DEVICE || memory.isDeviceRegion(address);
    if ((!isToDevice && mustBeDevice(to)) || (!isFromDevice && mustBeDevice(from)))
      return CUDA_ERROR_INVALID_VALUE;
    // A copy that reads or waits now cannot be repeated at each launch of a graph.
    if (!(isFromDevice && isToDevice) && queues.invalidateCapture(queue))
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

    let source = from;
    let kept: Uint8Array | undefined;
    if (!isFromDevice) {
      // Pageable host memory is read now: its owner may change it as soon as the call returns.
      const { side, bytes } = packed(box, from.device);
      if (!this.#copyRows(side, from, box)) return CUDA_ERROR_INVALID_VALUE;
      source = side;
      kept = bytes;
    }
    let outcome: boolean | undefined;
    const work = (): boolean => {
      const isThere =
        (!isToDevice || memory.canStillWrite(to.address, byteSpan(to, box), to.device)) &&
        (!isFromDevice || memory.canStillRead(from.address, byteSpan(from, box), from.device));
      if (!isThere) queues.failContext(queue);
      outcome = isThere && this.#copyRows(to, source, box);
      kept = undefined;
      return true;
    };
    queues.enqueue(queue, work, 'copy');
    const isStaged = isFromDevice || box.width * box.height * box.depth <= MAX_STAGED_BYTES;
    // A copy between two places on devices is only queued, also by a call without a stream.
    const waits = isNow && !(memory.isOnDevice(to.address) && memory.isOnDevice(from.address));
    if (!waits && isToDevice && (isStaged || queue.capture)) return CUDA_SUCCESS;
    queues.blockUntil(
      () => outcome !== undefined || queue.context.failure !== CUDA_SUCCESS,
      () => [queue],
    );
    return outcome && kept === undefined ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  #copyRows(to: CopyOperand, from: CopyOperand, { width, height, depth }: Extent3d): boolean {
    for (let z = 0; z < depth; z += 1)
      for (let y = 0; y < height; y += 1) {
        const target = to.address + z * to.slice + y * to.pitch;
        const source = from.address + z * from.slice + y * from.pitch;
        if (!this.#memory.copy(target, source, width)) return false;
      }
    return true;
  }
}

/** A host operand without gaps, and the memory behind it. */
function packed(box: Extent3d, device: number): { side: CopyOperand; bytes: Uint8Array } {
  const bytes = Buffer.allocUnsafeSlow(box.width * box.height * box.depth);
  const { width: pitch, height } = box;
  const type = CU_MEMORYTYPE_HOST;
  return {
    bytes,
    side: { address: addressOf(bytes), pitch, slice: pitch * height, type, device },
  };
}
