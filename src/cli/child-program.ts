import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The file of a child program of this folder, from the source and from dist. */
export const childProgram = (name: string): string =>
  fileURLToPath(new URL(`./${name}${extname(import.meta.url)}`, import.meta.url));
