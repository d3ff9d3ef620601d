/** What a row of the table says of a driver function, and the words that rows are written in. */
import type { StructName } from '../structs.ts';
import type { CType } from '../types.ts';

/**
 * Whether a call wants a current context: never, always, or only when its stream (an argument, or in
 * the configuration of a launch) is one of the default streams (0, 1, 2), which are names that the
 * current context gives a meaning to.
 * Settled row by row on hardware (docs/hardware.md).
 */
export type Needs = 'nothing' | 'context' | 'context for a default stream';

/** One driver function. */
export interface Row<P extends readonly CType[] = readonly CType[]> {
  readonly needs: Needs;
  readonly params: P;
  /**
   * Where the number of elements that the call moves or sets stands, an element's bytes, and
   * where the number of rows stands, if there are any.
   */
  readonly bytes?: readonly [parameter: number, unit: number, rows?: number];
  /** The struct, behind the first parameter, that says how many bytes the call moves. */
  readonly struct?: StructName;
}

export const noContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'nothing',
  params,
});

export const needsContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'context',
  params,
});

export const needsStreamContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'context for a default stream',
  params,
});

export const withByteCount = <P extends readonly CType[]>(
  base: Row<P>,
  parameter: number,
  unit = 1,
  rows?: number,
): Row<P> => ({
  ...base,
  bytes: rows === undefined ? [parameter, unit] : [parameter, unit, rows],
});

export const withByteCountOf = <P extends readonly CType[]>(
  struct: StructName,
  base: Row<P>,
): Row<P> => ({
  ...base,
  struct,
});
