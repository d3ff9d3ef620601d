/** How large one allocation of a pool may be that another process imports: beyond, that one ends. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { FD, MIB, outOf, poolProperties, statusIn } from './kinds.ts';

const GIB = 1024 * MIB;
/** Allocations that nothing is written to: the emulated driver takes no memory for them. */
const env = { CUFFI_EMULATED_MEMORY: '32G' };
/** The largest that always works. */
const KNOWN_GOOD = 5 * GIB;

export const poolBoundFacts: FactGroup = async (note) => {
  await using owner = new DriverProcess(env);
  await enterContext(owner);
  const inOwner = statusIn(owner);
  const stream = await outOf(owner)('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  const properties = poolProperties({ handleTypes: FD, maxSize: 2 * KNOWN_GOOD });
  const pool = await outOf(owner)('cuMemPoolCreate', 'OUT0', properties);
  const exported = await owner.call('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0);

  /** The status that a separate process receives when it imports one, or the signal that ends it. */
  const importing = async (byteLength: number): Promise<number | string> => {
    const allocated = await owner.call('cuMemAllocFromPoolAsync', 'OUT0', byteLength, pool, stream);
    if (allocated.status !== 0) return `not allocated: ${allocated.status}`;
    await inOwner('cuStreamSynchronize', stream);
    const { block } = await owner.call('cuMemPoolExportPointer', 'BLOCK', allocated.out0);
    await using importer = new DriverProcess(env);
    try {
      await enterContext(importer);
      const fd = await owner.sendFd(exported.int0, importer);
      const imported = await outOf(importer)(
        'cuMemPoolImportFromShareableHandle',
        'OUT0',
        fd,
        FD,
        0,
      );
      return await statusIn(importer)('cuMemPoolImportPointer', 'OUT0', imported, { bytes: block });
    } catch (error) {
      const { signalCode } = importer.process;
      if (signalCode === null) throw error;
      return signalCode;
    } finally {
      await inOwner('cuMemFreeAsync', allocated.out0, stream);
      await inOwner('cuStreamSynchronize', stream);
    }
  };

  note('pool pointer: of 5 GiB, imported', await importing(KNOWN_GOOD));
  // Not at the beginning of the 32 MiB that a pool takes at a time.
  const before = await outOf(owner)('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
  note('pool pointer: of 5 GiB behind 1 MiB, imported', await importing(KNOWN_GOOD));
  await inOwner('cuMemFreeAsync', before, stream);
  // What ends the process differs from run to run: once 5,312 MiB did, once 5,376 MiB was imported.
};
