import { OUT0, readHandle } from '../../../ffi/arena.ts';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { discardFd } from '../../../ffi/linux/close-fd.ts';
import {
  closeFd,
  duplicateFd,
  type Mapping,
  mapShared,
  SystemError,
} from '../../../ffi/linux/libc.ts';
import {
  createSealedMemfd,
  isSealedAgainstHolePunching,
  isSealedMemfd,
  sealAgainstHolePunching,
} from '../../../ffi/linux/memfd.ts';
import type { Address, CUdeviceptr } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import type { Device } from '../../device.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { readWord } from '../../waits/read-word.ts';
import { hideWait } from '../../waits/worker-tables.ts';
import { localProcess } from '../identity.ts';
import { END_OF_WAITS, PAGE_BYTE_LENGTH, WORD_BYTE_LENGTH } from '../protocol.ts';

/** How {@link SharedWords.accept} maps the memory of another process. */
interface AcceptOptions {
  /** The size of the memory. Default: a page. */
  readonly byteLength?: number;
  /** Whether devices wait for its words: then nobody else can map it from now on. Default false. */
  readonly isForDevices?: boolean;
  /** Whether the descriptor stays open. Default false. */
  readonly keepsFd?: boolean;
}

interface Registration {
  readonly context: Context;
  readonly epoch: number;
}

/**
 * 64-bit words in host memory that two or more processes map, whose CPUs and devices write them and wait
 * for them. Each word has one writer, and counts up: a device and a CPU find a count reached once the word
 * is not below it. As it is host memory, a surviving process can end a wait.
 *
 * Every process can write all of the memory. A wrong value delays waits or ends them too early, but
 * crashes nothing.
 */
export class SharedWords implements Disposable {
  /** All of the memory. Touching it after it is unmapped kills the process. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** The waits for these words that other threads see: see `showWait`. */
  readonly shownWaits = new Set<number>();
  readonly #mapping: Mapping;
  /** Undefined once another process has it, or if nobody needs it. */
  #fd: number | undefined;
  /** The words as 32-bit halves: V8 reads those without allocating. */
  readonly #halves: Uint32Array;
  readonly #words: BigUint64Array;
  /** For each word the highest count that a stream of this process waits for. */
  readonly #awaited = new Map<number, number>();
  /** The first use by a device registers the memory, once for all contexts of this process. */
  #registration: Registration | undefined;
  #addresses = new Map<Context, { readonly epoch: number; readonly address: CUdeviceptr }>();
  #isMemoryFixed = false;
  /** Whether waits for the words have been ended: those that are not reached never will be. */
  #areWaitsEnded = false;
  #isClosed = false;
  #isUnmapped = false;

  /** @param fd owned from now on, unless it throws */
  private constructor(fd: number, byteLength: number) {
    this.#mapping = mapShared(fd, byteLength);
    this.#fd = fd;
    const memory = this.#mapping.view();
    this.bytes = new Uint8Array(memory);
    this.#halves = new Uint32Array(memory);
    this.#words = new BigUint64Array(memory);
  }

  /** Creates words that are 0, for other processes. @throws SystemError */
  static create(name: string, byteLength = PAGE_BYTE_LENGTH): SharedWords {
    const fd = createSealedMemfd(name, byteLength);
    try {
      return new SharedWords(fd, byteLength);
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  /**
   * Maps the memory of another process.
   *
   * @param fd owned from now on, also if it throws
   * @param what of what it is the memory, in words
   * @throws IpcError for anything but sealed memory of that size. Touching other memory could crash this
   * process. A stream that waits in memory that its sender can remove could wait for ever
   */
  static accept(
    fd: number,
    what: string,
    { byteLength = PAGE_BYTE_LENGTH, isForDevices = false, keepsFd = false }: AcceptOptions = {},
  ): SharedWords {
    let words: SharedWords | undefined;
    try {
      if (!isSealedMemfd(fd, byteLength))
        throw new IpcError(`received a ${what} whose memory is not sealed memory of its size`);
      words = new SharedWords(fd, byteLength);
      // Mapped first, because memory that is sealed so can no longer be mapped.
      words.#isMemoryFixed = isForDevices && sealAgainstHolePunching(fd);
      if (!keepsFd) closeFd(words.takeFd());
      return words;
    } catch (error) {
      if (words) words.close();
      else discardFd(fd);
      if (!(error instanceof SystemError)) throw error;
      throw new IpcError(`received a ${what} whose memory cannot be mapped`, error);
    }
  }

  // ---- The memory ----

  /**
   * Whether no process can change which memory backs the words. Otherwise only hosts may wait for
   * them: a device would keep waiting in memory that was replaced, where no host can end the wait.
   * Words that were created here are fixed once the other process has mapped them.
   */
  get isMemoryFixed(): boolean {
    if (this.#isMemoryFixed || this.#fd === undefined) return this.#isMemoryFixed;
    this.#isMemoryFixed = isSealedAgainstHolePunching(this.#fd);
    if (this.#isMemoryFixed) closeFd(this.takeFd());
    return this.#isMemoryFixed;
  }

  /** Whether this process still has the descriptor. */
  get hasFd(): boolean {
    return this.#fd !== undefined;
  }

  /** The descriptor of words that were created here. */
  get fd(): number {
    return this.#fd as number;
  }

  /** As {@link fd}. The caller owns it from now on. */
  takeFd(): number {
    const { fd } = this;
    this.#fd = undefined;
    return fd;
  }

  /** A copy of {@link fd}, which the caller owns. Then {@link isMemoryFixed} can become true here. @throws SystemError */
  copyFd(): number {
    return duplicateFd(this.fd);
  }

  /** Whether the memory is gone. Then all words are {@link END_OF_WAITS}. */
  get isUnmapped(): boolean {
    return this.#isUnmapped;
  }

  // ---- The words ----

  /** The value of a word; Infinity if its waits were ended, `INVALID` if it holds no value. */
  read(index: number): number {
    return this.#isUnmapped ? Number.POSITIVE_INFINITY : readWord(this.#halves, index);
  }

  /** A word that holds a small number, which takes less time than {@link read}; 0 after the end. */
  readSmall(index: number): number {
    return this.#isUnmapped ? 0 : (this.#halves[2 * index] as number);
  }

  /** All bits of a word. */
  load(index: number): bigint {
    return this.#isUnmapped ? END_OF_WAITS : Atomics.load(this.#words, index);
  }

  write(index: number, value: number): void {
    if (!this.#isUnmapped) Atomics.store(this.#words, index, BigInt(value));
  }

  /** Stores a word, if it still holds `known`. Returns whether it did. */
  exchange(index: number, known: bigint, value: bigint): boolean {
    return this.#isUnmapped || Atomics.compareExchange(this.#words, index, known, value) === known;
  }

  isReached({ index, count }: TimelinePoint): boolean {
    return this.#areWaitsEnded || this.read(index) >= count;
  }

  /** Stores a count from the CPU, unless the word is already that far. */
  advanceTo(point: TimelinePoint): void {
    if (!this.isReached(point)) this.write(point.index, point.count);
  }

  /** Ends all waits of streams for the words from `begin` up to `end`. */
  endWaits(begin: number, end: number): void {
    this.#areWaitsEnded = true;
    if (this.#isUnmapped) return;
    for (let index = begin; index < end; index += 1)
      Atomics.store(this.#words, index, END_OF_WAITS);
  }

  /** Notes that a stream of this process waits, for {@link abandonWaits}. */
  noteAwaited({ index, count }: TimelinePoint): void {
    const known = this.#awaited.get(index);
    if (known === undefined || known < count) this.#awaited.set(index, count);
  }

  /**
   * Ends the waits of the streams of this process after the writer of the words is gone. Returns how many
   * words were awaited and not reached.
   */
  abandonWaits(): number {
    let unreached = 0;
    for (const [index, count] of this.#awaited) {
      if (this.isReached({ index, count })) continue;
      unreached += 1;
      this.write(index, count);
    }
    this.#awaited.clear();
    return unreached;
  }

  /** Notes in two words which process this is. */
  sign(pidAt: number, namespaceAt: number): void {
    this.write(namespaceAt, localProcess().pidNamespace);
    this.write(pidAt, process.pid);
  }

  /** The pid that {@link sign} has noted; 0 if it is of another pid namespace. */
  signer(pidAt: number, namespaceAt: number): number {
    const isHere = this.read(namespaceAt) === localProcess().pidNamespace;
    const pid = isHere ? this.read(pidAt) : 0;
    return pid > 0 && pid < 2 ** 32 ? pid : 0;
  }

  // ---- For devices and other threads ----

  /** The host address of a word. */
  wordAt(index: number): Address {
    return (this.#mapping.address + index * WORD_BYTE_LENGTH) as Address;
  }

  /**
   * Returns the address of a word for the streams of a context.
   *
   * @throws CudaError if the driver does not let devices access the memory
   */
  addressIn(context: Context, index: number): CUdeviceptr {
    const cached = this.#addresses.get(context);
    const isKnown = cached?.epoch === context.epoch && this.#isRegistered;
    const address = isKnown ? cached.address : this.#mapInto(context);
    return (address + index * WORD_BYTE_LENGTH) as CUdeviceptr;
  }

  /** Whether the memory is registered. A reset of the registering context ends the registration. */
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
            this.bytes.byteLength,
            CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
          ),
          'cuMemHostRegister_v2',
        );
        this.#registration = { context, epoch: context.epoch };
        this.#addresses = new Map();
      }
      check(cu.cuMemHostGetDevicePointer_v2(OUT0, host, 0), 'cuMemHostGetDevicePointer_v2');
      const address = readHandle<CUdeviceptr>(OUT0);
      this.#addresses.set(context, { epoch: context.epoch, address });
      return address;
    });
  }

  // ---- The end ----

  /**
   * Unmaps the memory once no work here can access it; until then it stays readable and writable. The
   * second call does nothing.
   *
   * @param onUnmapped called after that
   */
  close(onUnmapped: () => void = () => {}): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#fd !== undefined) closeFd(this.takeFd());
    if (!this.#isRegistered) {
      this.#unmap();
      onUnmapped();
      return;
    }
    const { context, epoch } = this.#registration as Registration;
    for (const user of this.#addresses.keys())
      context.workTracker.addOtherContext(user.workTracker);
    const release = (): void => {
      // A context reset that comes first also removes the queued releases.
      if (!context.onReset.delete(release)) return;
      const status = context.epoch === epoch ? cu.cuMemHostUnregister(this.#mapping.address) : 0;
      this.#unmap();
      onUnmapped();
      check(status, 'cuMemHostUnregister');
    };
    context.onReset.add(release);
    // The release fails if the context is lost. The end of the words needs no error for that.
    context.releases.enqueue(() => releaseOrWarn(release));
  }

  #unmap(): void {
    this.#isUnmapped = true;
    // Other threads read the words of these waits.
    for (const shown of this.shownWaits) hideWait(shown);
    this.shownWaits.clear();
    this.#mapping.unmap();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** Whether the streams of a device can write and wait for 64-bit words of host memory. */
export function canUseStreams(device: Device): boolean {
  let cached = streamUse.get(device);
  if (cached === undefined) {
    cached = STREAM_ATTRIBUTES.every((name) => device.attributeOr(name, 0) !== 0);
    streamUse.set(device, cached);
  }
  return cached;
}

const streamUse = new WeakMap<Device, boolean>();
const STREAM_ATTRIBUTES = [
  'canUse64BitStreamMemOps',
  'hostRegisterSupported',
  'canMapHostMemory',
] as const;

// ---- Points ----

/**
 * A place in the work of one stream of another process. It is reached once the counter `index`
 * stands at `count` or beyond.
 */
export interface TimelinePoint {
  readonly index: number;
  /** Starts at 1. */
  readonly count: number;
}

/**
 * Returns the latest point of each counter. A stream that reached it has reached the earlier ones.
 */
export function latest(points: readonly TimelinePoint[]): TimelinePoint[] {
  if (points.length < 2) return [...points];
  const byIndex = new Map<number, TimelinePoint>();
  for (const point of points) {
    const known = byIndex.get(point.index);
    if (!known || known.count < point.count) byIndex.set(point.index, point);
  }
  return [...byIndex.values()];
}
