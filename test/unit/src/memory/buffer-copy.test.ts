import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import {
  Context,
  copyPitched,
  copyPitchedSync,
  DeviceBuffer,
  queuePitchedCopy,
} from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { broken, failing } from '../../../support/faults.ts';
import { currentContext, emulate } from '../emulate.ts';

const TWO = { CUFFI_EMULATED_DEVICES: '2' };

describe('copyBetweenDevices', () => {
  test('devices without a link can copy, and enabling access throws a clear error', async () => {
    const driver = emulate(TWO);
    selectDriver({
      ...driver,
      cuDeviceCanAccessPeer: (out, device) => driver.cuDeviceCanAccessPeer(out, device, device),
    });
    const context = Context.primary(0);
    assert.throws(() => context.enablePeerAccess(Context.primary(1)), {
      name: 'NotSupportedError',
      message: /^Device 0 .* cannot access the memory of Device 1/,
    });
    using source = DeviceBuffer.allocate(16, { device: 0 });
    using target = DeviceBuffer.allocate(16, { device: 1 });
    source.fill(8);
    const recorder = recordCalls();
    source.copyTo(target);
    recorder.stop();
    assert.ok(!recorder.calls.some(({ name }) => name === 'cuCtxEnablePeerAccess'));
    await context.synchronize();
    assert.deepEqual(new Set(target.copyToHostSync()), new Set([8]));
  });

  test('a context with too many peers copies without access', () => {
    const TOO_MANY_PEERS = 711;
    const driver = emulate(TWO);
    selectDriver(broken(driver, 'cuCtxEnablePeerAccess', TOO_MANY_PEERS));
    using source = DeviceBuffer.allocate(16, { device: 0 });
    using target = DeviceBuffer.allocate(16, { device: 1 });
    source.fill(8);
    source.copyTo(target);
    source.context.synchronizeSync();
    assert.deepEqual(new Set(target.copyToHostSync()), new Set([8]));
    assert.throws(() => source.context.enablePeerAccess(target.context), {
      status: TOO_MANY_PEERS,
    });
    selectDriver(broken(driver, 'cuCtxEnablePeerAccess', 217));
    assert.throws(() => source.copyTo(target), { call: 'cuCtxEnablePeerAccess', status: 217 });
  });

  test('a copy between devices enables access from the first to the second, once', async () => {
    const host = new Uint8Array(16).fill(3);
    const uses: readonly ((target: DeviceBuffer, source: DeviceBuffer) => unknown)[] = [
      (target, source) => source.copyTo(target),
      (target, source) => queuePitchedCopy({ memory: target }, { memory: source }, { width: 16 }),
      (target, source) => copyPitchedSync({ memory: target }, { memory: source }, { width: 16 }),
      (target, source) => copyPitched({ memory: target }, { memory: source }, { width: 16 }),
    ];
    for (const use of uses) {
      const recorder = recordArguments(emulate(TWO));
      const [first, second] = [Context.primary(0), Context.primary(1)];
      using source = DeviceBuffer.allocate(16, { context: first });
      using target = DeviceBuffer.allocate(16, { context: second });
      source.copyFromSync(host);
      await use(target, source);
      await use(target, source);
      assert.deepEqual(
        recorder.of('cuCtxEnablePeerAccess').map(({ args, context }) => [args[0], context]),
        [[second.handle, first.handle]],
        `${use}`,
      );
      assert.equal(first.peerAccess.has(second), true);
      first.synchronizeSync();
      assert.deepEqual(target.copyToHostSync(), host);
    }
  });

  test('access that another library already enabled or disabled is not an error', () => {
    const driver = emulate(TWO);
    const [first, second] = [Context.primary(0), Context.primary(1)];
    first.run(() => driver.cuCtxEnablePeerAccess(second.handle, 0));
    first.enablePeerAccess(second);
    first.run(() => driver.cuCtxDisablePeerAccess(second.handle));
    first.disablePeerAccess(second);
    selectDriver(failing(driver, 'cuCtxEnablePeerAccess', 1, 217));
    assert.throws(() => first.enablePeerAccess(second), { call: 'cuCtxEnablePeerAccess' });
    assert.equal(first.peerAccess.has(second), false);
    assert.equal(currentContext(), 0);
  });

  test('a reset of either context ends the access', async () => {
    emulate(TWO);
    const [first, second] = [Context.primary(0), Context.primary(1)];
    for (const context of [first, second]) {
      first.enablePeerAccess(second);
      assert.equal(first.peerAccess.has(second), true);
      await context.reset();
      assert.equal(first.peerAccess.has(second), false);
    }
    first.enablePeerAccess(second);
    assert.equal(first.peerAccess.has(second), true);
  });

  test('a copy between devices passes the context of each address', () => {
    const recorder = recordArguments(emulate(TWO));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    using source = DeviceBuffer.allocate(16, { context: first });
    using target = DeviceBuffer.allocate(32, { context: second });
    source.copyTo(target);
    assert.deepEqual(
      recorder.of('cuMemcpyPeerAsync').map(({ args }) => args.slice(0, 5)),
      [[target.address, second.handle, source.address, first.handle, 16]],
    );
  });
});
