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
  state: PreconditionState,
): Implementation {
  const preconditions = new Preconditions(name, row, state);
  const call = (...given: readonly unknown[]): Status => preconditions.call(implementation, given);
  // So that a test can see which arguments it takes.
  return Object.defineProperty(call, 'length', { value: implementation.length });
}

/** What every call of a function must satisfy, by its row in the table of functions. */
class Preconditions {
  readonly #name: FunctionName;
  readonly #row: Row;
  readonly #state: PreconditionState;
  readonly #outParameters: readonly number[];
  readonly #uint64Parameters: ReadonlySet<number>;
  readonly #handleParameters: readonly (readonly [type: string, at: number])[];
  readonly #stream: HandleArgument | undefined;
  readonly #streamOrEvent: HandleArgument | undefined;

  constructor(name: FunctionName, row: Row, state: PreconditionState) {
    this.#name = name;
    this.#row = row;
    this.#state = state;
    const positions = (is: (c: string) => boolean): number[] =>
      row.params.flatMap(({ c }, at) => (is(c) ? [at] : []));
    this.#outParameters = positions(isOutValue);
    this.#uint64Parameters = new Set(positions(is64BitValue));
    this.#handleParameters = positions(isHandle).map((at) => [(row.params[at] as CType).c, at]);
    this.#stream = findHandleArgument(row, ['CUstream'], state.host);
    this.#streamOrEvent = findHandleArgument(row, ['CUstream', 'CUevent'], state.host);
  }

  /** Calls the function if nothing prevents it. */
  call(implementation: Implementation, given: readonly unknown[]): Status {
    const { host, queues } = this.#state;
    const name = this.#name;
    const args = given.map((arg, at) =>
      typeof arg === 'bigint' && !this.#uint64Parameters.has(at) ? Number(arg) : arg,
    ) as number[];
    const refusal = this.#refusalOf(args);
    if (refusal !== undefined) return refusal;
    queues.currentCall = name;
    const answer = implementation(...(args as never[]));
    // Work that ran during the call may have failed the context.
    const isWell = answer === CUresult.CUDA_SUCCESS || answer === CUresult.CUDA_ERROR_NOT_READY;
    const unread = host.takeUnread();
    // What is asked for and not emulated would seem to work.
    if (isWell && unread.length > 0)
      throw new Error(`${name} of the emulated driver does not know ${unread.join('; ')}`);
    return isWell && !ALLOWED_ON_FAILED.has(name) ? this.#failureOf(args) || answer : answer;
  }

  /** The status of a call that does not reach the function; undefined for any other. */
  #refusalOf(args: readonly number[]): Status | undefined {
    const { handles, faults, isInitialised } = this.#state;
    const name = this.#name;
    const fault = faults(name);
    if (fault !== undefined) return fault;
    if (!ALLOWED_BEFORE_INIT.has(name) && !isInitialised())
      return CUresult.CUDA_ERROR_NOT_INITIALIZED;
    for (const [type, at] of this.#handleParameters)
      handles.assertNotDestroyed(name, type, args[at] as number);
    if (this.#stream) handles.assertNotDestroyed(name, 'CUstream', this.#stream.read(args));
    const status = this.#contextStatus(args) || this.#captureStatus(args);
    if (status !== CUresult.CUDA_SUCCESS) return status;
    return this.#outParameters.every((at) => this.#isWritable(args[at] as number))
      ? undefined
      : CUresult.CUDA_ERROR_INVALID_VALUE;
  }

  #isWritable(address: number): boolean {
    return address === 0 ? OPTIONAL_OUT.has(this.#name) : this.#state.host.isWritable(address);
  }

  #contextStatus(args: readonly number[]): Status {
    const { contexts } = this.#state;
    const { needs } = this.#row;
    const isNeeded =
      needs === 'context' ||
      (needs !== 'nothing' && (this.#stream?.read(args) ?? 0) <= LAST_DEFAULT_STREAM);
    if (ALLOWED_ON_DESTROYED.has(this.#name) && contexts.top) return CUresult.CUDA_SUCCESS;
    if (!isNeeded) return this.#failureOf(args);
    const { status } = contexts;
    return ALLOWED_ON_FAILED.has(this.#name) && status === contexts.top?.failure
      ? CUresult.CUDA_SUCCESS
      : status;
  }

  /** The failure of the context of the stream or event, or else of the required current context. */
  #failureOf(args: readonly number[]): Status {
    const { contexts, contextOf } = this.#state;
    const argument = this.#streamOrEvent;
    const handle = argument?.read(args) ?? 0;
    if (argument && handle > LAST_DEFAULT_STREAM)
      return contextOf(argument.type, handle)?.failure ?? CUresult.CUDA_SUCCESS;
    const isOfCurrent = argument !== undefined || this.#row.needs === 'context';
    return (isOfCurrent && contexts.top?.failure) || CUresult.CUDA_SUCCESS;
  }

  /** The status of a call that invalidates captures which it is not a part of. */
  #captureStatus(args: readonly number[]): Status {
    const { contexts, queues } = this.#state;
    const name = this.#name;
    const row = this.#row;
    if (queues.captures.size === 0) return CUresult.CUDA_SUCCESS;
    const { top } = contexts;
    const handle = this.#stream?.read(args);
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
    const isOutside = this.#streamOrEvent === undefined || (of !== undefined && !of.capture);
    const isBroken =
      (name === 'cuCtxSynchronize' &&
        queues.invalidateCaptures(({ context }) => context === top)) ||
      (row.isUnsafeInCapture && isOutside && queues.invalidateStrictCaptures());
    return isBroken ? CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUresult.CUDA_SUCCESS;
  }
}
