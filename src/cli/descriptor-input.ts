/** Reads the descriptor that a command is given: as JSON, in a file, or on stdin. */
import { readFileSync } from 'node:fs';
import { decodeDescriptor } from '../ipc/descriptor-codec.ts';
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

function readBytes(path: string): Buffer {
  try {
    return readFileSync(path === '-' ? STDIN : path);
  } catch (error) {
    throw new UsageError(`${path} cannot be read: ${(error as Error).message}`);
  }
}
