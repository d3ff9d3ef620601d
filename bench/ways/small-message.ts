import { deepEqual } from 'node:assert/strict';
import { PUBLIC } from '../cases/names.ts';
import type { HandOverChild } from '../programs/hand-over.ts';
import { roundTrips } from './round-trip.ts';
import type { Way } from './way.ts';

/** What servers say to each other beside the buffers: ten short names and values. */
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

const by = (name: string, exchange: (child: HandOverChild) => Promise<unknown>): Way => ({
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

export const smallMessage: Way = by(PUBLIC, (child) => child.exchange(message));
export const smallMessageByProcessSend: Way = by('process.send', (child) =>
  child.exchangeByProcessSend(message),
);

/** So many on their way at once. */
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
