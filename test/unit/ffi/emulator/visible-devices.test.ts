import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { uuidOf, uuidText, visibleDevices } from '../../../../ffi/emulator/visible-devices.ts';
import { CUresult } from '../../../../ffi/results.ts';

const COUNT = 4;
const uuids = Array.from({ length: COUNT }, (_, physical) => uuidText(uuidOf(physical)));
const [zero, one, two, three] = uuids as [string, string, string, string];

/** The shortest beginning of a UUID that no other device has. */
const prefixOf = (uuid: string): string => {
  for (let length = 5; ; length += 1) {
    const prefix = uuid.slice(0, length);
    if (uuids.filter((other) => other.startsWith(prefix)).length === 1) return prefix;
  }
};

const sees = (list: string | undefined, devices: readonly number[], count = COUNT): void => {
  const status = devices.length > 0 ? 0 : CUresult.CUDA_ERROR_NO_DEVICE;
  assert.deepEqual(
    visibleDevices(count, list),
    { devices, status },
    `CUDA_VISIBLE_DEVICES=${list}`,
  );
};

const isInvalid = (list: string): void =>
  assert.deepEqual(
    visibleDevices(COUNT, list),
    { devices: [], status: CUresult.CUDA_ERROR_INVALID_DEVICE },
    `CUDA_VISIBLE_DEVICES=${list}`,
  );

describe('visibleDevices', () => {
  test('all devices are visible without a list, and none with an empty one', () => {
    sees(undefined, [0, 1, 2, 3]);
    sees('', []);
  });

  test('indices choose the devices and their order', () => {
    sees('2', [2]);
    sees('2,0', [2, 0]);
    sees('3,2,1,0', [3, 2, 1, 0]);
    sees(' 2, +3, -0,5', [2, 3, 0]);
  });

  test('what follows the digits of an index is ignored', () => {
    sees('1gpu2,2ampere', [1, 2]);
    sees('0x3', [0]);
    for (const first of ['0x0', '00', '+0', '-0', '0a', ' 0', '0,', '0,9', '0;1']) sees(first, [0]);
    for (const none of [' ', 'a', '9,0']) sees(none, []);
  });

  test('the first entry that names no device ends the list', () => {
    sees('-1', []);
    sees('0,2,-1,1', [0, 2]);
    sees('1,4,0', [1]);
    sees('one,0', []);
    sees('3,two,1', [3]);
    sees('0,,1', [0]);
    sees(',0', []);
    sees('1,', [1]);
    sees('NoDevFiles', []);
    sees('99999999999999999999', []);
  });

  test('with a device that is named twice cuInit returns INVALID_DEVICE', () => {
    isInvalid('0,0');
    isInvalid('0,1,2,1');
    isInvalid('1,01');
    isInvalid(`${one},${one}`);
    isInvalid(`${one},${zero},${prefixOf(one)}`);
    isInvalid(`${prefixOf(one)},${one.toUpperCase()}`);
    isInvalid('0,0,-1');
    // Nothing behind the end of the list is read.
    sees('0,1,-1,1', [0, 1]);
    sees(`${one},0,${one}`, [1]);
  });

  test('a UUID, or the beginning of it that no other device has, chooses a device', () => {
    sees(two, [2]);
    sees(`${three},${prefixOf(zero)}`, [3, 0]);
    sees(`GPU-${two.slice(4).toUpperCase()},${prefixOf(zero).toUpperCase()}`, [2, 0]);
    sees(`${two}x,${three}0`, [2, 3]);
    assert.match(two, /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  });

  test('a UUID of several devices, or of none, ends the list', () => {
    sees('GPU-', []);
    sees(`${one},GPU-,${zero}`, [1]);
    sees(`${one},GPU-${'0'.repeat(8)},${zero}`, [1]);
    sees(`gpu-${one.slice(4)}`, []);
    sees(` ${one}`, []);
    sees(`${prefixOf(one)}x`, []);
    sees(one.slice('GPU-'.length).replace(/^\d+/, ''), []);
    sees('GPU-', [0], 1);
  });

  test('a list of UUIDs has no indices, and one of indices has no UUIDs', () => {
    sees(`${one},0`, [1]);
    sees(`0,${one}`, [0]);
  });

  test('a MIG slice names no device: the machine has none', () => {
    sees(`MIG-${one.slice(4)}`, []);
    sees(`MIG-${one}/1/0`, []);
    sees(`${one},MIG-${two.slice(4)}`, [1]);
    sees('0,MIG-0', [0]);
  });

  test('a machine without devices has no visible ones', () => {
    for (const list of [undefined, '', '0', zero]) sees(list, [], 0);
  });
});
