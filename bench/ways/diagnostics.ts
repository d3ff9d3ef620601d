/** The same ways with somebody who subscribes to what cuffi publishes by `node:diagnostics_channel`. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { PUBLIC } from '../cases/case.ts';
import type { Way } from './way.ts';

/** What a hand-over or a slot of a channel publishes. */
const CHANNELS = [
  'peer:send',
  'peer:receive',
  'lease:begin',
  'lease:end',
  'channel:publish',
  'wait:begin',
  'wait:end',
].map((name) => `cuffi:${name}`);

const subscribed = (way: Way): Way => ({
  name: `${PUBLIC}, subscribed`,
  async open(opening) {
    const open = await way.open(opening);
    let seen = 0;
    const count = (): void => {
      seen += 1;
    };
    return {
      ...open,
      async run(calls, untimed) {
        for (const name of CHANNELS) subscribe(name, count);
        try {
          return await open.run(calls, untimed);
        } finally {
          for (const name of CHANNELS) unsubscribe(name, count);
        }
      },
      async verify() {
        if (seen === 0) throw new Error('nothing was published');
      },
    };
  },
});

/** The way twice, whose difference is noise, and with a subscriber. */
export const withSubscriber = (way: Way): Way[] => [
  { ...way, name: PUBLIC },
  { ...way, name: `${PUBLIC}, once more` },
  subscribed(way),
];
