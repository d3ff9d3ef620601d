/**
 * The child process of a command, as the parent sees it. No child program may import this file: the
 * build would move what both import to another folder, where {@link childProgram} finds nothing.
 */
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The file of a child program of this folder, from the source and from dist. */
export const childProgram = (name: string): string =>
  fileURLToPath(new URL(`./${name}${extname(import.meta.url)}`, import.meta.url));

/** What an error says of a child that reported one. */
export const failedInChild = (message: string): string => `in the child: ${message}`;

/** What an error says of a child that was ended at its deadline. */
export const noReplyWithin = (deadlineMs: number, pid?: number): string =>
  `the child ${pid === undefined ? '' : `(pid ${pid}) `}did not reply within ${deadlineMs / 1000} s`;
