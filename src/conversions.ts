/** What JavaScript does to any object by itself, where it would silently do something wrong. */

/**
 * The value of an enumerable property that makes `structuredClone` and `postMessage` throw a
 * DataCloneError, whose message is this description. Without it they copy the properties of an object, and
 * leave out what the object stands for.
 */
export const UNCLONEABLE: unique symbol = Symbol(
  // Short: from V8 12 on, the middle of a longer one is left out.
  'use peer.send(), or send getIpcHandle(array), or await array.copyToHost()',
);

/** What to do instead of using an object as a JavaScript array. */
interface ItemAdvice {
  /** The name of its class. */
  readonly name: string;
  /** Where its items are. */
  readonly place: string;
  /** How to read one, and all. */
  readonly read: (index: number) => string;
  readonly write: (index: number) => string;
  readonly iterate: string;
}

/** The indices that throw: no object can do that for every index without slowing down all properties. */
const INDICES = [-1, ...Array.from({ length: 32 }, (_, index) => index)];

/** Set by the `expect` of Jest and vitest. */
const MATCHERS_OF_TEST_RUNNER = Symbol.for('$$jest-matchers-object');

/**
 * Makes `object[0]` and `for...of` throw a TypeError that says what to do. They would return undefined, or
 * only say that the object is not iterable; `Array.from(object)` would be empty.
 *
 * The properties are not enumerable, and are those of the prototype: nothing that lists, compares or
 * prints the properties of objects sees them.
 */
export function refuseItemAccess(prototype: object, advice: ItemAdvice): void {
  const { name, place } = advice;
  for (const index of INDICES)
    Object.defineProperty(prototype, index, {
      configurable: true,
      get() {
        throw new TypeError(`${name}[${index}]: ${place}. Read ${advice.read(index)}`);
      },
      set() {
        throw new TypeError(`${name}[${index}] = …: ${place}. Write ${advice.write(index)}`);
      },
    });
  const iterate = (): never => {
    throw new TypeError(`a ${name} cannot be iterated: ${place}. Iterate over ${advice.iterate}`);
  };
  Object.defineProperty(prototype, Symbol.iterator, {
    configurable: true,
    // Their toEqual iterates whatever it can, and would throw for equal objects.
    get: () => (MATCHERS_OF_TEST_RUNNER in globalThis ? undefined : iterate),
  });
}
