/** What the tests of drivers and of several processes also run with: other machines, and other states of a process. */
const variants: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  // Only the first device can access the memory of the other one.
  'two-devices': { CUFFI_EMULATED_DEVICES: '2', CUFFI_EMULATED_PEERS: '0>1' },
  // Whatever does not enter its own context acts on another device.
  'foreign-context': { CUFFI_EMULATED_DEVICES: '2', CUFFI_EMULATED_FOREIGN_CONTEXT: '1' },
  // No test runs in the main thread.
  worker: {},
};

/** The environment of a variant. @throws Error for an unknown name */
export function variantOf(name: string): Readonly<Record<string, string>> {
  const found = variants[name];
  if (!found) throw new Error(`no variant ${name}: there is ${Object.keys(variants).join(', ')}`);
  return found;
}
