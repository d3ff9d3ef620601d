import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { dtypes, float32 } from '../../../../../src/dtype.ts';
import {
  checkLayout,
  encodeMeta,
  readRecord,
  writeRecord,
} from '../../../../../src/ipc/channel/message.ts';
import { RECORD_BYTE_LENGTH } from '../../../../../src/ipc/protocol.ts';

const empty = () => new Uint8Array(RECORD_BYTE_LENGTH).fill(255);

describe('the record of a message', () => {
  test('keeps layouts of every dtype and up to 64 axes, one after the other', () => {
    const record = empty();
    for (const dtype of dtypes)
      for (const shape of [[], [3], [2, 0, 5], new Array<number>(64).fill(1)]) {
        writeRecord(record, { layout: { shape, dtype } });
        const { layout, meta, isSkipped } = readRecord(record, 1000);
        assert.deepEqual([layout?.dtype, layout?.shape], [dtype, shape]);
        assert.deepEqual([meta, isSkipped], [undefined, undefined]);
      }
  });

  test('keeps meta of up to 1 KiB, and nothing of the one before', () => {
    const record = empty();
    for (const meta of ['x'.repeat(1022), null, 0, [], { a: { b: 'ü' } }, undefined]) {
      writeRecord(record, {}, encodeMeta(meta));
      assert.deepEqual(readRecord(record, 1), { layout: undefined, meta });
    }
    writeRecord(record, { isSkipped: true });
    assert.deepEqual(readRecord(record, 1), { isSkipped: true });
  });

  test('is refused if its layout is larger than the slot', () => {
    const record = empty();
    writeRecord(record, { layout: { shape: [3], dtype: float32 } });
    assert.equal(readRecord(record, 12).layout?.shape[0], 3);
    assert.throws(() => readRecord(record, 11), { name: 'IpcError', message: /record is invalid/ });
    assert.throws(() => checkLayout({ shape: [3], dtype: float32 }, 11), RangeError);
  });
});
