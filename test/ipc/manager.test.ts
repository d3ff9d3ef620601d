import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  Context,
  DeviceBuffer,
  DeviceMemory,
  DriverMemoryManager,
  MemoryPointer,
  setMemoryManager,
} from '../../src/index.ts';
import { getIpcHandle, openIpcBuffer } from '../../src/ipc/index.ts';
import { type Read, WorkerProcess } from './fixtures/index.ts';

/** Gives out parts of one allocation, each at a distance from the last. */
class Parts extends DriverMemoryManager {
  static #whole: DeviceBuffer | undefined;
  #next = 256;

  override memalloc(byteLength: number): MemoryPointer {
    Parts.#whole ??= DeviceMemory.create({ context: this.context }).allocate(4 << 20);
    const pointer = Parts.#whole.address + this.#next;
    this.#next += Math.ceil(byteLength / 256) * 256;
    return new MemoryPointer({ context: this.context, pointer, byteLength, owner: Parts.#whole });
  }

  static close(): void {
    Parts.#whole?.close();
  }
}

describe('the memory manager between processes', () => {
  test('memory of a manager is shared with another process, at its place in the allocation', {
    timeout: 60_000,
  }, async (t) => {
    setMemoryManager(Parts);
    t.after(() => Parts.close());
    await using user = new WorkerProcess();
    using neighbour = DeviceBuffer.allocate(1000);
    using buffer = DeviceBuffer.allocate(1000);
    neighbour.fill(1);
    buffer.fill(2);
    buffer.subarray(300, 400).fill(3);
    await Context.primary().synchronize();
    await user.do('open', { key: 'a', message: getIpcHandle(buffer) });
    await user.do('open', { key: 'part', message: getIpcHandle(buffer.subarray(300, 400)) });
    const read = (key: string): Promise<Read> => user.do<Read>('read', { key });
    assert.deepEqual(await read('a'), { values: [2, 3], byteLength: 1000 });
    assert.deepEqual(await read('part'), { values: [3], byteLength: 100 });
    await user.do('fill', { key: 'part', value: 4 });
    const bytes = await buffer.copyToHost();
    assert.deepEqual([bytes[299], bytes[300], bytes[399], bytes[400]], [2, 4, 4, 2]);
    assert.deepEqual(new Set(await neighbour.copyToHost()), new Set([1]));
    for (const key of ['a', 'part']) await user.do('close', { key });
    // Here, too, a range is counted from where the allocation begins, and not the part.
    for (const own of [buffer, buffer.subarray(300, 400), neighbour]) {
      using alias = openIpcBuffer(getIpcHandle(own), { sameProcess: 'alias' });
      assert.deepEqual([alias.address, alias.byteLength], [own.address, own.byteLength]);
    }
  });
});
