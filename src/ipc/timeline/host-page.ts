import { OUT0, readHandle } from '../../../ffi/arena.ts';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { type Mapping, mapShared } from '../../../ffi/linux/libc.ts';
import type { Address, CUdeviceptr } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { hideWait } from '../../waits/worker-tables.ts';
import { PAGE_BYTE_LENGTH, WORD_BYTE_LENGTH } from '../protocol.ts';

interface Registration {
  readonly context: Context;
  readonly epoch: number;
}

/**
 * A mapping of memory that several processes share, of one page or more. The first use by a device
 * registers it, once for all contexts of this process.
 */
export class HostPage {
  readonly #mapping: Mapping;
  readonly #byteLength: number;
  /** The waits for words of this page that other threads see: see `showWait`. */
  readonly shownWaits = new Set<number>();
  #registration: Registration | undefined;
  #addresses = new Map<Context, { readonly resets: number; readonly address: CUdeviceptr }>();
  #isClosed = false;
  #isUnmapped = false;

  /** Maps the memory of a descriptor, which stays open. @throws SystemError */
  constructor(fd: number, byteLength: number = PAGE_BYTE_LENGTH) {
    this.#mapping = mapShared(fd, byteLength);
    this.#byteLength = byteLength;
  }

  /** The memory. Touching it after it is unmapped kills the process. */
  view(): ArrayBuffer {
    return this.#mapping.view();
  }

  /** The host address of a word. */
  wordAt(index: number): Address {
    return (this.#mapping.address + index * WORD_BYTE_LENGTH) as Address;
  }

  /** Whether the memory is gone. */
  get isUnmapped(): boolean {
    return this.#isUnmapped;
  }

  /**
   * Returns the address of a 64-bit word for the streams of a context.
   *
   * @throws CudaError if the driver does not let devices access the page
   */
  addressIn(context: Context, index: number): CUdeviceptr {
    const cached = this.#addresses.get(context);
    const isKnown = cached?.resets === context.epoch && this.#isRegistered;
    const address = isKnown ? cached.address : this.#mapInto(context);
    return (address + index * WORD_BYTE_LENGTH) as CUdeviceptr;
  }

  /**
   * Unmaps the page once no work here can access it; until then it stays readable and writable. The
   * second call does nothing.
   *
   * @param onUnmapped called after that
   */
  close(onUnmapped: () => void): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const unmap = (): void => {
      this.#isUnmapped = true;
      // Other threads read the words of these waits.
      for (const shown of this.shownWaits) hideWait(shown);
      this.shownWaits.clear();
      this.#mapping.unmap();
      onUnmapped();
    };
    if (!this.#isRegistered) {
      unmap();
      return;
    }
    const { context, epoch } = this.#registration as Registration;
    for (const visitor of this.#addresses.keys())
      context.workTracker.addOtherContext(visitor.workTracker);
    const release = (): void => {
      // A context reset that comes first also removes the queued releases.
      if (!context.onReset.delete(release)) return;
      const status = context.epoch === epoch ? cu.cuMemHostUnregister(this.#mapping.address) : 0;
      unmap();
      check(status, 'cuMemHostUnregister');
    };
    context.onReset.add(release);
    // The release fails if the context is lost. The end of the page needs no error for that.
    context.releases.enqueue(() => releaseOrWarn(release));
  }

  /** Whether the page is registered. A reset of the registering context ends the registration. */
  get #isRegistered(): boolean {
    const registration = this.#registration;
    return registration !== undefined && registration.context.epoch === registration.epoch;
  }

  #mapInto(context: Context): CUdeviceptr {
    const { address: host } = this.#mapping;
    return context.run(() => {
      if (!this.#isRegistered) {
        check(
          cu.cuMemHostRegister_v2(
            host,
            this.#byteLength,
            CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
          ),
          'cuMemHostRegister_v2',
        );
        this.#registration = { context, epoch: context.epoch };
        this.#addresses = new Map();
      }
      check(cu.cuMemHostGetDevicePointer_v2(OUT0, host, 0), 'cuMemHostGetDevicePointer_v2');
      const address = readHandle<CUdeviceptr>(OUT0);
      this.#addresses.set(context, { resets: context.epoch, address });
      return address;
    });
  }
}
