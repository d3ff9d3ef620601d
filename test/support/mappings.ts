/** Which anonymous mappings of ours are open: counted where they are made and unmade. */
import { libc } from '../../ffi/linux/libc.ts';

const MAP_PRIVATE_ANONYMOUS = 0x22;
type Call = (...args: number[]) => number;

/** Writes down every private anonymous mapping from now on; dispose stops. */
export function watchMappings(): Disposable & { readonly open: ReadonlyMap<number, number> } {
  const open = new Map<number, number>();
  const { mmap, munmap } = libc;
  const replace = (name: 'mmap' | 'munmap', value: Call): void => {
    Object.defineProperty(libc, name, { configurable: true, enumerable: true, value });
  };
  replace('mmap', (...args) => {
    const address = mmap(...args);
    const [at, byteLength = 0, , flags] = args;
    if (at === 0 && flags === MAP_PRIVATE_ANONYMOUS && typeof address === 'number')
      open.set(address, byteLength);
    return address;
  });
  replace('munmap', (...args) => {
    const [address = 0, byteLength] = args;
    if (open.get(address) === byteLength) open.delete(address);
    return munmap(...args);
  });
  return {
    open,
    [Symbol.dispose]: () => {
      replace('mmap', mmap);
      replace('munmap', munmap);
    },
  };
}
