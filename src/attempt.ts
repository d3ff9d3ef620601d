/** Steps that are all taken, whatever fails: giving back must not stop half-way. */

/** Takes each step in order; throws the first error when all were tried. */
export function tryAll(steps: Iterable<() => void>): void {
  const errors: unknown[] = [];
  for (const step of steps) {
    try {
      step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}
