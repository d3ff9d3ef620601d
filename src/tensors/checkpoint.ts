/** The files of a checkpoint: one safetensors file, or several with an index. */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { sha256 } from '../crypto.ts';
import { SafetensorError } from '../errors.ts';
import {
  type Header,
  headerByteLength,
  MAX_HEADER_BYTE_LENGTH,
  PREFIX_BYTE_LENGTH,
  parseHeader,
  parseJsonObject,
  stringsOf,
  type TensorEntry,
} from './header.ts';

/** A safetensors file that is open, with its checked header. */
interface TensorFile extends Header {
  readonly path: string;
  readonly handle: FileHandle;
  /** The header as it is in the file. */
  readonly raw: Buffer;
}

/** A tensor, and the file that has it. */
export interface StoredTensor extends TensorEntry {
  readonly file: TensorFile;
}

/** The open files of a checkpoint. All headers were checked. */
export class Checkpoint implements AsyncDisposable {
  /** All tensors, in the order of the files and their headers. */
  readonly tensors: ReadonlyMap<string, StoredTensor>;
  /** Of all files. If two have the same key, the file with the later name counts. */
  readonly metadata: ReadonlyMap<string, string>;
  /** See `TensorMap.fingerprint`. */
  readonly fingerprint: string;
  readonly #files: readonly TensorFile[];

  private constructor(
    files: readonly TensorFile[],
    tensors: ReadonlyMap<string, StoredTensor>,
    fingerprint: string,
  ) {
    this.#files = files;
    this.tensors = tensors;
    this.metadata = new Map(files.flatMap(({ metadata }) => [...metadata]));
    this.fingerprint = fingerprint;
  }

  /**
   * Opens a safetensors file, or the files that an index (`….index.json`) names, which are beside it.
   *
   * @throws SafetensorError; the system's error if a file cannot be read
   */
  static async open(path: string, signal: AbortSignal | undefined): Promise<Checkpoint> {
    const files: TensorFile[] = [];
    try {
      const index = path.endsWith('.json') ? await readIndex(path) : undefined;
      const names = index ? [...new Set(index.values())].sort() : [path];
      for (const name of names) {
        signal?.throwIfAborted();
        files.push(await openTensorFile(index ? join(dirname(path), name) : path));
      }
      const tensors = index ? indexedTensors(index, files, path) : tensorsOf(files);
      return new Checkpoint(files, tensors, fingerprintOf(files));
    } catch (error) {
      await closeAll(files);
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await closeAll(this.#files);
  }
}

/**
 * Reads bytes of a file to the end of `into`.
 *
 * @throws SafetensorError if the file has been truncated meanwhile
 */
export async function readFully(
  { handle, path }: Pick<TensorFile, 'handle' | 'path'>,
  into: Uint8Array,
  position: number,
): Promise<void> {
  for (let done = 0; done < into.byteLength; ) {
    const { bytesRead } = await handle.read(into, done, into.byteLength - done, position + done);
    if (bytesRead === 0)
      throw new SafetensorError(
        `it ends at byte ${position + done}: it was truncated meanwhile`,
        path,
      );
    done += bytesRead;
  }
}

async function closeAll(files: readonly TensorFile[]): Promise<void> {
  await Promise.allSettled(files.map(({ handle }) => handle.close()));
}

/** Opens a regular file. Opening a pipe would wait for its writer, on a thread that others need. */
async function openFile(
  path: string,
): Promise<{ readonly handle: FileHandle; readonly byteLength: number }> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) throw new SafetensorError('it is not a regular file', path);
    return { handle, byteLength: stats.size };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

async function openTensorFile(path: string): Promise<TensorFile> {
  const { handle, byteLength } = await openFile(path);
  try {
    const prefix = Buffer.alloc(Math.min(PREFIX_BYTE_LENGTH, byteLength));
    await readFully({ handle, path }, prefix, 0);
    const raw = Buffer.alloc(headerByteLength(prefix, byteLength, path));
    await readFully({ handle, path }, raw, PREFIX_BYTE_LENGTH);
    return { ...parseHeader(raw, byteLength, path), path, handle, raw };
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** Reads which file has which tensor. @throws SafetensorError */
async function readIndex(path: string): Promise<ReadonlyMap<string, string>> {
  const { handle, byteLength } = await openFile(path);
  try {
    if (byteLength > MAX_HEADER_BYTE_LENGTH)
      throw new SafetensorError(
        `the index has ${byteLength} bytes, more than the ${MAX_HEADER_BYTE_LENGTH} that are allowed`,
        path,
      );
    const bytes = Buffer.alloc(byteLength);
    await readFully({ handle, path }, bytes, 0);
    const index = parseJsonObject(bytes, 'the index', path);
    const { weight_map } = index as { readonly weight_map?: unknown };
    const files = stringsOf(weight_map, 'the weight_map of the index', path);
    for (const [tensor, name] of files)
      if (name === '' || name.includes('\0') || basename(name) !== name || /^\.\.?$/.test(name))
        throw new SafetensorError(
          `its file must be beside the index, and is called ${JSON.stringify(name.slice(0, 200))}`,
          path,
          tensor,
        );
    return files;
  } finally {
    await handle.close();
  }
}

const tensorsOf = (files: readonly TensorFile[]): ReadonlyMap<string, StoredTensor> =>
  new Map(
    files.flatMap((file) => [...file.tensors].map(([name, entry]) => [name, { ...entry, file }])),
  );

/** The tensors that the index names; others of the files do not count. */
function indexedTensors(
  index: ReadonlyMap<string, string>,
  files: readonly TensorFile[],
  path: string,
): ReadonlyMap<string, StoredTensor> {
  const byName = new Map(files.map((file) => [basename(file.path), file]));
  const tensors = new Map<string, StoredTensor>();
  for (const [name, fileName] of index) {
    const file = byName.get(fileName);
    const entry = file?.tensors.get(name);
    if (!file || !entry)
      throw new SafetensorError(
        `the index says that it is in ${fileName}, which lacks it`,
        path,
        name,
      );
    tensors.set(name, { ...entry, file });
  }
  return tensors;
}

/** The digest of base names and raw headers, each with its size before it: no other files give the same bytes. */
function fingerprintOf(files: readonly TensorFile[]): string {
  const sorted = files
    .map(({ path, raw }) => ({ name: basename(path), raw }))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  const parts = sorted.flatMap(({ name, raw }) => [Buffer.from(name), raw]);
  return sha256(
    Buffer.concat(
      parts.flatMap((part) => {
        const byteLength = Buffer.alloc(8);
        byteLength.writeBigUInt64LE(BigInt(part.byteLength));
        return [byteLength, part];
      }),
    ),
  );
}
