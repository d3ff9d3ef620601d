/** File descriptors that the driver in use may have made: another process may send any. */
import { fstatSync, readlinkSync, type Stats } from 'node:fs';
import { driverName } from './driver.ts';

/** The kernel's own devices: /dev/null and its kind, and terminals. */
const ORDINARY_MAJORS: ReadonlySet<number> = new Set([1, 4, 5]);

const majorOf = ({ rdev }: Stats): number => (rdev >> 8) & 0xfff;

const isEmulated = (fd: number): boolean =>
  readlinkSync(`/proc/self/fd/${fd}`).startsWith('/memfd:cuffi.');

/** A device, or of the kinds without a file type, which are drivers' own, as a dma-buf. */
function isOfDevice(fd: number): boolean {
  const found = fstatSync(fd);
  if (found.isCharacterDevice()) return !ORDINARY_MAJORS.has(majorOf(found));
  return !(
    found.isFile() ||
    found.isDirectory() ||
    found.isSocket() ||
    found.isFIFO() ||
    found.isBlockDevice()
  );
}

/** Whether memory may be behind it: of a socket, a pipe, a file or /dev/null the driver is not asked. */
export function mayBeMemory(fd: number): boolean {
  const name = driverName();
  try {
    if (name === 'emulated') return isEmulated(fd);
    // A test's own may stand before either.
    return isOfDevice(fd) || (name === 'test' && isEmulated(fd));
  } catch {
    // Not open, or not to be seen.
    return false;
  }
}
