/** What this process has shared, by which its own descriptors are found again. */

const numbers = new WeakMap<object, number>();
let last = 0;

const byName = new Map<string, WeakRef<object>>();
const forgotten = new FinalizationRegistry<string>((name) => {
  // The driver may have given a name of it to something else since.
  if (byName.get(name)?.deref() === undefined) byName.delete(name);
});

/** The number of an allocation that is shared: another one for each, for the life of the process. */
export function generationOf(allocation: object): number {
  const known = numbers.get(allocation);
  if (known !== undefined) return known;
  last += 1;
  numbers.set(allocation, last);
  rememberExport(`memory ${last}`, allocation);
  return last;
}

/** Remembers, until it is collected, what was shared by a name. */
export function rememberExport(name: string, object: object): void {
  if (byName.get(name)?.deref() === object) return;
  byName.set(name, new WeakRef(object));
  forgotten.register(object, name);
}

/** What was shared by a name, where it still is. */
export const findExport = (name: string): object | undefined => byName.get(name)?.deref();
