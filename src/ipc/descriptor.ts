/** What travels between processes: plain objects that JSON can carry, untrusted until parsed. */

import { newLayout } from '../array/array-options.ts';
import { type Layout, layoutExtents } from '../array/layout.ts';
import { type Dtype, dtype as dtypeNamed } from '../dtype.ts';
import { IpcError } from '../errors.ts';
import type { Access } from '../memory/buffer.ts';
import { formatBytes } from '../validate.ts';
import { descriptorFields, hostFields } from './protocol.ts';
import type { PROTOCOL_VERSION } from './version.ts';

/** Fields of every descriptor: the GPU, and the machine and process that exported it. */
export interface IpcExporter {
  /** The GPU's UUID. Ordinals differ between processes. */
  readonly device: string;
  /** The machine since its last boot: Linux's boot id. */
  readonly machine: string;
  /** The exporting process. */
  readonly pid: number;
  /** When that process started, in clock ticks since boot, because pids are reused. */
  readonly startTime: number;
  /** The inode number of that process's pid namespace; 0 if it could not be read. */
  readonly pidNamespace: number;
}

interface Checksummed {
  readonly version: typeof PROTOCOL_VERSION;
  /** CRC-32 of the other fields. A corrupted descriptor is refused and never reaches the driver. */
  readonly checksum: number;
}

/** The layout of an array in a range. The range begins with the first byte of the items. */
export interface IpcLayout {
  /** The name of the dtype, e.g. `float32`. */
  readonly dtype: string;
  readonly shape: readonly number[];
  /** In bytes. */
  readonly strides: readonly number[];
}

/** A range of an allocation. */
export interface IpcRange {
  /** The size of the whole allocation, in bytes. */
  readonly baseByteLength: number;
  /** The offset of the range in its allocation, in bytes. */
  readonly byteOffset: number;
  readonly byteLength: number;
  /**
   * The access that the sender grants to the process that opens it. Read-only memory is always
   * `virtual`, with file descriptors that state it too.
   */
  readonly access: Access;
  /**
   * Tells apart the allocations that had the same address one after the other; 0 where `generation`
   * alone does.
   */
  readonly bufferId: number;
  /** The exporter's random number for the allocation; 0 for memory that cuffi did not allocate. */
  readonly generation: number;
  /** The layout of an array in the range; absent for plain bytes. */
  readonly layout?: IpcLayout | undefined;
  /** The event after which the memory may be used; absent if the sender has waited. */
  readonly readyEvent?: IpcEventDescriptor | undefined;
}

/**
 * A range of plain device memory that another process may open: `getIpcHandle(buffer)` returns it
 * and `openIpcBuffer` takes it. Plain data: it survives JSON, `process.send` and structured
 * cloning.
 */
export interface IpcBufferDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'legacy';
  /** The driver's 64 bytes in base64. They name the whole allocation. */
  readonly handle: string;
}

/**
 * A range of a pool's memory, or a pool. The process that opens it has the pool's file descriptor
 * or receives it.
 */
export interface IpcPoolDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'pool';
  /** The pool: 16 random bytes in hex, constant during the pool's life. */
  readonly pool: string;
  /** The driver's 64 bytes that name the allocation, in base64; null for the pool itself. */
  readonly handle: string | null;
}

/** A range of virtual memory. A file descriptor for each of its pieces accompanies it. */
export interface IpcVirtualDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'virtual';
  /** The virtual memory: 16 random bytes in hex, constant during the memory's life. */
  readonly memory: string;
  /** The index of the first piece that is sent. */
  readonly firstPiece: number;
  /** The sizes of the pieces that are sent, in bytes. */
  readonly pieces: readonly number[];
}

/** An interprocess event that another process may open. */
export interface IpcEventDescriptor extends IpcExporter, Checksummed {
  readonly kind: 'event';
  /** The driver's 64 bytes in base64. */
  readonly handle: string;
}

/** The descriptor types, by kind. */
export interface IpcDescriptors {
  readonly legacy: IpcBufferDescriptor;
  readonly pool: IpcPoolDescriptor;
  readonly virtual: IpcVirtualDescriptor;
  readonly event: IpcEventDescriptor;
}

export type IpcKind = keyof IpcDescriptors;

/** Anything that another process may open. */
export type IpcDescriptor = IpcDescriptors[IpcKind];

/** A descriptor of memory. */
export type IpcMemoryDescriptor = Exclude<IpcDescriptor, IpcEventDescriptor>;

/**
 * The fields of a descriptor without version and checksum. Connections send only these, because the
 * kernel corrupts no byte. The functions that return a descriptor to the user add the rest.
 */
export type DescriptorFields<K extends IpcKind = IpcKind> = {
  readonly [Kind in K]: FieldsOf<IpcDescriptors[Kind]>;
}[K];

type FieldsOf<D> = Omit<D, keyof Checksummed | 'readyEvent'> &
  ('readyEvent' extends keyof D
    ? { readonly readyEvent?: FieldsOf<IpcEventDescriptor> | undefined }
    : unknown);

/** The kinds that are memory: those with a range. */
export type MemoryKind = {
  [K in IpcKind]: IpcDescriptors[K] extends IpcRange ? K : never;
}[IpcKind];

/**
 * Kinds of objects of which file descriptors are a part. They travel over connections only, and belong
 * to no device.
 */
export type HostKind = keyof typeof hostFields;

/** The fields of an object that its file descriptors are all of, as protocol.json lists them. */
export type HostFields<K extends HostKind = HostKind> = {
  readonly [Kind in K]: { readonly kind: Kind } & {
    readonly [Field in (typeof hostFields)[Kind][number] as Field[0]]: FieldValues[Field[1]];
  };
}[K];

/** The types of fields, by their names in protocol.json. */
interface FieldValues {
  readonly uint32: number;
  readonly positive32: number;
  readonly size: number;
  readonly positive: number;
  readonly handle: string;
  readonly 'handle?': string | null;
  readonly id: string;
  readonly pieces: readonly number[];
  readonly access: Access;
  readonly 'layout?': IpcLayout | undefined;
  readonly virtual: DescriptorFields<'virtual'>;
}

/** The fields of anything that a connection can send. */
export type AnyFields = DescriptorFields | HostFields;

/** The fields of a descriptor of memory. */
export type MemoryFields = DescriptorFields<MemoryKind>;

/** The kinds that are memory. */
export const MEMORY_KINDS = Object.entries(descriptorFields).flatMap(([kind, fields]) =>
  fields.some(([name]) => name === 'byteOffset') ? [kind as MemoryKind] : [],
);

export const isMemoryFields = (fields: AnyFields): fields is MemoryFields => 'byteOffset' in fields;

/** What is sent to another process for one object: plain data, and file descriptors. */
export interface Exported {
  readonly descriptor: IpcDescriptor;
  /** Borrowed: the exporter owns them. Do not close them. */
  readonly fds: readonly number[];
}

/** Like {@link Exported}, without version and checksum. */
export interface ExportedFields<K extends IpcKind = IpcKind> {
  readonly descriptor: DescriptorFields<K>;
  readonly fds: readonly number[];
}

/** What a connection sends for one object. */
export interface AnyExported {
  readonly descriptor: AnyFields;
  /** Borrowed: the object owns them. */
  readonly fds: readonly number[];
}

export const isHostFields = (fields: AnyFields): fields is HostFields =>
  Object.hasOwn(hostFields, fields.kind);

// ---- What the fields must be together ----

export const invalidDescriptor = (kinds: readonly IpcKind[], why: string): IpcError =>
  new IpcError(
    `this is not a cuffi descriptor of kind ${kinds.join(' or ')}:\n${why}`,
    undefined,
    'invalid-descriptor',
  );

/** @throws IpcError for a range beyond its allocation */
export function checkRange(
  { byteOffset, byteLength, baseByteLength, pid }: MemoryFields,
  available: number = baseByteLength,
): void {
  if (byteOffset + byteLength > available)
    throw new IpcError(
      `the descriptor names bytes ${byteOffset} to ${byteOffset + byteLength} of an allocation of ` +
        `process ${pid} that has ${available}`,
      undefined,
      'invalid-descriptor',
    );
}

/** The layout of an array in memory that another process shared. */
export interface ParsedLayout {
  readonly dtype: Dtype;
  /** Relative to the start of the range. */
  readonly layout: Layout;
}

/**
 * Returns the layout of the array that a descriptor describes; undefined for plain bytes.
 *
 * @throws IpcError for an unknown dtype, and for items beyond the range
 */
export function layoutOf({ layout, byteLength, pid }: MemoryFields): ParsedLayout | undefined {
  if (!layout) return undefined;
  const parsed = readLayout(layout, pid);
  const { high } = layoutExtents(parsed.layout);
  if (layout.shape.includes(0)) throw invalidLayout(pid, 'it has no items');
  if (high > byteLength)
    throw invalidLayout(
      pid,
      `its items take ${formatBytes(high)} of a range that has ${byteLength}`,
    );
  return parsed;
}

/** @throws IpcError for what is not the layout of an array */
export function readLayout({ dtype: name, shape, strides }: IpcLayout, pid: number): ParsedLayout {
  try {
    const dtype = dtypeNamed(name);
    if (dtype.name !== name) throw new TypeError(`the dtype is called ${dtype.name}, not ${name}`);
    return { dtype, layout: newLayout(shape, dtype.itemsize, { strides }) };
  } catch (error) {
    throw invalidLayout(pid, (error as Error).message);
  }
}

const invalidLayout = (pid: number, why: string): IpcError =>
  new IpcError(
    `the array descriptor of process ${pid} is invalid: ${why}`,
    undefined,
    'invalid-descriptor',
  );

/** Describes the layout of an array whose items begin with the first byte of its range. */
export const describeLayout = (dtype: Dtype, { shape, strides }: Layout): IpcLayout => ({
  dtype: dtype.name,
  shape: [...shape],
  strides: [...strides],
});

/** @throws IpcError for a descriptor of plain bytes */
export function checkIsArray({ layout }: MemoryFields): void {
  if (!layout)
    throw new IpcError(
      'the descriptor describes bytes, not an array: open it with openIpcBuffer, and view the ' +
        'buffer as an array with fromBuffer',
    );
}
