import { isOpenFd } from '../../ffi/libc.ts';
import { checkBoolean, checkOptions } from '../arguments.ts';
import type { PlaceOptions } from '../context.ts';
import type { Access } from '../memory/buffer-options.ts';
import type { IpcDescriptor } from './descriptor.ts';

/**
 * Options of what opens a descriptor. Without a place it is opened in the primary context of its
 * GPU.
 */
export interface OpenOptions extends PlaceOptions {
  /**
   * The file descriptors that came with it. They become cuffi's, and are closed when they are no
   * longer needed, or if it cannot be opened.
   */
  readonly fds?: readonly number[];
  /** What is to be done with the memory: less than the exporter allows, never more. */
  readonly access?: Access;
  /**
   * What happens to a descriptor of this very thread of this process. Default `'refuse'`; `'alias'`: it opens as
   * a view of the object that it names, with a `close()` of its own, and is closed with it.
   */
  readonly sameProcess?: 'refuse' | 'alias';
  /** Whether memory of other users' processes may be opened. Default false. */
  readonly allowOtherUsers?: boolean;
}

const names = [
  'context',
  'device',
  'fds',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof OpenOptions)[];

/** @throws TypeError for anything but {@link OpenOptions} */
export function checkOpenOptions(options: OpenOptions | undefined, call: string): OpenOptions {
  const checked = checkOptions(options, names, call);
  const { fds, access, sameProcess, allowOtherUsers } = checked;
  checkBoolean(allowOtherUsers, 'allowOtherUsers', false);
  checkWord(access, 'access', ['read-write', 'read']);
  checkWord(sameProcess, 'sameProcess', ['refuse', 'alias']);
  const isList = Array.isArray(fds) && new Set(fds).size === fds.length;
  if (fds !== undefined && !(isList && fds.every(isOpenFd)))
    throw new TypeError('fds must be a list of open file descriptors, each once');
  return checked;
}

/** What may be done with what is opened: as much as both its exporter and the options allow. */
export const accessTo = (descriptor: IpcDescriptor, { access }: OpenOptions): Access =>
  access === 'read' || (descriptor.kind !== 'event' && descriptor.access === 'read')
    ? 'read'
    : 'read-write';

function checkWord(value: unknown, name: string, words: readonly string[]): void {
  if (value !== undefined && !words.includes(value as string))
    throw new TypeError(
      `${name} must be ${words.map((word) => `'${word}'`).join(' or ')}, not ${String(value)}`,
    );
}
