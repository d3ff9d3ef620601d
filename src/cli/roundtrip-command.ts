/** `cuffi roundtrip`: its options, and what it prints. */
import type { Support } from '../ipc/sharing/blockers.ts';
import {
  type Command,
  deviceOption,
  driverOption,
  integerOption,
  parseCommand,
  refuseArguments,
  UsageError,
} from './command.ts';
import { chooseDriver, describeDriver } from './driver-choice.ts';
import { defaultKind, type KindName, kindNames, kinds } from './kinds.ts';
import { print, printJson } from './output.ts';
import { type DeviceSupport, inspectDevice, type RoundtripResult, roundtrip } from './roundtrip.ts';
import { type Line, styled } from './text.ts';

export const roundtripCommand: Command = {
  summary: 'shares a GPU buffer with a child process and back, without copying it',
  usage: `usage: cuffi roundtrip [options]

Shares a GPU buffer with a child process and back, without copying it.

  --elements N   32-bit elements in the buffer (default 16777216: 64 MiB)
  --kind K       the memory: pool, legacy or virtual (default pool where the device can
                 share pools, else what it can)
  --device N     the device, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of sentences
  --help         print this`,
  run,
};

// ---- The options ----

/** The parsed options. */
interface RoundtripCommandOptions {
  readonly elements: number;
  readonly device: number;
  readonly kind: KindName | undefined;
  readonly driver: string | undefined;
  readonly json: boolean;
}

/** Parses and checks the options. @throws UsageError */
export function readOptions(argv: readonly string[]): RoundtripCommandOptions {
  const { values, positionals } = parseCommand(argv, {
    elements: { type: 'string', default: '16777216' },
    kind: { type: 'string' },
    device: { type: 'string', default: '0' },
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('roundtrip', positionals);
  return {
    elements: integerOption(values.elements, '--elements', 1, 2 ** 32),
    device: deviceOption(values.device),
    kind: kindOf(values.kind),
    driver: driverOption(values.driver),
    json: values.json,
  };
}

function kindOf(text: string | undefined): KindName | undefined {
  const found = kindNames.find((name) => name === text);
  if (text !== undefined && !found)
    throw new UsageError(`--kind must be ${kindNames.join(' or ')}, not ${JSON.stringify(text)}`);
  return found;
}

// ---- What is printed ----

const labelled = (label: string, text: string): string => `${label.padEnd(11)}${text}`;
const formatCount = (value: number): string => value.toLocaleString('en-US');
const milliseconds = (value: number): string => `${value.toFixed(value < 10 ? 2 : 1)} ms`;
const formatSupport = ({ supported, reason }: Support): string =>
  supported ? 'yes' : `no (${reason})`;

/** The lines about the device and what it can share. */
function describePlace({ device, support }: DeviceSupport): string[] {
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
const describeKind = (kind: KindName): string =>
  labelled('shared', `${kind}: ${kinds[kind].description}`);

/** How long copying took, where IPC takes 1. */
const comparison = (ratio: number): string =>
  ratio >= 1
    ? `${ratio.toFixed(1)} times as long`
    : `${(1 / ratio).toFixed(1)} times as fast: IPC pays for larger buffers`;

/** The lines about the result, the verdict last. */
function describeResult(result: RoundtripResult): Line[] {
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
    [styled(result.ok ? 'good' : 'bad', `round trip: ${result.ok ? 'OK' : 'FAILED'}`)],
  ];
}

// ---- The command ----

const CHILD_DEADLINE_MS = 30_000;

async function run(argv: readonly string[]): Promise<boolean> {
  const options = readOptions(argv);
  const { elements, device: ordinal, json } = options;
  const driver = chooseDriver(options.driver);
  const say = (...lines: Line[]): void => {
    if (!json) print(lines);
  };
  say(labelled('driver', describeDriver(driver)));
  const place = inspectDevice(ordinal);
  say(...describePlace(place));
  const facts = {
    driver: driver.name,
    device: { ordinal, name: place.device.name, uuid: place.device.uuid },
    support: place.support,
  };
  const kind = options.kind ?? defaultKind(place.device, place.support);
  const { supported, reason } = place.support[kinds[kind].capability];
  if (!supported) {
    say(`This device cannot share ${kind} memory between processes: ${reason}. Nothing to show.`);
    if (json) printJson({ ...facts, result: null });
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
  if (json) printJson({ ...facts, result });
  return result.ok;
}
