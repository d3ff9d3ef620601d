/** Checks before each call: injected faults, initialisation, context, captures, out-values. */

import { CU_STREAM_LEGACY } from '../constants.ts';
import type { FunctionName, Row } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { structs } from '../structs.ts';
import type { CType } from '../types.ts';
import type { Context, Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { FaultInjector } from './settings.ts';
import { isBlocking, type Stream, type StreamQueues } from './stream-queues.ts';

/** Functions that may be called before cuInit. */
const ALLOWED_BEFORE_INIT: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuInit',
  'cuDriverGetVersion',
  'cuGetErrorString',
]);

/** Functions with optional out-values, which may be null. */
const OPTIONAL_OUT: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemGetAddressRange_v2',
  'cuModuleGetGlobal_v2',
  'cuCtxGetStreamPriorityRange',
  'cuCtxPopCurrent_v2',
]);

/** Functions that work with a destroyed current context: it must be possible to pop it. */
const ALLOWED_ON_DESTROYED: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuCtxPopCurrent_v2',
]);

/** Functions that work in a failed context. */
const ALLOWED_ON_FAILED: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuCtxPopCurrent_v2',
  'cuCtxGetDevice',
]);

/** Functions that use the legacy stream without a stream parameter. */
const USES_LEGACY_STREAM: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemcpyHtoD_v2',
  'cuMemcpyDtoH_v2',
  'cuMemcpy2DUnaligned_v2',
  'cuMemcpy3D_v2',
]);

/** Functions of a stream that neither queue work nor query progress. */
const QUERIES_STREAM: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuStreamBeginCapture_v2',
  'cuStreamEndCapture',
  'cuStreamGetFlags',
  'cuStreamGetPriority',
  'cuStreamGetCtx',
  'cuStreamDestroy_v2',
]);

/** Functions that query a capture without invalidating it. */
const QUERIES_CAPTURE: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuStreamIsCapturing',
  'cuStreamGetCaptureInfo_v2',
]);

const LAST_DEFAULT_STREAM = 2;
const LAUNCH_STREAM_OFFSET = structs.CUlaunchConfig.fields.hStream[0];

interface PreconditionState {
  readonly contexts: Contexts;
  readonly handles: Handles;
  readonly host: HostMemory;
  readonly faults: FaultInjector;
  readonly queues: StreamQueues;
  readonly isInitialised: () => boolean;
  /** The context of a stream or an event, by the name of its type. */
  readonly contextOf: (type: string, handle: number) => Context | undefined;
}

type Implementation = (...args: never[]) => Status;

// `const T *` is an input. The function itself checks `void *`.
const isOutValue = (c: string): boolean =>
  c.endsWith(' *') && !/^(const \w+|void|CUjit_option) \*$/.test(c);

/** A handle among the arguments: an argument itself, or the stream in a launch configuration. */
interface HandleArgument {
  readonly type: string;
  readonly read: (args: readonly number[]) => number;
}

/** The first handle of the given types, if there is one. */
function findHandleArgument(
  { params }: Row,
  types: readonly string[],
  host: HostMemory,
): HandleArgument | undefined {
  const at = params.findIndex(({ c }) => types.includes(c));
  if (at >= 0) return { type: (params[at] as CType).c, read: (args) => args[at] as number };
  const config = params.findIndex(({ c }) => c === 'const CUlaunchConfig *');
  if (config < 0) return undefined;
  const read = (args: readonly number[]): number =>
    Number(host.getUint64((args[config] as number) + LAUNCH_STREAM_OFFSET) ?? 0);
  return { type: 'CUstream', read };
}

const isHandle = (c: string): boolean => c.startsWith('CU') && !c.endsWith('*');

const is64BitValue = (c: string): boolean => c === 'cuuint64_t';

/** Wraps `implementation` so that only valid calls reach it. */
export function withPreconditions(
  name: FunctionName,
  row: Row,
  implementation: Implementation,
  { contexts, handles, host, faults, queues, isInitialised, contextOf }: PreconditionState,
): Implementation {
  const outParameters = row.params.flatMap((param, at) => (isOutValue(param.c) ? [at] : []));
  const uint64Parameters = new Set(
    row.params.flatMap((param, at) => (is64BitValue(param.c) ? [at] : [])),
  );
  const isOptional = OPTIONAL_OUT.has(name);
  const stream = findHandleArgument(row, ['CUstream'], host);
  const streamOrEvent = findHandleArgument(row, ['CUstream', 'CUevent'], host);
  const handleParameters = row.params.flatMap(({ c }, at) =>
    isHandle(c) ? [[c, at] as const] : [],
  );
  const needsInit = !ALLOWED_BEFORE_INIT.has(name);

  const contextStatus = (args: readonly number[]): Status => {
    const isNeeded =
      row.needs === 'context' ||
      (row.needs !== 'nothing' && (stream?.read(args) ?? 0) <= LAST_DEFAULT_STREAM);
    if (ALLOWED_ON_DESTROYED.has(name) && contexts.top) return CUresult.CUDA_SUCCESS;
    if (!isNeeded) return failureOf(args);
    const { status } = contexts;
    return ALLOWED_ON_FAILED.has(name) && status === contexts.top?.failure
      ? CUresult.CUDA_SUCCESS
      : status;
  };
  /** The failure of the context of the stream or event, or else of the required current context. */
  const failureOf = (args: readonly number[]): Status => {
    const handle = streamOrEvent?.read(args) ?? 0;
    if (streamOrEvent && handle > LAST_DEFAULT_STREAM)
      return contextOf(streamOrEvent.type, handle)?.failure ?? CUresult.CUDA_SUCCESS;
    const isOfCurrent = streamOrEvent !== undefined || row.needs === 'context';
    return (isOfCurrent && contexts.top?.failure) || CUresult.CUDA_SUCCESS;
  };
  /** The status of a call that invalidates captures which it is not a part of. */
  const captureStatus = (args: readonly number[]): Status => {
    if (queues.captures.size === 0) return CUresult.CUDA_SUCCESS;
    const { top } = contexts;
    const handle = stream?.read(args);
    const isInLegacy =
      USES_LEGACY_STREAM.has(name) ||
      (handle !== undefined && handle <= CU_STREAM_LEGACY && !QUERIES_STREAM.has(name));
    if (isInLegacy) {
      const isBehind = (other: Stream): boolean => other.context === top && isBlocking(other);
      const isCaptured = QUERIES_CAPTURE.has(name)
        ? [...queues.captures].some((capture) => capture.includesStream(isBehind))
        : queues.invalidateCaptures(isBehind);
      if (isCaptured) return CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const of = handle === undefined ? undefined : queues.get(handle);
    if (of?.capture && row.isNeverCaptured) {
      queues.invalidateCapture(of);
      return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (of?.capture?.isInvalid && !QUERIES_STREAM.has(name) && !QUERIES_CAPTURE.has(name))
      return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    // Functions of events tell the captured ones from others first. Those of unknown streams are wrong.
    const isOutside = streamOrEvent === undefined || (of !== undefined && !of.capture);
    const isBroken =
      (name === 'cuCtxSynchronize' &&
        queues.invalidateCaptures(({ context }) => context === top)) ||
      (row.isUnsafeInCapture && isOutside && queues.invalidateStrictCaptures());
    return isBroken ? CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUresult.CUDA_SUCCESS;
  };
  const isWritable = (address: number): boolean =>
    address === 0 ? isOptional : host.isWritable(address);

  const call = (...given: readonly unknown[]): Status => {
    const args = given.map((arg, at) =>
      typeof arg === 'bigint' && !uint64Parameters.has(at) ? Number(arg) : arg,
    ) as number[];
    const fault = faults(name);
    if (fault !== undefined) return fault;
    if (needsInit && !isInitialised()) return CUresult.CUDA_ERROR_NOT_INITIALIZED;
    for (const [type, at] of handleParameters)
      handles.assertNotDestroyed(name, type, args[at] as number);
    if (stream) handles.assertNotDestroyed(name, 'CUstream', stream.read(args));
    const status = contextStatus(args);
    if (status !== CUresult.CUDA_SUCCESS) return status;
    const captured = captureStatus(args);
    if (captured !== CUresult.CUDA_SUCCESS) return captured;
    if (!outParameters.every((at) => isWritable(args[at] as number)))
      return CUresult.CUDA_ERROR_INVALID_VALUE;
    queues.currentCall = name;
    const answer = implementation(...(args as never[]));
    // Work that ran during the call may have failed the context.
    const isWell = answer === CUresult.CUDA_SUCCESS || answer === CUresult.CUDA_ERROR_NOT_READY;
    const unread = host.takeUnread();
    // What is asked for and not emulated would seem to work.
    if (isWell && unread.length > 0)
      throw new Error(`${name} of the emulated driver does not know ${unread.join('; ')}`);
    return isWell && !ALLOWED_ON_FAILED.has(name) ? failureOf(args) || answer : answer;
  };
  // So that a test can see which arguments it takes.
  return Object.defineProperty(call, 'length', { value: implementation.length });
}
