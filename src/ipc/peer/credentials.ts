/** The process at the other end of a connection, and which processes are trusted. */
import { effectiveUid } from '../../../ffi/linux/process.ts';
import { type PeerCredentials, peerCredentials } from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { checkBoolean, formatValue } from '../../validate.ts';
import { processName } from '../identity.ts';

export type { PeerCredentials } from '../../../ffi/linux/socket.ts';

/** Which processes are accepted as peers. Default: those of the same user. */
export interface TrustOptions {
  /** Accepts processes of other users. Default false. */
  readonly allowOtherUsers?: boolean;
  /**
   * Decides synchronously from the kernel's credentials of each process, including those of the
   * same user.
   */
  readonly allow?: (credentials: PeerCredentials) => boolean;
}

/** The names of {@link TrustOptions}. */
export const trustOptionNames = ['allowOtherUsers', 'allow'] as const;

/** @throws TypeError for invalid options */
export function checkTrust(options: TrustOptions): TrustOptions {
  const { allowOtherUsers, allow } = options;
  checkBoolean(allowOtherUsers, 'allowOtherUsers', false);
  if (allow !== undefined && typeof allow !== 'function')
    throw new TypeError(`allow must be a function, not ${formatValue(allow)}`);
  if (allow && allowOtherUsers !== undefined)
    throw new TypeError('give either allow or allowOtherUsers: allow decides about every process');
  return options;
}

/** Whether processes of other users may be accepted at all. */
export const allowsOtherUsers = ({ allowOtherUsers, allow }: TrustOptions): boolean =>
  allowOtherUsers === true || allow !== undefined;

/** Whether a process is accepted. @throws TypeError if `allow` returns neither true nor false */
export function isTrusted(
  credentials: PeerCredentials,
  { allowOtherUsers, allow }: TrustOptions,
  ownUid: number = effectiveUid(),
): boolean {
  if (allow) return checkBoolean(allow(credentials), 'the result of allow', false);
  return credentials.uid === ownUid || allowOtherUsers === true;
}

/** Returns the credentials of a socket's peer. @throws IpcError if the process is not trusted */
export function trustedCredentials(socket: number, trust: TrustOptions): PeerCredentials {
  const credentials = peerCredentials(socket);
  if (!isTrusted(credentials, trust))
    throw new IpcError(
      `${processName(credentials)} runs as user ${credentials.uid}, not as the user of this process: allow it ` +
        'with { allowOtherUsers: true } or { allow }',
      undefined,
      'other-user',
    );
  return credentials;
}
