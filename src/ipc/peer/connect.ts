import { setTimeout as delay } from 'node:timers/promises';
import { SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket, connectSocket } from '../../../ffi/linux/socket.ts';
import { checkDeadline, type DeadlineOptions, timeoutError } from '../../deadline.ts';
import { IpcError } from '../../errors.ts';
import { checkOptions, formatValue } from '../../validate.ts';
import {
  checkTrust,
  type TrustOptions,
  trustedCredentials,
  trustOptionNames,
} from './credentials.ts';
import { Peer } from './peer.ts';
import { checkPeerOptions, type PeerOptions, peerOptionNames } from './peer-options.ts';
import { addressOfSocket, socketName } from './socket-file.ts';

/** How to {@link connect}. */
export interface ConnectOptions extends TrustOptions, PeerOptions, Pick<DeadlineOptions, 'signal'> {
  /** Tries again for so many milliseconds while nobody listens. Default: one try. */
  readonly timeoutMs?: number;
}

/** Nobody listens, or is not quick enough in accepting. */
const RETRIED: ReadonlySet<string> = new Set(['ENOENT', 'ECONNREFUSED', 'EAGAIN']);
const RETRY_MS = 10;

/**
 * Connects with a process that listens: see {@link listen} for the names.
 *
 * A listener of another user is refused unless the options say otherwise; one that refuses this
 * process ends the peer.
 *
 * @throws IpcError where nobody listens, or a process that is not trusted
 * @throws DOMException `TimeoutError` where nobody did within `timeoutMs`
 * @example
 * using peer = await connect('render', { timeoutMs: 5000 });
 * await peer.send({ frame: buffer });
 */
export async function connect(name: string, options?: ConnectOptions): Promise<Peer> {
  const { signal, timeoutMs, busyPollUs, orphanGraceMs, ...rest } = checkOptions(
    options,
    ['signal', 'timeoutMs', ...peerOptionNames, ...trustOptionNames],
    'connect',
  );
  const trust = checkTrust(rest);
  checkDeadline({ signal, timeoutMs }, 'connect');
  const init = checkPeerOptions({ busyPollUs, orphanGraceMs });
  if (typeof name !== 'string')
    throw new TypeError(`the name to connect to must be a string, not ${formatValue(name)}`);
  const path = socketName(name);
  const until = performance.now() + (timeoutMs ?? 0);
  for (;;) {
    signal?.throwIfAborted();
    try {
      return open(path, trust, init);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      if (timeoutMs === undefined || !RETRIED.has(error.code))
        throw new IpcError(`cannot connect to ${path}: ${meaning(error)}`);
      if (performance.now() >= until) throw timeoutError(`connecting to ${path}`, timeoutMs);
    }
    // Given up in between, it is the signal's own reason that the next turn throws.
    await delay(RETRY_MS, undefined, signal && { signal }).catch(() => {});
  }
}

function open(path: string, trust: TrustOptions, init: PeerOptions): Peer {
  const socket = connectSocket(addressOfSocket(path));
  let credentials: ReturnType<typeof trustedCredentials>;
  try {
    credentials = trustedCredentials(socket, trust);
  } catch (error) {
    closeSocket(socket);
    throw error;
  }
  return new Peer(socket, credentials, init);
}

function meaning({ code, message }: SystemError): string {
  if (code === 'ENOENT' || code === 'ECONNREFUSED')
    return `nobody listens there (${code}); { timeoutMs } waits for one`;
  return code === 'EPROTOTYPE' ? 'the socket there is not one of listen()' : message;
}
