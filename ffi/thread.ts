/**
 * Which thread of the process this is. node:worker_threads is loaded when it is first asked, because
 * nothing needs it before the first driver call (bench case `startup.import`).
 */

let loaded: typeof import('node:worker_threads') | undefined;
const threads = (): typeof import('node:worker_threads') => {
  loaded ??= process.getBuiltinModule('node:worker_threads');
  return loaded;
};

/** Whether this is the main thread, and not a worker. */
export const isMainThread = (): boolean => threads().isMainThread;

/** The number of this thread, unique within the process. */
export const threadId = (): number => threads().threadId;
