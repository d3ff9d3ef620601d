import type { PlaceOptions } from '../context.ts';
import type { Access } from '../memory/buffer-options.ts';

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
   * What happens to a descriptor of this very process. Default `'refuse'`; `'alias'`: it opens as
   * a view of the object that it names, with a `close()` of its own, and is closed with it.
   */
  readonly sameProcess?: 'refuse' | 'alias';
  /** Whether memory of other users' processes may be opened. Default false. */
  readonly allowOtherUsers?: boolean;
}

export const openOptionNames = [
  'context',
  'device',
  'fds',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof OpenOptions)[];
