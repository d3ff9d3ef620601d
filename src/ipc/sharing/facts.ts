/** What cuffi remembers about an object that was shared, or that another process has shared. */

import type { AnyExported, DescriptorFields } from '../descriptor.ts';

/** An exported object as a connection sends it. */
export interface EncodedExport extends AnyExported {
  /** The encoded fields: what is put on the wire. */
  readonly bytes: Uint8Array;
  /** Those of the file descriptors that are closed once they are sent. Default: none. */
  readonly ownFds?: readonly number[];
}

/**
 * The descriptor and file descriptors that an object was opened with. The object keeps the file
 * descriptors open.
 */
export interface ImportSource<D extends DescriptorFields = DescriptorFields> {
  readonly descriptor: D;
  fds(): readonly number[];
}

/** All facts about one object. A class, so that all records have the same shape. */
class Facts {
  /** The number of an allocation: see `exportIdOf`. */
  exportId: number | undefined = undefined;
  /** What it was exported as, if that is the same each time. */
  encoded: EncodedExport | undefined = undefined;
  /** What it was opened with, if it belongs to another process. */
  source: ImportSource | undefined = undefined;
  /** The leases of other processes on it: see the room `lease`. */
  leases: Set<object> | undefined = undefined;
  /** The connection to its owner, if it belongs to another process: see the room `lease`. */
  owner: object | undefined = undefined;
}

// Stored on the object: a WeakMap with an entry for each would slow down garbage collection.
const FACTS = Symbol('facts');

interface WithFacts {
  [FACTS]?: Facts;
}

/** The record of an object, made when first needed. */
export const factsOf = (object: object): Facts => {
  const holder = object as WithFacts;
  holder[FACTS] ??= new Facts();
  return holder[FACTS];
};

/** The record of an object, if it has one. */
export const knownFacts = (object: object): Facts | undefined => (object as WithFacts)[FACTS];
