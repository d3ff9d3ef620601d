/**
 * What descriptors hold: the fields of each kind in their order, and what each may be. The schema
 * of messages, the reader of bytes and the checksum all go by this.
 */
import { MAX_MESSAGE_FDS } from '../../ffi/message.ts';

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
const rangeOf = <T extends FieldType>(size: T) =>
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
  legacy: [['handle', 'handle'], ...rangeOf('positive')],
  // The pool itself has no size.
  pool: [['pool', 'id'], ['handle', 'handle?'], ...rangeOf('size')],
  virtual: [
    ['memory', 'id'],
    ['firstPiece', 'uint32'],
    ['pieces', 'pieces'],
    ...rangeOf('positive'),
  ],
  event: [['handle', 'handle']],
} as const satisfies Record<string, readonly Field[]>;

/** The kinds of descriptor; a kind's place here is its number in binary. */
export const descriptorKinds = Object.keys(
  descriptorFields,
) as readonly (keyof typeof descriptorFields)[];
