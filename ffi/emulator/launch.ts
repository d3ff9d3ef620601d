/** One launch: its arguments read, and its kernel run when the stream gets to it. */
import {
  type EmulatedLaunch,
  type EmulatedParameter,
  emulatedByteLength,
  type RegisteredKernel,
} from '../emulated-kernels.ts';
import { viewMemory } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Address } from '../types.ts';
import type { HostMemory } from './host.ts';
import type { Memory } from './memory.ts';
import type { Kernel } from './modules.ts';

type Extents = readonly [x: number, y: number, z: number];
type Argument = number | bigint | boolean | Uint8Array;

/** The shape of a launch. */
export interface LaunchShape {
  readonly grid: Extents;
  readonly block: Extents;
  readonly sharedBytes: number;
}

/** What a kernel did that ends its context. */
class KernelTrap extends Error {
  readonly status: Status;

  constructor(status: Status, message: string) {
    super(message);
    this.status = status;
  }
}

/** Memory that a kernel may only read: a copy as it was, and the one that the kernel was given. */
interface ReadOnlyCopy {
  readonly address: number;
  readonly before: ArrayBuffer;
  readonly after: ArrayBuffer;
}

/** The arguments behind a table of pointers; undefined where one cannot be read, or is of another width. */
export function readArguments(
  host: HostMemory,
  kernel: Kernel,
  { params }: RegisteredKernel,
  pointers: number,
): readonly Argument[] | undefined {
  if (params.length !== kernel.params.length) return undefined;
  const args: Argument[] = [];
  for (const [at, param] of params.entries()) {
    const byteLength = emulatedByteLength(param);
    const address = host.getUint64(pointers + 8 * at);
    const bytes =
      address === undefined || byteLength !== kernel.params[at]
        ? undefined
        : host.read(Number(address), byteLength);
    if (!bytes) return undefined;
    args.push(decode(param, bytes));
  }
  return args;
}

function decode(param: EmulatedParameter, bytes: Uint8Array): Argument {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  switch (param) {
    case 'bool':
      return view.getUint8(0) !== 0;
    case 'int8':
      return view.getInt8(0);
    case 'uint8':
      return view.getUint8(0);
    case 'int16':
      return view.getInt16(0, true);
    case 'uint16':
    case 'float16':
    case 'bfloat16':
      return view.getUint16(0, true);
    case 'int32':
      return view.getInt32(0, true);
    case 'uint32':
      return view.getUint32(0, true);
    case 'int64':
      return view.getBigInt64(0, true);
    case 'uint64':
      return view.getBigUint64(0, true);
    case 'float32':
      return view.getFloat32(0, true);
    case 'float64':
      return view.getFloat64(0, true);
    case 'pointer':
      return Number(view.getBigUint64(0, true));
    default:
      return bytes;
  }
}

/** Runs a kernel; where it fails, its context is lost. */
export function runKernel(
  memory: Memory,
  { name, context }: Kernel,
  { run }: RegisteredKernel,
  shape: LaunchShape,
  args: readonly Argument[],
): void {
  const readOnly: ReadOnlyCopy[] = [];
  const launch: EmulatedLaunch = {
    ...shape,
    view(address, type, length) {
      const byteLength = length * type.BYTES_PER_ELEMENT;
      if (address % type.BYTES_PER_ELEMENT !== 0)
        throw new KernelTrap(CUresult.CUDA_ERROR_MISALIGNED_ADDRESS, `${address} is misaligned`);
      if (byteLength === 0) return new type(new ArrayBuffer(0), 0, 0);
      const canWrite = memory.canStillWrite(address, byteLength, context.device);
      const canRead = canWrite || memory.canStillRead(address, byteLength, context.device);
      if (!canRead || memory.isInaccessible(address, context))
        throw new KernelTrap(
          CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
          `${byteLength} bytes at ${address} are not all the device's`,
        );
      const bytes = viewMemory(address as Address, byteLength);
      if (canWrite) return new type(bytes, 0, length);
      const lent = { address, before: bytes.slice(0), after: bytes.slice(0) };
      readOnly.push(lent);
      return new type(lent.after, 0, length);
    },
  };
  try {
    run(launch, args);
    for (const { address, before, after } of readOnly)
      if (Buffer.compare(new Uint8Array(before), new Uint8Array(after)) !== 0)
        throw new KernelTrap(
          CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
          `the device may only read the memory at ${address}`,
        );
  } catch (error) {
    context.failure =
      error instanceof KernelTrap ? error.status : CUresult.CUDA_ERROR_LAUNCH_FAILED;
    if (error instanceof KernelTrap) return;
    process.emitWarning(`the emulated kernel ${name} threw: ${describe(error)}`, {
      code: 'CUFFI_EMULATED_KERNEL',
    });
  }
}

const describe = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? error.message) : String(error);
