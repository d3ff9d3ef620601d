import { readable } from '../../../ffi/poll.ts';
import { acceptSocket, closeListener, closeSocket, peerCredentials } from '../../../ffi/socket.ts';
import { checkOptions, requireMade, shown } from '../../arguments.ts';
import { Resource } from '../../resource.ts';
import {
  admitsOthers,
  checkTrust,
  isTrusted,
  type TrustOptions,
  trustOptionNames,
} from './credentials.ts';
import { checkDeadline, type DeadlineOptions, withDeadline } from './deadline.ts';
import { Peer } from './peer.ts';
import { checkPeerOptions, type PeerOptions, peerOptionNames } from './peer-options.ts';
import { isPrivateName, listenAt, type NamedSocket, socketName } from './socket-file.ts';

/** How to {@link listen}. */
export interface ListenOptions extends TrustOptions, PeerOptions {}

/**
 * Listens for processes that are no children, under a name by which they `connect`.
 *
 * `'name'` is a socket in a directory of this user alone (`$XDG_RUNTIME_DIR/cuffi`, or `cuffi-UID`
 * in the temporary directory), `'/a/path'` one there, `'@name'` one without a file, which anyone
 * in the network namespace may try. Processes of other users are refused unless the options say
 * otherwise; a socket's file is the user's alone (mode 0600) unless they do.
 *
 * @throws IpcError where another process listens there already, or the name cannot be had
 * @throws RangeError for a name above 107 bytes
 * @example
 * using listener = listen('render');
 * for await (const peer of listener) void serve(peer);
 */
export function listen(name: string, options?: ListenOptions): Listener {
  const { busyPollUs, orphanGraceMs, ...rest } = checkOptions(
    options,
    [...trustOptionNames, ...peerOptionNames],
    'listen',
  );
  const trust = checkTrust(rest);
  const init = checkPeerOptions({ busyPollUs, orphanGraceMs });
  if (typeof name !== 'string')
    throw new TypeError(`the name to listen at must be a string, not ${shown(name)}`);
  if (isPrivateName(name) && trust.allowOtherUsers)
    throw new TypeError(
      `other users cannot reach ${JSON.stringify(name)}, which is in a directory of this user ` +
        "alone: give a path, or an abstract name ('@…')",
    );
  const path = socketName(name);
  const mode = admitsOthers(trust) && !isPrivateName(name) ? 0o666 : 0o600;
  return new Listener(path, listenAt(path, mode), trust, init);
}

/** A name at which processes connect: each is a {@link Peer}. */
export class Listener extends Resource implements AsyncIterable<Peer> {
  /** The path or abstract name of the socket. */
  readonly name: string;
  readonly #fd: number;
  readonly #trust: TrustOptions;
  readonly #init: PeerOptions;
  readonly #closing: AbortController;
  /** One call of `accept` at a time watches the socket. */
  #last: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(name: string, socket: NamedSocket, trust: TrustOptions, init: PeerOptions) {
    requireMade(socket, Object, 'Listener', 'listen');
    const closing = new AbortController();
    super('Listener', {
      release() {
        closing.abort();
        closeListener(socket.fd);
        socket.unlink();
      },
    });
    this.name = name;
    this.#fd = socket.fd;
    this.#trust = trust;
    this.#init = init;
    this.#closing = closing;
  }

  /**
   * The next process that connects; those that may not are refused meanwhile. Waiting keeps the
   * process alive.
   *
   * @throws ClosedError where the listener is closed
   * @throws what `allow` throws; that process is refused
   */
  async accept(options?: DeadlineOptions): Promise<Peer> {
    const deadline = checkDeadline(options, 'listener.accept');
    this.requireOpen();
    const given = new AbortController();
    return withDeadline<Peer>(deadline, `waiting at ${this.name}`, (resolve, reject) => {
      const mine = this.#last.then(() => this.#accept(given.signal));
      this.#last = mine.catch(() => {});
      // Given up in the moment in which one came, there is nobody to take it.
      mine.then((peer) => (given.signal.aborted ? peer.close() : resolve(peer)), reject);
      return () => given.abort();
    });
  }

  /** The processes that connect, until `close()`. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Peer, void, undefined> {
    while (!this.closed) {
      let peer: Peer;
      try {
        peer = await this.accept();
      } catch (error) {
        if (this.closed) return;
        throw error;
      }
      yield peer;
    }
  }

  async #accept(given: AbortSignal): Promise<Peer> {
    for (;;) {
      given.throwIfAborted();
      this.requireOpen();
      const socket = acceptSocket(this.#fd);
      if (socket === undefined) await this.#waitForOne(given);
      else {
        const peer = this.#admit(socket);
        if (peer) return peer;
      }
    }
  }

  #admit(socket: number): Peer | undefined {
    let isAdmitted = false;
    try {
      const credentials = peerCredentials(socket);
      isAdmitted = isTrusted(credentials, this.#trust);
      return isAdmitted ? new Peer(socket, credentials, this.#init) : undefined;
    } finally {
      if (!isAdmitted) closeSocket(socket);
    }
  }

  async #waitForOne(given: AbortSignal): Promise<void> {
    const either = new AbortController();
    const abort = (): void => either.abort();
    const stop = { signal: either.signal };
    given.addEventListener('abort', abort, stop);
    this.#closing.signal.addEventListener('abort', abort, stop);
    try {
      await readable(this.#fd, { signal: either.signal });
    } catch (error) {
      // Looked at again by the caller, who knows which of the two it was.
      if (!either.signal.aborted) throw error;
    } finally {
      either.abort();
    }
  }
}
