/** Messages without memory: the floor of every hand-over over a connection. */
import { deepEqual } from 'node:assert/strict';
import { PUBLIC } from '../cases/case.ts';
import { BareChild } from './bare-socket.ts';
import type { Receiver } from './children.ts';
import { BUSY_POLLING } from './sharing.ts';
import { type Opening, roundTrips, type Way } from './way.ts';

const emptyBy = (name: string, receiverOf: (opening: Opening) => Promise<Receiver>): Way => ({
  name,
  async open(opening) {
    const receiver = await receiverOf(opening);
    return roundTrips(() => receiver.greet());
  },
});

export const emptyMessage: Way = emptyBy(PUBLIC, ({ children }) => children.receiver());
export const emptyMessageBusyPolling: Way = emptyBy(BUSY_POLLING, ({ children }) =>
  children.pollingReceiver(),
);

/** A byte through a Unix socket. */
export const nodeNet: Way = {
  name: 'node:net',
  async open({ children }) {
    const receiver = await children.receiver();
    const byte = new Uint8Array([1]);
    return roundTrips(async () => {
      const [seen] = (await receiver.echo(byte)) as Uint8Array;
      if (seen !== byte[0]) throw new Error(`${seen} came back`);
    });
  },
};

/** What a connection needs without cuffi. */
export const bareNode: Way = {
  name: 'bare Node, uv_poll',
  async open() {
    const child = await BareChild.start();
    return { ...roundTrips(() => child.exchange()), close: () => child.end() };
  },
};

/** Ten short names and values, as servers send them along with buffers. */
const message = {
  type: 'frame',
  id: 17,
  width: 640,
  height: 480,
  dtype: 'float32',
  layout: 'NCHW',
  camera: 'camera-1',
  time: 12.5,
  isComplete: true,
  label: 'person',
};

const smallBy = (name: string, exchange: (receiver: Receiver) => Promise<unknown>): Way => ({
  name,
  async open({ children }) {
    const receiver = await children.receiver();
    return {
      ...roundTrips(() => exchange(receiver)),
      async verify() {
        deepEqual(await exchange(receiver), message);
      },
    };
  },
});

export const smallMessage: Way = smallBy(PUBLIC, (receiver) => receiver.exchange(message));
export const smallMessageByProcessSend: Way = smallBy('process.send', (receiver) =>
  receiver.exchangeByProcessSend(message),
);

/** Messages under way at once. */
const WINDOW = 32;

export const smallMessagesInFlight: Way = {
  name: `${PUBLIC}, ${WINDOW} at once`,
  async open({ children }) {
    const receiver = await children.receiver();
    const exchangeAll = (count: number): Promise<unknown> =>
      Promise.all(Array.from({ length: count }, () => receiver.exchange(message)));
    return {
      async run(calls, untimed) {
        await exchangeAll(untimed);
        const start = process.hrtime.bigint();
        for (let left = calls; left > 0; left -= WINDOW) await exchangeAll(Math.min(left, WINDOW));
        return Number(process.hrtime.bigint() - start);
      },
      async verify() {
        deepEqual(await receiver.exchange(message), message);
      },
      close() {},
    };
  },
};
