import { type FileHandle, open, rename, unlink } from 'node:fs/promises';
import { DeviceArray } from '../array/device-array.ts';
import { randomId } from '../crypto.ts';
import { checkDeadline } from '../deadline.ts';
import { PinnedBuffer } from '../memory/pinned.ts';
import {
  checkInstance,
  checkInteger,
  checkOptions,
  checkString,
  formatValue,
} from '../validate.ts';
import { formatHeader, itemBits, type NewEntry, tensorDtypeOf } from './header.ts';
import { checkPath } from './load.ts';
import { TensorMap } from './tensor-map.ts';

/** Tensors by name: what `loadTensors` returns, an object, a Map, or pairs. */
export type TensorSource =
  | TensorMap
  | Iterable<readonly [name: string, array: DeviceArray]>
  | { readonly [name: string]: DeviceArray };

/** Options of {@link saveTensors}. */
export interface SaveTensorsOptions {
  /** The `__metadata__` of the file. */
  readonly metadata?: { readonly [key: string]: string } | ReadonlyMap<string, string>;
  /** How much page-locked memory the bytes pass through, in bytes. Default 8 MiB. */
  readonly stagingBytes?: number;
  /** Aborting rejects with the signal's reason, and leaves no file. */
  readonly signal?: AbortSignal;
}

/**
 * Writes tensors to a safetensors file. The file appears when it is complete: until then its bytes are in
 * a file beside it, which is removed if anything fails. A file that is there already is replaced.
 *
 * The items are those after the work that was queued in the stream of each array. Until the promise
 * settles, nothing may write to the arrays. Arrays that share memory are each written with all of their
 * bytes: other readers of the format allow no shared bytes.
 *
 * @throws TypeError for a dtype that the format lacks, before anything is written; ClosedError, CudaError;
 * the system's error if the file cannot be written
 * @example
 * await saveTensors('adapter.safetensors', { a, b }, { metadata: { format: 'pt' } });
 */
export async function saveTensors(
  path: string | URL,
  tensors: TensorSource,
  options?: SaveTensorsOptions,
): Promise<void> {
  const { metadata, stagingBytes, signal } = checkOptions(
    options,
    ['metadata', 'stagingBytes', 'signal'],
    'saveTensors',
  );
  const target = checkPath(path);
  const mostStagingBytes = checkInteger(stagingBytes ?? STAGING_BYTES, 'stagingBytes', 4096);
  checkDeadline({ signal }, 'saveTensors');
  const entries = inOrder(entriesOf(tensors));
  const header = formatHeader(entries, checkMetadata(metadata));
  signal?.throwIfAborted();

  using staging = allocateStaging(entries, mostStagingBytes);
  const temporary = `${target}.${randomId()}.tmp`;
  const file = await open(temporary, 'wx');
  try {
    try {
      await writeFully(file, header);
      for (const { array } of entries) await writeArray(file, array, staging, signal);
      // Else a crash of the machine could leave the new name with a part of the bytes.
      await file.sync();
    } finally {
      await file.close();
    }
    signal?.throwIfAborted();
    await rename(temporary, target);
  } catch (error) {
    await unlink(temporary).catch(() => {});
    throw error;
  }
}

const STAGING_BYTES = 8 << 20;

interface SavedTensor extends NewEntry {
  readonly array: DeviceArray;
}

function entriesOf(tensors: unknown): SavedTensor[] {
  if (typeof tensors !== 'object' || tensors === null)
    throw new TypeError(
      `tensors must be a TensorMap, an object, or pairs of names and arrays, not ${formatValue(tensors)}`,
    );
  const pairs = Symbol.iterator in tensors ? tensors : Object.entries(tensors);
  return Array.from(pairs as Iterable<readonly [string, DeviceArray]>, (pair) => {
    if (!Array.isArray(pair)) throw new TypeError('tensors must be pairs of names and arrays');
    const name = checkString(pair[0], 'the name of a tensor');
    const array = checkInstance<DeviceArray>(pair[1], DeviceArray, `tensor ${formatValue(name)}`);
    array.assertOpen();
    const { byteLength } = array;
    // Its own dtypes and shapes: here, some are raw bytes.
    if (tensors instanceof TensorMap)
      return {
        name,
        array,
        byteLength,
        dtype: tensors.dtypeOf(name),
        shape: tensors.shapeOf(name),
      };
    const dtype = tensorDtypeOf(array.dtype);
    if (!dtype)
      throw new TypeError(
        `safetensors files have no ${array.dtype.name}: tensor ${formatValue(name)}`,
      );
    return { name, array, byteLength, dtype, shape: array.shape };
  });
}

/** Memory for the largest part of an array that is read at once; undefined if no array needs any. */
function allocateStaging(
  entries: readonly SavedTensor[],
  mostBytes: number,
): PinnedBuffer | undefined {
  const staged = entries.filter(({ array }) => array.isCContiguous && array.byteLength > 0);
  const [first] = staged;
  if (!first) return undefined;
  const largest = staged.reduce((most, { byteLength }) => Math.max(most, byteLength), 0);
  return PinnedBuffer.allocate(Math.min(mostBytes, largest), { context: first.array.context });
}

/** The largest items first, so that each is aligned in the file; then by name, as other writers do. */
const inOrder = (entries: SavedTensor[]): SavedTensor[] =>
  entries.sort(
    (a, b) =>
      itemBits(b.dtype) - itemBits(a.dtype) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0),
  );

function checkMetadata(metadata: SaveTensorsOptions['metadata']): ReadonlyMap<string, string> {
  if (metadata === undefined) return new Map();
  if (typeof metadata !== 'object' || metadata === null)
    throw new TypeError(`metadata must be an object of strings, not ${formatValue(metadata)}`);
  const pairs = metadata instanceof Map ? [...metadata] : Object.entries(metadata);
  for (const [key, text] of pairs)
    if (typeof key !== 'string' || typeof text !== 'string')
      throw new TypeError(
        `metadata: ${formatValue(key)} must be a string, not ${formatValue(text)}`,
      );
  return new Map(pairs);
}

async function writeFully(file: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.byteLength - done);
    done += bytesWritten;
  }
}

async function writeArray(
  file: FileHandle,
  array: DeviceArray,
  staging: PinnedBuffer | undefined,
  signal: AbortSignal | undefined,
): Promise<void> {
  signal?.throwIfAborted();
  const { buffer, byteLength, byteOffset, stream } = array;
  if (byteLength === 0) return;
  if (!staging || !array.isCContiguous) {
    const items = await array.copyToHost();
    await writeFully(file, new Uint8Array(items.buffer, items.byteOffset, items.byteLength));
    return;
  }
  for (let offset = 0; offset < byteLength; offset += staging.byteLength) {
    signal?.throwIfAborted();
    const sliceBytes = Math.min(staging.byteLength, byteLength - offset);
    const bytes = new Uint8Array(staging.buffer, 0, sliceBytes);
    const part = buffer.subarray(byteOffset + offset, byteOffset + offset + bytes.byteLength);
    await part.copyToHost(bytes, stream ? { stream } : {});
    await writeFully(file, bytes);
  }
}
