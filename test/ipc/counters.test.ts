/** A process that does as it likes with its page of counters, and asks for more than can be. */
import assert from 'node:assert/strict';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { DeviceBuffer, Stream } from '../../src/index.ts';
import { listen, type Peer } from '../../src/ipc/index.ts';
import { until } from '../support/iterations.ts';
import { Program } from '../support/program.ts';
import type { Step } from './fixtures/counters.ts';

const timeout = 60_000;

/** Sends a buffer to a hostile process. */
async function lendTo(
  t: TestContext,
  stream: Stream,
): Promise<{
  buffer: DeviceBuffer;
  peer: Peer;
  other: Program;
  tell(step: Step): Promise<readonly string[]>;
}> {
  const path = join(
    tmpdir(),
    `cuffi-counters-${process.pid}-${Math.random().toString(36).slice(2)}`,
  );
  const listener = listen(path);
  const other = new Program(new URL('./fixtures/counters.ts', import.meta.url));
  t.after(async () => {
    listener.close();
    await other.kill();
  });
  const tell = (step: Step): Promise<readonly string[]> => other.ask(step);
  const accepted = listener.accept();
  await tell({ do: 'connect', path });
  const peer = await accepted;
  t.after(() => peer.close());
  const buffer = DeviceBuffer.allocate(64);
  t.after(() => buffer.close());
  await peer.send(buffer, { stream });
  // What comes is only heard while somebody listens.
  void peer.receive().catch(() => {});
  return { buffer, peer, other, tell };
}

describe('counters between processes', () => {
  test('the memory of a page cannot be taken away, and its end releases the streams', {
    timeout,
  }, async (t) => {
    using stream = Stream.create({ nonBlocking: true });
    const { buffer, peer, other, tell } = await lendTo(t, stream);
    using recorder = recordCalls();
    await tell({ do: 'ask', points: 1, slots: 1 });
    await until(() => {
      // A stream waits only if it uses what was returned.
      buffer.fill(0, { stream });
      return recorder.calls.some(({ name }) => name.startsWith('cuStreamWaitValue'));
    });
    assert.equal(stream.done, false);
    assert.deepEqual(await tell({ do: 'take away' }), []);
    await other.kill();
    assert.equal(((await peer.ended) as Error).name, 'PeerGoneError');
    await stream.synchronize();
  });

  for (const slots of [1, 512])
    test(`thousands of waits for ${slots} counters are asked for, and this process goes on`, {
      timeout,
    }, async (t) => {
      using stream = Stream.create({ nonBlocking: true });
      const { buffer, peer, other, tell } = await lendTo(t, stream);
      using recorder = recordCalls();
      await tell({ do: 'ask', points: 8192, slots });
      // A stream waits only if it uses what was returned, until no room is left.
      let refused: unknown;
      await until(() => {
        try {
          buffer.fill(0, { stream });
        } catch (error) {
          refused = error;
        }
        return refused !== undefined;
      });
      assert.equal((refused as Error).name, 'CuffiError');
      const waits = recorder.calls.filter(({ name }) => name.startsWith('cuStreamWaitValue'));
      assert.ok(waits.length <= 320, `${waits.length} waits were queued`);
      using unrelated = DeviceBuffer.allocate(64);
      using mine = Stream.create({ nonBlocking: true });
      unrelated.fill(7, { stream: mine });
      await mine.synchronize();
      await other.kill();
      assert.equal(((await peer.ended) as Error).name, 'PeerGoneError');
      await stream.synchronize();
    });
});
