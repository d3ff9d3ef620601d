#!/usr/bin/env node
/** The `cuffi` command. */
import { driverName } from '../../ffi/driver.ts';
import { driverVersion } from '../driver.ts';
import type { Support } from '../ipc/sharing/support.ts';
import { readCommandLine, USAGE, UsageError } from './command-line.ts';
import { chooseDriver, type DriverChoice } from './driver-choice.ts';
import { defaultKind, type KindName, kinds } from './kinds.ts';
import { type DeviceSupport, inspectDevice, type RoundtripResult, roundtrip } from './roundtrip.ts';

const labelled = (label: string, text: string): string => `${label.padEnd(11)}${text}`;
const formatCount = (value: number): string => value.toLocaleString('en-US');
const milliseconds = (value: number): string => `${value.toFixed(value < 10 ? 2 : 1)} ms`;
const formatSupport = ({ supported, reason }: Support): string =>
  supported ? 'yes' : `no (${reason})`;

/** The first line of every output: the driver. */
export function describeDriver(driver: DriverChoice): string {
  if (driver.name === 'emulated')
    return labelled(
      'driver',
      `emulated, ${driver.reason}: real processes and shared memory, but no GPU; its times say nothing about one`,
    );
  const { major, minor } = driverVersion();
  return labelled('driver', `${driverName()}, CUDA ${major}.${minor} (${driver.reason})`);
}

/** The lines about the device and what it can share. */
export function describePlace({ device, support }: DeviceSupport): string[] {
  const { major, minor } = device.computeCapability;
  return [
    labelled(
      'device',
      `${device.ordinal}: ${device.name}, compute capability ${major}.${minor}, ` +
        `${formatCount(device.totalMemory)} bytes, ${device.uuid}`,
    ),
    labelled('memory', `between processes: ${formatSupport(support.memory)}`),
    labelled('events', `between processes: ${formatSupport(support.events)}`),
    labelled('pools', `by file descriptor: ${formatSupport(support.pools)}`),
    labelled('virtual', `by file descriptor: ${formatSupport(support.virtualMemory)}`),
  ];
}

/** The line about the shared memory. */
export const describeKind = (kind: KindName): string =>
  labelled('shared', `${kind}: ${kinds[kind].description}`);

/** How long copying took, where IPC takes 1. */
const comparison = (ratio: number): string =>
  ratio >= 1
    ? `${ratio.toFixed(1)} times as long`
    : `${(1 / ratio).toFixed(1)} times as fast: IPC pays for larger buffers`;

/** The lines about the result, the verdict last. */
function describeResult(result: RoundtripResult): string[] {
  const { parent, child, mismatches } = result;
  const values = (list: readonly number[]): string => `${list.join(', ')}, ...`;
  return [
    labelled(
      'parent',
      `pid ${parent.pid} wrote ${formatCount(result.byteLength)} bytes: ${values(parent.wrote)}`,
    ),
    labelled('child', `pid ${child.pid} opened them and read: ${values(child.read)}`),
    labelled('child', `found ${mismatches.child} wrong, wrote its own: ${values(child.wrote)}`),
    labelled('parent', `read back: ${values(parent.readBack)}; found ${mismatches.parent} wrong`),
    labelled(
      'hand-over',
      `${milliseconds(result.ipcMs)} by IPC, ${milliseconds(result.copyMs)} by copying through the host ` +
        `(${comparison(result.copyMs / result.ipcMs)})`,
    ),
    labelled(
      'copies',
      `${formatCount(result.bytesCopied)} bytes copied between export and first read; ` +
        `the child's free device memory fell by ${formatCount(result.childMemoryFell)} bytes`,
    ),
    ...(result.noCopy ? ['No copy was made.'] : []),
    `round trip: ${result.ok ? 'OK' : 'FAILED'}`,
  ];
}

const CHILD_DEADLINE_MS = 30_000;

/** Runs the command and returns whether it succeeded. */
async function main(argv: string[]): Promise<boolean> {
  const commandLine = readCommandLine(argv);
  if (!commandLine) {
    console.log(USAGE);
    return true;
  }
  const { elements, device: ordinal, json } = commandLine;
  const driver = chooseDriver(commandLine.driver);
  const print = (...lines: string[]): void => {
    if (!json) for (const line of lines) console.log(line);
  };
  print(describeDriver(driver));
  const place = inspectDevice(ordinal);
  print(...describePlace(place));
  const facts = {
    driver: driver.name,
    device: { ordinal, name: place.device.name, uuid: place.device.uuid },
    support: place.support,
  };
  const kind = commandLine.kind ?? defaultKind(place.device, place.support);
  const { supported, reason } = place.support[kinds[kind].capability];
  if (!supported) {
    print(`This device cannot share ${kind} memory between processes: ${reason}. Nothing to show.`);
    if (json) console.log(JSON.stringify({ ...facts, result: null }));
    return true;
  }
  print(describeKind(kind));
  const result = await roundtrip({
    elements,
    kind,
    device: ordinal,
    driver,
    deadlineMs: CHILD_DEADLINE_MS,
  });
  print(...describeResult(result));
  if (json) console.log(JSON.stringify({ ...facts, result }));
  return result.ok;
}

/** 128 plus the number of SIGPIPE, which Node ignores: the exit code for a closed pipe. */
const READER_GONE = 141;

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // The reader, such as `head`, has read enough.
  if (error.code === 'EPIPE') process.exit(READER_GONE);
  console.error(`cuffi: the output cannot be written: ${error.message}`);
  process.exit(1);
});
// Nobody reads errors any longer; the exit code remains.
process.stderr.on('error', () => {});

// Set to 0 only at the end: an event loop that runs empty before has failed.
process.exitCode = 1;
main(process.argv.slice(2)).then(
  (ok) => {
    if (ok) process.exitCode = 0;
  },
  (error: unknown) => {
    if (error instanceof UsageError) {
      console.error(`cuffi: ${error.message}\n\n${USAGE}`);
      process.exitCode = 2;
      return;
    }
    console.error(`cuffi: ${error instanceof Error ? error.message : String(error)}`);
    process.exitCode = 1;
  },
);
