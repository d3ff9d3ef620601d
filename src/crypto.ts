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

// ---- Ids that no other process can guess: shared objects are looked up by them ----

/** Makes an id: 16 random bytes in hex. */
export const randomId = (): string => randomBytes(16).toString('hex');

/** Makes a random 48-bit number that is not 0. */
export const randomUint48 = (): number => randomBytes(6).readUIntLE(0, 6) || randomUint48();

/**
 * Obfuscates a number of the driver for other processes. Equal numbers stay equal; no result
 * reveals the next.
 */
export function obfuscatedId(id: number): number {
  secret ??= randomId();
  return Number.parseInt(sha256(`${secret} ${id}`).slice(0, 12), 16);
}

let secret: string | undefined;
