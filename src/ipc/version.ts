/** The version of the protocol, and how a process says that another one speaks another version. */

import { packageName } from '../../ffi/package.ts';
import { IpcError } from '../errors.ts';
import { MAX_PACKAGE_NAME_BYTE_LENGTH, VERSIONS } from './protocol.ts';

/** Of frames and descriptors. Both ends must speak the same one. */
export const PROTOCOL_VERSION = VERSIONS.max;

/**
 * Returns the error for what another version of cuffi has made.
 *
 * @param what begins the message: it names both versions
 * @param theirs the other end's own words, if it has said what it is. They are not trusted
 */
export const versionMismatch = (what: string, theirs?: string): IpcError =>
  new IpcError(
    `${what}. ${theirs === undefined ? '' : `There: ${printable(theirs)}. `}Here: ${packageName()}. ` +
      'Install the same version of cuffi on both sides',
    undefined,
    'version-mismatch',
  );

/** Text of another process for an error message: short, in one line, and without control characters. */
const printable = (text: string): string =>
  text.slice(0, MAX_PACKAGE_NAME_BYTE_LENGTH).replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, ' ');
