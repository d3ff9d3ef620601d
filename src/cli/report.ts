/** The round trip in words. */
import { driverName } from '../../ffi/driver.ts';
import { driverVersion } from '../driver.ts';
import type { Support } from '../ipc/support.ts';
import type { DriverChoice } from './driver-choice.ts';
import { type KindName, kinds } from './kinds.ts';
import type { Place, RoundtripResult } from './roundtrip.ts';

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
