#!/usr/bin/env node
/** The round trip in words. */
import { driverName } from '../../ffi/driver.ts';
import { driverVersion } from '../driver.ts';
import type { Support } from '../ipc/sharing/support.ts';
import { readCommandLine, USAGE, UsageError } from './command-line.ts';
import { chooseDriver, type DriverChoice } from './driver-choice.ts';
import { defaultKind, type KindName, kinds } from './kinds.ts';
import { type Place, placeOf, type RoundtripResult, roundtrip } from './roundtrip.ts';

const line = (label: string, text: string): string => `${label.padEnd(11)}${text}`;
const grouped = (value: number): string => value.toLocaleString('en-US');
const milliseconds = (value: number): string => `${value.toFixed(value < 10 ? 2 : 1)} ms`;
const answer = ({ supported, reason }: Support): string => (supported ? 'yes' : `no (${reason})`);

/** Which driver, in one line: the first of every output. */
export function describeDriver(driver: DriverChoice): string {
  if (driver.name === 'emulated')
    return line(
      'driver',
      `emulated, ${driver.reason}: real processes and shared memory, but no GPU; its times say nothing about one`,
    );
  const { major, minor } = driverVersion();
  return line('driver', `${driverName()}, CUDA ${major}.${minor} (${driver.reason})`);
}

/** The device and what it can share. */
export function describePlace({ device, support }: Place): string[] {
  const { major, minor } = device.computeCapability;
  return [
    line(
      'device',
      `${device.ordinal}: ${device.name}, compute capability ${major}.${minor}, ` +
        `${grouped(device.totalMemory)} bytes, ${device.uuid}`,
    ),
    line('memory', `between processes: ${answer(support.memory)}`),
    line('events', `between processes: ${answer(support.events)}`),
    line('pools', `by file descriptor: ${answer(support.pools)}`),
    line('virtual', `by file descriptor: ${answer(support.virtualMemory)}`),
  ];
}

/** What is shared. */
export const describeKind = (kind: KindName): string =>
  line('shared', `${kind}: ${kinds[kind].how}`);

/** What happened, the verdict last. */
export function describeResult(result: RoundtripResult): string[] {
  const { parent, child, mismatches } = result;
  const values = (list: readonly number[]): string => `${list.join(', ')}, ...`;
  return [
    line(
      'parent',
      `pid ${parent.pid} wrote ${grouped(result.byteLength)} bytes: ${values(parent.wrote)}`,
    ),
    line('child', `pid ${child.pid} opened them and read: ${values(child.read)}`),
    line('child', `found ${mismatches.child} wrong, wrote its own: ${values(child.wrote)}`),
    line('parent', `read back: ${values(parent.readBack)}; found ${mismatches.parent} wrong`),
    line(
      'hand-over',
      `${milliseconds(result.ipcMs)} by IPC, ${milliseconds(result.copyMs)} by copying through the host ` +
        `(${(result.copyMs / result.ipcMs).toFixed(1)} times as long)`,
    ),
    line(
      'copies',
      `${grouped(result.bytesCopied)} bytes copied between export and first read; ` +
        `the child's free device memory fell by ${grouped(result.childMemoryFell)} bytes`,
    ),
    ...(result.noCopy ? ['No copy was made.'] : []),
    `round trip: ${result.ok ? 'OK' : 'FAILED'}`,
  ];
}

/** The `cuffi` command. */

const CHILD_DEADLINE_MS = 30_000;

/** Answers whether all went well. */
async function main(argv: string[]): Promise<boolean> {
  const asked = readCommandLine(argv);
  if (!asked) {
    console.log(USAGE);
    return true;
  }
  const { elements, device: ordinal, json } = asked;
  const driver = chooseDriver(asked.driver);
  const say = (...lines: string[]): void => {
    if (!json) for (const line of lines) console.log(line);
  };
  say(describeDriver(driver));
  const place = placeOf(ordinal);
  say(...describePlace(place));
  const facts = {
    driver: driver.name,
    device: { ordinal, name: place.device.name, uuid: place.device.uuid },
    support: place.support,
  };
  const kind = asked.kind ?? defaultKind(place.device, place.support);
  const { supported, reason } = place.support[kinds[kind].way];
  if (!supported) {
    say(`This device cannot share ${kind} memory between processes: ${reason}. Nothing to show.`);
    if (json) console.log(JSON.stringify({ ...facts, result: null }));
    return true;
  }
  say(describeKind(kind));
  const result = await roundtrip({
    elements,
    kind,
    device: ordinal,
    driver,
    deadlineMs: CHILD_DEADLINE_MS,
  });
  say(...describeResult(result));
  if (json) console.log(JSON.stringify({ ...facts, result }));
  return result.ok;
}

/** 128 and the number of SIGPIPE, which Node ignores: how a shell tells that a reader has gone. */
const READER_GONE = 141;

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // As head does, which has read enough: the user has what they want.
  if (error.code === 'EPIPE') process.exit(READER_GONE);
  console.error(`cuffi: the output cannot be written: ${error.message}`);
  process.exit(1);
});
// Nobody is left to be told; the exit code says it.
process.stderr.on('error', () => {});

// Success is said at the end: a loop that runs empty before has failed.
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
