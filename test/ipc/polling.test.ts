/** Processes that look at their connection for a while before they sleep. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { Context, DeviceBuffer } from '../../src/index.ts';
import { type ChildPeer, leases, spawnPeer } from '../../src/ipc/index.ts';
import { until } from '../support/iterations.ts';
import { type ProcessState, processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import type { PollerRequest } from './fixtures/poller.ts';

const deadline = { timeout: 60_000 };
const program = programFile(new URL('./fixtures/poller.ts', import.meta.url)).path;
/** So long that a needless wait shows. */
const SECOND_US = 1_000_000;
const children: ChildPeer[] = [];

function start(busyPollUs: number, childBusyPollUs = busyPollUs): ChildPeer {
  const child = spawnPeer(program, { args: [String(childBusyPollUs)], busyPollUs });
  children.push(child);
  return child;
}

const receive = (child: ChildPeer): Promise<unknown> => child.receive({ timeoutMs: 30_000 });
async function ask(child: ChildPeer, request: PollerRequest): Promise<unknown> {
  await child.send(request);
  return receive(child);
}

/** What this process holds when all but what the child keeps is given back. */
async function held(): Promise<Pick<ProcessState, 'descriptors' | 'mappings'>> {
  await until(() => leases.stats().leases.length <= 1);
  await Context.primary().flush();
  const { descriptors, mappings } = processState();
  return { descriptors, mappings };
}

describe('busy polling', () => {
  afterEach(async () => {
    for (const child of children.splice(0)) {
      const { process: running } = child;
      running.kill('SIGKILL');
      if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
      child.close();
    }
  });

  test(
    'a value that comes while the thread looks is taken without a turn of the loop',
    deadline,
    async () => {
      const child = start(0, SECOND_US);
      using kept = DeviceBuffer.allocate(64);
      const buffer = DeviceBuffer.allocate(64);
      await child.send(kept);
      await receive(child);
      assert.equal(await ask(child, { do: 'wait', buffer }), 'waiting');
      buffer.close();
      // Its closes are reported before it polls.
      await leases.drain({ timeoutMs: 30_000 });
      await child.send('now');
      assert.deepEqual(await receive(child), { hasTurned: false });
    },
  );

  test('timers run where nothing comes', deadline, async () => {
    const child = start(100);
    await child.send({ do: 'tick' } satisfies PollerRequest);
    for (let ticks = 0; ticks < 3; ticks += 1) assert.equal(await receive(child), 'tick');
    await child.send('enough');
    let last = await receive(child);
    while (last === 'tick') last = await receive(child);
    assert.equal(last, 'ticked');
  });

  test(
    'hand-overs among processes that look come in order, and nothing of them is left',
    deadline,
    async () => {
      const child = start(50);
      using buffer = DeviceBuffer.allocate(64);
      const word = new Uint32Array(1);
      const handOver = async (n: number): Promise<void> => {
        word[0] = n;
        buffer.copyFromSync(word);
        // Asked for before it can be there.
        const answer = receive(child);
        await child.send(buffer);
        assert.equal(await answer, n);
      };
      for (let n = 0; n < 10; n += 1) await handOver(n);
      const before = await held();
      for (let n = 0; n < 300; n += 1) await handOver(n);
      assert.deepEqual(await held(), before);
      const opened = await child.open(await ask(child, { do: 'make' }));
      assert.equal((opened as DeviceBuffer).byteLength, 64);
      opened.close();
    },
  );

  test(
    'the end of another process is heard while the thread looks, and so is a third one',
    deadline,
    async () => {
      const [killed, alive] = [start(SECOND_US, 0), start(SECOND_US, 0)];
      for (const child of [killed, alive]) assert.equal(await ask(child, { do: 'echo' }), 'echo');
      const waiting = assert.rejects(receive(killed), { name: 'PeerGoneError' });
      const answer = ask(alive, { do: 'echo' });
      killed.process.kill('SIGKILL');
      await waiting;
      assert.equal(await answer, 'echo');
    },
  );
});
