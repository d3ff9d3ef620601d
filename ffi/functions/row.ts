/** A row of the table of driver functions, and the functions that create rows. */
import type { StructName } from '../structs.ts';
import type { CType } from '../types.ts';

/**
 * Whether a call needs a current context: never, always, or only if its stream is a default stream
 * (0, 1, 2), which belongs to the current context. The stream is an argument or part of a launch
 * configuration. Measured on hardware for each row (docs/hardware.md).
 */
export type Needs = 'nothing' | 'context' | 'context for a default stream';

/** One driver function. */
export interface Row<P extends readonly CType[] = readonly CType[]> {
  readonly needs: Needs;
  readonly params: P;
  /**
   * Whether the call may wait for work, or changes what work may use. The driver refuses it (900) while
   * this thread captures a stream in global or thread-local mode, or any thread does in global mode,
   * and those captures are then invalid (901). Relaxed captures allow it. In a captured stream the
   * call is a part of its capture, unless {@link Row.isNeverCaptured}. Absent for calls that hardware
   * allowed, or was not asked about (test/driver/facts/captures.ts).
   */
  readonly isUnsafeInCapture?: true;
  /**
   * Whether the driver refuses the call (900) in a captured stream, in every mode, and the capture is
   * then invalid. Absent for calls that it captures, or was not asked about.
   */
  readonly isNeverCaptured?: true;
  /**
   * The parameter with the number of elements that the call moves or sets, the bytes per element, and
   * the parameter with the number of rows, if it has one.
   */
  readonly bytes?: readonly [parameter: number, unit: number, rows?: number];
  /** The struct behind the first parameter, if it determines how many bytes the call moves. */
  readonly struct?: StructName;
  /**
   * The CUDA version of the first driver with the function, as cuDriverGetVersion returns it: 12040 is
   * CUDA 12.4. Absent for functions that every driver since CUDA 11.4 has.
   */
  readonly since?: number;
}

/** A call that needs no current context. */
export const noContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'nothing',
  params,
});

/** A call that needs a current context. */
export const needsContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'context',
  params,
});

/** A call that needs a current context for a default stream only. */
export const needsStreamContext = <const P extends readonly CType[]>(...params: P): Row<P> => ({
  needs: 'context for a default stream',
  params,
});

/** Marks a call that captures forbid: see {@link Row.isUnsafeInCapture}. */
export const unsafeInCapture = <P extends readonly CType[]>(base: Row<P>): Row<P> => ({
  ...base,
  isUnsafeInCapture: true,
});

/** Marks a call that a captured stream refuses: see {@link Row.isNeverCaptured}. */
export const neverCaptured = <P extends readonly CType[]>(base: Row<P>): Row<P> => ({
  ...base,
  isNeverCaptured: true,
});

/** Adds the CUDA version of the first driver with the function. */
export const since = <P extends readonly CType[]>(version: number, base: Row<P>): Row<P> => ({
  ...base,
  since: version,
});

/** Adds the parameters that determine how many bytes the call moves. */
export const withByteCount = <P extends readonly CType[]>(
  base: Row<P>,
  parameter: number,
  unit = 1,
  rows?: number,
): Row<P> => ({
  ...base,
  bytes: rows === undefined ? [parameter, unit] : [parameter, unit, rows],
});

/** Adds the struct that determines how many bytes the call moves. */
export const withByteCountOf = <P extends readonly CType[]>(
  struct: StructName,
  base: Row<P>,
): Row<P> => ({
  ...base,
  struct,
});
