/** File descriptors that the driver in use may have made: another process may send any. */
import { fstatSync, readlinkSync, type Stats } from 'node:fs';
import { driverName } from './driver.ts';

/** The kernel's own devices: /dev/null and its kind, and terminals. */
const ORDINARY_MAJORS: ReadonlySet<number> = new Set([1, 4, 5]);

const majorOf = ({ rdev }: Stats): number => (rdev >> 8) & 0xfff;

/** Whether memory may be behind it: of a socket, a pipe, a file or /dev/null the driver is not asked. */
export function mayBeMemory(fd: number): boolean {
  let found: Stats;
  try {
    found = fstatSync(fd);
  } catch {
    return false;
  }
  const name = driverName();
  if (name === 'emulated' || name === 'test')
    return readlinkSync(`/proc/self/fd/${fd}`).startsWith('/memfd:cuffi.');
  if (found.isCharacterDevice()) return !ORDINARY_MAJORS.has(majorOf(found));
  // Kinds that have no file type at all are the kernel's own, as a dma-buf.
  const isOfAType =
    found.isFile() ||
    found.isDirectory() ||
    found.isSocket() ||
    found.isFIFO() ||
    found.isBlockDevice();
  return !isOfAType;
}
