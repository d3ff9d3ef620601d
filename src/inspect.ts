/** Objects as text, for `console.log` and messages: the class, then what it is. */

/** What is said of an object; absent parts are left out. */
export type Details = readonly (string | false | undefined)[];

/**
 * Formats an object, e.g. `MemoryPool(on cuda:0, borrowed)`. `details` may throw, e.g. for a context
 * that is lost: printing never does.
 */
export function describeObject(name: string, details: () => Details): string {
  let parts: Details;
  try {
    parts = details().filter(Boolean);
  } catch {
    parts = ['cannot be read'];
  }
  return parts.length === 0 ? name : `${name}(${parts.join(', ')})`;
}

/** `closed`, if the object is. Test runners copy objects before they print them, without private state. */
export function closedWord(object: { readonly closed: boolean }): string | undefined {
  try {
    return object.closed ? 'closed' : undefined;
  } catch {
    return undefined;
  }
}

/** The device of a context, as arrays print it. */
export const placeName = ({ device }: { readonly device: { readonly ordinal: number } }): string =>
  `on cuda:${device.ordinal}`;

/** A number of things, e.g. `1 array`, `2 arrays`. */
export const counted = (count: number, one: string, many = `${one}s`): string =>
  `${count} ${count === 1 ? one : many}`;
