/** `cuffi devices`: the devices that this process sees, and what they can share. */
import { Context } from '../context.ts';
import { type Device, devices } from '../device.ts';
import { deviceFacts } from '../ipc/inspect/process-facts.ts';
import { type IpcSupport, ipcSupport } from '../ipc/sharing/blockers.ts';
import { type Command, driverOption, parseCommand, refuseArguments } from './command.ts';
import { chooseDriver } from './driver-choice.ts';
import { print, printedWidth, printJson } from './output.ts';
import { columns, heading, shortBytes } from './table.ts';

export const devicesCommand: Command = {
  summary: 'lists the devices, and what each can share',
  usage: `usage: cuffi devices [options]

Lists the devices that this process sees: ordinal, name, memory, how much of it is free,
compute capability, what other processes can be given, which other devices it can access, and its
UUID. The command uses some memory of each device itself, which does not count as free.

  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of a table
  --help         print this`,
  run,
};

const WAYS: Readonly<Record<keyof IpcSupport, string>> = {
  memory: 'plain',
  pools: 'pools',
  virtualMemory: 'virtual',
  events: 'events',
};

function run(argv: readonly string[]): boolean {
  const { values, positionals } = parseCommand(argv, {
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('devices', positionals);
  const driver = chooseDriver(driverOption(values.driver));
  const all = devices();
  const facts = all.map((device) => ({
    ...deviceFacts(device, all),
    pciAddress: device.pciAddress,
    totalMemory: device.totalMemory,
    ...freeMemoryOf(device),
    computeCapability: `${device.computeCapability.major}.${device.computeCapability.minor}`,
    support: ipcSupport(device),
  }));
  if (values.json) {
    printJson({ driver: driver.name, devices: facts });
    return true;
  }
  if (driver.name === 'emulated')
    print([`The emulated driver is used, ${driver.reason}: these are no GPUs.`]);
  const rows = facts.map((device) => [
    String(device.ordinal),
    device.name,
    shortBytes(device.totalMemory),
    device.freeMemory === undefined ? '?' : shortBytes(device.freeMemory),
    device.computeCapability,
    sharedBy(device.support),
    device.peers.map((uuid) => ordinalOf(all, uuid)).join(', ') || '-',
    // The longest comes last: on a narrow terminal it has a line of its own.
    device.uuid,
  ]);
  const names = heading('#', 'NAME', 'MEMORY', 'FREE', 'CC', 'SHARES', 'ACCESSES', 'UUID');
  const isRight = (at: number): boolean => at === 2 || at === 3;
  print(columns([names, ...rows], { isRight, width: printedWidth() }));
  print(
    facts.flatMap(({ ordinal, freeMemoryError }) =>
      freeMemoryError === undefined
        ? []
        : [`The free memory of device ${ordinal} is unknown: ${freeMemoryError}`],
    ),
  );
  return true;
}

/** The free memory of a device, or why it cannot be asked: e.g. another process has it for itself. */
function freeMemoryOf(device: Device): {
  readonly freeMemory?: number;
  readonly freeMemoryError?: string;
} {
  try {
    return { freeMemory: Context.primary(device).memoryInfo().free };
  } catch (error) {
    return { freeMemoryError: (error as Error).message };
  }
}

const sharedBy = (support: IpcSupport): string =>
  (Object.keys(WAYS) as (keyof IpcSupport)[])
    .filter((way) => support[way].supported)
    .map((way) => WAYS[way])
    .join(', ') || 'nothing';

const ordinalOf = (all: readonly Device[], uuid: string): number | undefined =>
  all.find((device) => device.uuid === uuid)?.ordinal;
