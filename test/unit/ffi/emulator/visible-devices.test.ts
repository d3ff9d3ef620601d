import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { uuidOf, uuidText, visibleDevices } from '../../../../ffi/emulator/visible-devices.ts';

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

const sees = (list: string | undefined, devices: readonly number[]): void =>
  assert.deepEqual(visibleDevices(COUNT, list), devices, `CUDA_VISIBLE_DEVICES=${list}`);

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

  test('a device that is named twice leaves none', () => {
    sees('0,0', []);
    sees('0,1,2,1', []);
    sees('1,01', []);
    sees(`${one},${zero},${prefixOf(one)}`, []);
    // Nothing behind the end of the list is read.
    sees('0,1,-1,1', [0, 1]);
  });

  test('a UUID, or the beginning of it that no other device has, chooses a device', () => {
    sees(two, [2]);
    sees(`${three},${prefixOf(zero)}`, [3, 0]);
    assert.match(two, /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  });

  test('a UUID of several devices, or of none, ends the list', () => {
    sees('GPU-', []);
    sees(`${one},GPU-,${zero}`, [1]);
    sees(`${one},GPU-${'0'.repeat(8)},${zero}`, [1]);
    sees(`${one}0`, []);
    sees(one.slice('GPU-'.length).replace(/^\d+/, ''), []);
    assert.deepEqual(visibleDevices(1, 'GPU-'), [0]);
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
    for (const list of [undefined, '', '0', zero]) assert.deepEqual(visibleDevices(0, list), []);
  });
});
