/** The end of a run from outside. */

const SIGNALS = ['SIGINT', 'SIGTERM'] as const;
/** What a process that was interrupted ends with. */
export const INTERRUPTED = 130;
/** Who has not ended by then is left to notice that its parent is gone. */
const DEADLINE_MS = 5000;

/** Why a run ended before its end. */
export class Interrupted extends Error {}

/**
 * Calls `save` once: at the end of the scope, or when the process exits before, as a second signal makes
 * it. `timeout npm run bench` sends two: one to each process of the group, and npm passes its own on.
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

/**
 * Ctrl-C and SIGTERM abort `signal`, so that what a run has started is ended by who started it;
 * the second one ends the process at once. So does the end of a pass's parent, or of its patience.
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
