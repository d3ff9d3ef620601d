import { setTimeout as delay } from 'node:timers/promises';
import { SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket, connectSocket } from '../../../ffi/linux/socket.ts';
import { checkDeadline, timeoutError, type WaitOptions } from '../../deadline.ts';
import { IpcError } from '../../errors.ts';
import { isTurnDue, nextLoopIteration } from '../../poller.ts';
import { checkOptions, formatValue } from '../../validate.ts';
import {
  checkTrust,
  type TrustOptions,
  trustedCredentials,
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
import { addressOfSocket, socketName } from './socket-file.ts';

/** Options of {@link connect}. */
export interface ConnectOptions extends TrustOptions, PeerOptions, Pick<WaitOptions, 'signal'> {
  /** For how many milliseconds to retry while nobody listens. Default: one attempt. */
  readonly timeoutMs?: number;
}

/** Nobody listens, or the listener does not accept fast enough. */
const RETRIED: ReadonlySet<string> = new Set(['ENOENT', 'ECONNREFUSED', 'EAGAIN']);
const RETRY_MS = 10;

/**
 * Connects to a process that listens: see {@link listen} for the names.
 *
 * A listener of another user is refused unless the options allow it. If the listener refuses this
 * process, the peer ends.
 *
 * @throws NotSupportedError in Bun and Deno
 * @throws IpcError if nobody listens, or the listening process is not trusted
 * @throws DOMException `TimeoutError` if nobody listened within `timeoutMs`
 * @example
 * using peer = await connect('render', { timeoutMs: 5000 });
 * await peer.send({ frame: buffer });
 */
export async function connect<Receives = unknown, Sends = Anything>(
  name: string,
  options?: ConnectOptions,
): Promise<Peer<Receives, Sends>> {
  assertCanConnect('connect');
  const { signal, timeoutMs, busyPollUs, requestTimeoutMs, orphanGraceMs, ...rest } = checkOptions(
    options,
    ['signal', 'timeoutMs', ...peerOptionNames, ...trustOptionNames],
    'connect',
  );
  const trust = checkTrust(rest);
  checkDeadline({ signal, timeoutMs }, 'connect');
  const init = checkPeerOptions({ busyPollUs, requestTimeoutMs, orphanGraceMs });
  if (typeof name !== 'string')
    throw new TypeError(
      `the name to connect to must be a string, such as 'render', not ${formatValue(name)}`,
    );
  const path = socketName(name);
  const until = performance.now() + (timeoutMs ?? 0);
  for (;;) {
    signal?.throwIfAborted();
    if (isTurnDue()) {
      await nextLoopIteration();
      continue;
    }
    try {
      return open(path, trust, init) as Peer<Receives, Sends>;
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      if (timeoutMs === undefined || !RETRIED.has(error.code))
        throw new IpcError(
          `cannot connect to ${path}: ${meaning(error)}`,
          undefined,
          isNobody(error) ? 'not-listening' : undefined,
        );
      if (performance.now() >= until)
        throw timeoutError(
          `connecting to ${path}`,
          timeoutMs,
          isNobody(error)
            ? 'nobody listens there: start the process that calls listen()'
            : undefined,
        );
    }
    // After an abort during the delay, the next round throws the signal's own reason.
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

const isNobody = ({ code }: SystemError): boolean => code === 'ENOENT' || code === 'ECONNREFUSED';

function meaning(error: SystemError): string {
  const { code, message } = error;
  if (isNobody(error)) return `nobody listens there (${code}); { timeoutMs } waits for one`;
  return code === 'EPROTOTYPE' ? 'the socket there was not created by listen()' : message;
}
