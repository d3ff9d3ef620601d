import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { format, inspect, isDeepStrictEqual } from 'node:util';
import { serialize } from 'node:v8';
import { MessageChannel } from 'node:worker_threads';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  DeviceMemory,
  deviceArray,
  float32,
  MappedMemory,
  MemoryPool,
  memoryManager,
  PinnedBuffer,
  pin,
  pinnedArray,
  Stream,
  toDeviceSync,
  VirtualMemory,
} from '../../../src/index.ts';
import { Channel, listen, Timeline } from '../../../src/ipc/index.ts';
import { emulate } from './emulate.ts';
import { peerPair } from './ipc/peer/support.ts';

// biome-ignore lint/suspicious/noExplicitAny: TypeScript refuses these uses
type Misused = any;

/** Closes what keeps the process alive. */
const closeAll = (objects: Record<string, Misused>): void => {
  for (const object of Object.values(objects)) object.close?.();
};

/** One object of each public class that stands for something of the process, by its name. */
async function onePerClass(): Promise<Record<string, Misused>> {
  emulate();
  const timeline = Timeline.create();
  const channel = Channel.create({ slots: 2, byteLength: 64, deliver: 'all' });
  const { a: peer, b: other } = peerPair();
  return {
    Context: Context.primary(),
    Stream: Stream.create(),
    CudaEvent: CudaEvent.create(),
    DeviceBuffer: DeviceBuffer.allocate(16),
    HostVisibleBuffer: MappedMemory.create().allocate(16),
    DeviceArray: deviceArray([2, 3], float32),
    PinnedArray: pinnedArray(3, float32),
    PinnedBuffer: PinnedBuffer.allocate(16),
    PinnedArrays: pin(new Uint8Array(1 << 17)),
    MemoryPool: MemoryPool.create(),
    VirtualMemory: VirtualMemory.reserve(2 << 20),
    DeviceMemory: DeviceMemory.create(),
    MemoryPointer: memoryManager().memalloc(16),
    Timeline: timeline,
    TimelineSignaler: timeline.signaler(),
    Channel: channel,
    ProducerSlot: await channel.acquire(),
    Peer: peer,
    OtherPeer: other,
    Listener: await listen('@cuffi-test-of-conversions'),
  };
}

describe('toJSON', () => {
  test('every resource is a short description in JSON, %j and logs, whether open or closed', async () => {
    const objects = await onePerClass();
    for (const [name, object] of Object.entries(objects)) {
      const json = JSON.stringify({ deep: [object] });
      assert.ok(json.length < 200, json);
      assert.equal(format('%j', { deep: [object] }), json);
      if (typeof object.toJSON !== 'function') continue;
      assert.match(JSON.parse(json).deep[0], name === 'Context' ? /^Context of/ : /^\w+\b/);
      assert.equal(JSON.parse(json).deep[0], String(object));
      if (name === 'Context') continue;
      object.close();
      assert.match(JSON.stringify({ object }), /closed/);
    }
    closeAll(objects);
  });

  test('a copy that a test runner makes of an object has the same description', async () => {
    emulate();
    for (const object of [deviceArray([2, 3], float32), DeviceBuffer.allocate(16)]) {
      const prototype = Object.getPrototypeOf(object);
      const copy = Object.create(prototype, Object.getOwnPropertyDescriptors(object));
      assert.equal(JSON.stringify(copy), JSON.stringify(object));
    }
    const bare = Object.create(DeviceBuffer.prototype);
    assert.equal(JSON.stringify(bare), '"DeviceBuffer(cannot be read)"');
  });
});

describe('UNCLONEABLE', () => {
  test('structuredClone, postMessage and v8.serialize of any resource throw, and say what to do', async () => {
    const { port1, port2 } = new MessageChannel();
    const objects = await onePerClass();
    for (const [name, object] of Object.entries(objects))
      for (const clone of [
        () => structuredClone(object),
        () => structuredClone({ deep: [object] }),
        () => port1.postMessage(object),
        () => serialize(object),
      ])
        assert.throws(
          clone,
          { message: /peer\.send\(\).*getIpcHandle\(array\).*await array\.copyToHost\(\)/ },
          name,
        );
    port1.close();
    port2.close();
    closeAll(objects);
  });
});

describe('refuseItemAccess', () => {
  test('an index of an array, or of a buffer, throws a TypeError that says what to do', () => {
    emulate();
    const array: Misused = deviceArray([4], float32);
    const buffer: Misused = DeviceBuffer.allocate(4);
    const hostArray: Misused = pinnedArray(4);
    const itemOf = (index: number): string => (index < 0 ? `.at(${index})` : `[${index}]`);
    const hostBuffer: Misused = PinnedBuffer.allocate(4);
    for (const index of [0, 1, 31, -1]) {
      const name = `\\[${index}\\]`;
      for (const [read, message] of [
        [() => array[index], `^DeviceArray${name}: .*await array\\.get\\(${index}\\).*copyToHost`],
        [() => buffer[index], `^DeviceBuffer${name}: .*await buffer\\.copyToHost\\(\\)`],
        [
          () => hostArray[index],
          `^PinnedArray${name}: .*\`array\\.host${itemOf(index).replace(/\W/g, '\\$&')}\``,
        ],
        [() => hostBuffer[index], `^PinnedBuffer${name}: .*new Uint8Array\\(buffer\\.buffer\\)`],
      ] as const)
        assert.throws(read, { name: 'TypeError', message: new RegExp(message) });
      assert.throws(
        () => {
          array[index] = 1;
        },
        { name: 'TypeError', message: new RegExp(`await array\\.set\\(\\[${index}\\], value\\)`) },
      );
    }
    assert.throws(() => {
      const [first] = array;
      return first;
    }, /^TypeError: a DeviceArray cannot be iterated: .*await array\.copyToHost\(\)/);
  });

  test('what iterates an array, or a buffer, throws a TypeError that says what to do', async () => {
    emulate();
    for (const [object, what] of [
      [deviceArray([4], float32), /^a DeviceArray cannot be iterated: .*await array\.copyToHost/],
      [DeviceBuffer.allocate(4), /^a DeviceBuffer cannot be iterated: .*await buffer\.copyToHost/],
      [pinnedArray(4), /^a PinnedArray cannot be iterated: .*array\.host/],
      [PinnedBuffer.allocate(4), /^a PinnedBuffer cannot be iterated: .*buffer\.buffer/],
    ] as const) {
      const misused = object as Misused;
      for (const iterate of [
        () => [...misused],
        () => Array.from(misused),
        () => new Float32Array(misused),
        () => new Set(misused),
        () => Math.max(...misused),
      ])
        assert.throws(iterate, { name: 'TypeError', message: what });
      await assert.rejects(Promise.all(misused), { name: 'TypeError', message: what });
    }
  });

  test('test runners, whose equality iterates whatever it can, find no iterator', () => {
    emulate();
    const array: Misused = deviceArray([4], float32);
    const matchers = Symbol.for('$$jest-matchers-object');
    Object.defineProperty(globalThis, matchers, { value: {}, configurable: true });
    try {
      assert.equal(array[Symbol.iterator], undefined);
    } finally {
      Reflect.deleteProperty(globalThis, matchers);
    }
    assert.equal(typeof array[Symbol.iterator], 'function');
  });

  test('nothing else of the objects changes: keys, equality, printing, duck typing, await', async () => {
    emulate();
    const array = toDeviceSync(Float32Array.of(1, 2));
    const misused: Misused = array;
    const keys: string[] = [];
    for (const key in array) keys.push(key);
    assert.deepEqual(keys, Object.keys(array));
    assert.ok(keys.every((key) => !/^-?\d/.test(key)));
    assert.deepEqual(array, array);
    assert.deepEqual({ array }, { array });
    assert.ok(!isDeepStrictEqual(array, array.slice(0)));
    assert.equal(Array.isArray(array), false);
    assert.equal(await (misused as Promise<unknown>), array);
    for (const name of ['then', 'asymmetricMatch', 'nodeType', '$$typeof', 'length', 'size' + 's'])
      assert.equal(misused[name], undefined, name);
    for (const symbol of [Symbol.toStringTag, Symbol.asyncIterator, Symbol.species])
      assert.equal(misused[symbol], undefined, String(symbol));
    assert.equal(Object.prototype.toString.call(array), '[object Object]');
    assert.match(inspect({ array }), /DeviceArray\(float32 \[2\].*\[1, 2\]/);
    assert.equal(format('%s', array), String(array));
    assert.equal(array === misused, true);
    assert.equal(misused == null, false);
  });
});

describe('Resource[Symbol.toPrimitive]', () => {
  test('operators throw a TypeError that says what to do; templates and String() describe', async () => {
    const objects = await onePerClass();
    for (const [name, object] of Object.entries(objects)) {
      if (!(Symbol.toPrimitive in object)) continue;
      for (const use of [
        () => object + 1,
        () => ['it is'].reduce((text) => text + object, ''),
        () => object * 2,
        () => -object,
        () => Number(object),
        () => object < 1,
        // biome-ignore lint/suspicious/noDoubleEquals: this is what must throw
        () => object == 1,
        () => Math.max(object),
      ])
        assert.throws(use, {
          name: 'TypeError',
          message: new RegExp(
            `^an? ${object.displayName()} is neither a number nor text, so operators`,
          ),
        });
      assert.equal(`${object}`, object.toString(), name);
      assert.equal(String(object), object.toString());
      assert.equal([object].join(), object.toString());
    }
    closeAll(objects);
    const array: Misused = deviceArray([4], float32);
    assert.throws(() => array + 1, /a kernel, or on the host with `await array\.copyToHost\(\)`/);
  });
});
