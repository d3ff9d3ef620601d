/** Rows and slices copied by one call of the driver. */
import { writeStruct } from '../../ffi/arena.ts';
import { CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Box } from './pitched.ts';

/** One side of a call: where its first row begins, and how its rows lie. */
export interface Rows {
  readonly address: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
  /** Whose memory it is; undefined for the host's. */
  readonly context: Context | undefined;
}

/** Queues one copy; at least one side is on a device. */
export function queueRows(target: Rows, source: Rows, box: Box, stream: CUstream): void {
  const fields = {
    srcMemoryType: memoryType(source),
    srcHost: source.address,
    srcDevice: source.address,
    srcPitch: pitchOf(source, box),
    srcHeight: rowsPerSlice(source, box),
    dstMemoryType: memoryType(target),
    dstHost: target.address,
    dstDevice: target.address,
    dstPitch: pitchOf(target, box),
    dstHeight: rowsPerSlice(target, box),
    WidthInBytes: box.width,
    Height: box.height,
    Depth: box.depth,
  };
  const doing = (): string => `copying ${box.height * box.depth} rows of ${box.width} bytes`;
  if (areFar(target, source)) {
    const contexts = {
      srcContext: source.context?.handle ?? 0,
      dstContext: target.context?.handle ?? 0,
    };
    const struct = writeStruct('CUDA_MEMCPY3D_PEER', { ...fields, ...contexts });
    check(cu.cuMemcpy3DPeerAsync(struct, stream), 'cuMemcpy3DPeerAsync', doing);
  } else {
    const struct = writeStruct('CUDA_MEMCPY3D', fields);
    check(cu.cuMemcpy3DAsync_v2(struct, stream), 'cuMemcpy3DAsync_v2', doing);
  }
}

/** Whether the sides are on two devices. */
const areFar = (target: Rows, source: Rows): boolean =>
  target.context !== undefined &&
  source.context !== undefined &&
  target.context.device !== source.context.device;

const memoryType = ({ context }: Rows): number =>
  context ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;

// Where there is but one row or slice, the caller's pitch says nothing.
const pitchOf = ({ rowPitch }: Rows, { width, height, depth }: Box): number =>
  height === 1 && depth === 1 ? width : rowPitch;

const rowsPerSlice = ({ rowPitch, slicePitch }: Rows, { height, depth }: Box): number =>
  depth === 1 ? height : slicePitch / rowPitch;
