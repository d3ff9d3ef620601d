/** What is checked before a call gets to its room: initialisation, context, out-values. */

import { CU_STREAM_LEGACY } from '../constants.ts';
import type { FunctionName, Row } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { structs } from '../structs.ts';
import type { CType } from '../types.ts';
import type { Context, Contexts } from './context.ts';
import type { Faults } from './faults.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host.ts';
import { isBlocking, type Queues, type Stream } from './queues.ts';

/** What may be called before cuInit. */
const BEFORE_INIT: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuInit',
  'cuDriverGetVersion',
  'cuGetErrorString',
]);

/** Out-values that may be null where the caller does not want them. */
const OPTIONAL_OUT: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemGetAddressRange_v2',
  'cuModuleGetGlobal_v2',
  'cuCtxGetStreamPriorityRange',
  'cuCtxPopCurrent_v2',
]);

/** What works on a destroyed context too: it must be possible to leave one. */
const ON_DESTROYED: ReadonlySet<FunctionName> = new Set<FunctionName>(['cuCtxPopCurrent_v2']);

/** What works in a context that a kernel has ended. */
const ON_FAILED: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuCtxPopCurrent_v2',
  'cuCtxGetDevice',
]);

/** What works in the legacy stream though it names none. */
const IN_LEGACY: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemcpyHtoD_v2',
  'cuMemcpyDtoH_v2',
  'cuMemcpy2DUnaligned_v2',
  'cuMemcpy3D_v2',
]);

/** What tells of a stream, and neither queues in it nor asks how far it is. */
const ABOUT_STREAM: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuStreamBeginCapture_v2',
  'cuStreamEndCapture',
  'cuStreamGetFlags',
  'cuStreamGetPriority',
  'cuStreamGetCtx',
]);

/** What tells of a capture, and does not end it. */
const ABOUT_CAPTURE: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuStreamIsCapturing',
  'cuStreamGetCaptureInfo_v2',
]);

/** What ends a capture that is not relaxed, as it may have work done at once. */
const UNSAFE_IN_CAPTURE: ReadonlySet<FunctionName> = new Set<FunctionName>([
  'cuMemAlloc_v2',
  'cuMemAllocPitch_v2',
  'cuMemFree_v2',
  'cuMemHostAlloc',
  'cuMemFreeHost',
]);

const LAST_DEFAULT_STREAM = 2;
const STREAM_OF_LAUNCH = structs.CUlaunchConfig.fields.hStream[0];

interface State {
  readonly contexts: Contexts;
  readonly handles: Handles;
  readonly host: HostMemory;
  readonly faults: Faults;
  readonly queues: Queues;
  readonly isInitialised: () => boolean;
  /** The context of a stream or an event, by the name of its type. */
  readonly contextOf: (type: string, handle: number) => Context | undefined;
}

type Implementation = (...args: never[]) => Status;

// What is behind `const T *` is read, and what is behind `void *` the room itself knows.
const isOutValue = (c: string): boolean =>
  c.endsWith(' *') && !/^(const \w+|void|CUjit_option) \*$/.test(c);

/** A handle that a call names, by its type: an argument, or the stream in the struct behind one. */
interface Named {
  readonly type: string;
  readonly of: (args: readonly number[]) => number;
}

/** The first handle of those types, if there is one. */
function namedBy({ params }: Row, types: readonly string[], host: HostMemory): Named | undefined {
  const at = params.findIndex(({ c }) => types.includes(c));
  if (at >= 0) return { type: (params[at] as CType).c, of: (args) => args[at] as number };
  const config = params.findIndex(({ c }) => c === 'const CUlaunchConfig *');
  if (config < 0) return undefined;
  const of = (args: readonly number[]): number =>
    Number(host.getUint64((args[config] as number) + STREAM_OF_LAUNCH) ?? 0);
  return { type: 'CUstream', of };
}

const isHandle = (c: string): boolean => c.startsWith('CU') && !c.endsWith('*');

const is64BitValue = (c: string): boolean => c === 'cuuint64_t';

/** `implementation`, reached only by calls that may be made. */
export function guarded(
  name: FunctionName,
  row: Row,
  implementation: Implementation,
  { contexts, handles, host, faults, queues, isInitialised, contextOf }: State,
): Implementation {
  const outs = row.params.flatMap((param, at) => (isOutValue(param.c) ? [at] : []));
  const wide = new Set(row.params.flatMap((param, at) => (is64BitValue(param.c) ? [at] : [])));
  const isOptional = OPTIONAL_OUT.has(name);
  const stream = namedBy(row, ['CUstream'], host);
  const owned = namedBy(row, ['CUstream', 'CUevent'], host);
  const named = row.params.flatMap(({ c }, at) => (isHandle(c) ? [[c, at] as const] : []));
  const needsInit = !BEFORE_INIT.has(name);

  const contextStatus = (args: readonly number[]): Status => {
    const isNeeded =
      row.needs === 'context' ||
      (row.needs !== 'nothing' && (stream?.of(args) ?? 0) <= LAST_DEFAULT_STREAM);
    if (ON_DESTROYED.has(name) && contexts.top) return CUresult.CUDA_SUCCESS;
    if (!isNeeded) return failureOf(args);
    const { status } = contexts;
    return ON_FAILED.has(name) && status === contexts.top?.failure ? CUresult.CUDA_SUCCESS : status;
  };
  /** What ended the context of the stream or event that is named, or else that is needed. */
  const failureOf = (args: readonly number[]): Status => {
    const handle = owned?.of(args) ?? 0;
    if (owned && handle > LAST_DEFAULT_STREAM)
      return contextOf(owned.type, handle)?.failure ?? CUresult.CUDA_SUCCESS;
    const isOfCurrent = owned !== undefined || row.needs === 'context';
    return (isOfCurrent && contexts.top?.failure) || CUresult.CUDA_SUCCESS;
  };
  /** What a call does to captures that it is not a part of. */
  const captureStatus = (args: readonly number[]): Status => {
    if (queues.captures.size === 0) return CUresult.CUDA_SUCCESS;
    const { top } = contexts;
    const handle = stream?.of(args);
    const isInLegacy =
      IN_LEGACY.has(name) ||
      (handle !== undefined && handle <= CU_STREAM_LEGACY && !ABOUT_STREAM.has(name));
    if (isInLegacy) {
      const isBehind = (other: Stream): boolean => other.context === top && isBlocking(other);
      const isCaptured = ABOUT_CAPTURE.has(name)
        ? [...queues.captures].some((capture) => capture.has(isBehind))
        : queues.breaksAll(isBehind);
      if (isCaptured) return CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const isBroken =
      (name === 'cuCtxSynchronize' && queues.breaksAll(({ context }) => context === top)) ||
      (UNSAFE_IN_CAPTURE.has(name) && queues.breaksStrict());
    return isBroken ? CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUresult.CUDA_SUCCESS;
  };
  const isWritable = (address: number): boolean =>
    address === 0 ? isOptional : host.isWritable(address);

  return (...given: readonly unknown[]) => {
    const args = given.map((arg, at) =>
      typeof arg === 'bigint' && !wide.has(at) ? Number(arg) : arg,
    ) as number[];
    const fault = faults(name);
    if (fault !== undefined) return fault;
    if (needsInit && !isInitialised()) return CUresult.CUDA_ERROR_NOT_INITIALIZED;
    for (const [type, at] of named) handles.refuseDestroyed(name, type, args[at] as number);
    if (stream) handles.refuseDestroyed(name, 'CUstream', stream.of(args));
    const status = contextStatus(args);
    if (status !== CUresult.CUDA_SUCCESS) return status;
    const captured = captureStatus(args);
    if (captured !== CUresult.CUDA_SUCCESS) return captured;
    if (!outs.every((at) => isWritable(args[at] as number)))
      return CUresult.CUDA_ERROR_INVALID_VALUE;
    queues.call = name;
    const answer = implementation(...(args as never[]));
    // What was waited for in the call may have ended the context.
    const isWell = answer === CUresult.CUDA_SUCCESS || answer === CUresult.CUDA_ERROR_NOT_READY;
    return isWell && !ON_FAILED.has(name) ? failureOf(args) || answer : answer;
  };
}
