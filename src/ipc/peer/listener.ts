import { closeSync, openSync } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isShortage } from '../../../ffi/linux/libc.ts';
import { readable } from '../../../ffi/linux/poll.ts';
import {
  acceptSocket,
  closeListener,
  closeSocket,
  peerCredentials,
} from '../../../ffi/linux/socket.ts';
import { UNCLONEABLE } from '../../conversions.ts';
import { addCallers, checkDeadline, type WaitOptions, withDeadline } from '../../deadline.ts';
import { ClosedError } from '../../errors.ts';
import type { Details } from '../../inspect.ts';
import { Resource } from '../../lifetime.ts';
import { isTurnDue, nextLoopIteration } from '../../poller.ts';
import { assertInternal, checkOptions, formatValue } from '../../validate.ts';
import { noteFirstUse } from '../first-use.ts';
import {
  allowsOtherUsers,
  checkTrust,
  isTrusted,
  type PeerCredentials,
  type TrustOptions,
  trustOptionNames,
} from './credentials.ts';
import { Peer } from './peer.ts';
import {
  assertCanConnect,
  checkPeerOptions,
  type PeerOptions,
  peerOptionNames,
} from './peer-options.ts';
import type { Anything } from './sendable.ts';
import {
  type BoundSocket,
  isPlainName,
  listenAt,
  socketName,
  sweepDeadSockets,
} from './socket-file.ts';

/** Options of {@link listen}. */
export interface ListenOptions extends TrustOptions, PeerOptions {}

/**
 * Listens for processes that are not children of this one, under a name for `connect`.
 *
 * `'name'` is a socket in a directory that only this user can access: `$XDG_RUNTIME_DIR/cuffi`, or
 * `cuffi-UID` in the temporary directory. `'/a/path'` is a socket at that path. `'@name'` is a
 * socket without a file, to which anyone in the network namespace may connect. A relative path is
 * resolved now.
 *
 * Processes of other users are refused unless the options allow them. The file of a socket belongs
 * to this user (mode 0600) unless the options allow others (mode 0666). Sockets that killed
 * processes left at this path are removed; for a plain name, at every plain name.
 *
 * @throws NotSupportedError in Bun and Deno
 * @throws IpcError if another process listens there already, or the name cannot be used
 * @throws RangeError for a name above 107 bytes
 * @example
 * using listener = listen('render');
 * for await (const peer of listener) void serve(peer);
 */
export function listen<Receives = unknown, Sends = Anything>(
  name: string,
  options?: ListenOptions,
): Listener<Receives, Sends> {
  assertCanConnect('listen');
  const { busyPollUs, requestTimeoutMs, orphanGraceMs, ...rest } = checkOptions(
    options,
    [...trustOptionNames, ...peerOptionNames],
    'listen',
  );
  const trust = checkTrust(rest);
  const init = checkPeerOptions({ busyPollUs, requestTimeoutMs, orphanGraceMs });
  if (typeof name !== 'string')
    throw new TypeError(`the name to listen at must be a string, not ${formatValue(name)}`);
  if (isPlainName(name) && trust.allowOtherUsers)
    throw new TypeError(
      `other users cannot reach ${JSON.stringify(name)}, which is in a directory of this user ` +
        "alone: give a path, or an abstract name ('@…')",
    );
  const path = socketName(name);
  if (isPlainName(name)) sweepDeadSockets(dirname(path));
  const mode = allowsOtherUsers(trust) && !isPlainName(name) ? 0o666 : 0o600;
  return new Listener(path, listenAt(path, mode), trust, init);
}

/**
 * The interval of retries while no descriptor is left. The kernel does not report when there is
 * one.
 */
const RETRY_MS = 20;
/** The minimum time between two warnings. */
const WARNING_MS = 10_000;

/** A name to which processes connect. Each connection is a {@link Peer}. */
export class Listener<Receives = unknown, Sends = Anything>
  extends Resource
  implements AsyncIterable<Peer<Receives, Sends>>
{
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  /** The absolute path or the abstract name of the socket. */
  readonly name: string;
  readonly #fd: number;
  readonly #trust: TrustOptions;
  readonly #init: PeerOptions;
  readonly #closing: AbortController;
  readonly #spare: SpareDescriptor;
  readonly #shortage: ShortageWarning;
  /** Calls of `accept` run one after the other, so that only one watches the socket. */
  #lastAccept: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(name: string, socket: BoundSocket, trust: TrustOptions, init: PeerOptions) {
    assertInternal(socket, Object, 'Listener', 'listen');
    const closing = new AbortController();
    const spare = new SpareDescriptor();
    super('Listener', {
      release() {
        closing.abort();
        spare.close();
        closeListener(socket.fd);
        socket.unlink();
      },
    });
    this.name = name;
    this.#fd = socket.fd;
    this.#trust = trust;
    this.#init = init;
    this.#closing = closing;
    this.#spare = spare;
    this.#shortage = new ShortageWarning(name);
    noteFirstUse();
  }

  /**
   * Waits for the next process that connects. Processes that are not allowed are refused meanwhile.
   * Waiting keeps the process alive. While no file descriptor is left, connecting processes are
   * refused as well, with a warning (code `CUFFI_REFUSED`).
   *
   * @throws ClosedError if the listener is closed
   * @throws what `allow` throws; that process is refused
   */
  async accept(options?: WaitOptions): Promise<Peer<Receives, Sends>> {
    const deadline = checkDeadline(options, 'listener.accept');
    this.assertOpen();
    const canceled = new AbortController();
    try {
      return await withDeadline<Peer<Receives, Sends>>(
        deadline,
        `waiting at ${this.name} for a process that calls connect()`,
        (resolve, reject) => {
          const accepted = this.#lastAccept.then(() => this.#accept(canceled.signal));
          this.#lastAccept = accepted.catch(() => {});
          // If the wait was aborted at the moment of the connection, nobody takes the peer.
          accepted.then((peer) => (canceled.signal.aborted ? peer.close() : resolve(peer)), reject);
          return () => canceled.abort();
        },
      );
    } catch (error) {
      if (error instanceof ClosedError) addCallers(error);
      throw error;
    }
  }

  /** Iterates over the processes that connect, until `close()`. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Peer<Receives, Sends>, void, undefined> {
    while (!this.closed) {
      let peer: Peer<Receives, Sends>;
      try {
        peer = await this.accept();
      } catch (error) {
        if (this.closed) return;
        throw error;
      }
      yield peer;
    }
  }

  /** @internal */
  protected override describe(): Details {
    return [this.name];
  }

  async #accept(canceled: AbortSignal): Promise<Peer<Receives, Sends>> {
    for (;;) {
      canceled.throwIfAborted();
      this.assertOpen();
      if (isTurnDue()) {
        await nextLoopIteration();
        continue;
      }
      const result = this.#acceptOne();
      if (result instanceof Peer) return result as Peer<Receives, Sends>;
      if (result === 'nobody') await this.#wait(canceled, (signal) => this.#readable(signal));
      if (result === 'too few') await this.#wait(canceled, pause);
    }
  }

  /**
   * Accepts one pending connection. Returns 'refused' if the process is not allowed or no
   * descriptor is left for it. Returns 'too few' if it stays pending because not even refusing it
   * is possible.
   */
  #acceptOne(): Peer | 'refused' | 'nobody' | 'too few' {
    const socket = this.#acceptOrRefuse();
    if (typeof socket !== 'number') return socket;
    const credentials = this.#admit(socket);
    if (!credentials) return 'refused';
    try {
      return new Peer(socket, credentials, this.#init);
    } catch (error) {
      if (!isShortage(error)) throw error;
      this.#shortage.warn(error);
      return 'refused';
    }
  }

  #acceptOrRefuse(): number | 'refused' | 'nobody' | 'too few' {
    try {
      return acceptSocket(this.#fd) ?? 'nobody';
    } catch (error) {
      if (!isShortage(error)) throw error;
      // The error is the same if no connection is pending.
      const instead = this.#spare.releaseWhile(() => refuseOne(this.#fd));
      if (instead !== 'nobody') this.#shortage.warn(error);
      return instead;
    }
  }

  /**
   * Returns the credentials of an allowed process. Otherwise, or if `allow` throws, closes the
   * socket.
   */
  #admit(socket: number): PeerCredentials | undefined {
    let isAdmitted = false;
    try {
      const credentials = peerCredentials(socket);
      isAdmitted = isTrusted(credentials, this.#trust);
      return isAdmitted ? credentials : undefined;
    } finally {
      if (!isAdmitted) closeSocket(socket);
    }
  }

  /** Resolves when a connection is pending, or may be. */
  async #readable(signal: AbortSignal): Promise<void> {
    try {
      await readable(this.#fd, { signal });
    } catch (error) {
      if (!isShortage(error)) throw error;
      await pause(signal);
    }
  }

  /**
   * Waits for the promise of `begin`, at most until the call is canceled or the listener is closed.
   */
  async #wait(canceled: AbortSignal, begin: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const either = new AbortController();
    const abort = (): void => either.abort();
    const stop = { signal: either.signal };
    canceled.addEventListener('abort', abort, stop);
    this.#closing.signal.addEventListener('abort', abort, stop);
    try {
      await begin(either.signal);
    } catch (error) {
      // The caller checks which of the two it was.
      if (!either.signal.aborted) throw error;
    } finally {
      either.abort();
    }
  }
}

/** A descriptor that is reserved for the moment when no other is left. */
class SpareDescriptor {
  #fd: number | undefined;

  constructor() {
    this.#open();
  }

  /** Runs `use` while the reserved descriptor is free. `use` must close what it opens. */
  releaseWhile<T>(use: () => T): T {
    this.close();
    try {
      return use();
    } finally {
      this.#open();
    }
  }

  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }

  #open(): void {
    try {
      this.#fd = openSync('/dev/null', 'r');
    } catch {
      // Another thread took the descriptor. The next use tries again.
    }
  }
}

/** Warns from time to time that processes cannot connect. */
class ShortageWarning {
  readonly #name: string;
  #last = Number.NEGATIVE_INFINITY;

  constructor(name: string) {
    this.#name = name;
  }

  warn(error: Error): void {
    const now = performance.now();
    if (now - this.#last < WARNING_MS) return;
    this.#last = now;
    process.emitWarning(
      `processes that connect to ${this.#name} are refused while this process cannot open ` +
        `descriptors (${error.message}): close what is not needed, or raise its limit (ulimit -n)`,
      { code: 'CUFFI_REFUSED' },
    );
  }
}

/** Refuses the next pending connection, which needs a descriptor as well. */
function refuseOne(listener: number): 'refused' | 'nobody' | 'too few' {
  try {
    const socket = acceptSocket(listener);
    if (socket === undefined) return 'nobody';
    closeSocket(socket);
    return 'refused';
  } catch (error) {
    if (!isShortage(error)) throw error;
    return 'too few';
  }
}

const pause = (signal: AbortSignal): Promise<void> => sleep(RETRY_MS, undefined, { signal });
