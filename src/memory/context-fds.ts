/** File descriptors that name what a context holds: closed with it, also when a reset takes it. */
import { discardFd } from '../../ffi/linux/close-fd.ts';
import { duplicateFd, setCloseOnExec } from '../../ffi/linux/libc.ts';
import type { Context } from '../context.ts';

interface ContextFds {
  readonly epoch: number;
  readonly fds: Set<number>;
}

const contextFds = new WeakMap<Context, ContextFds>();

/** Keeps a descriptor, close-on-exec, until {@link closeContextFd}; answers it. */
export function addContextFd(context: Context, fd: number): number {
  try {
    setCloseOnExec(fd);
  } catch (error) {
    discardFd(fd);
    throw error;
  }
  register(context, fd);
  return fd;
}

/** As {@link addContextFd}, another descriptor of the same. @throws SystemError */
export function addDuplicateFd(context: Context, fd: number): number {
  const duplicate = duplicateFd(fd);
  register(context, duplicate);
  return duplicate;
}

function register(context: Context, fd: number): void {
  const current = contextFds.get(context);
  if (current?.epoch === context.epoch) {
    current.fds.add(fd);
    return;
  }
  // Of before a reset, which told nobody that what they name is gone.
  for (const stale of current?.fds ?? []) discardFd(stale);
  contextFds.set(context, { epoch: context.epoch, fds: new Set([fd]) });
}

/** Closes a kept descriptor; nothing for one that is closed already. */
export function closeContextFd(context: Context, fd: number): void {
  if (contextFds.get(context)?.fds.delete(fd)) discardFd(fd);
}
