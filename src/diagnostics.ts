/**
 * What cuffi does, for programs that watch it by `node:diagnostics_channel`. Where nobody subscribes, nothing
 * of a message is computed.
 */
import { type Channel, channel, tracingChannel } from 'node:diagnostics_channel';

/** How many messages went one way, what they held, and what was shared with them. */
export interface Traffic {
  readonly messages: number;
  /** The bytes of the messages: plain data and the descriptions of objects. */
  readonly byteLength: number;
  /** How many GPU objects came with them. */
  readonly objects: number;
}

/** Counts the messages of one way. */
export class TrafficCounter {
  #messages = 0;
  #byteLength = 0;
  #objects = 0;

  add(byteLength: number, objects: number): void {
    this.#messages += 1;
    this.#byteLength += byteLength;
    this.#objects += objects;
  }

  get counts(): Traffic {
    return { messages: this.#messages, byteLength: this.#byteLength, objects: this.#objects };
  }
}

/** The messages of cuffi's channels of `node:diagnostics_channel`, by the channel's name. */
export interface DiagnosticMessages {
  /** A message was sent to another process, or is queued for it. */
  'cuffi:peer:send': PeerMessage & {
    /** The kinds of its GPU objects, such as `memory`, and how much memory they are. */
    readonly kinds: readonly string[];
    readonly sharedByteLength: number;
  };
  /** A message of another process has arrived. */
  'cuffi:peer:receive': PeerMessage;
  /** Another process gets an object of this one, which keeps it until then. */
  'cuffi:lease:begin': LeaseMessage;
  'cuffi:lease:end': LeaseMessage & { readonly durationMs: number };
  /** A message of a channel was published, received or released. `channel` is that end of it. */
  'cuffi:channel:publish': SlotMessage;
  'cuffi:channel:receive': SlotMessage;
  'cuffi:channel:release': SlotMessage;
  /** Something is awaited that is not there yet: the GPU, another process, a slot. */
  'cuffi:wait:begin': { readonly operation: string };
  'cuffi:wait:end': { readonly operation: string; readonly durationMs: number };
  /** A task of a pool waits for a process, a process takes it, and it is over. */
  'cuffi:pool:task:queue': { readonly queueSize: number };
  'cuffi:pool:task:begin': TaskMessage;
  'cuffi:pool:task:end': TaskMessage & { readonly durationMs: number; readonly error: unknown };
  /** A process of a pool was started, serves, and has ended. */
  'cuffi:pool:worker:start': WorkerMessage;
  'cuffi:pool:worker:serve': WorkerMessage;
  'cuffi:pool:worker:end': WorkerMessage & { readonly reason: unknown };
}

interface PeerMessage {
  /** The other process; 0 if it is of another pid namespace. */
  readonly pid: number;
  readonly type:
    | 'value'
    | 'request'
    | 'response'
    | 'failure'
    | 'verification'
    | 'cancellation'
    | 'unserved';
  readonly byteLength: number;
  /** How many GPU objects it has. */
  readonly objects: number;
}

interface LeaseMessage {
  /** The process that has the object. */
  readonly pid: number;
  readonly kind: string;
  readonly byteLength: number;
}

interface SlotMessage {
  readonly channel: object;
  /** The number of the message, from 0. */
  readonly message: number;
  readonly byteLength: number;
}

interface TaskMessage {
  /** Which process of the pool has it. */
  readonly index: number;
  readonly pid: number | undefined;
  /** How many tasks wait behind it. */
  readonly queueSize: number;
  /** How long it has waited for a process. */
  readonly waitedMs: number;
}

interface WorkerMessage {
  readonly index: number;
  readonly pid: number | undefined;
  /** The UUID of its GPU. */
  readonly device: string;
}

/** The context of the tracing channel `cuffi.request`, as of `node:diagnostics_channel`. */
export interface RequestTrace {
  /** The process that is asked. */
  readonly pid: number;
  /** The answer, in `asyncEnd`. */
  result?: unknown;
  /** Why the request has failed, in `error`. */
  error?: unknown;
}

/** One channel. */
class Diagnostic<N extends keyof DiagnosticMessages> {
  readonly #channel: Channel;

  constructor(name: N) {
    this.#channel = channel(name);
  }

  /** Whether somebody subscribes. If not, make no message. */
  get isOn(): boolean {
    return this.#channel.hasSubscribers;
  }

  publish(message: DiagnosticMessages[N]): void {
    this.#channel.publish(message);
  }
}

export const diagnostics = {
  peerSend: new Diagnostic('cuffi:peer:send'),
  peerReceive: new Diagnostic('cuffi:peer:receive'),
  leaseBegin: new Diagnostic('cuffi:lease:begin'),
  leaseEnd: new Diagnostic('cuffi:lease:end'),
  channelPublish: new Diagnostic('cuffi:channel:publish'),
  channelReceive: new Diagnostic('cuffi:channel:receive'),
  channelRelease: new Diagnostic('cuffi:channel:release'),
  waitBegin: new Diagnostic('cuffi:wait:begin'),
  waitEnd: new Diagnostic('cuffi:wait:end'),
  taskQueue: new Diagnostic('cuffi:pool:task:queue'),
  taskBegin: new Diagnostic('cuffi:pool:task:begin'),
  taskEnd: new Diagnostic('cuffi:pool:task:end'),
  workerStart: new Diagnostic('cuffi:pool:worker:start'),
  workerServe: new Diagnostic('cuffi:pool:worker:serve'),
  workerEnd: new Diagnostic('cuffi:pool:worker:end'),
} as const;

const requests = tracingChannel<unknown, RequestTrace>('cuffi.request');
const requestChannels = [
  requests.start,
  requests.end,
  requests.asyncStart,
  requests.asyncEnd,
  requests.error,
];

/** Makes a request, and traces it if somebody subscribes to `cuffi.request`. */
export function traceRequest<T>(pid: number, make: () => Promise<T>): Promise<T> {
  if (!requestChannels.some(({ hasSubscribers }) => hasSubscribers)) return make();
  return requests.tracePromise(make, { pid });
}

/** Whether somebody subscribes to waits. */
export const areWaitsNoted = (): boolean => diagnostics.waitBegin.isOn || diagnostics.waitEnd.isOn;

/**
 * Says that a wait has begun, if somebody subscribes. Returns a function to call at its end; undefined if nobody
 * does.
 */
export function noteWait(operation: string): (() => void) | undefined {
  if (!areWaitsNoted()) return undefined;
  const since = performance.now();
  diagnostics.waitBegin.publish({ operation });
  return () => diagnostics.waitEnd.publish({ operation, durationMs: performance.now() - since });
}
