/** Which contexts of other devices a context may reach the memory of. */
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import { check } from './check.ts';
import type { Context } from './context.ts';
import { NotSupportedError } from './errors.ts';

/** The peers of one context. */
export class PeerAccess {
  readonly #context: Context;
  /** The resets of both sides when access was given: it is gone with either. */
  readonly #enabled = new WeakMap<Context, readonly [own: number, other: number]>();

  constructor(context: Context) {
    this.#context = context;
  }

  /** Whether access was given through here and still holds. */
  has(other: Context): boolean {
    const resets = this.#enabled.get(other);
    return resets?.[0] === this.#context.resets && resets[1] === other.resets;
  }

  /** Gives access; nothing where it was given. @throws NotSupportedError, TypeError */
  enable(other: Context): void {
    if (this.has(other)) return;
    const own = this.#context;
    requireOtherDevice(own, other);
    if (!own.device.canAccessPeer(other.device))
      throw new NotSupportedError(
        `${own.device} does not reach the memory of ${other.device}: copies between them go ` +
          'through the host, and need no access',
      );
    const peer = other.handle;
    const status = own.run(() => cu.cuCtxEnablePeerAccess(peer, 0));
    // Another library of the process may have been first.
    if (status !== CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      check(
        status,
        'cuCtxEnablePeerAccess',
        () => `letting ${own.device} reach the memory of ${other.device}`,
      );
    this.#enabled.set(other, [own.resets, other.resets]);
  }

  /** Takes it back, of other libraries too; nothing where it was not given. */
  disable(other: Context): void {
    const own = this.#context;
    requireOtherDevice(own, other);
    this.#enabled.delete(other);
    const peer = other.handle;
    const status = own.run(() => cu.cuCtxDisablePeerAccess(peer));
    if (status !== CUresult.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
      check(
        status,
        'cuCtxDisablePeerAccess',
        () => `no longer letting ${own.device} reach the memory of ${other.device}`,
      );
  }
}

function requireOtherDevice(own: Context, other: Context): void {
  if (own.device === other.device)
    throw new TypeError(`both contexts are of ${own.device}: peers are of two devices`);
}
