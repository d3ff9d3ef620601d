/**
 * The header of a safetensors file: which tensors it has, of which dtype and shape, and where their bytes
 * are. The file is not trusted: all is checked before anything is allocated for it.
 *
 * @see https://github.com/huggingface/safetensors#format
 */
import {
  bfloat16,
  bool,
  complex64,
  type Dtype,
  float8_e4m3fn,
  float8_e5m2,
  float16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
} from '../dtype.ts';
import { SafetensorError } from '../errors.ts';
import { formatValue } from '../validate.ts';

/** The largest header, in bytes, as in the reference implementation. */
export const MAX_HEADER_BYTE_LENGTH = 100_000_000;
/** The size of the header, before it, as an unsigned integer of 64 bits. */
export const PREFIX_BYTE_LENGTH = 8;
/** The key of the header that is no tensor. */
const METADATA = '__metadata__';

/** A dtype of the format: the bits of an item, and cuffi's dtype; raw bytes if cuffi has none. */
interface DtypeRow {
  readonly bits: number;
  readonly dtype?: Dtype;
}

const dtypeRows = {
  BOOL: { bits: 8, dtype: bool },
  U8: { bits: 8, dtype: uint8 },
  I8: { bits: 8, dtype: int8 },
  U16: { bits: 16, dtype: uint16 },
  I16: { bits: 16, dtype: int16 },
  U32: { bits: 32, dtype: uint32 },
  I32: { bits: 32, dtype: int32 },
  U64: { bits: 64, dtype: uint64 },
  I64: { bits: 64, dtype: int64 },
  F16: { bits: 16, dtype: float16 },
  BF16: { bits: 16, dtype: bfloat16 },
  F32: { bits: 32, dtype: float32 },
  F64: { bits: 64, dtype: float64 },
  C64: { bits: 64, dtype: complex64 },
  F8_E4M3: { bits: 8, dtype: float8_e4m3fn },
  F8_E5M2: { bits: 8, dtype: float8_e5m2 },
  F8_E8M0: { bits: 8 },
  F8_E4M3FNUZ: { bits: 8 },
  F8_E5M2FNUZ: { bits: 8 },
  F6_E2M3: { bits: 6 },
  F6_E3M2: { bits: 6 },
  F4: { bits: 4 },
} as const satisfies Record<string, DtypeRow>;

/** The name of a dtype in the format, e.g. `BF16`. */
export type TensorDtype = keyof typeof dtypeRows;

/** A tensor, as its file describes it. */
export interface TensorEntry {
  readonly dtype: TensorDtype;
  readonly shape: readonly number[];
  /** Where its bytes begin in the file, and where they end. */
  readonly begin: number;
  readonly end: number;
}

/** A header that was checked. */
export interface Header {
  /** In the order of the header. */
  readonly tensors: ReadonlyMap<string, TensorEntry>;
  readonly metadata: ReadonlyMap<string, string>;
}

/**
 * Returns the dtype and the shape that arrays of a tensor have here: raw bytes if cuffi has no dtype for
 * its items, and one axis if its items are not whole bytes.
 */
export function arrayTypeOf({ dtype, shape, begin, end }: TensorEntry): {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
} {
  const row: DtypeRow = dtypeRows[dtype];
  return { dtype: row.dtype ?? uint8, shape: row.bits % 8 === 0 ? shape : [end - begin] };
}

/** The name that the format has for a dtype; undefined if it has none. */
export const tensorDtypeOf = (dtype: Dtype): TensorDtype | undefined =>
  (Object.keys(dtypeRows) as TensorDtype[]).find(
    (name) => (dtypeRows[name] as DtypeRow).dtype === dtype,
  );

/** The bits of an item. */
export const itemBits = (dtype: TensorDtype): number => dtypeRows[dtype].bits;

// ---- Reading ----

/**
 * Returns the size of the header that follows the first bytes of a file.
 *
 * @param prefix the first {@link PREFIX_BYTE_LENGTH} bytes, or the whole file if it is shorter
 * @throws SafetensorError
 */
export function headerByteLength(prefix: Buffer, fileByteLength: number, path: string): number {
  if (prefix.byteLength < PREFIX_BYTE_LENGTH)
    throw new SafetensorError(
      `it has ${prefix.byteLength} bytes, and the size of the header alone has ${PREFIX_BYTE_LENGTH}: it was truncated, or is not a safetensors file`,
      path,
    );
  const byteLength = prefix.readBigUInt64LE(0);
  if (byteLength > BigInt(MAX_HEADER_BYTE_LENGTH))
    throw new SafetensorError(
      `its header has ${byteLength} bytes, more than the ${MAX_HEADER_BYTE_LENGTH} that are allowed: it is damaged, or not a safetensors file`,
      path,
    );
  if (Number(byteLength) > fileByteLength - PREFIX_BYTE_LENGTH)
    throw new SafetensorError(
      `its header has ${byteLength} bytes, and the file only ${fileByteLength}: it was truncated`,
      path,
    );
  return Number(byteLength);
}

/**
 * Reads a header. Of a key that occurs twice, the last one counts, as for `JSON.parse`.
 *
 * @param fileByteLength the size of the whole file
 * @throws SafetensorError
 */
export function parseHeader(bytes: Uint8Array, fileByteLength: number, path: string): Header {
  const start = PREFIX_BYTE_LENGTH + bytes.byteLength;
  const dataByteLength = fileByteLength - start;
  const tensors = new Map<string, TensorEntry>();
  let metadata: ReadonlyMap<string, string> = new Map();
  // The format forbids white space before the header, which JSON allows.
  if (bytes[0] !== 0x7b) throw new SafetensorError('its header does not begin with {', path);
  for (const [name, value] of Object.entries(parseJsonObject(bytes, 'its header', path)))
    if (name === METADATA) metadata = stringsOf(value, METADATA, path);
    else tensors.set(name, checkEntry(value, start, dataByteLength, path, name));
  checkContiguous(tensors, start, fileByteLength, path);
  return { tensors, metadata };
}

/**
 * Parses JSON that must be an object.
 *
 * @param what what it is, for messages
 * @throws SafetensorError
 */
export function parseJsonObject(bytes: Uint8Array, what: string, path: string): object {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (error) {
    const { message } = error as Error;
    throw new SafetensorError(`${what} is not JSON in UTF-8: ${message}`, path);
  }
  if (!isJsonObject(value))
    throw new SafetensorError(`${what} must be an object of JSON, not ${jsonKind(value)}`, path);
  return value;
}

/** Checks an object of strings. Its keys are data: `__proto__` is one as any other. @throws SafetensorError */
export function stringsOf(value: unknown, what: string, path: string): Map<string, string> {
  if (!isJsonObject(value))
    throw new SafetensorError(`${what} must be an object of JSON, not ${jsonKind(value)}`, path);
  const strings = new Map<string, string>();
  for (const [key, text] of Object.entries(value)) {
    if (typeof text !== 'string')
      throw new SafetensorError(
        `${what}: the value of ${formatValue(key)} must be a string, not ${jsonKind(text)}`,
        path,
      );
    strings.set(key, text);
  }
  return strings;
}

function checkEntry(
  value: unknown,
  start: number,
  dataByteLength: number,
  path: string,
  name: string,
): TensorEntry {
  const refuse = (message: string): never => {
    throw new SafetensorError(message, path, name);
  };
  if (!isJsonObject(value)) return refuse(`its entry must be an object, not ${jsonKind(value)}`);
  const { dtype, shape, data_offsets: offsets } = value as Readonly<Record<string, unknown>>;
  if (typeof dtype !== 'string' || !Object.hasOwn(dtypeRows, dtype))
    return refuse(`unknown dtype ${formatValue(dtype)}; known: ${Object.keys(dtypeRows)}`);
  if (!isSizes(shape)) return refuse('its shape must be a list of integers of at least 0');
  if (!isSizes(offsets) || offsets.length !== 2)
    return refuse('its data_offsets must be two integers of at least 0');
  const [from, to] = offsets as readonly [number, number];
  if (from > to) refuse(`its bytes end at ${to}, before they begin at ${from}`);
  if (to > dataByteLength)
    refuse(`its bytes end at ${to}, and the file has ${dataByteLength}: it was truncated`);
  const bits = bitsOf(shape, dtype as TensorDtype);
  if (bits !== BigInt(to - from) * 8n)
    refuse(
      `its ${to - from} bytes are not those of shape [${shape.slice(0, 16)}] and dtype ${dtype}`,
    );
  return { dtype: dtype as TensorDtype, shape, begin: start + from, end: start + to };
}

/** Bigint: the product of sizes that are each safe may be anything. */
function bitsOf(shape: readonly number[], dtype: TensorDtype): bigint {
  // Without this, the product of a million sizes would take minutes.
  if (shape.includes(0)) return 0n;
  let bits = BigInt(itemBits(dtype));
  for (const size of shape) {
    if (size !== 1) bits *= BigInt(size);
    if (bits > MAX_BITS) break;
  }
  return bits;
}

const MAX_BITS = BigInt(Number.MAX_SAFE_INTEGER) * 8n;

/**
 * The bytes must be filled by tensors, without a hole and without an overlap. Tied weights are the one
 * exception: several names for exactly the same bytes.
 */
function checkContiguous(
  tensors: ReadonlyMap<string, TensorEntry>,
  start: number,
  fileByteLength: number,
  path: string,
): void {
  const sorted = [...tensors].sort(([, a], [, b]) => a.begin - b.begin || a.end - b.end);
  let begin = start;
  let end = start;
  for (const [name, entry] of sorted) {
    const isTied = entry.begin === begin && entry.end === end;
    if (entry.begin !== end && !isTied)
      throw new SafetensorError(
        entry.begin > end
          ? `${entry.begin - end} bytes before it belong to no tensor`
          : `its bytes overlap those of another tensor`,
        path,
        name,
      );
    ({ begin, end } = entry);
  }
  if (end !== fileByteLength)
    throw new SafetensorError(
      `the last ${fileByteLength - end} bytes of the file belong to no tensor`,
      path,
    );
}

const isJsonObject = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** -0 is no integer in JSON for the reference implementation, and would be one in shapes here. */
const isSizes = (value: unknown): value is readonly number[] =>
  Array.isArray(value) &&
  value.every((size) => Number.isSafeInteger(size) && size >= 0 && !Object.is(size, -0));

const jsonKind = (value: unknown): string =>
  Array.isArray(value) ? 'a list' : value === null ? 'null' : formatValue(value);

// ---- Writing ----

/** A tensor that is to be written. */
export interface NewEntry {
  readonly name: string;
  readonly dtype: TensorDtype;
  readonly shape: readonly number[];
  readonly byteLength: number;
}

/**
 * Returns the first bytes of a file: the size of the header, and the header, padded with spaces to a
 * multiple of 8 bytes. The bytes of the tensors follow in the given order.
 *
 * @throws RangeError if the header is too long; TypeError for a name that is no Unicode text, or occurs
 * twice, or is that of the metadata
 */
export function formatHeader(
  entries: readonly NewEntry[],
  metadata: ReadonlyMap<string, string>,
): Buffer {
  const names = new Set<string>();
  const members: string[] = [];
  if (metadata.size > 0) members.push(`${JSON.stringify(METADATA)}:${formatStrings(metadata)}`);
  let offset = 0;
  for (const { name, dtype, shape, byteLength } of entries) {
    if (name === METADATA) throw new TypeError(`a tensor cannot be called ${METADATA}`);
    if (names.has(name)) throw new TypeError(`two tensors are called ${formatValue(name)}`);
    names.add(name);
    const value = { dtype, shape, data_offsets: [offset, offset + byteLength] };
    offset += byteLength;
    members.push(`${formatText(name)}:${JSON.stringify(value)}`);
  }
  const text = Buffer.from(`{${members.join(',')}}`);
  const byteLength = Math.ceil(text.byteLength / 8) * 8;
  if (byteLength > MAX_HEADER_BYTE_LENGTH)
    throw new RangeError(
      `the header would have ${byteLength} bytes, and readers accept ${MAX_HEADER_BYTE_LENGTH}: write several files`,
    );
  const bytes = Buffer.alloc(PREFIX_BYTE_LENGTH + byteLength, ' ');
  bytes.writeBigUInt64LE(BigInt(byteLength));
  text.copy(bytes, PREFIX_BYTE_LENGTH);
  return bytes;
}

const formatStrings = (strings: ReadonlyMap<string, string>): string =>
  `{${[...strings].map(([key, text]) => `${formatText(key)}:${formatText(text)}`).join(',')}}`;

/** Half of a surrogate pair would be escaped, and other readers refuse that. */
function formatText(text: string): string {
  if (/\p{Surrogate}/u.test(text))
    throw new TypeError(`${formatValue(text)} is no Unicode text: it has half of a surrogate pair`);
  return JSON.stringify(text);
}
