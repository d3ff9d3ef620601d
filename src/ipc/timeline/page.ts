import { OUT0, readHandle } from '../../../ffi/arena.ts';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, type Mapping, mapShared, SystemError } from '../../../ffi/linux/libc.ts';
import { createSealedMemfd, isSealedMemfd, sealAgainstHoles } from '../../../ffi/linux/memfd.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { hasReached, type TimelinePoint } from './point.ts';

const BYTE_LENGTH = 4096;
const WORD_BYTE_LENGTH = 8;

interface Registration {
  readonly context: Context;
  readonly epoch: number;
}

/**
 * A page of counters that two processes have mapped: the streams of the one write how far they
 * are, those of the other wait for it. Both CPUs read and write it too. It is host memory: a wait
 * for it can be ended by whoever survives.
 */
export class TimelinePage {
  /** Of a page that was made here, until it is sent. */
  #fd: number | undefined;
  readonly #mapping: Mapping;
  /** The low halves of the words are at the even places. */
  readonly #halves: Uint32Array;
  readonly #words: BigUint64Array;
  #registration: Registration | undefined;
  #addresses = new Map<Context, { readonly resets: number; readonly address: CUdeviceptr }>();
  #isMemoryFixed = true;
  #isClosed = false;
  #isUnmapped = false;

  private constructor(fd: number, isCreatedHere: boolean) {
    this.#mapping = mapShared(fd, BYTE_LENGTH);
    this.#fd = isCreatedHere ? fd : undefined;
    this.#halves = new Uint32Array(this.#mapping.view());
    this.#words = new BigUint64Array(this.#halves.buffer);
  }

  /** A page of this process, for another one. @throws SystemError */
  static create(): TimelinePage {
    const fd = createSealedMemfd('cuffi-points', BYTE_LENGTH);
    try {
      return new TimelinePage(fd, true);
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  /**
   * The page of another process. Closes the descriptor in every case.
   *
   * @throws IpcError for anything but such a page: touching other memory could end this process, and
   * a stream that waits in memory which its sender can take away could wait for ever
   */
  static accept(fd: number): TimelinePage {
    try {
      if (!isSealedMemfd(fd, BYTE_LENGTH))
        throw new IpcError('a page of counters came that is none: not sealed memory of its size');
      return TimelinePage.#acceptSealed(fd);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      throw new IpcError(
        'a page of counters came that cannot be mapped and sealed, so that its memory stays the same',
        error,
      );
    } finally {
      discardFd(fd);
    }
  }

  /** Once sealed a page cannot be mapped, so the mapping comes first. @throws SystemError */
  static #acceptSealed(fd: number): TimelinePage {
    const page = new TimelinePage(fd, false);
    try {
      page.#isMemoryFixed = sealAgainstHoles(fd);
      return page;
    } catch (error) {
      page.close();
      throw error;
    }
  }

  /**
   * Whether its memory stays the same, so that a device may wait there for what the other process
   * writes; else only the hosts may.
   */
  get isMemoryFixed(): boolean {
    return this.#isMemoryFixed;
  }

  /** Passes its descriptor to `send`, for the other process, until that does not throw. */
  shareFd(send: (fd: number) => void): void {
    if (this.#fd === undefined) return;
    send(this.#fd);
    closeFd(this.#fd);
    this.#fd = undefined;
  }

  isReached({ slot, count }: TimelinePoint): boolean {
    if (this.#isUnmapped) return true;
    return hasReached(Atomics.load(this.#halves, 2 * slot), count);
  }

  /** Stores a counter by the CPU, unless it is further already. */
  advanceTo(point: TimelinePoint): void {
    if (!this.isReached(point)) Atomics.store(this.#words, point.slot, BigInt(point.count));
  }

  /**
   * Ends the waits of streams for a counter, from 1 up to a count, whatever its writer has left there.
   *
   * @param bits how much of the word is compared, which is cyclic: with 32 `count` has 31 at most
   */
  releaseWaits({ slot, count }: TimelinePoint, bits: 32 | 64): void {
    if (this.#isUnmapped) return;
    const target = BigInt(count);
    const ahead = BigInt.asIntN(64, Atomics.load(this.#words, slot) - target);
    const isPast = ahead >= 0n && ahead + target < 1n << BigInt(bits - 1);
    if (!isPast) Atomics.store(this.#words, slot, target);
  }

  /**
   * Where a context's streams find the word of a slot.
   *
   * @throws CudaError where the driver does not let devices reach the page
   */
  addressIn(context: Context, slot: number): CUdeviceptr {
    const cached = this.#addresses.get(context);
    const isKnown = cached?.resets === context.epoch && this.#isRegistered;
    const address = isKnown ? cached.address : this.#mapInto(context);
    return (address + slot * WORD_BYTE_LENGTH) as CUdeviceptr;
  }

  /**
   * Unmaps the page when no work here can touch it any more; until then it is read and written.
   * The second time does nothing.
   *
   * @param onUnmapped called then
   */
  close(onUnmapped: () => void = () => {}): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#fd !== undefined) closeFd(this.#fd);
    this.#fd = undefined;
    const unmap = (): void => {
      this.#isUnmapped = true;
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
      // A reset that comes first takes the releases that wait with it.
      if (!context.onReset.delete(release)) return;
      const status = context.epoch === epoch ? cu.cuMemHostUnregister(this.#mapping.address) : 0;
      unmap();
      check(status, 'cuMemHostUnregister');
    };
    context.onReset.add(release);
    // In a context that is lost it fails, which is nothing to the connection that ends by this.
    context.releases.enqueue(() => releaseOrWarn(release));
  }

  /** A reset of the context in which it was registered ends that. */
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
            BYTE_LENGTH,
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
