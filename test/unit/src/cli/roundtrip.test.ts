import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cu, selectDriver } from '../../../../ffi/driver.ts';
import { defaultKind } from '../../../../src/cli/kinds.ts';
import { inspectDevice, roundtrip } from '../../../../src/cli/roundtrip.ts';
import { broken } from '../../../support/faults.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { emulate } from '../emulate.ts';
import { clearVariablesAfterEach, failureOf, fixture } from './child-failures.ts';

clearVariablesAfterEach();

const run = (program: string, { elements = 1024, deadlineMs = 30_000 } = {}) =>
  roundtrip({
    elements,
    kind: 'legacy',
    device: 0,
    driver: { name: 'emulated', reason: 'it is a test' },
    deadlineMs,
    ...fixture(program),
  });

describe('roundtrip', () => {
  test('a child that never replies is killed at the deadline', async () => {
    emulate();
    const error = await failureOf(() => run('silent-child', { deadlineMs: 500 }));
    assert.equal(error.name, 'CuffiError');
    assert.match(error.message, /^the child \(pid \d+\) did not reply within 0\.5 s$/);
  });

  test('the error for a child that dies says how it exited, whenever that happens', async () => {
    emulate();
    for (const [request, how] of [
      ['start', 'exited with code 3'],
      ['open', 'was killed by SIGKILL'],
      ['check', 'was killed by SIGKILL'],
    ] as const) {
      process.env['CUFFI_TEST_DIES_AT'] = request;
      const error = await failureOf(() => run('dying-child'));
      assert.equal(error.name, 'CuffiError');
      assert.match(error.message, new RegExp(`\\(pid \\d+\\) ${how} before it replied$`), request);
    }
  });

  test('a child that dies while it receives bytes gives the same error', async () => {
    emulate();
    process.env['CUFFI_TEST_DIES_AT'] = 'receive';
    const error = await failureOf(() => run('dying-child', { elements: 4 << 20 }));
    assert.match(error.message, /was killed by SIGKILL before it replied$/);
  });

  test('a failed transfer leaves no recorder of driver calls behind', async () => {
    const driver = emulate();
    process.env['CUFFI_TEST_DIES_AT'] = 'open';
    await failureOf(() => run('dying-child'));
    // While a recorder is active, every function is wrapped.
    assert.equal(cu.cuDriverGetVersion, driver.cuDriverGetVersion);
  });

  test('an unexpected message of the child is an error', async () => {
    emulate();
    for (const [says, expected] of [
      [{ type: 'checked', mismatches: 0, first: [] }, /sent 'checked' instead of 'ready'/],
      [{ type: 'failed', message: 'no luck' }, /^in the child: no luck$/],
      [{ type: 'ready', more: 1 }, /the child sent an invalid message/],
      ['ready', /the child sent an invalid message/],
    ] as const) {
      process.env['CUFFI_TEST_SAYS'] = JSON.stringify(says);
      const error = await failureOf(() => run('wrong-child'));
      assert.equal(error.name, 'CuffiError');
      assert.match(error.message, expected);
    }
  });

  test('failed round trips leave no descriptor open', async () => {
    emulate();
    process.env['CUFFI_TEST_DIES_AT'] = 'open';
    await failureOf(() => run('dying-child'));
    const before = openDescriptors();
    await failureOf(() => run('dying-child'));
    assert.equal(openDescriptors(), before);
  });

  test('the result counts mismatches and copied bytes of both processes', async () => {
    emulate();
    const found = async (mismatches: number, bytesCopied: number) => {
      process.env['CUFFI_TEST_FINDS'] = JSON.stringify({ mismatches, bytesCopied });
      const result = await run('finding-child');
      return [result.ok, result.mismatches, result.noCopy, result.bytesCopied];
    };
    assert.deepEqual(await found(0, 0), [true, { child: 0, parent: 0 }, true, 0]);
    assert.deepEqual(await found(3, 0), [false, { child: 3, parent: 0 }, true, 0]);
    assert.deepEqual(await found(0, 64), [true, { child: 0, parent: 0 }, false, 64]);
  });
});

describe('inspectDevice', () => {
  test('the result is a device and what it can share', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '41=0' });
    const { device, support } = inspectDevice(0);
    assert.equal(device.ordinal, 0);
    assert.deepEqual(support.memory, {
      supported: false,
      reason: 'the device does not support unified addressing',
    });
    assert.throws(() => inspectDevice(1), RangeError);
  });
});

describe('defaultKind', () => {
  test('the default is a pool, or the first kind that the device can share', () => {
    for (const [attributes, kind] of [
      ['', 'pool'],
      ['115=0', 'legacy'],
      ['115=0,41=0', 'virtual'],
      ['115=0,41=0,102=0', 'legacy'],
    ] as const) {
      emulate({ CUFFI_EMULATED_ATTRIBUTES: attributes });
      const { device, support } = inspectDevice(0);
      assert.equal(defaultKind(device, support), kind, attributes);
    }
    // WSL's driver reports pools, but cannot create any.
    selectDriver(broken(emulate(), 'cuMemPoolCreate', 1));
    const { device, support } = inspectDevice(0);
    assert.equal(support.pools.supported, true);
    assert.equal(defaultKind(device, support), 'legacy');
  });
});
