import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DeviceBuffer, float32, fromBuffer } from '../../../../../src/index.ts';
import {
  bufferOf,
  contextOf,
  isShareable,
  kindOf,
  labelOf,
  ownerOf,
  rangeOf,
} from '../../../../../src/ipc/sharing/kinds.ts';
import { legacy } from '../../../../../src/ipc/sharing/legacy.ts';
import { emulate } from '../../emulate.ts';

describe('kinds', () => {
  test('the row of memory tells what its buffer is, and other objects have no row', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(256);
    const array = fromBuffer(buffer, 16, float32);
    for (const each of [buffer, array]) {
      const kind = kindOf(each);
      assert.equal(kind, legacy);
      assert.equal(labelOf(legacy), 'memory');
      assert.equal(bufferOf(each), buffer);
      assert.equal(kind?.byteLengthOf?.(each), 256);
      assert.equal(ownerOf(each), buffer);
      assert.equal(contextOf(each), buffer.context);
    }
    assert.deepEqual(rangeOf(buffer), {
      begin: buffer.address,
      end: buffer.address + 256,
      access: 'read-write',
    });
    assert.deepEqual(rangeOf(array), {
      begin: buffer.address,
      end: buffer.address + 64,
      access: 'read-write',
    });
    for (const other of [{}, [], buffer.context, new Map()]) {
      assert.equal(kindOf(other), undefined);
      assert.equal(isShareable(other), false);
      assert.equal(bufferOf(other), undefined);
      assert.equal(contextOf(other), undefined);
    }
  });
});
