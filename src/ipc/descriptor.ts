/** What travels between processes: plain objects that JSON can carry, untrusted until parsed. */

import { newLayout } from '../array/allocate-items.ts';
import { type Layout, layoutExtents } from '../array/layout.ts';
import { sizeOf } from '../array/shape.ts';
import { type Dtype, dtype as dtypeNamed } from '../dtype.ts';
import { IpcError } from '../errors.ts';
import type { Access } from '../memory/buffer.ts';
import { formatBytes } from '../validate.ts';
import { hostFields, MAX_SLOTS } from './protocol.ts';
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

export type MemoryKind = Exclude<IpcKind, 'event'>;

/**
 * Objects of which file descriptors are a part. They travel over connections only, and belong to no
 * device.
 */
interface HostObjects {
  /** A timeline that the receiver waits for. */
  readonly timeline: unknown;
  /** A timeline that the receiver signals from now on. */
  readonly signaler: {
    /** The last value that was signaled. */
    readonly last: number;
  };
  /** Page-locked host memory. */
  readonly pinned: { readonly byteLength: number };
  /** A channel that the receiver consumes. */
  readonly channel: {
    readonly slots: number;
    /** From the beginning of a slot to that of the next, in bytes. */
    readonly stride: number;
    /** The size of a slot. */
    readonly byteLength: number;
    /** The layout of messages that have none of their own. */
    readonly layout: IpcLayout;
    /** A bit for each property: 1 delivers each message to one consumer, 2 lets streams wait. */
    readonly flags: number;
    /** The memory of all slots. */
    readonly memory: DescriptorFields<'virtual'>;
  };
}

export type HostKind = keyof HostObjects;

/** The fields of an object that its file descriptors are all of. */
export type HostFields<K extends HostKind = HostKind> = {
  readonly [Kind in K]: { readonly kind: Kind } & HostObjects[Kind];
}[K];

/** The fields of anything that a connection can send. */
export type AnyFields = DescriptorFields | HostFields;

/** The fields of a descriptor of memory. */
export type MemoryFields = DescriptorFields<MemoryKind>;

/** The kinds that are memory. */
export const MEMORY_KINDS: readonly MemoryKind[] = ['legacy', 'pool', 'virtual'];

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

/** @throws IpcError for fields that are valid one by one but inconsistent */
export function checkConsistency(fields: AnyFields): void {
  if (fields.kind === 'channel') checkChannel(fields);
  if (fields.kind === 'event' || isHostFields(fields)) return;
  const inconsistency = inconsistencyIn(fields);
  if (inconsistency) throw invalidDescriptor([fields.kind], inconsistency);
  checkRange(fields);
  if (fields.layout) layoutOf(fields);
}

export const invalidDescriptor = (kinds: readonly IpcKind[], why: string): IpcError =>
  new IpcError(
    `this is not a cuffi descriptor of kind ${kinds.join(' or ')}:\n${why}`,
    undefined,
    'invalid-descriptor',
  );

/** Returns why the fields are inconsistent. */
function inconsistencyIn(fields: MemoryFields): string | undefined {
  if (fields.kind === 'pool') {
    const { handle, byteLength, baseByteLength, layout, readyEvent } = fields;
    const isConsistent =
      handle === null ? baseByteLength === 0 && !layout && !readyEvent : byteLength > 0;
    return isConsistent
      ? undefined
      : 'the pool itself has size 0, and memory of the pool has a size above 0';
  }
  if (fields.kind !== 'virtual') return undefined;
  const sum = fields.pieces.reduce((total, piece) => total + piece, 0);
  return sum === fields.baseByteLength ? undefined : 'the pieces must add up to baseByteLength';
}

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

function readLayout({ dtype: name, shape, strides }: IpcLayout, pid: number): ParsedLayout {
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

/** @throws IpcError for slots beyond the memory, or messages beyond their slots */
function checkChannel(fields: HostFields<'channel'>): void {
  const { slots, stride, byteLength, memory } = fields;
  const layout: IpcLayout | undefined = fields.layout;
  const refuse = (why: string): never => {
    throw new IpcError(
      `the channel of process ${memory.pid} is invalid: ${why}`,
      undefined,
      'invalid-descriptor',
    );
  };
  if (slots > MAX_SLOTS) refuse(`it has ${slots} slots, of at most ${MAX_SLOTS}`);
  if (slots * stride > memory.byteLength || byteLength > stride || memory.byteOffset > 0)
    refuse('its slots lie outside of its memory');
  if (layout === undefined) refuse('it has no layout');
  const { dtype } = readLayout(layout, memory.pid);
  const needed = sizeOf(layout.shape) * dtype.itemsize;
  if (needed > byteLength)
    refuse(`an array of ${formatBytes(needed)} does not fit into a slot of ${byteLength}`);
}

/** Describes the layout of an array whose items begin with the first byte of its range. */
export const describeLayout = (dtype: Dtype, { shape, strides }: Layout): IpcLayout => ({
  dtype: dtype.name,
  shape: [...shape],
  strides: [...strides],
});

// ---- Read-only memory ----

/**
 * Names of the kinds that the driver always maps for reading and writing. For virtual memory, its
 * importer chooses the access. So read-only memory is shared as virtual memory or not at all, and
 * an importer does not rely on the descriptor alone.
 */
export const ALWAYS_WRITABLE: Readonly<Partial<Record<IpcKind, string>>> = {
  legacy: 'plain device memory',
  pool: 'memory of a pool',
};

/** @throws IpcError for a kind that the driver cannot map read-only */
export function checkReadOnlyKind(kind: MemoryKind): void {
  const what = ALWAYS_WRITABLE[kind];
  if (what)
    throw new IpcError(
      `${what} cannot be shared read-only: the driver gives every process that opens it write ` +
        'access. Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), ' +
        'a copy, or the memory for reading and writing',
      undefined,
      'not-supported',
    );
}

/** @throws IpcError for a descriptor of plain bytes */
export function checkIsArray({ layout }: MemoryFields): void {
  if (!layout)
    throw new IpcError(
      'the descriptor is of bytes, not of an array: open it with openIpcBuffer, and view the ' +
        'buffer as an array with fromBuffer',
    );
}
