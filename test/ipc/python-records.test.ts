/** The records of a channel's messages: what one of Node and Python reads, both do, and nothing else. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { encodeMeta, readRecord, writeRecord } from '../../src/ipc/channel/message.ts';
import { RECORD_BYTE_LENGTH, RecordFlag, RecordOffset } from '../../src/ipc/protocol.ts';
import { companionPath } from '../../src/python/companion.ts';
import { noPython } from '../support/python.ts';

const program = fileURLToPath(new URL('./fixtures/python-records.py', import.meta.url));
const SLOT = 1000;

interface Read {
  readonly error?: string;
  readonly isSkipped?: boolean;
  readonly layout?: [dtype: string, shape: readonly number[]] | null;
  readonly meta?: unknown;
  readonly written?: string;
}

function readInPython(records: readonly Uint8Array[]): Read[] {
  const { status, stdout, stderr } = spawnSync('python3', [program, String(SLOT)], {
    encoding: 'utf8',
    env: { ...process.env, PYTHONPATH: companionPath() },
    input: records.map((record) => `${Buffer.from(record).toString('hex')}\n`).join(''),
  });
  assert.equal(status, 0, stderr);
  return stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Read);
}

function readHere(record: Uint8Array): Read {
  try {
    const { layout, meta = null, isSkipped = false } = readRecord(record, SLOT);
    return { isSkipped, layout: layout ? [layout.dtype.name, layout.shape] : null, meta };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

function withLayout(name: string, lengths: readonly bigint[], ndim = lengths.length): Uint8Array {
  const record = new Uint8Array(RECORD_BYTE_LENGTH);
  const view = new DataView(record.buffer);
  view.setUint32(RecordOffset.flags, RecordFlag.layout, true);
  view.setUint32(RecordOffset.ndim, ndim, true);
  record.set(Buffer.from(name, 'latin1'), RecordOffset.dtype);
  for (const [axis, length] of lengths.entries())
    view.setBigInt64(RecordOffset.shape + 8 * axis, length, true);
  return record;
}

function withMeta(meta: string | readonly number[]): Uint8Array {
  const record = new Uint8Array(RECORD_BYTE_LENGTH);
  const bytes = Buffer.from(meta as string);
  new DataView(record.buffer).setUint32(RecordOffset.metaByteLength, bytes.byteLength, true);
  record.set(bytes, RecordOffset.meta);
  return record;
}

const skipped = new Uint8Array(RECORD_BYTE_LENGTH);
writeRecord(skipped, { isSkipped: true });

const valid: Readonly<Record<string, Uint8Array>> = {
  'no layout and no meta': new Uint8Array(RECORD_BYTE_LENGTH),
  'a skipped message': skipped,
  'a layout': withLayout('float32', [5n, 50n]),
  'no axes': withLayout('complex128', []),
  'raw items': withLayout('V12', [83n]),
  'no items': withLayout('int8', [0n, 9007199254740991n]),
  'the axes of 64': withLayout('uint8', new Array<bigint>(64).fill(1n)),
  null: withMeta('null'),
  'white space around it': withMeta(' \t\n\r{"a": [1, 2.5e3]} '),
  'a name twice': withMeta('{"a":1,"a":2}'),
  'half a character': withMeta('"\\ud800"'),
  'all characters': withMeta('"\u00fc\u{1f600}\\u0000\u007f\u2028"'),
  '1 KiB': withMeta(`"${'x'.repeat(1022)}"`),
};

const refused: Readonly<Record<string, Uint8Array>> = {
  'a typestr': withLayout('<f4', [5n]),
  'a typestr without order': withLayout('f4', [5n]),
  'another name of bytes': withLayout('V04', [5n]),
  'a name with a module': withLayout('torch.float32', [5n]),
  'a name of Python': withLayout('int', [5n]),
  'no name': withLayout('', [5n]),
  'bytes behind the name': withLayout('int8\0\0x', [5n]),
  'too many axes': withLayout('uint8', [1n], 65),
  'a negative length': withLayout('uint8', [-1n]),
  'a length that is not safe': withLayout('uint8', [0n, 1n << 53n]),
  'more items than are safe': withLayout('uint8', [1n << 30n, 0n, 1n << 30n]),
  'more bytes than the slot': withLayout('float32', [251n]),
  'more than 1 KiB': withMeta(`"${'x'.repeat(1023)}"`),
  NaN: withMeta('NaN'),
  Infinity: withMeta('[Infinity]'),
  '-Infinity': withMeta('{"a":-Infinity}'),
  'a byte order mark': withMeta([0xef, 0xbb, 0xbf, 0x31]),
  'UTF-16': withMeta([0x31, 0, 0x32, 0]),
  'UTF-16 with a byte order mark': withMeta([0xff, 0xfe, 0x31, 0]),
  'no UTF-8': withMeta([0x22, 0xff, 0x22]),
  'a surrogate in UTF-8': withMeta([0x22, 0xed, 0xa0, 0x80, 0x22]),
  'bytes behind the value': withMeta('1 2'),
  'a zero behind the value': withMeta('1\0'),
  'a control character': withMeta('"\u0001"'),
  'a comma at the end': withMeta('[1,]'),
  'a leading zero': withMeta('01'),
  'no value': withMeta(' '),
};

describe('the records of messages, in Node and in Python', { skip: noPython }, () => {
  test('are read alike, and meta is written so that the other reads it', () => {
    const found = readInPython(Object.values(valid));
    for (const [at, [name, record]] of Object.entries(valid).entries()) {
      const { written, ...read } = found[at] as Read;
      assert.deepEqual(read, readHere(record), name);
      if (written) assert.deepEqual(JSON.parse(written), read.meta, name);
    }
  });

  test('are refused alike', () => {
    const found = readInPython(Object.values(refused));
    for (const [at, [name, record]] of Object.entries(refused).entries()) {
      const here = readHere(record);
      assert.match(`${here.error}`, /record is invalid/, `Node read ${name}`);
      assert.match(`${found[at]?.error}`, /record is invalid/, `Python read ${name}`);
    }
  });

  test('half a character is written by both as an escape', () => {
    const [read] = readInPython([withMeta('"\\ud800x"')]);
    assert.equal(read?.written, '"\\ud800x"');
    assert.equal(Buffer.from(encodeMeta('\ud800x')).toString(), '"\\ud800x"');
  });
});
