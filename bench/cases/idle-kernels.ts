/**
 * Kernels that do nothing, unless their last argument has its highest bit: then they write their
 * arguments down, so that it can be looked at whether these arrive.
 */
import { readFileSync } from 'node:fs';
import type { DeviceBuffer, Kernel, Module, Stream } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';
import { requireSuccess } from './names.ts';

export const ptx: string = readFileSync(new URL('../peers/kernels.ptx', import.meta.url), 'utf8');

/** Asks a kernel to write its arguments down. */
export const ASKED = 0x8000_0000;
const FACTOR = 2.5;
const FACTOR_BITS = 0x4020_0000;

export const FOUR = ['float32', 'pointer', 'pointer', 'uint32'] as const;
const ints = Array.from({ length: 15 }, () => 'uint32' as const);

// For the emulated driver, whose times say nothing.
registerKernel('none', { params: [], run() {} });
registerKernel('four', {
  params: FOUR,
  run({ view }, [a, x, y, n]) {
    if (n < ASKED) return;
    view(x, Float32Array, 1)[0] = a;
    view(x + 4, Uint32Array, 1)[0] = n;
    view(x + 8, BigUint64Array, 1)[0] = BigInt(y);
  },
});
registerKernel('sixteen', {
  params: ['pointer', ...ints],
  run({ view }, [to, ...numbers]) {
    if ((numbers.at(-1) as number) >= ASKED) view(to, Uint32Array, numbers.length).set(numbers);
  },
});

/** What a launch of each needs. */
export interface LaunchObjects {
  readonly module: Module;
  readonly stream: Stream;
  readonly buffer: DeviceBuffer;
}

/** How one of the kernels is launched through the public API. */
export interface IdleLaunch {
  readonly kernel: Kernel;
  /** Written out for each kernel, so that V8 compiles each for itself. */
  readonly loop: (calls: number) => void;
  /** A launch of the same form that writes its arguments down, if it has any. */
  readonly ask: () => void;
  /** The arguments of that launch as words, and what it writes. */
  readonly asked: readonly bigint[];
  readonly written: readonly number[];
}

/** What four arguments write where they ask for it. */
export const writtenByFour = ({ address }: DeviceBuffer, last: number): number[] => [
  FACTOR_BITS,
  last,
  address % 2 ** 32,
  Math.floor(address / 2 ** 32),
];

export const idleLaunches: Readonly<Record<string, (objects: LaunchObjects) => IdleLaunch>> = {
  none({ module, stream }) {
    const kernel = module.kernel('none', []);
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1) kernel.launch({ grid: 1, block: 32, stream });
      },
      ask() {},
      asked: [],
      written: [],
    };
  },
  four({ module, stream, buffer }) {
    const kernel = module.kernel('four', FOUR);
    const last = ASKED + 7;
    const address = BigInt(buffer.address);
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1)
          kernel.launch({ grid: 1, block: 32, stream }, FACTOR, buffer, buffer, call);
      },
      ask: () => kernel.launch({ grid: 1, block: 32, stream }, FACTOR, buffer, buffer, last),
      asked: [BigInt(FACTOR_BITS), address, address, BigInt(last)],
      written: writtenByFour(buffer, last),
    };
  },
  sixteen({ module, stream, buffer }) {
    const kernel = module.kernel('sixteen', [
      'pointer',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
      'uint32',
    ]);
    const config = { grid: 1, block: 32, stream };
    const last = ASKED + 15;
    const written = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, last];
    return {
      kernel,
      loop(calls) {
        for (let call = 0; call < calls; call += 1)
          kernel.launch(config, buffer, call, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      },
      ask: () => kernel.launch(config, buffer, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, last),
      asked: [BigInt(buffer.address), ...written.map(BigInt)],
      written,
    };
  },
};

/** Clears the memory, launches what writes there, and compares. @throws Error where it wrote another thing */
export function requireWritten(
  { stream, buffer }: Omit<LaunchObjects, 'module'>,
  launch: () => void,
  written: readonly number[],
  what: string,
): void {
  buffer.fill(0);
  buffer.context.synchronizeSync();
  launch();
  stream.synchronizeSync();
  const seen = buffer.copyToHostSync(new Uint32Array(buffer.byteLength / 4));
  requireSuccess(
    written.every((word, at) => word === seen[at]),
    `${what}, whose arguments did not arrive,`,
  );
}
