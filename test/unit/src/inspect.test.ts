import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { inspect } from 'node:util';
import * as cuffi from '../../../src/index.ts';
import { describeObject } from '../../../src/inspect.ts';
import * as ipc from '../../../src/ipc/index.ts';
import { loadKernels } from '../../support/kernels.ts';
import { emulate } from './emulate.ts';
import { peerPair } from './ipc/peer/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-inspect-'));
after(() => rmSync(folder, { recursive: true }));

/** A class, abstract or with a private constructor. */
type AnyClass = (abstract new (...args: never) => unknown) & { readonly name: string };

const isClass = (value: unknown): value is AnyClass =>
  typeof value === 'function' && /^class\b/.test(Function.prototype.toString.call(value));

/** The exported classes, but for errors: Node prints their messages. */
const classes = Object.values<unknown>({ ...cuffi, ...ipc })
  .filter(isClass)
  .filter(({ prototype }) => !(prototype instanceof Error));

/**
 * What cannot be made in one process: see test/unit/src/ipc/sharing/marshal.test.ts and
 * test/ipc/peer-pool.test.ts.
 */
const ELSEWHERE: readonly AnyClass[] = [ipc.ImportedPool, ipc.PeerPool as unknown as AnyClass];

describe('console.log of every class', () => {
  test('an object says what it is, besides its class, and whether it is closed', async () => {
    emulate();
    using channelPeers = peerPair();
    const channel = ipc.Channel.create({ slots: 2, shape: 3, deliver: 'all' });
    await channelPeers.a.send(channel as unknown);
    const consumer = (await channelPeers.b.receive()) as ipc.ChannelConsumer;
    const slot = await channel.acquire();
    assert.equal(inspect(slot), 'ProducerSlot(message 0)');
    slot.publish();
    const received = (await consumer.receive()) as ipc.ConsumerSlot;
    assert.equal(inspect(received), 'ConsumerSlot(message 0)');
    received.release();
    assert.equal(
      `${inspect(slot)}, ${inspect(received)}`,
      'ProducerSlot(message 0, published or canceled), ConsumerSlot(message 0, released)',
    );
    const { pid } = process;
    const context = cuffi.Context.primary();
    const device = cuffi.Device.get();
    const stream = cuffi.Stream.create({ nonBlocking: true });
    const pool = cuffi.MemoryPool.create();
    const buffer = cuffi.DeviceBuffer.allocate(64);
    const array = cuffi.deviceArray([2, 3], 'float32');
    const virtual = cuffi.VirtualMemory.reserve(10, { shareable: true });
    virtual.grow(10);
    const module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const graph = cuffi.Graph.capture(stream, () =>
      narrow.launch({ grid: 1, block: 1, stream }, buffer),
    );
    const Manager = class Manager extends cuffi.DriverMemoryManager {};
    const init = { context, pointer: 4096, byteLength: 8, owner: {} };
    const base = new cuffi.MemoryPointer(init);
    const mapped = cuffi.PinnedBuffer.allocate(8, { mapped: true });
    const name = join(folder, 'socket');
    using peers = peerPair();
    const child = ipc.spawnPeer('/dev/null', { execArgv: [], stdio: 'ignore' });
    const code = { kind: 'ptx', log: '', names: new Map(), code: Buffer.from('.version') } as const;
    const pinnedArrays = cuffi.pin(new Uint8Array(8192));
    const shown: readonly (readonly [object: object, text: string])[] = [
      [device, `Device 0 (${device.name})`],
      [context, `Context of Device 0 (${device.name})`],
      [cuffi.float32, 'Dtype float32'],
      [narrow, 'Kernel(narrow)'],
      [graph, 'Graph(1 kernel launch, on cuda:0)'],
      [stream, 'Stream(on cuda:0)'],
      [cuffi.Stream.legacyDefault(), 'Stream(legacy default, on cuda:0)'],
      [cuffi.Stream.perThreadDefault(), 'Stream(per-thread default, on cuda:0)'],
      [cuffi.Stream.fromHandle(stream.handle), 'Stream(borrowed, on cuda:0)'],
      [cuffi.CudaEvent.create(), 'CudaEvent(on cuda:0)'],
      [
        cuffi.CudaEvent.create({ interprocess: true }),
        'CudaEvent(interprocess, without timing, on cuda:0)',
      ],
      [buffer, 'DeviceBuffer(64 bytes, allocated)'],
      [cuffi.DeviceMemory.create({ private: true }), 'DeviceMemory(on cuda:0, private)'],
      [pool, 'MemoryPool(on cuda:0)'],
      [virtual, `VirtualMemory(10 of ${virtual.reservedByteLength} bytes)`],
      [cuffi.PinnedBuffer.allocate(8), 'PinnedBuffer(8 bytes)'],
      [pinnedArrays, 'PinnedArrays(1 array, 8192 bytes, on cuda:0)'],
      [cuffi.MappedMemory.create({ portable: true }), 'MappedMemory(on cuda:0, portable)'],
      [cuffi.ManagedMemory.create(), 'ManagedMemory(on cuda:0, attach global)'],
      [cuffi.MappedMemory.create().allocate(8), 'HostVisibleBuffer(8 bytes, allocated)'],
      [new Manager(context), 'Manager(on cuda:0, interface version 1)'],
      [base, 'MemoryPointer(8 bytes, on cuda:0)'],
      [new cuffi.AutoFreePointer(init), 'AutoFreePointer(8 bytes, on cuda:0)'],
      [
        new cuffi.MappedPointer({ ...init, pointer: mapped.address }),
        'MappedPointer(8 bytes, on cuda:0)',
      ],
      [new cuffi.PinnedPointer(init), 'PinnedPointer(8 bytes, on cuda:0)'],
      [
        new cuffi.IpcHandle({ base, handle: new Uint8Array(64), offset: 2 }),
        `IpcHandle(8 bytes, from byte 2, of ${device.uuid})`,
      ],
      [module, 'Module(on cuda:0)'],
      [new cuffi.CompiledCode(code), 'CompiledCode(ptx, 8 bytes)'],
      [cuffi.pinnedArray(2), 'PinnedArray(float64 [2], C)'],
      [ipc.getIpcHandle(array), `IpcArrayHandle(float32 [2, 3], of process ${pid})`],
      [
        ipc.getIpcHandle(buffer, { stream }),
        `IpcBufferHandle(64 bytes, of process ${pid}, with a ready event)`,
      ],
      [ipc.exportIpc(virtual, { stream }), 'ReadyExport(virtual, 10 bytes, 1 file descriptor)'],
      [ipc.Timeline.create(), 'Timeline(signals)'],
      [ipc.Timeline.create().signaler(), 'TimelineSignaler(after 0)'],
      [channel, 'Channel(2 slots of float64 [3], to all)'],
      [consumer, 'ChannelConsumer(2 slots of float64 [3], to all)'],
      [peers.a, `Peer(process ${pid})`],
      [child, `ChildPeer(process ${child.pid})`],
      [ipc.listen(name), `Listener(${name})`],
    ];
    const tested = new Set<unknown>(ELSEWHERE);
    for (const type of [cuffi.DeviceArray, ipc.ProducerSlot, ipc.ConsumerSlot]) tested.add(type);
    assert.match(inspect(array), /^DeviceArray\(float32 \[2, 3\] on cuda:0, C\) \[.*\]$/);
    for (const [object, text] of shown) {
      assert.equal(inspect([object], { breakLength: Infinity }), `[ ${text} ]`);
      for (
        let type: object = Object.getPrototypeOf(object);
        type !== Object.prototype;
        type = Object.getPrototypeOf(type)
      )
        tested.add(type.constructor);
    }
    assert.deepEqual(
      classes.filter((type) => !tested.has(type)).map((type) => type.name),
      [],
    );

    await child.ended;
    assert.match(inspect(child), /^ChildPeer\(process \d+, .*exited with 0.*\)$/);
    array.close();
    for (const [object] of [...shown].reverse())
      if (Symbol.dispose in object) (object as Disposable)[Symbol.dispose]();
    for (const [object, text] of shown) {
      if (!(Symbol.dispose in object) || object === child || object === pool) continue;
      assert.equal(inspect(object), text.replace(/\)$/, ', closed)'));
    }
  });
});

describe('describeObject', () => {
  test('absent parts are left out, and parts that cannot be read do not throw', () => {
    assert.equal(
      describeObject('Stream', () => [false, undefined, 'default']),
      'Stream(default)',
    );
    assert.equal(
      describeObject('Stream', () => [false]),
      'Stream',
    );
    const lost = (): never => {
      throw new Error('the context is lost');
    };
    assert.equal(describeObject('Stream', lost), 'Stream(cannot be read)');
  });
});
