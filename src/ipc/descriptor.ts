/** What travels between processes: plain objects, JSON-safe, and untrusted until parsed. */

import { MAX_MESSAGE_FDS } from '../../ffi/linux/message.ts';
import { newLayout } from '../array/allocate-items.ts';
import { type Layout, layoutExtents } from '../array/layout.ts';
import { type Dtype, dtype as dtypeNamed } from '../dtype.ts';
import { IpcError } from '../errors.ts';
import type { Access } from '../memory/buffer.ts';

/** What every descriptor says: which GPU, and which process of which machine made it. */
export interface IpcExporter {
  /** The GPU's UUID. Ordinals differ between processes. */
  readonly device: string;
  /** The machine, since it was last started: Linux's boot id. */
  readonly machine: string;
  /** The exporting process, */
  readonly pid: number;
  /** when it started, in clock ticks since the machine did (pids come again), */
  readonly startTime: number;
  /** and the number of the pid namespace that the pid is of; 0 where that was not to be seen. */
  readonly pidNamespace: number;
}

interface Checksummed {
  readonly version: typeof DESCRIPTOR_VERSION;
  /** CRC-32 of the other fields: what was altered on its way is refused, not handed to the driver. */
  readonly checksum: number;
}

/** How the items of an array lie in a range, which begins with the first byte of them. */
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
  /** Where the range begins in its allocation, in bytes. */
  readonly byteOffset: number;
  readonly byteLength: number;
  /**
   * What the process that opens it may do with it, as its sender says. Read-only memory is always
   * `virtual`: file descriptors of its own say so too.
   */
  readonly access: Access;
  /** Which allocation it is, of those that were at its address one after the other. */
  readonly bufferId: number;
  /** The exporter's own random number of the allocation; 0 for memory that cuffi did not allocate. */
  readonly generation: number;
  /** How an array lies in it; absent for plain bytes. */
  readonly layout?: IpcLayout | undefined;
  /** What is done when the memory may be used; absent where its sender has waited. */
  readonly readyEvent?: IpcEventDescriptor | undefined;
}

/**
 * A range of plain device memory as another process may open it: what `getIpcHandle(buffer)` gives
 * and `openIpcBuffer` takes. Plain data: it survives JSON, `process.send` and structured cloning.
 */
export interface IpcBufferDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'legacy';
  /** The driver's 64 bytes in base64. They name the whole allocation. */
  readonly handle: string;
}

/** A range of a pool's memory, or a pool. Who opens it has the pool's file descriptor, or gets it. */
export interface IpcPoolDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'pool';
  /** Which pool: 16 random bytes in hex, the pool's for life. */
  readonly pool: string;
  /** The driver's 64 bytes that name the allocation, in base64; null for the pool itself. */
  readonly handle: string | null;
}

/** A range of virtual memory. Beside it goes a file descriptor for each of its pieces. */
export interface IpcVirtualDescriptor extends IpcExporter, IpcRange, Checksummed {
  readonly kind: 'virtual';
  /** Which virtual memory: 16 random bytes in hex, the memory's for life. */
  readonly memory: string;
  /** Which of its pieces is the first that goes along. */
  readonly firstPiece: number;
  /** The sizes of the pieces that go along, in bytes. */
  readonly pieces: readonly number[];
}

/** An interprocess event as another process may open it. */
export interface IpcEventDescriptor extends IpcExporter, Checksummed {
  readonly kind: 'event';
  /** The driver's 64 bytes in base64. */
  readonly handle: string;
}

/** The kinds of descriptor, by the name of their kind. */
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

/** The kinds that are memory. */
export const MEMORY_KINDS: readonly Exclude<IpcKind, 'event'>[] = ['legacy', 'pool', 'virtual'];

/** What goes to another process for one object: plain data, and file descriptors beside it. */
export interface Exported {
  readonly descriptor: IpcDescriptor;
  /** Borrowed: the sender keeps them open and does not close them. */
  readonly fds: readonly number[];
}

/** @throws IpcError for a range beyond its allocation */
export function checkRange(
  { byteOffset, byteLength, baseByteLength, pid }: IpcMemoryDescriptor,
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

/**
 * What descriptors hold: the fields of each kind in their order, and what each may be. The schema
 * of messages, the reader of bytes and the checksum all go by this.
 */

/** The version of all descriptors of this cuffi. */
export const DESCRIPTOR_VERSION = 2;

/** Whole numbers, from the least to the most. */
export const NUMBERS = {
  uint32: [0, 0xffff_ffff],
  positive32: [1, 0xffff_ffff],
  size: [0, Number.MAX_SAFE_INTEGER],
  positive: [1, Number.MAX_SAFE_INTEGER],
  stride: [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER],
} as const satisfies Record<string, readonly [least: number, most: number]>;

export type NumberType = keyof typeof NUMBERS;

/** What whoever opens memory may do with it; a word's place here is its number in binary. */
export const ACCESS = ['read-write', 'read'] as const;
/** What the UUID of a GPU, and that of a part of one, begins with. */
export const DEVICE_PREFIXES = ['GPU-', 'MIG-'] as const;
/** The name of a dtype. */
export const DTYPE_NAME: RegExp = /^(V[0-9]{1,10}|[a-z0-9]{1,16})$/;
/** Each piece of virtual memory has a file descriptor. */
export const MAX_PIECES: number = MAX_MESSAGE_FDS;

/** What a field is; a name that ends in `?` is of one that may be absent, or null for a handle. */
export type FieldType =
  | Exclude<NumberType, 'stride'>
  | 'access'
  | 'device'
  | 'event?'
  | 'handle'
  | 'handle?'
  | 'id'
  | 'layout?'
  | 'pieces'
  | 'uuid';

export type Field = readonly [name: string, type: FieldType];

/** Who exported it. */
export const exporterFields = [
  ['device', 'device'],
  ['machine', 'uuid'],
  ['pid', 'positive32'],
  ['startTime', 'size'],
  ['pidNamespace', 'size'],
] as const;

/** Which part of what. */
const memoryFields = <T extends FieldType>(size: T) =>
  [
    ['baseByteLength', size],
    ['byteOffset', 'size'],
    ['byteLength', size],
    ['access', 'access'],
    ['bufferId', 'size'],
    ['generation', 'size'],
    ['layout', 'layout?'],
    ['readyEvent', 'event?'],
  ] as const;

/** All but kind, version, checksum and {@link exporterFields}, which come before. */
export const descriptorFields = {
  legacy: [['handle', 'handle'], ...memoryFields('positive')],
  // The pool itself has no size.
  pool: [['pool', 'id'], ['handle', 'handle?'], ...memoryFields('size')],
  virtual: [
    ['memory', 'id'],
    ['firstPiece', 'uint32'],
    ['pieces', 'pieces'],
    ...memoryFields('positive'),
  ],
  event: [['handle', 'handle']],
} as const satisfies Record<string, readonly Field[]>;

/** The kinds of descriptor; a kind's place here is its number in binary. */
export const descriptorKinds = Object.keys(
  descriptorFields,
) as readonly (keyof typeof descriptorFields)[];

/** How an array lies in memory that another process named. */
export interface ParsedLayout {
  readonly dtype: Dtype;
  /** From the beginning of the range on. */
  readonly layout: Layout;
}

/**
 * How an array lies in the range that a descriptor names; undefined where it names plain bytes.
 *
 * @throws IpcError for a dtype that there is not, and for items beyond the range
 */
export function layoutOf({
  layout,
  byteLength,
  pid,
}: IpcMemoryDescriptor): ParsedLayout | undefined {
  if (!layout) return undefined;
  const parsed = readLayout(layout, pid);
  const { high } = layoutExtents(parsed.layout);
  if (layout.shape.includes(0)) throw invalidLayout(pid, 'it has no items');
  if (high > byteLength)
    throw invalidLayout(pid, `its items take ${high} bytes of a range that has ${byteLength}`);
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
    `this descriptor of an array of process ${pid} is not sound: ${why}`,
    undefined,
    'invalid-descriptor',
  );

/** What a descriptor says of an array whose items begin with the first byte of its range. */
export const describeLayout = (dtype: Dtype, { shape, strides }: Layout): IpcLayout => ({
  dtype: dtype.name,
  shape: [...shape],
  strides: [...strides],
});

/** @throws IpcError for a descriptor of plain bytes */
export function checkIsArray({ layout }: IpcMemoryDescriptor): void {
  if (!layout)
    throw new IpcError(
      'the descriptor is of bytes, not of an array: open it with openIpcBuffer, and see them as one ' +
        'with DeviceArray.fromBuffer',
    );
}
