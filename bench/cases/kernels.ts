/**
 * Launches of kernels that do nothing, beside the driver's call alone with everything written
 * before. Never more than 500 between two waits: a full queue would be measured instead.
 */
import { Context, DeviceBuffer, Module, Stream } from 'cuffi';
import { type Address, cu } from 'cuffi/ffi';
import { inProcess } from '../measure.ts';
import { type Aim, type Case, inPeers, type OpenCase } from './case.ts';
import { type IdleLaunch, idleLaunches, ptx, requireWritten } from './idle-kernels.ts';
import { PUBLIC, RAW, requireSuccess } from './names.ts';
import { RawLaunch } from './raw-launch.ts';

export const LAUNCH_CALLS = 500;
const LOADS = 20;
/** Batches are so short that V8 would interpret them for long; no program launches so few. */
export const LAUNCH_WARM_UP_MS = 800;

const aims: readonly Aim[] = [
  { versus: RAW, max: 1.05 },
  { versus: 'C', max: 1.15 },
  { versus: 'cupy RawKernel', max: 1 },
  { versus: 'cuda.core', max: 1 },
];

type Loop = (calls: number) => void;

function openLaunch(name: string): OpenCase {
  const module = Module.load(ptx);
  const stream = Stream.create({ nonBlocking: true });
  const buffer = DeviceBuffer.allocate(64);
  const open = idleLaunches[name] as (typeof idleLaunches)[string];
  const { kernel, loop, ask, asked, written }: IdleLaunch = open({ module, stream, buffer });
  const raw = new RawLaunch(stream);
  const { handle } = kernel;
  const nothing = 0 as Address;
  const settle = (): void => stream.synchronizeSync();
  const loopRaw: Loop = (calls) =>
    kernel.context.run(() => {
      const { config, arguments: args } = raw;
      let status = 0;
      for (let call = 0; call < calls; call += 1)
        status |= cu.cuLaunchKernelEx(config, handle, args, nothing);
      requireSuccess(status === 0, 'cuLaunchKernelEx');
    });
  return {
    contestants: [
      inProcess(PUBLIC, loop, settle, LAUNCH_WARM_UP_MS),
      inProcess(RAW, loopRaw, settle),
    ],
    verify() {
      requireWritten({ stream, buffer }, ask, written, PUBLIC);
      raw.pass(asked);
      requireWritten({ stream, buffer }, () => loopRaw(1), written, RAW);
    },
    close() {
      buffer.close();
      stream.close();
      module.close();
    },
  };
}

function openLoad(): OpenCase {
  const context = Context.primary();
  const settle = (): void => context.synchronizeSync();
  const loop: Loop = (calls) => {
    for (let call = 0; call < calls; call += 1) Module.load(ptx).close();
  };
  return {
    contestants: [inProcess(PUBLIC, loop, settle, LAUNCH_WARM_UP_MS)],
    close() {},
  };
}

const launchCase = (name: string, count: number): Case => ({
  name: 'kernel.launch',
  variant: `${count} arguments`,
  what: `launches a kernel of ${count} arguments that does nothing: cuLaunchKernelEx`,
  calls: LAUNCH_CALLS,
  peers: [
    ...inPeers(`launch.${name}`, 'C', 'cuda.core'),
    { peer: 'cupy', batch: `launch.${name}`, name: 'cupy RawKernel' },
    // PyTorch launches its own kernels alone: one of as many arguments.
    ...(name === 'four' ? [{ peer: 'torch', batch: 'add', name: 'torch.add_' } as const] : []),
  ],
  aims,
  open: () => openLaunch(name),
});

export const kernelCases: readonly Case[] = [
  launchCase('none', 0),
  launchCase('four', 4),
  launchCase('sixteen', 16),
  {
    name: 'Module.load',
    what: 'loads three kernels of PTX that the driver has compiled before, and unloads them',
    calls: LOADS,
    peers: inPeers('module.load', 'C'),
    aims: [{ versus: 'C', max: 1.5 }],
    open: openLoad,
  },
];
