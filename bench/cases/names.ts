/** What several cases share. */

/** The contestants of this process: through the public API, and through `cuffi/ffi` alone. */
export const PUBLIC = 'cuffi';
export const RAW = 'raw ffi';

/** Statuses are looked at once a batch. */
export function requireSuccess(succeeded: boolean, call: string): void {
  if (!succeeded) throw new Error(`${call} failed while it was measured`);
}
