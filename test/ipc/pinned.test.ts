import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceBuffer, PinnedBuffer } from '../../src/index.ts';
import { type ChildPeer, leases, spawnPeer } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { descriptorsReturnTo, openDescriptors } from '../support/process-state.ts';
import { killed, programFile } from '../support/program.ts';
import type { Step } from './fixtures/frames.ts';

const options = { timeout: 60_000 + iterations(0, 600_000) };
const program = programFile(new URL('./fixtures/frames.ts', import.meta.url));
const start = (): ChildPeer => spawnPeer(program.path, { execArgv: program.execArgv });
const ask = (child: ChildPeer, step: Step): Promise<unknown> =>
  child.request(step, { timeoutMs: 60_000 });

describe('page-locked memory between processes', () => {
  test('is the same pages for the hosts and devices of all', options, async () => {
    const children = [start(), start()] as const;
    const pinned = PinnedBuffer.allocate(100_000, { shareable: true });
    const bytes = new Uint8Array(pinned.buffer);
    bytes.fill(3);
    for (const child of children) assert.deepEqual(await ask(child, { pinned }), [3]);
    await ask(children[0], { write: 4 });
    assert.ok(bytes.every((byte) => byte === 4));
    using buffer = DeviceBuffer.allocate(pinned.byteLength);
    buffer.fill(5);
    await buffer.copyToHost(bytes);
    for (const child of children) assert.deepEqual(await ask(child, {}), [5]);
    pinned.close();
    await ask(children[1], { write: 6 });
    assert.deepEqual(await ask(children[0], { close: true }), [6]);
    assert.deepEqual(await ask(children[1], { close: true }), [6]);
    await leases.drain({ timeoutMs: 30_000 });
    for (const child of children) {
      child.close();
      await killed(child.process);
    }
  });

  test('a killed receiver takes nothing from the others', options, async () => {
    using first = start();
    using pinned = PinnedBuffer.allocate(100_000, { shareable: true });
    new Uint8Array(pinned.buffer).fill(1);
    await ask(first, { pinned });
    await new Promise((resolve) => setTimeout(resolve, 50));
    const before = openDescriptors();
    for (let round = 1; round <= iterations(3, 100); round += 1) {
      using child = start();
      await ask(child, { pinned });
      void child.send({ write: round }).catch(() => {});
      await killed(child.process);
      await child.ended;
      assert.deepEqual(await ask(first, { write: round % 200 }), [round % 200]);
      assert.equal(new Uint8Array(pinned.buffer)[0], round % 200);
    }
    await descriptorsReturnTo(before);
    await killed(first.process);
  });
});
