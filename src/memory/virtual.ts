import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { randomId } from '../crypto.ts';
import { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import type { Details } from '../inspect.ts';
import { Resource } from '../lifetime.ts';
import {
  assertInternal,
  checkBoolean,
  checkInteger,
  checkOptions,
  formatBytes,
} from '../validate.ts';
import { type Access, DeviceBuffer } from './buffer.ts';
import { roundUp } from './chunks.ts';
import {
  allocationGranularity,
  createChunk,
  freeReservation,
  type PhysicalChunk,
  reserveAddresses,
  type SharedChunks,
  shareChunks,
  totalByteLength,
  VirtualAccess,
} from './physical-memory.ts';

/** Options of {@link VirtualMemory.reserve}. */
export interface VirtualMemoryOptions extends PlaceOptions {
  /** Whether its memory can be shared with other processes by file descriptor. Default false. */
  readonly shareable?: boolean;
}

/**
 * A range of addresses that is backed with memory on demand. It grows in place: its contents stay
 * and every address stays valid.
 *
 * Reserving takes no memory. Sizes are rounded up to the device's {@link granularity} (2 MiB on
 * most): `byteLength` is the requested size, `mappedByteLength` the allocated size.
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
  /** The largest size that it can grow to, in bytes. */
  readonly reservedByteLength: number;
  /** The unit that sizes are rounded up to. */
  readonly granularity: number;
  readonly shareable: boolean;
  readonly #address: CUdeviceptr;
  /** Shared with the finalizer. */
  readonly #chunks: PhysicalChunk[];
  readonly #access: VirtualAccess;
  #byteLength = 0;
  /** Its id in other processes, for each kind of access. Knowing one does not reveal the other. */
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
        // cuMemUnmap does not wait for work that uses the memory.
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
    this.#access = new VirtualAccess(context.device, 'read-write', chunks);
  }

  /**
   * Reserves addresses. They have no memory until {@link grow}.
   *
   * @param byteLength the largest size that it can grow to; rounded up
   * @throws NotSupportedError if the device has no virtual memory management
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
        `${device} does not support virtual memory that can be shared by file descriptor`,
      );
    const granularity = allocationGranularity(device, isShareable);
    const reserved = roundUp(byteLength, granularity);
    const address = reserveAddresses(reserved);
    return new VirtualMemory(context, address, reserved, granularity, isShareable);
  }

  /** Whether a device supports virtual memory management. */
  static supported(device: Device | number = 0): boolean {
    return Device.resolve(device).attribute('virtualMemoryManagementSupported') !== 0;
  }

  /** The first address; never changes. @throws ClosedError */
  get address(): CUdeviceptr {
    this.assertOpen();
    return this.#address;
  }

  /** The size that was last requested. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** The allocated memory, in bytes: {@link byteLength} rounded up. 0 after close. */
  get mappedByteLength(): number {
    return this.closed ? 0 : totalByteLength(this.#chunks);
  }

  /**
   * A buffer of all its {@link byteLength} bytes. Buffers from before a growth stay valid and keep
   * their size. All are closed with it.
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
        mappingBoundaries: () => this.#chunks.map((chunk) => chunk.address),
        deviceAccess: this.#access,
      });
    return this.#buffer;
  }

  /**
   * Grows it to a total of `byteLength` bytes. Contents and addresses stay.
   *
   * @param byteLength the new size, not less than the current one
   * @throws RangeError for more than was reserved, CudaError CUDA_ERROR_OUT_OF_MEMORY
   */
  grow(byteLength: number): DeviceBuffer {
    this.assertOpen();
    checkInteger(byteLength, 'byteLength', 1);
    if (byteLength < this.byteLength)
      throw new RangeError(
        `virtual memory of ${formatBytes(this.byteLength)} cannot shrink to ${byteLength}`,
      );
    if (byteLength > this.reservedByteLength)
      throw new RangeError(
        `${formatBytes(byteLength)} are more than the ${formatBytes(this.reservedByteLength)} that were reserved`,
      );
    const missing = roundUp(byteLength, this.granularity) - totalByteLength(this.#chunks);
    const end = (this.#address + totalByteLength(this.#chunks)) as CUdeviceptr;
    if (missing > 0)
      this.#chunks.push(
        createChunk(this.context, end, missing, this.shareable, this.#access.devices),
      );
    this.#byteLength = byteLength;
    return this.buffer;
  }

  /**
   * Lets another device access the memory, over the link between the devices: also what a later
   * {@link grow} adds. Its kernels and copies then use the memory where it is. {@link Device.topology}
   * says what the link is.
   *
   * @throws NotSupportedError if that device cannot access this one's memory; RangeError for the device
   * of the memory; ClosedError, CudaError
   */
  allowAccess(device: Device | number): void {
    this.assertOpen();
    this.#access.allowAccess(Device.resolve(device));
  }

  /** A device's access to the memory. Its own device always has access. */
  access(device: Device | number): Access | 'none' {
    this.assertOpen();
    return this.#access.access(Device.resolve(device));
  }

  /** @internal Exports the bytes from `begin` up to `end` to other processes. @throws IpcError */
  share(begin: number, end: number, maxChunks: number, access: Access): SharedChunks {
    const start = (this.address + begin) as CUdeviceptr;
    this.#shareIds[access] ??= randomId();
    return {
      id: this.#shareIds[access],
      ...shareChunks(this.context, this.#chunks, start, end - begin, maxChunks, access),
    };
  }

  /** @internal The access that an id was shared for; undefined for any other id. */
  accessOf(id: string): Access | undefined {
    if (id === this.#shareIds['read-write']) return 'read-write';
    return id === this.#shareIds.read ? 'read' : undefined;
  }

  /** @internal The offset of a chunk, in bytes. */
  offsetOf(chunk: number): number {
    return (this.#chunks[chunk]?.address ?? this.address) - this.address;
  }

  /** @internal */
  protected override describe(): Details {
    return [`${this.byteLength} of ${this.reservedByteLength} bytes`];
  }
}
