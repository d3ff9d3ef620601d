/** Mapping by a handle that another process made up, or not: no answer of the driver is believed. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { IpcError } from '../errors.ts';
import type { Mapping } from './mapping.ts';

interface MapPayload {
  /** Whose memory it is, in words. */
  readonly exporter: string;
  /** The driver's function that `map` calls. */
  readonly call: FunctionName;
  /** Writes the address to OUT0. */
  map(): number;
  /** How many bytes are mapped there. @throws CudaError, RangeError */
  measure(base: CUdeviceptr): number;
  unmap(base: CUdeviceptr): unknown;
}

/** Maps memory in a context. @throws IpcError, with nothing left mapped */
export const mapPayload = (context: Context, payload: MapPayload): Mapping => ({
  context,
  resets: context.resets,
  ...context.run(() => mapped(payload)),
});

function mapped({
  exporter,
  call,
  map,
  measure,
  unmap,
}: MapPayload): Pick<Mapping, 'base' | 'byteLength'> {
  const refused = (cause: unknown): IpcError =>
    new IpcError(`memory of ${exporter} could not be opened`, cause as Error);
  const status = map();
  if (status !== 0) throw refused(cudaError(status, call));
  let base: CUdeviceptr;
  try {
    base = readHandle<CUdeviceptr>(OUT0, unmap);
  } catch (error) {
    throw refused(error);
  }
  try {
    return { base, byteLength: measure(base) };
  } catch (error) {
    unmap(base);
    throw refused(error);
  }
}
