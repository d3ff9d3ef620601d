/** What several cases share. */

/** The contestants of this process: through the public API, and through `cuffi/ffi` alone. */
export const PUBLIC = 'cuffi';
export const RAW = 'raw ffi';
/** {@link PUBLIC}, where both ends of the connection look at it before they sleep. */
export const BUSY_POLLING: string = `${PUBLIC}, busy polling`;

/** Statuses are looked at once a batch. */
export function requireSuccess(succeeded: boolean, call: string): void {
  if (!succeeded) throw new Error(`${call} failed while it was measured`);
}
