/** A memory manager that serves all device memory from one pool. */
import {
  type AllocateOptions,
  AutoFreePointer,
  Context,
  DeviceBuffer,
  DriverMemoryManager,
  type MemoryInfo,
  MemoryPool,
  setMemoryManager,
} from 'cuffi';

class PoolManager extends DriverMemoryManager {
  #pool: MemoryPool | undefined;

  override initialize(): void {
    this.#pool ??= MemoryPool.create({ context: this.context, maxSize: 64 << 20 });
  }

  override memalloc(byteLength: number, options?: AllocateOptions): AutoFreePointer {
    const buffer = this.pool.allocate(byteLength, options);
    return new AutoFreePointer({
      context: this.context,
      pointer: buffer.address,
      byteLength,
      // Freed in the stream of the close where it named one, else in that of the allocation.
      finalizer: (last) => buffer.close(last),
    });
  }

  override getMemoryInfo(): MemoryInfo {
    const { used, maxSize } = this.pool;
    return { free: maxSize - used, total: maxSize };
  }

  override reset(): void {
    this.#pool?.close({ buffers: true });
    this.#pool = undefined;
    super.reset();
  }

  get pool(): MemoryPool {
    if (!this.#pool) throw new Error('not initialised');
    return this.#pool;
  }
}

setMemoryManager(PoolManager);

const context = Context.primary();
console.log(`all there is: ${context.memoryInfo().total >> 20} MiB`);
const first = DeviceBuffer.allocate(16 << 20);
const { address } = first;
first.close();
using second = DeviceBuffer.allocate(16 << 20);
console.log(`the same memory again: ${second.address === address}`);
second.fill(7);
console.log(new Set(await second.copyToHost()));
