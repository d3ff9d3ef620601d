/** Notes that this process shares something, so that `cuffi ls` and `cuffi doctor --with` find it. */

import { runtimeWithoutWatches } from '../../ffi/linux/poll.ts';
import { readSetting } from '../../ffi/settings.ts';
import { isMainThread } from '../../ffi/thread.ts';

let isNoted = false;

/** The first values go out before the socket for inspection is opened. */
const DELAY_MS = 10;

/**
 * Every export, peer and listener calls this. The first call opens the socket for inspection soon
 * afterwards, unless `CUFFI_INSPECT` is 0. That socket never keeps the process alive. Worker threads
 * have none: a process has one, of its main thread.
 */
export function noteFirstUse(): void {
  if (isNoted) return;
  isNoted = true;
  if (readSetting('CUFFI_INSPECT') === false || !isMainThread()) return;
  if (runtimeWithoutWatches() !== undefined) return;
  setTimeout(() => {
    import('./inspect/inspect-server.ts').then(
      ({ openInspection }) => openInspection(),
      // A program that was bundled without this file has no socket.
      () => {},
    );
  }, DELAY_MS).unref();
}
