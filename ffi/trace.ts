/** Records of driver calls: name, bytes moved, status and duration. */
import { copyByteLength } from './arena.ts';
import type { FunctionName, Row } from './functions.ts';
import type { NativeFunction } from './library.ts';
import { type CUresult, resultName } from './results.ts';
import type { Address } from './types.ts';

/** One driver call. */
export interface CallRecord {
  /** A function of the table, or one of `declareFunction`. */
  readonly name: FunctionName | (string & {});
  /** Bytes that the call copied or set; 0 for calls that move nothing. */
  readonly byteLength: number;
  readonly status: CUresult;
  readonly durationMs: number;
}

/** Receives each record after its call has returned. */
export type CallSink = (record: CallRecord) => void;

/** The number of bytes that a call moves, by its arguments. */
const byteLengthOfArguments = (
  [count, unit, rows]: NonNullable<Row['bytes']>,
  args: readonly number[],
): number => Number(args[count]) * unit * (rows === undefined ? 1 : Number(args[rows]));

/** `call`, reporting each of its calls to `sinks`. */
export function traced(
  name: string,
  { bytes, struct }: Pick<Row, 'bytes' | 'struct'>,
  call: NativeFunction,
  sinks: Iterable<CallSink>,
): NativeFunction {
  return (...args: number[]) => {
    // Read before the call, whose out-values may overwrite the struct.
    const structByteLength = struct ? copyByteLength(struct, args[0] as Address) : 0;
    const start = performance.now();
    const status = call(...(args as never[]));
    const record = {
      name,
      byteLength: bytes ? byteLengthOfArguments(bytes, args) : structByteLength,
      status,
      durationMs: performance.now() - start,
    };
    for (const sink of sinks) sink(record);
    return status;
  };
}

/** The number of bytes that recorded calls copied, between host and device or on the device. */
export const bytesCopied = (records: readonly CallRecord[]): number =>
  records.reduce(
    (sum, record) => (record.name.startsWith('cuMemcpy') ? sum + record.byteLength : sum),
    0,
  );

/** Prints each call as a line on stderr (`CUFFI_TRACE=1`). */
export const printCall: CallSink = ({ name, byteLength, status, durationMs }) => {
  const moved = byteLength > 0 ? ` ${byteLength} bytes` : '';
  const statusText = status === 0 ? '' : ` ${resultName(status)}`;
  process.stderr.write(
    `cuffi: ${name}${moved} ${(durationMs * 1000).toFixed(1)} us${statusText}\n`,
  );
};
