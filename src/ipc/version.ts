/** The version of the protocol, and how a process says that another one speaks another version. */

import { packageName, packageVersion } from '../../ffi/package.ts';
import { IpcError } from '../errors.ts';
import { MAX_PACKAGE_NAME_BYTE_LENGTH, VERSIONS } from './protocol.ts';

/** Of frames and descriptors. Both ends must speak the same one. */
export const PROTOCOL_VERSION = VERSIONS.max;

/**
 * Returns the error for what another version of cuffi has made.
 *
 * @param what begins the message: it names both versions
 * @param isNewer whether the other end speaks later versions of the protocol
 * @param theirs the other end's own words, if it has said what it is. They are not trusted
 */
export const versionMismatch = (what: string, isNewer: boolean, theirs?: string): IpcError =>
  new IpcError(
    `${what}. ${theirs === undefined ? '' : `There: ${printable(theirs)}. `}Here: ${packageName()}. ` +
      `Install the same version of cuffi on both sides. ${remedy(isNewer, theirs)}`,
    undefined,
    'version-mismatch',
  );

/** What an end says that it is: packageName(), and `_package` of the companion. */
const PACKAGE = /^cuffi (\d+\.\d+\.\d+(?:-[\w.]+)?) (for Python )?in (.+)/;

/**
 * Returns the command that helps, and on which side to run it. Python takes the version of Node, whose package
 * has both. Two ends of Node take the later version. The companion has the same rules in _install.py.
 */
function remedy(isNewer: boolean, theirs = ''): string {
  const [, version, python, path = ''] = PACKAGE.exec(theirs) ?? [];
  const own = packageVersion() ?? 'latest';
  if (python === undefined)
    return isNewer
      ? `Run here: npm install cuffi@${version ?? 'latest'}`
      : `Run there: npm install cuffi@${own}`;
  if (path.includes('/node_modules/')) return `Run there: npm install cuffi@${own}`;
  if (/\/(site|dist)-packages\//.test(path))
    return `Run there: pip install "$(npx cuffi@${own} python)"`;
  // A shell takes such a path as it is. The other end's words are not trusted.
  const folder = /^(\/[\w./@+-]*)\/[^/]*$/.exec(path)?.[1] ?? 'FOLDER';
  return `Run there: npx cuffi@${own} python --copy ${folder}`;
}

/** Text of another process for an error message: short, in one line, and without control characters. */
const printable = (text: string): string =>
  text.slice(0, MAX_PACKAGE_NAME_BYTE_LENGTH).replace(/[\p{C}\p{Zl}\p{Zp}]+/gu, ' ');
