/** A message through a channel: the slots stay mapped, and nothing is sent for a message. */
import { Stream } from 'cuffi';
import { Channel } from 'cuffi/ipc';
import { PUBLIC } from '../cases/case.ts';
import { BUSY_POLLING } from './sharing.ts';
import { roundTrips, type Way } from './way.ts';

/** Longer than a round trip takes, so that neither end sleeps. */
const BUSY_POLL_US = 200;

/** A channel of one slot: it is free again when the other process has released it. */
const roundTrip = (name: string, busyPollUs: number): Way => ({
  name,
  async open({ byteLength, children }) {
    const channel = Channel.create({ slots: 1, byteLength, deliver: 'all', busyPollUs });
    const stream = Stream.create({ nonBlocking: true });
    const child = await children.consuming();
    await child.give(channel, false);
    return {
      ...roundTrips(async () => {
        const slot = await channel.acquire();
        slot.publish({ stream });
        await channel.drained();
      }),
      close() {
        channel.close();
        stream.close();
      },
    };
  },
});

export const quietChannel: Way = roundTrip(PUBLIC, 0);
export const busyChannel: Way = roundTrip(BUSY_POLLING, BUSY_POLL_US);

/** Streams wait for the slots at both ends; all are queued before. */
export const channelAhead = (slots: number): Way => ({
  name: PUBLIC,
  async open({ driver, children }) {
    // The end of the last slot is seen at once. The emulated driver needs the event loop meanwhile.
    const busyPollUs = driver.emulated ? 0 : 100_000;
    const options = { slots, byteLength: 4096, deliver: 'all', ahead: true, busyPollUs } as const;
    const channel = Channel.create(options);
    const stream = Stream.create({ nonBlocking: true });
    const child = await children.consuming();
    const number = await child.give(channel, true);
    const publish = async (count: number): Promise<void> => {
      for (let at = 0; at < count; at += 1)
        (channel.tryAcquire({ stream }) ?? (await channel.acquire({ stream }))).publish({ stream });
      await channel.drained();
    };
    return {
      async run(calls, untimed) {
        for (const count of [untimed, calls]) {
          if (count === 0) continue;
          await child.queueAhead(number, Math.min(count, MOST_AHEAD));
          const start = process.hrtime.bigint();
          await publish(count);
          if (count === calls) return Number(process.hrtime.bigint() - start);
        }
        return 0;
      },
      close() {
        channel.close();
        stream.close();
      },
    };
  },
});

/** The most slots that a consumer takes ahead. */
const MOST_AHEAD = 64;
