/**
 * Requests for the object of a descriptor. The process that made the descriptor returns the object if it
 * still exists and is the same. cuffi handles them itself: a program's handlers see none of them.
 */

import { IpcError } from '../../errors.ts';
import { formatBytes, messageOf } from '../../validate.ts';
import {
  type AnyFields,
  type DescriptorFields,
  type IpcDescriptor,
  isHostFields,
  isMemoryFields,
} from '../descriptor.ts';
import { isFromThisProcess } from '../identity.ts';
import { MAX_VERIFICATION_BYTE_LENGTH } from '../protocol.ts';
import { parseDescriptor } from '../sharing/descriptor-codec.ts';
import { exportIpc } from '../sharing/export.ts';
import { kindOfFields, type Shareable } from '../sharing/kinds.ts';
import { openAlias } from '../sharing/open.ts';
import type { ValueMessage } from '../wire/value-message.ts';
import type { Session } from './session.ts';

// ---- At the process that made the object ----

/**
 * Returns the object that the peer asks for, if this process made it and it is still the same. Otherwise
 * returns the error for the peer.
 *
 * @throws IpcError for anything but a question
 */
export function verifyExport({ objects, value }: ValueMessage): Shareable | IpcError {
  if (objects.entries.length > 0) throw new IpcError('a question came with GPU objects');
  checkLength(value, 'a question');
  const question = value.buildAll([]);
  try {
    const descriptor = parseDescriptor(question);
    if (!isFromThisProcess(descriptor)) return refusal('it was made by another process');
    const object = openAlias(kindOfFields(descriptor), descriptor) as Shareable;
    // A handle alone does not identify an object: the driver may reuse it.
    return differenceFrom(descriptor, exportIpc(object).descriptor)
      ? refusal('it now names another object')
      : object;
  } catch (error) {
    // The first line: what follows is for this process, such as where an object was closed.
    return refusal(messageOf(error).split('\n', 1)[0] as string);
  }
}

/** An error for the peer. The stack is of no use there. */
function refusal(reason: string): IpcError {
  const error = new IpcError(sanitize(reason), undefined, 'exporter-gone');
  delete error.stack;
  return error;
}

// ---- At the process that asks ----

/**
 * Returns why the object of an answer is not opened; undefined if it is the object that was asked for.
 * The peer's claims are not trusted. Opens nothing.
 *
 * @param hasFailed whether the answer is an error
 * @throws IpcError for what is not an answer
 */
export function refusalOf(
  descriptor: IpcDescriptor,
  answer: ValueMessage,
  hasFailed: boolean,
  session: Session,
): IpcError | undefined {
  const { peerName } = session;
  const { value, objects } = answer;
  const [entry] = objects.entries;
  checkLength(value, 'an answer');
  const built = value.buildAll(objects.entries);
  if (hasFailed && !entry && built instanceof Error) return refusalError(built, peerName);
  // The place of the object holds its entry. A value that is a place has no other.
  if (hasFailed || !entry || built !== entry)
    throw new IpcError('the other end sent an invalid answer');
  let named: AnyFields;
  try {
    named = session.decodeDescriptor(entry.bytes);
  } catch {
    // Opening it fails in the same way.
    return undefined;
  }
  const difference = isHostFields(named) ? `it is a ${named.kind}` : mismatch(descriptor, named);
  return difference
    ? new IpcError(
        `${peerName} answered with another object than the one that the descriptor names: ` +
          `${difference}. It was not opened: do not trust this process, or have it send the ` +
          'object itself',
      )
    : undefined;
}

/** Returns the error for the caller. Of the peer's code only those that say something else are taken. */
function refusalError({ message, code }: Error & { code?: unknown }, peerName: string): IpcError {
  return new IpcError(
    `${peerName} does not confirm this descriptor: ${sanitize(message)}`,
    undefined,
    code === 'not-supported' || code === 'limit-exceeded' ? code : 'exporter-gone',
  );
}

/** Cleans up text of another process for an error message: short, without control characters. */
const sanitize = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');

function checkLength(
  { byteLength }: ValueMessage['value'],
  what: 'a question' | 'an answer',
): void {
  if (byteLength > MAX_VERIFICATION_BYTE_LENGTH)
    throw new IpcError(
      `the other end sent ${what} of ${formatBytes(byteLength)}: it may have ${MAX_VERIFICATION_BYTE_LENGTH}`,
      undefined,
      'limit-exceeded',
    );
}

// ---- Whether two descriptors name the same object ----

/** Fields that do not identify the object: how it is used, or what follows from other fields. */
const NOT_IDENTITY: ReadonlySet<string> = new Set([
  'version',
  'checksum',
  'access',
  'layout',
  'readyEvent',
]);

/**
 * Describes how a descriptor's object differs from the requested one; undefined for the same
 * object.
 */
function differenceFrom(asked: IpcDescriptor, found: DescriptorFields): string | undefined {
  if (found.kind !== asked.kind) return `its kind is ${found.kind}, not ${asked.kind}`;
  const values = found as unknown as Readonly<Record<string, unknown>>;
  for (const [name, value] of Object.entries(asked)) {
    if (NOT_IDENTITY.has(name)) continue;
    const other = values[name];
    // Compares lists of numbers as well.
    if (value === other || JSON.stringify(value) === JSON.stringify(other)) continue;
    return typeof value === 'number' && typeof other === 'number'
      ? `its ${name} is ${other}, not ${value}`
      : `its ${name} differs`;
  }
  return undefined;
}

/**
 * Describes what is wrong with the object of a response. It must be the requested memory, event or
 * pool, with the same size. Less access than requested is allowed, more is not.
 */
function mismatch(asked: IpcDescriptor, found: DescriptorFields): string | undefined {
  const difference = differenceFrom(asked, found);
  if (difference || !isMemoryFields(asked) || !isMemoryFields(found)) return difference;
  // The requested descriptor tells how an array lies in the bytes.
  if (found.layout) return 'it is an array, not bytes';
  return asked.access === 'read' && found.access !== 'read'
    ? `its access is ${found.access}, not read`
    : undefined;
}
