/** A memory manager that counts what is allocated, and refuses more than a budget. */
import {
  type AllocateOptions,
  AutoFreePointer,
  CuffiError,
  DeviceBuffer,
  DriverMemoryManager,
  type MemoryInfo,
  setMemoryManager,
} from 'cuffi';

class BudgetError extends CuffiError {
  override name = 'BudgetError';
  readonly asked: number;
  readonly left: number;

  constructor(asked: number, left: number) {
    super(`${asked} bytes were asked for, ${left} are left of the budget`);
    this.asked = asked;
    this.left = left;
  }
}

class BudgetManager extends DriverMemoryManager {
  static readonly budget = 1 << 20;
  #used = 0;

  override memalloc(byteLength: number, options?: AllocateOptions): AutoFreePointer {
    const left = BudgetManager.budget - this.#used;
    if (byteLength > left) throw new BudgetError(byteLength, left);
    const memory = super.memalloc(byteLength, options).own();
    this.#used += byteLength;
    return new AutoFreePointer({
      context: this.context,
      pointer: memory.pointer,
      byteLength,
      finalizer: (last) => {
        this.#used -= byteLength;
        memory.close(last);
      },
    });
  }

  override getMemoryInfo(): MemoryInfo {
    return { free: BudgetManager.budget - this.#used, total: BudgetManager.budget };
  }

  override reset(): void {
    this.#used = 0;
    super.reset();
  }
}

setMemoryManager(BudgetManager);

using first = DeviceBuffer.allocate(700_000);
try {
  DeviceBuffer.allocate(700_000);
} catch (error) {
  if (!(error instanceof BudgetError)) throw error;
  console.log(error.message);
}
first.close();
using second = DeviceBuffer.allocate(700_000);
console.log(`left: ${second.context.memoryInfo().free}`);
