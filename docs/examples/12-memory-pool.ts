/** A pool: memory that is allocated and freed in the order of a stream, and kept for the next. */
import { Context, MemoryPool, Stream } from 'cuffi';

using pool = MemoryPool.create({ maxSize: 64 << 20 });
using stream = Stream.create();

const first = pool.allocate(1 << 20, { stream });
const { address } = first;
first.fill(7, { stream });
console.log(new Set(await first.copyToHost(undefined, { stream })));
// Freed behind the work of its stream, without waiting for it.
first.close();

{
  using second = pool.allocate(1 << 20, { stream });
  console.log(`the same memory again: ${second.address === address}`);
}

// What was freed in a stream counts as used until the whole context was waited for.
Context.primary().synchronizeSync();
console.log(`in use: ${pool.used}, at most: ${pool.usedHigh}, kept: ${pool.reserved}`);
pool.trim();
console.log(`kept after trim: ${pool.reserved}`);
