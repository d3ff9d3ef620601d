/** File descriptors that name what a context holds: closed with it, also when a reset takes it. */
import { discardFd } from '../../ffi/linux/close-fd.ts';
import { duplicateFd, setCloseOnExec } from '../../ffi/linux/libc.ts';
import type { Context } from '../context.ts';

interface Kept {
  readonly resets: number;
  readonly fds: Set<number>;
}

const kept = new WeakMap<Context, Kept>();

/** Keeps a descriptor, close-on-exec, until {@link closeKeptFd}; answers it. */
export function keepFd(context: Context, fd: number): number {
  try {
    setCloseOnExec(fd);
  } catch (error) {
    discardFd(fd);
    throw error;
  }
  keep(context, fd);
  return fd;
}

/** As {@link keepFd}, another descriptor of the same. @throws SystemError */
export function keepDuplicate(context: Context, fd: number): number {
  const own = duplicateFd(fd);
  keep(context, own);
  return own;
}

function keep(context: Context, fd: number): void {
  const known = kept.get(context);
  if (known?.resets === context.resets) {
    known.fds.add(fd);
    return;
  }
  // Of before a reset, which told nobody that what they name is gone.
  for (const stale of known?.fds ?? []) discardFd(stale);
  kept.set(context, { resets: context.resets, fds: new Set([fd]) });
}

/** Closes a kept descriptor; nothing for one that is closed already. */
export function closeKeptFd(context: Context, fd: number): void {
  if (kept.get(context)?.fds.delete(fd)) discardFd(fd);
}
