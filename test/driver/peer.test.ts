import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cu, recordCalls } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import {
  Context,
  Device,
  DeviceBuffer,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { loadKernels } from '../support/kernels.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const skip = Device.count < 2 ? 'needs a second GPU' : false;
const skipUnreached =
  skip || (Device.get(1).canAccessPeer(0) ? false : 'needs a second GPU that reaches the first');
const skipUnlinked =
  skip || (Device.get(0).canAccessPeer(1) ? false : 'needs a second GPU that the first reaches');

describe('peer access', () => {
  test('access is given and taken back, each as often as one likes', { skip: skipUnlinked }, () => {
    const [first, second] = [Context.primary(0), Context.primary(1)];
    assert.equal(first.device.canAccessPeer(first.device), false);
    for (let round = 0; round < 2; round += 1) {
      first.enablePeerAccess(second);
      first.enablePeerAccess(second);
      first.disablePeerAccess(second);
      first.disablePeerAccess(second);
    }
    // Another library of the process has given it: that is as good.
    const peer = second.handle;
    assert.equal(
      first.run(() => cu.cuCtxEnablePeerAccess(peer, 0)),
      CUresult.CUDA_SUCCESS,
    );
    first.enablePeerAccess(second);
    first.disablePeerAccess(second);
    assert.throws(
      () => first.enablePeerAccess(Context.primary(0)),
      /peer access is between two devices/,
    );
    assert.throws(
      () => first.enablePeerAccess(1 as never),
      /^TypeError: other must be a Context, not 1$/,
    );
    assert.throws(
      () => first.device.canAccessPeer('1' as never),
      /^TypeError: device must be a Device or its ordinal/,
    );
  });

  test('the topology says how each device reaches the others', () => {
    const all = Array.from({ length: Device.count }, (_, ordinal) => Device.get(ordinal));
    for (const device of all) {
      assert.match(device.pciAddress, /^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0$/);
      const links = device.topology();
      assert.deepEqual(
        links.map((link) => link.device),
        all.filter((other) => other !== device),
      );
      for (const { device: other, link, canAccess, nativeAtomics, performanceRank } of links) {
        assert.equal(canAccess, device.canAccessPeer(other));
        assert.equal(link === 'host', !canAccess);
        assert.equal(link === 'nvlink', canAccess && nativeAtomics);
        assert.ok(Number.isInteger(performanceRank) && performanceRank >= 0);
      }
    }
    // PCI addresses differ but on one device's slices.
    assert.equal(new Set(all.map(({ uuid }) => uuid)).size, all.length);
  });

  test('a copy goes to another device, after what was queued before it', { skip }, async () => {
    using source = DeviceBuffer.allocate(100_000, { device: 0 });
    using target = DeviceBuffer.allocate(100_000, { device: 1 });
    using stream = Stream.create({ device: 0 });
    source.fill(3, { stream });
    source.copyTo(target, { stream });
    await stream.synchronize();
    assert.deepEqual(new Set(await target.copyToHost()), new Set([3]));
    target.fill(4);
    Context.primary(1).synchronizeSync();
    target.subarray(0, 10).copyTo(source.subarray(5));
    Context.primary(1).synchronizeSync();
    const bytes = source.copyToHostSync();
    assert.deepEqual([...bytes.subarray(4, 16)], [3, ...new Array(10).fill(4), 3]);
    assert.throws(
      () => source.copyTo(target.subarray(1)),
      /^RangeError: \d+ bytes.* do not fit in the target, which has \d+ bytes/,
    );
  });

  test('copies enable peer access, once for all of them', { skip: skipUnlinked }, async () => {
    const context = Context.primary(0);
    context.disablePeerAccess(Context.primary(1));
    using source = DeviceBuffer.allocate(64, { device: 0 });
    using target = DeviceBuffer.allocate(64, { device: 1 });
    const recorder = recordCalls();
    source.copyTo(target);
    source.copyTo(target);
    recorder.stop();
    const names = recorder.calls.map(({ name }) => name);
    assert.equal(names.filter((name) => name === 'cuCtxEnablePeerAccess').length, 1);
    assert.equal(names.filter((name) => name === 'cuMemcpyPeerAsync').length, 2);
    assert.ok(names.indexOf('cuCtxEnablePeerAccess') < names.indexOf('cuMemcpyPeerAsync'));
    await context.synchronize();
  });

  test('a pool lets another device use its memory, and no longer', { skip: skipUnreached }, () => {
    using pool = MemoryPool.create({ maxSize: 64 << 20 });
    assert.equal(pool.access(1), 'none');
    pool.setAccess(1, 'read-write');
    assert.equal(pool.access(1), 'read-write');
    pool.setAccess(Device.get(1), 'none');
    assert.equal(pool.access(1), 'none');
    assert.throws(
      () => pool.setAccess(1, 'read' as never),
      /^TypeError: access must be 'read-write' or 'none', not read$/,
    );
  });

  test('a kernel uses memory of another device with the access of its kind, and no other', {
    skip: skipUnreached,
  }, async () => {
    const contexts = [Context.primary(0), Context.primary(1)] as const;
    const [owner, user] = contexts;
    user.disablePeerAccess(owner);
    using module = loadKernels({ device: 1 });
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ device: 1, nonBlocking: true });
    using plain = DeviceBuffer.allocate(4, { device: 0 });
    using pool = MemoryPool.create({ maxSize: 64 << 20 });
    using pooled = pool.allocate(4);
    using memory = VirtualMemory.reserve(64 << 20);
    const early = memory.grow(4);
    await owner.synchronize();
    const use = async (buffer: DeviceBuffer): Promise<number> => {
      narrow.launch({ grid: 1, block: 5, stream }, buffer.subarray(0, 4));
      await stream.synchronize();
      return new Uint32Array((await buffer.subarray(0, 4).copyToHost()).buffer)[0] as number;
    };
    const refusedWith = (remedy: RegExp) => ({ name: 'TypeError', message: remedy });
    const refusals = [
      [plain, /in memory of Device 0 .* runs on Device 1 .*allow access by context.enablePeerAcc/],
      [pooled, /allow access by setAccess of its pool$/],
      [early, /allow access by allowAccess of the virtual memory, or of the buffer$/],
    ] as const;
    for (const [buffer, remedy] of refusals) await assert.rejects(use(buffer), refusedWith(remedy));

    // Peer access is for plain memory: for other memory, the launch would lose the context.
    user.enablePeerAccess(owner);
    assert.equal(await use(plain), 5);
    for (const [buffer, remedy] of refusals.slice(1))
      await assert.rejects(use(buffer), refusedWith(remedy));

    pool.setAccess(1, 'read-write');
    assert.equal(await use(pooled), 5);
    await assert.rejects(use(early), refusedWith(/allowAccess/));
    assert.deepEqual([memory.access(0), memory.access(1)], ['read-write', 'none']);
    memory.allowAccess(1);
    memory.allowAccess(Device.get(1));
    assert.deepEqual([memory.access(0), memory.access(1)], ['read-write', 'read-write']);
    assert.equal(await use(early), 5);
    // What is added later is accessible, too.
    const { granularity } = memory;
    const grown = memory.grow(3 * granularity);
    assert.equal(await use(grown.subarray(2 * granularity)), 5);
    // The kinds do not depend on each other.
    user.disablePeerAccess(owner);
    await assert.rejects(use(plain), refusedWith(/enablePeerAccess/));
    assert.equal(await use(grown.subarray(granularity)), 5);
    pool.setAccess(1, 'none');
    await assert.rejects(use(pooled), refusedWith(/setAccess of its pool/));
    pooled.close();
    await owner.flush();
  });

  test('virtual memory is made accessible by its own method, and by a buffer of it', {
    skip: skipUnlinked,
  }, () => {
    using memory = VirtualMemory.reserve(1000, { device: 1 });
    memory.allowAccess(0);
    const buffer = memory.grow(1000);
    assert.equal(memory.access(0), 'read-write');
    buffer.subarray(1, 2).allowAccess(0);
    assert.throws(() => memory.allowAccess(1), /^RangeError: the memory is on Device 1 .* itself/);
    assert.throws(
      () => memory.allowAccess('0' as never),
      /^TypeError: device must be a Device or its ordinal/,
    );
    using plain = DeviceBuffer.allocate(4);
    using pool = MemoryPool.create({ maxSize: 64 << 20 });
    using pooled = pool.allocate(4);
    for (const [other, remedy] of [
      [plain, /not part of it: use context.enablePeerAccess\(other\)$/],
      [pooled, /not part of it: use setAccess of its pool$/],
    ] as const)
      assert.throws(() => other.allowAccess(1), { code: 'not-supported', message: remedy });
    memory.close();
    for (const use of [() => memory.allowAccess(0), () => memory.access(0)])
      assert.throws(use, { name: 'ClosedError' });
    assert.throws(() => buffer.allowAccess(0), { name: 'ClosedError' });
    pooled.close();
  });
});
