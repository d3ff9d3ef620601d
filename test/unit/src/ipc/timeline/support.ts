import { selectDriver } from '../../../../../ffi/driver.ts';
import { duplicateFd } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import type { Context } from '../../../../../src/index.ts';
import { ConnectionTimeline } from '../../../../../src/ipc/timeline/connection-timeline.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import { losing } from '../../../../support/faults.ts';
import type { emulate } from '../../emulate.ts';

/** The memory of a page, as another process sends it. */
export const pageFd = (): number => createSealedMemfd('points', 4096);

/** Resets a lost context without waiting for its work, which may be blocked. */
export function resetLost(context: Context, emulated: ReturnType<typeof emulate>): void {
  const { driver, lose } = losing(emulated, CUresult.CUDA_ERROR_LAUNCH_FAILED);
  selectDriver(driver);
  lose();
  context.resetSync();
  selectDriver(emulated);
}

/**
 * The end of a connection that has received a page, and one more mapping of that, as its sender has.
 *
 * @param fd the page, owned from now on
 */
export function receivePage(fd: number): {
  readonly page: SharedWords;
  readonly waits: ConnectionTimeline;
} {
  const page = SharedWords.accept(duplicateFd(fd), 'page');
  const waits = new ConnectionTimeline();
  waits.acceptPage(fd);
  const close = page.close.bind(page);
  page.close = () => {
    waits.close(() => {});
    close();
  };
  return { page, waits };
}
