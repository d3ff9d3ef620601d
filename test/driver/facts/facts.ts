/** Facts about a driver: a name, and what the driver answered. */

/** A status, a size, or a word. */
export type FactValue = number | string;

/** Takes a fact; a name is used once. */
export type Note = (name: string, value: FactValue) => void;

/** Asks the driver for facts of one subject. */
export type FactGroup = (note: Note) => Promise<void>;

/** Runs groups, and answers all that they noted, by name in their order. */
export async function collectFacts(groups: readonly FactGroup[]): Promise<Map<string, FactValue>> {
  const facts = new Map<string, FactValue>();
  for (const group of groups) {
    await group((name, value) => {
      if (facts.has(name)) throw new Error(`two facts are called '${name}'`);
      facts.set(name, value);
    });
  }
  return facts;
}
