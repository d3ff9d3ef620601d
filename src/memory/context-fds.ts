/** The context's file descriptors: each names an exported object and is closed with it. */
import { discardFd } from '../../ffi/linux/close-fd.ts';
import { duplicateFd, setCloseOnExec } from '../../ffi/linux/libc.ts';
import type { Context } from '../context.ts';

interface ContextFds {
  readonly epoch: number;
  readonly fds: Set<number>;
}

const contextFds = new WeakMap<Context, ContextFds>();

/**
 * Sets a descriptor close-on-exec and keeps it until {@link closeContextFd}. Returns the
 * descriptor.
 */
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

/** Like {@link addContextFd}, for a duplicate of the descriptor. @throws SystemError */
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
  // These are from before a reset, which closed no descriptor.
  for (const stale of current?.fds ?? []) discardFd(stale);
  contextFds.set(context, { epoch: context.epoch, fds: new Set([fd]) });
}

/** Closes a kept descriptor. Does nothing if it is already closed. */
export function closeContextFd(context: Context, fd: number): void {
  if (contextFds.get(context)?.fds.delete(fd)) discardFd(fd);
}
