/** Who is at the other end, and who may be. */
import { type PeerCredentials, peerCredentials } from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { checkBoolean, formatValue } from '../../validate.ts';
import { processName } from '../identity.ts';

export type { PeerCredentials } from '../../../ffi/linux/socket.ts';

/** Which processes may be at the other end: those of the own user, unless these say otherwise. */
export interface TrustOptions {
  /** Accepts processes of other users. Default false. */
  readonly allowOtherUsers?: boolean;
  /** Decides at once, by what the kernel says of the process, for the own user's as for others'. */
  readonly allow?: (credentials: PeerCredentials) => boolean;
}

/** The names of {@link TrustOptions}. */
export const trustOptionNames = ['allowOtherUsers', 'allow'] as const;

/** @throws TypeError for options that are none */
export function checkTrust(options: TrustOptions): TrustOptions {
  const { allowOtherUsers, allow } = options;
  checkBoolean(allowOtherUsers, 'allowOtherUsers', false);
  if (allow !== undefined && typeof allow !== 'function')
    throw new TypeError(`allow must be a function, not ${formatValue(allow)}`);
  if (allow && allowOtherUsers !== undefined)
    throw new TypeError('give either allow or allowOtherUsers: allow decides about every process');
  return options;
}

/** Whether users other than this process's may pass at all. */
export const allowsOtherUsers = ({ allowOtherUsers, allow }: TrustOptions): boolean =>
  allowOtherUsers === true || allow !== undefined;

/** Whether to talk with a process. @throws TypeError where `allow` answers neither true nor false */
export function isTrusted(
  credentials: PeerCredentials,
  { allowOtherUsers, allow }: TrustOptions,
  ownUid: number = process.geteuid?.() ?? 0,
): boolean {
  if (allow) return checkBoolean(allow(credentials), 'what allow answers', false);
  return credentials.uid === ownUid || allowOtherUsers === true;
}

/** The other end of a socket. @throws IpcError for one that is not trusted */
export function trustedCredentials(socket: number, trust: TrustOptions): PeerCredentials {
  const credentials = peerCredentials(socket);
  if (!isTrusted(credentials, trust))
    throw new IpcError(
      `${processName(credentials)} is of user ${credentials.uid}, not of this process's: allow it ` +
        'with { allowOtherUsers: true } or { allow }',
    );
  return credentials;
}
