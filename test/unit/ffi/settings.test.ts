import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { arena } from '../../../ffi/arena.ts';
import { cu, selectDriver } from '../../../ffi/driver.ts';
import { createEmulatedDriver } from '../../../ffi/emulator/index.ts';
import { checkSettings, readSetting } from '../../../ffi/settings.ts';
import { isAvailable } from '../../../src/index.ts';
import { connect, listen, spawnPeer, spawnPython } from '../../../src/ipc/index.ts';

/** Text that each setting refuses, and what it may be. */
const wrong: readonly (readonly [string, readonly string[], string])[] = [
  ['CUFFI_TRACE', ['yes', 'true', 'on', '2', ' 1', '01'], '1 or 0'],
  ['CUFFI_INSPECT', ['no', 'off', 'false'], '1 or 0'],
  ['CUFFI_CACHE', ['on', 'yes', '1', 'none', ' '], 'off, or the path of a folder'],
  ['CUFFI_DEALLOCS_COUNT', ['many', '-1', '2.5', ' ', 'Infinity'], 'an integer of at least 0'],
  ['CUFFI_DEALLOCS_RATIO', ['half', '-0.1', '1.1', '20%'], 'a number from 0 to 1'],
  ['CUFFI_POOL_SHARE_LIMIT', ['abc', '-1', '6GiB', ' '], 'a number of at least 0'],
];
const before = { ...process.env };

afterEach(() => {
  for (const [name] of wrong) {
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  }
});

describe('readSetting', () => {
  test('a setting that is unset or empty is undefined, and others are read', () => {
    for (const env of [{}, { CUFFI_TRACE: '' }])
      assert.equal(readSetting('CUFFI_TRACE', env), undefined);
    assert.equal(readSetting('CUFFI_TRACE', { CUFFI_TRACE: '1' }), true);
    assert.equal(readSetting('CUFFI_INSPECT', { CUFFI_INSPECT: '0' }), false);
    assert.equal(readSetting('CUFFI_DEALLOCS_COUNT', { CUFFI_DEALLOCS_COUNT: '0' }), 0);
    assert.equal(readSetting('CUFFI_DEALLOCS_RATIO', { CUFFI_DEALLOCS_RATIO: '0.5' }), 0.5);
    assert.equal(readSetting('CUFFI_POOL_SHARE_LIMIT', { CUFFI_POOL_SHARE_LIMIT: '6e9' }), 6e9);
    for (const [text, value] of [
      ['off', 'off'],
      ['0', 'off'],
      ['./here', './here'],
      ['/there', '/there'],
    ] as const)
      assert.equal(readSetting('CUFFI_CACHE', { CUFFI_CACHE: text }), value);
  });

  test('nonsense is refused with the name, what it may be, and what it is', () => {
    for (const [name, texts, expected] of wrong)
      for (const text of texts)
        assert.throws(
          () => readSetting(name as 'CUFFI_TRACE', { [name]: text }),
          (error: Error) =>
            error.name === 'RangeError' &&
            error.message.startsWith(`${name} must be ${expected}`) &&
            error.message.endsWith(`, not ${JSON.stringify(text)}`),
          `${name}=${text}`,
        );
  });
});

describe('checkSettings', () => {
  test('the first driver call refuses every setting that is nonsense, whatever reads it', () => {
    for (const [name, texts] of wrong) {
      process.env[name] = texts[0];
      const refused = { name: 'RangeError', message: new RegExp(`^${name} must be `) };
      assert.throws(checkSettings, refused);
      // Opens it anew.
      selectDriver(createEmulatedDriver({ arena, env: {} }));
      assert.throws(() => cu.cuInit(0), refused);
      assert.throws(isAvailable, refused);
      delete process.env[name];
      assert.equal(cu.cuInit(0), 0);
    }
  });

  test('so does every function that makes a connection, before it makes anything', async () => {
    process.env['CUFFI_INSPECT'] = 'off';
    const refused = { name: 'RangeError', message: /^CUFFI_INSPECT must be 1 or 0, not "off"$/ };
    assert.throws(() => listen(`@cuffi-test-${process.pid}-settings`), refused);
    assert.throws(() => spawnPeer('/nowhere.js'), refused);
    assert.throws(() => spawnPython('/nowhere.py'), refused);
    await assert.rejects(async () => connect('@cuffi-nowhere'), refused);
  });
});
