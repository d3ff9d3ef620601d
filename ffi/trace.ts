/** A record of driver calls: by name, bytes moved, status and duration. */
import { copyByteLength } from './arena.ts';
import { type FunctionName, type Row, rows } from './functions.ts';
import type { NativeFunction } from './library.ts';
import { type CUresult, resultName } from './results.ts';
import type { Address } from './types.ts';

/** One driver call, as it happened. */
export interface CallRecord {
  readonly name: FunctionName;
  /** Bytes that the call copied or set; 0 for calls that move nothing. */
  readonly byteLength: number;
  readonly status: CUresult;
  readonly durationMs: number;
}

/** Takes each record when its call has returned. */
export type CallSink = (record: CallRecord) => void;

/** What the arguments of a call say that it moves. */
const byteLengthOfArguments = (
  [count, unit, rows]: NonNullable<Row['bytes']>,
  args: readonly number[],
): number => Number(args[count]) * unit * (rows === undefined ? 1 : Number(args[rows]));

/** `call`, reporting each of its calls to `sinks`. */
export function traced(
  name: FunctionName,
  call: NativeFunction,
  sinks: Iterable<CallSink>,
): NativeFunction {
  const { bytes, struct } = rows[name];
  return (...args: number[]) => {
    // Read before the call: its out-values may lie over it.
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

/** The bytes that calls of a record copied, between host and device or on the device. */
export const bytesCopied = (records: readonly CallRecord[]): number =>
  records.reduce(
    (sum, record) => (record.name.startsWith('cuMemcpy') ? sum + record.byteLength : sum),
    0,
  );

/** What `CUFFI_TRACE=1` does with each call: a line on stderr. */
export const printCall: CallSink = ({ name, byteLength, status, durationMs }) => {
  const moved = byteLength > 0 ? ` ${byteLength} bytes` : '';
  const statusText = status === 0 ? '' : ` ${resultName(status)}`;
  process.stderr.write(
    `cuffi: ${name}${moved} ${(durationMs * 1000).toFixed(1)} us${statusText}\n`,
  );
};
