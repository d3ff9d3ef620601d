import { isOpenFd } from '../../../ffi/linux/libc.ts';
import type { PlaceOptions } from '../../context.ts';
import type { Access } from '../../memory/buffer.ts';
import { checkBoolean, checkOptions } from '../../validate.ts';

/**
 * Options of the functions that open a descriptor. By default they open it in the primary context
 * of its GPU.
 */
export interface OpenOptions extends PlaceOptions {
  /**
   * The file descriptors that came with it. cuffi owns them from now on. It closes them when they
   * are no longer needed, or if the object cannot be opened.
   */
  readonly fds?: readonly number[];
  /**
   * The access to the memory: at most what the exporter allows. `'read'` maps virtual memory
   * without write access. For other kinds, it only keeps cuffi's own copies and fills from writing.
   */
  readonly access?: Access;
  /**
   * What happens to a descriptor of this very thread of this process. Default `'refuse'`. `'alias'`
   * opens it as a view of the object that it names, with its own `close()`; closing that object
   * closes the view.
   */
  readonly sameProcess?: 'refuse' | 'alias';
  /** Whether memory of other users' processes may be opened. Default false. */
  readonly allowOtherUsers?: boolean;
}

const optionNames = [
  'context',
  'device',
  'fds',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof OpenOptions)[];

/** @throws TypeError for anything but {@link OpenOptions} */
export function checkOpenOptions(options: OpenOptions | undefined, call: string): OpenOptions {
  const checked = checkOptions(options, optionNames, call);
  const { fds, access, sameProcess, allowOtherUsers } = checked;
  checkBoolean(allowOtherUsers, 'allowOtherUsers', false);
  checkChoice(access, 'access', ['read-write', 'read']);
  checkChoice(sameProcess, 'sameProcess', ['refuse', 'alias']);
  if (fds === undefined) return checked;
  // A copy: what is checked here is what is closed in the end.
  const own = Array.isArray(fds) ? [...fds] : undefined;
  if (!own || new Set(own).size !== own.length || !own.every(isOpenFd))
    throw new TypeError('fds must be a list of open file descriptors, each once');
  return { ...checked, fds: own };
}

function checkChoice(value: unknown, name: string, choices: readonly string[]): void {
  if (value !== undefined && !choices.includes(value as string))
    throw new TypeError(
      `${name} must be ${choices.map((word) => `'${word}'`).join(' or ')}, not ${String(value)}`,
    );
}
