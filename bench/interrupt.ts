/** Ending a run early: by Ctrl-C, by SIGTERM, or because the parent process ended. */

const SIGNALS = ['SIGINT', 'SIGTERM'] as const;
/** The exit code of an interrupted process. */
export const INTERRUPTED = 130;
const DEADLINE_MS = 5000;

export class Interrupted extends Error {}

/**
 * The first signal aborts `signal`, so that a run ends the processes that it started. The second one
 * exits at once.
 */
export function interruption(): { readonly signal: AbortSignal; [Symbol.dispose](): void } {
  const controller = new AbortController();
  const end = (): void => {
    if (controller.signal.aborted) return;
    controller.abort(new Interrupted('interrupted'));
    setTimeout(() => process.exit(INTERRUPTED), DEADLINE_MS).unref();
  };
  const stop = (): void => {
    if (controller.signal.aborted) process.exit(INTERRUPTED);
    end();
  };
  process.on('disconnect', end);
  for (const signal of SIGNALS) process.on(signal, stop);
  return {
    signal: controller.signal,
    [Symbol.dispose]() {
      process.off('disconnect', end);
      for (const signal of SIGNALS) process.off(signal, stop);
    },
  };
}

/**
 * Calls `save` once: at the end of the scope, or when the process exits earlier. `timeout npm run
 * bench` sends two signals, one to the process group and one that npm forwards.
 */
export function savedAtExit(save: () => void): Disposable {
  let isSaved = false;
  const saveOnce = (): void => {
    if (!isSaved) save();
    isSaved = true;
  };
  process.on('exit', saveOnce);
  return {
    [Symbol.dispose]() {
      process.off('exit', saveOnce);
      saveOnce();
    },
  };
}
