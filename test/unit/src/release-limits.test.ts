import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { releaseLimits } from '../../../src/release-limits.ts';

const COUNT = 'CUFFI_DEALLOCS_COUNT';
const RATIO = 'CUFFI_DEALLOCS_RATIO';

afterEach(() => {
  delete process.env[COUNT];
  delete process.env[RATIO];
});

test('are ten releases and a fifth of the memory, as numba has them', () => {
  const limits = releaseLimits(() => 1000);
  assert.equal(limits.count, 10);
  assert.equal(limits.byteLength(), 200);
});

test('are what the environment says, zero included', () => {
  process.env[COUNT] = '0';
  process.env[RATIO] = '0.5';
  const limits = releaseLimits(() => 1000);
  assert.equal(limits.count, 0);
  assert.equal(limits.byteLength(), 500);
});

test('what is no count or no ratio is refused by name', () => {
  for (const wrong of ['many', '-1', '2.5', 'NaN']) {
    process.env[COUNT] = wrong;
    assert.throws(() => releaseLimits(() => 1000), /CUFFI_DEALLOCS_COUNT must be/);
  }
  delete process.env[COUNT];
  for (const wrong of ['half', '-0.1', '1.1']) {
    process.env[RATIO] = wrong;
    assert.throws(() => releaseLimits(() => 1000), /CUFFI_DEALLOCS_RATIO must be/);
  }
});

test('memory that cannot be asked for limits nothing, until it can be', () => {
  let isLost = true;
  const limits = releaseLimits(() => {
    if (isLost) throw new Error('the device is lost');
    return 1000;
  });
  assert.equal(limits.byteLength(), Number.POSITIVE_INFINITY);
  isLost = false;
  assert.equal(limits.byteLength(), 200);
});
