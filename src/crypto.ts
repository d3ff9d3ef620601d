/**
 * node:crypto, loaded when it is first used: it is the slowest of Node's modules to load, and most
 * programs that import cuffi need it late or never (bench case `startup`).
 */

let loaded: typeof import('node:crypto') | undefined;
const crypto = (): typeof import('node:crypto') => {
  loaded ??= process.getBuiltinModule('node:crypto');
  return loaded;
};

/** Random bytes that nobody can guess. */
export const randomBytes = (byteLength: number): Buffer => crypto().randomBytes(byteLength);

/** The SHA-256 digest of text or bytes, in hex. */
export const sha256 = (data: string | Uint8Array): string => crypto().hash('sha256', data);
