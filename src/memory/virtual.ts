import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import { Resource } from '../lifetime.ts';
import { assertInternal, checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { type Access, DeviceBuffer } from './buffer.ts';
import { roundUp } from './chunks.ts';
import {
  createChunk,
  freeReservation,
  type PhysicalChunk,
  reserveAddresses,
  type SharedChunks,
  shareChunks,
  totalByteLength,
} from './physical-chunk.ts';
import { allocationGranularity } from './physical-memory.ts';
import { randomId } from './random-id.ts';

/** Options of {@link VirtualMemory.reserve}. */
export interface VirtualMemoryOptions extends PlaceOptions {
  /** Whether its memory can be given to other processes, by file descriptor. Default false. */
  readonly shareable?: boolean;
}

/**
 * A range of addresses that memory is put behind as it is needed: it grows in place, so that what
 * it holds stays where it is and every address stays right.
 *
 * Reserving takes no memory. Sizes are rounded up to the device's {@link granularity} (2 MiB on
 * most): `byteLength` is what was asked for, `mappedByteLength` what it takes.
 *
 * @example
 * using memory = cuda.VirtualMemory.reserve(1 << 30);
 * memory.grow(1000);
 * memory.buffer.fill(1);
 * memory.grow(1 << 20); // the first 1000 bytes are still 1
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
 */
export class VirtualMemory extends Resource {
  readonly context: Context;
  /** How far it can grow, in bytes. */
  readonly reservedByteLength: number;
  /** What sizes are rounded up to. */
  readonly granularity: number;
  readonly shareable: boolean;
  readonly #address: CUdeviceptr;
  /** Its finalizer's too. */
  readonly #chunks: PhysicalChunk[];
  #byteLength = 0;
  /** What other processes name it by, for each access: who knows the one does not know the other. */
  readonly #shareIds: { [A in Access]?: string } = {};
  #buffer: DeviceBuffer | undefined;

  private constructor(
    context: Context,
    address: CUdeviceptr,
    reservedByteLength: number,
    granularity: number,
    shareable: boolean,
  ) {
    assertInternal(context, Context, 'VirtualMemory', 'VirtualMemory.reserve');
    const chunks: PhysicalChunk[] = [];
    const { releases, epoch } = context;
    super('VirtualMemory', {
      owner: context.resources,
      release: () =>
        // cuMemUnmap does not wait for what uses the memory.
        releases.enqueue(
          () => {
            if (context.epoch === epoch)
              freeReservation(context, address, reservedByteLength, chunks);
          },
          { byteLength: totalByteLength(chunks), mayBlock: false },
        ),
    });
    this.context = context;
    this.reservedByteLength = reservedByteLength;
    this.granularity = granularity;
    this.shareable = shareable;
    this.#address = address;
    this.#chunks = chunks;
  }

  /**
   * Reserves addresses; nothing is behind them until {@link grow}.
   *
   * @param byteLength how far it may grow; rounded up
   * @throws NotSupportedError where the device has no virtual memory management
   */
  static reserve(byteLength: number, options?: VirtualMemoryOptions): VirtualMemory {
    checkInteger(byteLength, 'byteLength', 1);
    const { shareable, ...place } = checkOptions(
      options,
      ['context', 'device', 'shareable'],
      'VirtualMemory.reserve',
    );
    const isShareable = checkBoolean(shareable, 'shareable', false);
    const context = Context.resolve(place);
    const { device } = context;
    if (!VirtualMemory.supported(device))
      throw new NotSupportedError(`${device} has no virtual memory management`);
    if (isShareable && !device.attribute('handleTypePosixFileDescriptorSupported'))
      throw new NotSupportedError(
        `${device} does not make virtual memory that can be shared by file descriptor`,
      );
    const granularity = allocationGranularity(device, isShareable);
    const reserved = roundUp(byteLength, granularity);
    const address = reserveAddresses(reserved);
    return new VirtualMemory(context, address, reserved, granularity, isShareable);
  }

  /** Whether a device can do it. */
  static supported(device: Device | number = 0): boolean {
    return Device.resolve(device).attribute('virtualMemoryManagementSupported') !== 0;
  }

  /** The first address; the same for life. @throws ClosedError */
  get address(): CUdeviceptr {
    this.assertOpen();
    return this.#address;
  }

  /** The size that was last asked for. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** The memory behind it, in bytes: {@link byteLength} rounded up. 0 after close. */
  get mappedByteLength(): number {
    return this.closed ? 0 : totalByteLength(this.#chunks);
  }

  /**
   * All of its {@link byteLength} as a buffer. Buffers from before a growth stay good, and keep
   * their size; all are closed with it.
   */
  get buffer(): DeviceBuffer {
    const address = this.address;
    if (!this.#buffer || this.#buffer.closed || this.#buffer.byteLength !== this.#byteLength)
      this.#buffer = new DeviceBuffer({
        context: this.context,
        address,
        byteLength: this.#byteLength,
        origin: 'allocated',
        keepalive: this,
        mappingBoundaries: () => this.#chunks.map((part) => part.address),
      });
    return this.#buffer;
  }

  /**
   * Makes it `byteLength` bytes long in all, by memory next to what is there; what is there stays.
   *
   * @param byteLength the new size, not less than the one before
   * @throws RangeError beyond what was reserved, CudaError CUDA_ERROR_OUT_OF_MEMORY
   */
  grow(byteLength: number): DeviceBuffer {
    this.assertOpen();
    checkInteger(byteLength, 'byteLength', 1);
    if (byteLength < this.byteLength)
      throw new RangeError(`it has ${this.byteLength} bytes: it does not shrink to ${byteLength}`);
    if (byteLength > this.reservedByteLength)
      throw new RangeError(
        `${byteLength} bytes are more than the ${this.reservedByteLength} that were reserved`,
      );
    const missing = roundUp(byteLength, this.granularity) - totalByteLength(this.#chunks);
    const end = (this.#address + totalByteLength(this.#chunks)) as CUdeviceptr;
    if (missing > 0) this.#chunks.push(createChunk(this.context, end, missing, this.shareable));
    this.#byteLength = byteLength;
    return this.buffer;
  }

  /** @internal As other processes may open the bytes from `begin` to `end`. @throws IpcError */
  share(begin: number, end: number, maxChunks: number, access: Access): SharedChunks {
    const start = (this.address + begin) as CUdeviceptr;
    this.#shareIds[access] ??= randomId();
    return {
      id: this.#shareIds[access],
      ...shareChunks(this.context, this.#chunks, start, end - begin, maxChunks, access),
    };
  }

  /** @internal What it was shared for by that name; undefined where it has no such name. */
  accessOf(id: string): Access | undefined {
    if (id === this.#shareIds['read-write']) return 'read-write';
    return id === this.#shareIds.read ? 'read' : undefined;
  }

  /** @internal Where one of its pieces begins, in bytes. */
  offsetOf(chunk: number): number {
    return (this.#chunks[chunk]?.address ?? this.address) - this.address;
  }

  override toString(): string {
    return `VirtualMemory(${this.byteLength} of ${this.reservedByteLength} bytes${this.closed ? ', closed' : ''})`;
  }
}
