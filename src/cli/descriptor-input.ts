/** Reads the descriptor that a command is given: as JSON, in a file, or on stdin. */
import { closeSync, openSync, readSync } from 'node:fs';
import { decodeDescriptor } from '../ipc/sharing/descriptor-codec.ts';
import { formatBytes } from '../validate.ts';
import { UsageError } from './command.ts';

const STDIN = 0;

/**
 * Returns the message, which may be no descriptor at all.
 *
 * @param argument JSON, a path, or `-`
 * @throws UsageError for a file that cannot be read, and for what is neither JSON nor bytes of
 * encodeDescriptor
 */
export function readDescriptor(argument: string): unknown {
  const isJson = argument.trimStart().startsWith('{');
  const bytes = isJson ? Buffer.from(argument) : readBytes(argument);
  try {
    return decodeDescriptor(new Uint8Array(bytes));
  } catch {
    // It is not in the binary form.
  }
  let message: unknown;
  try {
    message = JSON.parse(bytes.toString());
  } catch (error) {
    throw new UsageError(
      `${isJson ? 'the argument' : argument} is not a descriptor: ${(error as Error).message}`,
    );
  }
  // As exportIpc returns it.
  const hasDescriptor = typeof message === 'object' && message !== null && 'descriptor' in message;
  return hasDescriptor ? (message as { readonly descriptor: unknown }).descriptor : message;
}

/** A descriptor has a few kilobytes at most. */
const MAX_BYTE_LENGTH = 1 << 20;

/** @throws UsageError for a file that cannot be read, or that is too long for a descriptor */
function readBytes(path: string): Buffer {
  let bytes: Buffer;
  try {
    bytes = readStart(path);
  } catch (error) {
    throw new UsageError(`${path} cannot be read: ${(error as Error).message}`);
  }
  if (bytes.byteLength <= MAX_BYTE_LENGTH) return bytes;
  throw new UsageError(
    `${path} is not a descriptor: it has more than ${formatBytes(MAX_BYTE_LENGTH)}`,
  );
}

/** Reads a file, but at most one byte more than a descriptor may have: a device or a pipe has no end. */
function readStart(path: string): Buffer {
  const fd = path === '-' ? STDIN : openSync(path, 'r');
  try {
    const bytes = Buffer.alloc(MAX_BYTE_LENGTH + 1);
    let length = 0;
    while (length < bytes.byteLength) {
      const count = readSome(fd, bytes, length);
      if (count === 0) break;
      length += count;
    }
    return bytes.subarray(0, length);
  } finally {
    if (fd !== STDIN) closeSync(fd);
  }
}

const RETRY_MS = 10;

/** Reads what there is. Waits for more if another process has made the pipe non-blocking. */
function readSome(fd: number, into: Buffer, offset: number): number {
  for (;;) {
    try {
      return readSync(fd, into, offset, into.byteLength - offset, null);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS);
    }
  }
}
