/** A message through a channel: the slots stay mapped, and nothing is sent for a message. */
import { Stream } from 'cuffi';
import { Channel } from 'cuffi/ipc';
import { PUBLIC } from '../cases/case.ts';
import { type Children, ConsumingChild } from './children.ts';
import { BUSY_POLLING } from './sharing.ts';
import { roundTrips, type Way } from './way.ts';
import { Work } from './work.ts';

/** Longer than a round trip takes, so that neither end sleeps. */
const BUSY_POLL_US = 200;

/** A channel of one slot: it is free again when the other process has released it. */
const roundTrip = (name: string, busyPollUs: number, readsWord = false): Way => ({
  name,
  async open({ byteLength, children }) {
    const channel = Channel.create({ slots: 1, byteLength, deliver: 'all', busyPollUs });
    const stream = Stream.create({ nonBlocking: true });
    const child = await children.consuming();
    const number = await child.give(channel, { readsWord });
    return {
      ...roundTrips(async () => {
        const slot = await channel.acquire();
        slot.publish({ stream });
        await channel.drained();
      }),
      async close() {
        channel.close();
        await child.drop(number);
        stream.close();
      },
    };
  },
});

export const quietChannel: Way = roundTrip(PUBLIC, 0);
/** As hand-overs of buffers, whose receiver reads a word. */
export const readChannel: Way = roundTrip('cuffi, a word read', 0, true);
export const busyChannel: Way = roundTrip(BUSY_POLLING, BUSY_POLL_US);

/** Streams wait for the slots at both ends; with a kernel of so many microseconds in both, if any. */
export const channelAhead = (
  slots: number,
  workUs = 0,
  name: string = PUBLIC,
  other: (children: Children) => Promise<ConsumingChild> = (children) => children.consuming(),
): Way => ({
  name,
  async open({ driver, children }) {
    // The end of the last slot is seen at once. The emulated driver needs the event loop meanwhile.
    const busyPollUs = driver.emulated ? 0 : 100_000;
    const options = { slots, byteLength: 4096, deliver: 'all', ahead: true, busyPollUs } as const;
    const channel = Channel.create(options);
    const work = workUs === 0 ? undefined : new Work(workUs);
    const stream = Stream.create({ nonBlocking: true });
    const child = await other(children);
    const number = await child.give(channel, { isAhead: true, workUs });
    const publish = async (count: number): Promise<void> => {
      for (let at = 0; at < count; at += 1) {
        const slot = channel.tryAcquire({ stream }) ?? (await channel.acquire({ stream }));
        work?.queue(stream);
        slot.publish({ stream });
      }
      await channel.drained();
    };
    return {
      async run(calls, untimed) {
        await child.queueAhead(number, untimed);
        await publish(untimed);
        await child.queueAhead(number, calls);
        const start = process.hrtime.bigint();
        await publish(calls);
        return Number(process.hrtime.bigint() - start);
      },
      async close() {
        channel.close();
        await child.drop(number);
        stream.close();
        work?.close();
      },
    };
  },
});

/** From this process to Python. */
export const channelToPython = (slots: number): Way =>
  channelAhead(slots, 0, PUBLIC, (children) => children.pythonChannels());
export const channelToNode = (slots: number): Way =>
  channelAhead(slots, 0, `${PUBLIC}, Node to Node`);

/** From Python to this process; Python takes the time. */
export const channelFromPython = (slots: number): Way => ({
  name: `${PUBLIC}, Python to Node`,
  async open({ driver, children }) {
    const child = await children.pythonChannels();
    const { channel, number } = await child.make(slots, 4096, driver.emulated ? 0 : 100_000);
    const stream = Stream.create({ nonBlocking: true });
    const pass = async (count: number): Promise<number> => {
      let left = count;
      for await (const slot of channel.ahead(stream)) {
        slot.release({ stream });
        left -= 1;
        if (left === 0) break;
      }
      return Number(await child.publish(number, count));
    };
    return {
      async run(calls, untimed) {
        await pass(untimed);
        return pass(calls);
      },
      async close() {
        await child.closeMade(number);
        channel.close();
        stream.close();
      },
    };
  },
});

/** A slot goes to several processes at once; it is free again when all have released it. */
export const channelToMany = (consumers: number): Way => ({
  name: PUBLIC,
  async open({ byteLength, driver }) {
    const channel = Channel.create({ slots: 1, byteLength, deliver: 'all' });
    const stream = Stream.create({ nonBlocking: true });
    const children: ConsumingChild[] = [];
    for (let at = 0; at < consumers; at += 1) {
      const child = await ConsumingChild.start(driver);
      children.push(child);
      await child.give(channel);
    }
    return {
      ...roundTrips(async () => {
        (await channel.acquire()).publish({ stream });
        await channel.drained();
      }),
      async close() {
        channel.close();
        stream.close();
        for (const child of children) await child.end();
      },
    };
  },
});
