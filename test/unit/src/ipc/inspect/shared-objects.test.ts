import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  PinnedBuffer,
  VirtualMemory,
} from '../../../../../src/index.ts';
import { Channel, exportIpc, leases, Timeline } from '../../../../../src/ipc/index.ts';
import { sharedObjects } from '../../../../../src/ipc/inspect/shared-objects.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

const MIB = 1 << 20;

describe('sharedObjects', () => {
  test('lists each object that was shared with its bytes, the largest first, until it is closed', async () => {
    emulate();
    const listed = (): unknown[] =>
      sharedObjects().map(({ kind, byteLength, holders }) => [kind, byteLength, holders.length]);
    const buffer = DeviceBuffer.allocate(3 * MIB);
    const event = CudaEvent.create({ interprocess: true });
    const memory = VirtualMemory.reserve(8 * MIB, { shareable: true });
    const pool = MemoryPool.create({ shareable: true });
    const pooled = pool.allocate(MIB);
    assert.deepEqual(listed(), []);
    for (const object of [buffer, event, memory.grow(4 * MIB), pooled]) exportIpc(object);
    const expected = [
      ['memory', 4 * MIB, 0],
      ['memory', 3 * MIB, 0],
      ['memory', MIB, 0],
      ['event', 0, 0],
    ];
    assert.deepEqual(listed(), expected);
    using pair = peerPair();
    await pair.a.send([buffer, event] as unknown);
    const received = (await pair.b.receive()) as { close(): void }[];
    assert.deepEqual(
      listed(),
      expected.map(([kind, byteLength]) => [
        kind,
        byteLength,
        kind === 'event' || byteLength === 3 * MIB ? 1 : 0,
      ]),
    );
    for (const object of received) object.close();
    for (const object of [buffer, event]) await leases.returned(object, { timeoutMs: 10_000 });
    for (const object of [pooled, pool, memory, event, buffer]) object.close();
    assert.deepEqual(listed(), []);
  });

  test('has the device of each object, and none for what is in host memory', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const context = Context.primary(1);
    const { uuid } = context.device;
    using pool = MemoryPool.create({ context, shareable: true });
    using event = CudaEvent.create({ context, interprocess: true });
    using buffer = DeviceBuffer.allocate(MIB, { context });
    using channel = Channel.create({ context, slots: 2, byteLength: MIB, deliver: 'all' });
    using timeline = Timeline.create();
    using pinned = PinnedBuffer.allocate(4096, { context, shareable: true });
    const devices = () =>
      Object.fromEntries(sharedObjects().map(({ kind, device }) => [kind, device]));
    for (const object of [pool, event, buffer]) exportIpc(object);
    assert.deepEqual(devices(), { pool: uuid, event: uuid, memory: uuid });
    using pair = peerPair();
    await pair.a.send([pool, event, buffer, channel, timeline, pinned] as unknown);
    assert.deepEqual(devices(), {
      pool: uuid,
      event: uuid,
      memory: uuid,
      channel: uuid,
      timeline: undefined,
      pinned: undefined,
    });
    for (const object of (await pair.b.receive()) as { close(): void }[]) object.close();
  });
});
