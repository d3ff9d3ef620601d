/** Raw driver calls as data, so that a test can make them here or in another process alike. */
import {
  arena,
  BLOCK,
  OUT0,
  OUT1,
  OUT2,
  openArena,
  readBytes,
  readUint64,
  writeBytes,
} from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { libcSymbol } from '../../ffi/linux/libc.ts';
import { encodeStruct, type StructName, type StructValues, structs } from '../../ffi/structs.ts';
import type { Address } from '../../ffi/types.ts';
import { Program } from './program.ts';

/** Where an out-value goes. */
export type OutSlot = 'OUT0' | 'OUT1' | 'OUT2' | 'BLOCK';
openArena();
const slots: Readonly<Record<OutSlot, Address>> = { OUT0, OUT1, OUT2, BLOCK };

/** The 64 bytes of a handle, passed by value. */
export interface Handle64 {
  readonly base64: string;
}

/** Bytes that are put into the arena before the call; their address is passed. */
export interface Bytes {
  readonly bytes: string;
}

/** The address of a libc function in the process that makes the call. */
export interface LibcSymbol {
  readonly symbol: string;
}

/** A 64-bit value that no number holds. */
export interface Wide {
  readonly wide: string;
}

/** What a kernel is launched with, 8 bytes each: the address of their addresses is passed. */
export interface KernelParameters {
  readonly parameters: readonly number[];
}

export type Argument = number | OutSlot | Handle64 | Bytes | LibcSymbol | Wide | KernelParameters;

/** A struct as an argument. */
export function struct<S extends StructName>(name: S, values: StructValues<S>): Bytes {
  const bytes = new Uint8Array(structs[name].byteLength);
  encodeStruct(name, values, new DataView(bytes.buffer));
  return { bytes: Buffer.from(bytes).toString('base64') };
}

/** A 64-bit value, or one of 32 bits, as an argument that the driver reads through a pointer. */
export function pointed(value: number | bigint, byteLength: 4 | 8 = 8): Bytes {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)));
  return { bytes: bytes.subarray(0, byteLength).toString('base64') };
}

const INPUTS = (BLOCK + 1024) as Address;
const INPUT_BYTE_LENGTH = 256;

/** What a call answered. */
export interface Answer {
  readonly status: number;
  readonly out0: number;
  readonly out1: number;
  readonly int0: number;
  /** The first 64 bytes of BLOCK, in base64. */
  readonly block: string;
}

/** A process in which calls can be made. */
export interface Side {
  readonly call: (name: FunctionName, ...args: Argument[]) => Promise<Answer>;
}

/** Makes a call in this process. */
export function callHere(name: FunctionName, args: readonly Argument[]): Answer {
  new Uint8Array(arena.buffer).fill(0, 0, 4096 + 64);
  const values = args.map((arg, at) => {
    if (typeof arg === 'string') return slots[arg];
    if (typeof arg === 'number') return arg;
    if ('symbol' in arg) return libcSymbol(arg.symbol);
    if ('wide' in arg) return BigInt(arg.wide);
    if ('bytes' in arg) {
      const address = (INPUTS + at * INPUT_BYTE_LENGTH) as Address;
      return writeBytes(Buffer.from(arg.bytes, 'base64'), address);
    }
    if ('parameters' in arg) {
      const address = (INPUTS + at * INPUT_BYTE_LENGTH) as Address;
      const { length } = arg.parameters;
      const places = arg.parameters.map((_, place) => address + 8 * (length + place));
      const words = BigUint64Array.from([...places, ...arg.parameters], BigInt);
      return writeBytes(new Uint8Array(words.buffer), address);
    }
    return { reserved: new Uint8Array(Buffer.from(arg.base64, 'base64')) };
  });
  const status = (cu[name] as (...values: unknown[]) => number)(...values);
  return {
    status,
    out0: Number(readUint64(OUT0)),
    out1: Number(readUint64(OUT1)),
    int0: Number(BigInt.asIntN(32, readUint64(OUT0))),
    block: Buffer.from(readBytes(BLOCK, 64)).toString('base64'),
  };
}

/** Another process that makes the calls it is asked for; none is made by itself. */
export class DriverProcess extends Program implements Side {
  constructor(env: NodeJS.ProcessEnv = {}) {
    super(new URL('./driver-process.ts', import.meta.url), [], { env: { ...process.env, ...env } });
  }

  readonly call = async (name: FunctionName, ...args: Argument[]): Promise<Answer> => {
    try {
      return await this.ask<Answer>({ name, args });
    } catch (cause) {
      throw new Error(`${name}(${JSON.stringify(args)}): ${cause}`, { cause });
    }
  };

  /** As {@link Side.call}, but the answer is awaited later. */
  start(name: FunctionName, ...args: Argument[]): void {
    this.process.send({ name, args });
  }

  /** A copy of a descriptor of this peer, in another one: answers its number there. */
  async sendFd(fd: number, to: DriverProcess): Promise<number> {
    const name = `@cuffi-peer-${to.pid}-${fd}`;
    await to.ask({ listen: name });
    await this.ask({ sendFd: fd, to: name });
    return (await to.ask<{ fd: number }>({ receiveFd: true })).fd;
  }

  /** Closes a descriptor of the peer. */
  closeFd(fd: number): Promise<unknown> {
    return this.ask({ closeFd: fd });
  }

  /** Makes a latch in the peer; see latch.ts. */
  latch(): Promise<{ fd: number; devicePointer: number }> {
    return this.ask({ latch: true });
  }
}

/** cuInit, then the primary context of device 0 retained and pushed: answers its handle. */
export async function enterContext(side: Side): Promise<number> {
  await side.call('cuInit', 0);
  const { out0 } = await side.call('cuDevicePrimaryCtxRetain', 'OUT0', 0);
  await side.call('cuCtxPushCurrent_v2', out0);
  return out0;
}
