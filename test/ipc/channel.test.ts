/** Channels between real processes: every message arrives, in order, however either side ends. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Device, Stream } from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ChannelOptions,
  type ChildPeer,
  spawnPeer,
} from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { killed, programFile } from '../support/program.ts';
import type { Seen, Step } from './fixtures/channels.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const options = { timeout: 60_000 + iterations(0, 1_200_000) };
const program = programFile(new URL('./fixtures/channels.ts', import.meta.url));

/** A process with an end of a channel. */
class Other implements AsyncDisposable {
  readonly child: ChildPeer;

  constructor(device = 0) {
    const args = [String(device)];
    this.child = spawnPeer(program.path, { args, execArgv: program.execArgv });
  }

  ask<T>(step: Step): Promise<T> {
    return this.child.request(step, { timeoutMs: 60_000 }) as Promise<T>;
  }

  consume(count?: number): Promise<Seen> {
    return this.ask({ do: 'consume', ...(count !== undefined && { count }) });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.child.close();
    await killed(this.child.process);
  }
}

const small = { slots: 4, shape: 16, dtype: 'uint32', deliver: 'all' } as const;

async function produce(channel: Channel, stream: Stream, count: number): Promise<void> {
  for (let at = 0; at < count; at += 1) {
    const slot = await channel.acquire();
    slot.array.fill(slot.message, { stream });
    slot.publish({ stream });
  }
}

const range = (begin: number, end: number): number[] =>
  Array.from({ length: end - begin }, (_, at) => begin + at);

describe('a channel between processes', () => {
  for (const busyPollUs of [0, 200])
    test(`to all, busyPollUs ${busyPollUs}: three consumers see each message`, options, async () => {
      const others = [new Other(), new Other(), new Other()];
      using channel = Channel.create({ ...small, busyPollUs });
      using stream = Stream.create({ nonBlocking: true });
      try {
        for (const other of others) await other.ask({ do: 'take', channel, busyPollUs });
        assert.equal(channel.consumers, 3);
        const seen = others.map((other) => other.consume());
        const count = iterations(200, 100_000);
        await produce(channel, stream, count);
        await channel.drained();
        channel.close();
        for (const each of await Promise.all(seen))
          assert.deepEqual(each, {
            messages: range(0, count),
            wrong: [],
            redelivered: [],
            end: 'end',
          });
      } finally {
        for (const other of others) await other[Symbol.asyncDispose]();
      }
    });
});
