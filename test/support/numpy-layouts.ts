/** Layouts that NumPy described, and what cuffi says of them: see test/unit/src/array/fixtures/layouts.py. */
import assert from 'node:assert/strict';
import { crc32 } from 'node:zlib';
import { DeviceArray, DeviceBuffer, Dtype } from '../../src/index.ts';

/** A layout as the script writes it. */
export type NumpyLayout = readonly [
  itemsize: number,
  shape: readonly number[],
  strides: readonly number[],
  byteOffset: number,
  low: number,
  high: number,
  orders: string,
  crcInC: number,
  crcInF: number,
];

const BYTE_LENGTH = 4096;
/** More than the items of any layout take. */
const ROOM = 1 << 16;

const crcOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): number =>
  crc32(new Uint8Array(buffer, byteOffset, byteLength));

/** The script's 4096 bytes on a device, and room for copies of their items. */
export class NumpyMemory implements Disposable {
  readonly #memory = DeviceBuffer.allocate(BYTE_LENGTH);
  readonly #copies = DeviceBuffer.allocate(ROOM);

  constructor() {
    this.#memory.copyFromSync(
      Uint8Array.from({ length: BYTE_LENGTH }, (_, i) => (167 * i + 13) % 251),
    );
  }

  /** Asserts that cuffi sees a layout as NumPy does, and gathers the same items. */
  assertAgrees(layout: NumpyLayout): void {
    const [itemsize, shape, strides, byteOffset, low, high, orders, crcInC, crcInF] = layout;
    const dtype = Dtype.bytes(itemsize);
    const array = DeviceArray.fromBuffer(this.#memory, shape, dtype, { strides, byteOffset });
    const copy = DeviceArray.fromBuffer(this.#copies, shape, dtype, { order: 'F' });
    array.copyTo(copy);
    const start = this.#memory.address;
    const { extents, isCContiguous, isFContiguous } = array;
    assert.deepEqual(
      [
        extents.low - start,
        extents.high - start,
        `${isCContiguous ? 'C' : ''}${isFContiguous ? 'F' : ''}`,
        crcOf(array.copyToHostSync()),
        crcOf(array.copyToHostSync(undefined, { order: 'F' })),
        crcOf(copy.copyToHostSync()),
      ],
      [low, high, orders, crcInC, crcInF, crcInC],
    );
  }

  [Symbol.dispose](): void {
    this.#memory.close();
    this.#copies.close();
  }
}
