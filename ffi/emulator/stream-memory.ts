/** Stream memory operations: cuStreamWriteValue and cuStreamWaitValue. */
import {
  CU_STREAM_WAIT_VALUE_AND,
  CU_STREAM_WAIT_VALUE_EQ,
  CU_STREAM_WAIT_VALUE_GEQ,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Context } from './context.ts';
import type { Memory } from './memory.ts';
import type { StreamQueues } from './stream-queues.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE } = CUresult;

const COMPARISON = 0x3;
const CU_STREAM_WAIT_VALUE_FLUSH = 0x4000_0000;
const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1;

/** Whether a word of `bits` bits ends a wait for `value`. */
function satisfiesWait(word: bigint, value: bigint, bits: number, comparison: number): boolean {
  switch (comparison) {
    // Cyclic and signed: a counter may wrap around.
    case CU_STREAM_WAIT_VALUE_GEQ:
      return BigInt.asIntN(bits, word - value) >= 0n;
    case CU_STREAM_WAIT_VALUE_EQ:
      return BigInt.asUintN(bits, word - value) === 0n;
    case CU_STREAM_WAIT_VALUE_AND:
      return BigInt.asUintN(bits, word & value) !== 0n;
    default:
      return BigInt.asUintN(bits, ~(word | value)) !== 0n;
  }
}

type StreamMemoryFunctions = Pick<
  Driver,
  | 'cuStreamWaitValue32_v2'
  | 'cuStreamWriteValue32_v2'
  | 'cuStreamWaitValue64_v2'
  | 'cuStreamWriteValue64_v2'
>;

export function streamMemoryFunctions(queues: StreamQueues, memory: Memory): StreamMemoryFunctions {
  // As on hardware, memory of pools and managed memory are refused.
  const isWord = (address: number, byteLength: number, context: Context): boolean => {
    const kind = memory.regions.at(address)?.kind;
    const isRefused =
      kind === 'pool' || kind === 'managed' || memory.isInaccessible(address, context);
    const isAligned = address % byteLength === 0;
    return !isRefused && isAligned && memory.canWrite(address, byteLength, context.device);
  };

  const load = (address: number, byteLength: number): bigint | undefined => {
    if (byteLength === 8) return memory.load64(address);
    const word = memory.load(address);
    return word === undefined ? undefined : BigInt(word);
  };

  const wait = (
    handle: number,
    address: number,
    value: number | bigint,
    flags: number,
    byteLength: 4 | 8,
  ): Status => {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const { device } = stream.context;
    const isFlagged = (flags & ~(COMPARISON | CU_STREAM_WAIT_VALUE_FLUSH)) !== 0;
    if (isFlagged || !isWord(address, byteLength, stream.context)) return CUDA_ERROR_INVALID_VALUE;
    const work = (): boolean => {
      const word = memory.canStillRead(address, byteLength, device)
        ? load(address, byteLength)
        : undefined;
      if (word !== undefined)
        return satisfiesWait(word, BigInt(value), byteLength * 8, flags & COMPARISON);
      queues.failContext(stream);
      return true;
    };
    queues.enqueue(stream, work, 'wait');
    return CUDA_SUCCESS;
  };

  const write = (
    handle: number,
    address: number,
    value: number | bigint,
    flags: number,
    byteLength: 4 | 8,
  ): Status => {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const { device } = stream.context;
    const isFlagged = (flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) !== 0;
    if (isFlagged || !isWord(address, byteLength, stream.context)) return CUDA_ERROR_INVALID_VALUE;
    const work = (): boolean => {
      if (!memory.canStillWrite(address, byteLength, device)) queues.failContext(stream);
      else if (byteLength === 8) memory.store64(address, BigInt(value));
      else memory.store(address, Number(value));
      return true;
    };
    queues.enqueue(stream, work, 'value');
    return CUDA_SUCCESS;
  };

  return {
    cuStreamWaitValue32_v2: (stream, at, value, flags) => wait(stream, at, value, flags, 4),
    cuStreamWriteValue32_v2: (stream, at, value, flags) => write(stream, at, value, flags, 4),
    cuStreamWaitValue64_v2: (stream, at, value, flags) => wait(stream, at, value, flags, 8),
    cuStreamWriteValue64_v2: (stream, at, value, flags) => write(stream, at, value, flags, 8),
  };
}
