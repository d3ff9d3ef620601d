/** Sharing memory with another process. */
import { Context, DeviceBuffer, MemoryPool, Stream, VirtualMemory } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';
import { PUBLIC } from '../cases/case.ts';
import type { Receiver } from './children.ts';
import { compareAndHandOver, type Opening, type OpenWay, type Way } from './way.ts';

/** Both ends poll the connection before they sleep. */
export const BUSY_POLLING: string = `${PUBLIC}, busy polling`;
export const POINTS = 'ready and done points';

/** A buffer that the receiver has mapped before. */
const mappedBy = (name: string, receiverOf: (opening: Opening) => Promise<Receiver>): Way => ({
  name,
  async open(opening) {
    const buffer = DeviceBuffer.allocate(opening.byteLength);
    const receiver = await receiverOf(opening);
    await receiver.keep(buffer);
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.give(buffer),
      async close() {
        try {
          await receiver.drop();
        } finally {
          buffer.close();
        }
      },
    });
  },
});

export const mapped: Way = mappedBy(PUBLIC, ({ children }) => children.receiver());
export const mappedBusyPolling: Way = mappedBy(BUSY_POLLING, ({ children }) =>
  children.pollingReceiver(),
);

/** From this process to Python and back. */
export const mappedByPython: Way = mappedBy(PUBLIC, ({ children }) => children.pythonReceiver());
export const mappedByPythonPolling: Way = mappedBy(BUSY_POLLING, ({ children }) =>
  children.pollingPythonReceiver(),
);
const NODE_TO_NODE = `${PUBLIC}, Node to Node`;
export const mappedByNode: Way = mappedBy(NODE_TO_NODE, ({ children }) => children.receiver());

/** As {@link mapped}, but the change is only queued: a stream of the receiver waits for it. */
export const mappedPoints: Way = {
  name: `${PUBLIC}, ${POINTS}`,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const stream = Stream.create({ nonBlocking: true });
    const receiver = await children.receiver();
    await receiver.keep(buffer);
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      change: (changed, word) =>
        changed.subarray(0, 4).fill(word, { elementByteLength: 4, stream }),
      give: () => receiver.give(buffer, stream),
      async close() {
        try {
          await receiver.drop();
        } finally {
          buffer.close();
          stream.close();
        }
      },
    });
  },
};

/** A new buffer of a pool that the receiver has imported before. */
export const pool: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const known = MemoryPool.create({ shareable: true });
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => known.allocate(byteLength),
      give: (buffer) => receiver.give(buffer),
      after: (buffer) => buffer.close(),
      close: () => known.close({ buffers: true }),
    });
  },
};

/** A legacy handle, over the connection. */
export const legacy: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.give(buffer),
      close: () => buffer.close(),
    });
  },
};

/** A legacy handle in a descriptor, by `process.send`. */
export const processSend: Way = {
  name: `${PUBLIC}, process.send`,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.tell(getIpcHandle(buffer)),
      close: () => buffer.close(),
    });
  },
};

/** A buffer of a new pool: the receiver imports both and closes both. */
export const firstPool: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const context = Context.primary();
    const receiver = await children.receiver();
    await receiver.closePools(true);
    return compareAndHandOver(receiver, {
      buffer: () =>
        MemoryPool.create({ context, shareable: true, releaseThreshold: 0 }).allocate(byteLength),
      give: (buffer) => receiver.give(buffer),
      after(buffer) {
        (buffer.resource as MemoryPool).close({ buffers: true });
        context.synchronizeSync();
      },
      close: () => receiver.closePools(false),
    });
  },
};

/** New virtual memory, by its file descriptor. */
export const virtual: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const receiver = await children.receiver();
    let memory: VirtualMemory;
    return compareAndHandOver(receiver, {
      buffer() {
        memory = VirtualMemory.reserve(byteLength, { shareable: true });
        return memory.grow(byteLength);
      },
      give: (buffer) => receiver.give(buffer),
      after: () => memory.close(),
      close() {},
    });
  },
};

/** A server has soon handed over so many. V8 optimizes most of that code only after thousands. */
const OTHERS = 500;
/** Without a GPU the times say nothing. */
const EMULATED_OTHERS = 20;

/** A way whose rounds come after many others. */
const afterOthers = (way: Way): Way => ({
  name: way.name,
  async open(opening): Promise<OpenWay> {
    const open = await way.open(opening);
    try {
      await open.run(opening.driver.emulated ? EMULATED_OTHERS : OTHERS, 0);
    } catch (error) {
      await open.close();
      throw error;
    }
    return { ...open, warmUpMs: 0, warmUpMostMs: 0 };
  },
});

/** New memory for each round, by its legacy handle. */
export const newLegacy: Way = afterOthers({
  name: PUBLIC,
  async open({ byteLength, children }) {
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => DeviceBuffer.allocate(byteLength),
      give: (buffer) => receiver.give(buffer),
      after: (buffer) => buffer.close(),
      close() {},
    });
  },
});

export const newPool: Way = afterOthers(firstPool);
export const newVirtual: Way = afterOthers(virtual);
