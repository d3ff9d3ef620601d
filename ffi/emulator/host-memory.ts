/** Host memory by address. A bad address is reported and never crashes. */
import { readProcessMemory, writeProcessMemory } from '../linux/libc.ts';
import { addressOf, withAddress } from '../native.ts';
import { decodeStruct, type StructName, structs } from '../structs.ts';
import type { Address } from '../types.ts';

/** The arena of the caller. */
export interface Arena {
  readonly address: number;
  readonly byteLength: number;
  readonly buffer: ArrayBuffer;
}

interface GivenStruct {
  readonly name: StructName;
  readonly values: Readonly<Record<string, number>>;
  readonly unread: ReadonlySet<string>;
}

// The kernel copies less than 2 GiB per call.
const MAX_TRANSFER_BYTES = 2 ** 30;

const WORD_BYTES = 8;

/**
 * Reads and writes host memory of this process: the arena through its buffer, other memory through
 * the kernel, which reports unmapped addresses as EFAULT.
 */
export class HostMemory {
  readonly #arena: Arena;
  readonly #view: DataView;
  readonly #scratch = Buffer.allocUnsafeSlow(WORD_BYTES);
  readonly #scratchView = new DataView(this.#scratch.buffer);
  readonly #scratchAddress = addressOf(this.#scratch);
  /** The structs that the current call was given, with the fields that are not 0 and that it has not read. */
  #structs: GivenStruct[] = [];

  constructor(arena: Arena) {
    this.#arena = arena;
    this.#view = new DataView(arena.buffer);
  }

  /** Copies between any addresses. Returns false if either side is not mapped. */
  copy(to: number, from: number, byteLength: number): boolean {
    for (let done = 0; done < byteLength; ) {
      const wanted = Math.min(byteLength - done, MAX_TRANSFER_BYTES);
      const source = (from + done) as Address;
      const target = (to + done) as Address;
      if (!isAddress(source) || !isAddress(target)) return false;
      if (readProcessMemory(process.pid, source, target, wanted) !== wanted) return false;
      done += wanted;
    }
    return true;
  }

  /** Writes bytes. Returns false if the address is not writable. */
  write(address: number, bytes: Uint8Array): boolean {
    const at = this.#arenaOffset(address, bytes.length);
    if (at < 0) return withAddress(bytes, (from) => this.copy(address, from, bytes.length));
    new Uint8Array(this.#arena.buffer).set(bytes, at);
    return true;
  }

  /** A copy of host memory. Undefined if it is not readable. */
  read(address: number, byteLength: number): Uint8Array | undefined {
    const bytes = Buffer.allocUnsafeSlow(byteLength);
    const isRead = withAddress(bytes, (into) => this.copy(into, address, byteLength));
    return isRead ? bytes : undefined;
  }

  isReadable(address: number): boolean {
    return this.copy(this.#scratchAddress, address, 1);
  }

  /** Whether an out-value can be written at an address. */
  isWritable(address: number): boolean {
    return (
      this.#arenaOffset(address, 1) >= 0 ||
      (this.isReadable(address) && this.copy(address, this.#scratchAddress, 1))
    );
  }

  setInt32(address: number, value: number): boolean {
    return this.#set(address, 4, (view, at) => view.setInt32(at, value, true));
  }

  setFloat32(address: number, value: number): boolean {
    return this.#set(address, 4, (view, at) => view.setFloat32(at, value, true));
  }

  setUint64(address: number, value: number): boolean {
    return this.#set(address, WORD_BYTES, (view, at) => {
      view.setUint32(at, value, true);
      view.setUint32(at + 4, value / 2 ** 32, true);
    });
  }

  setBigUint64(address: number, value: bigint): boolean {
    return this.#set(address, WORD_BYTES, (view, at) => view.setBigUint64(at, value, true));
  }

  getUint64(address: number): bigint | undefined {
    return this.copy(this.#scratchAddress, address, WORD_BYTES)
      ? this.#scratchView.getBigUint64(0, true)
      : undefined;
  }

  /** Reads a struct. Undefined if the address is not readable, or a field has more than 53 bits. */
  readStruct<S extends StructName>(
    name: S,
    address: number,
  ): ReturnType<typeof decodeStruct<S>> | undefined {
    const bytes = this.read(address, structs[name].byteLength);
    const values = bytes && decodeStruct(name, bytes);
    const fields: [field: string, value: number][] = Object.entries(values ?? {});
    if (!values || !fields.every(([, value]) => Number.isSafeInteger(value))) return undefined;
    const unread = new Set(fields.filter(([, value]) => value !== 0).map(([field]) => field));
    this.#structs.push({ name, values, unread });
    return new Proxy(values, {
      get(target, field) {
        unread.delete(field as string);
        return target[field as keyof typeof target];
      },
    });
  }

  /** What the current call was given in structs and has not read, which the next call does not get. */
  takeUnread(): string[] {
    if (this.#structs.length === 0) return [];
    const given = this.#structs;
    this.#structs = [];
    return given.flatMap(({ name, values, unread }) =>
      [...unread].map((field) => `${field}, which is ${values[field]}, of a ${name}`),
    );
  }

  getInt32(address: number): number | undefined {
    return this.copy(this.#scratchAddress, address, 4)
      ? this.#scratchView.getInt32(0, true)
      : undefined;
  }

  #set(address: number, byteLength: number, set: (view: DataView, at: number) => void): boolean {
    const at = this.#arenaOffset(address, byteLength);
    if (at >= 0) {
      set(this.#view, at);
      return true;
    }
    set(this.#scratchView, 0);
    return (
      isAddress(address) &&
      writeProcessMemory(process.pid, address as Address, this.#scratchAddress, byteLength) ===
        byteLength
    );
  }

  /** The offset of `address` in the arena, or -1. */
  #arenaOffset(address: number, byteLength: number): number {
    const at = address - this.#arena.address;
    return at >= 0 && at + byteLength <= this.#arena.byteLength ? at : -1;
  }
}

/** Whether a number can be an address: the kernel cannot be called with others. */
const isAddress = (address: number): boolean => Number.isSafeInteger(address) && address > 0;
