import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { DeviceBuffer, float32, fromBuffer } from '../../../../../src/index.ts';
import { objectKinds } from '../../../../../src/ipc/protocol.ts';
import type { Kind } from '../../../../../src/ipc/sharing/kind.ts';
import {
  bufferOf,
  contextOf,
  isShareable,
  kindOf,
  kinds,
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

  test('an object is recognized once, and then knows its row', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(256);
    let asked = 0;
    const counted: Kind = {
      ...(legacy as Kind),
      includes(object): object is object {
        asked += 1;
        return legacy.includes(object);
      },
    };
    kinds.unshift(counted);
    try {
      for (let i = 0; i < 3; i += 1) {
        assert.equal(kindOf(buffer), counted);
        assert.equal(ownerOf(buffer), buffer);
        assert.equal(isShareable(buffer), true);
      }
    } finally {
      kinds.shift();
    }
    assert.equal(asked, 1);
  });

  test('each kind of the protocol has a row', () => {
    assert.deepEqual([...new Set(kinds.map(({ name }) => name))].sort(), [...objectKinds].sort());
  });

  test('only the file of a kind asks for its name', () => {
    assert.deepEqual(branchesIn("if (kind === 'pool') a(); else if ('event' !== kind) b();"), [
      'pool',
      'event',
    ]);
    assert.deepEqual(branchesIn("case 'virtual':\n return ['legacy'].includes(kind);"), [
      'virtual',
      'legacy',
    ]);
    assert.deepEqual(branchesIn("const kind = { name: 'pool' }; parse(message, ['event']);"), []);
    const found = ['ipc', 'cli'].flatMap((room) => {
      const folder = fileURLToPath(new URL(`../../../../../src/${room}/`, import.meta.url));
      return readdirSync(folder, { recursive: true, encoding: 'utf8' })
        .filter((file) => file.endsWith('.ts'))
        .flatMap((file) => {
          const text = readFileSync(folder + file, 'utf8');
          const isRowOf = (name: string): boolean => text.includes(`\n  name: '${name}',`);
          return branchesIn(text).flatMap((name) => (isRowOf(name) ? [] : [`${file}: ${name}`]));
        });
    });
    assert.deepEqual(found, []);
  });
});

/** The kinds that a text compares something with. */
function branchesIn(text: string): string[] {
  const name = `'(${objectKinds.join('|')})'`;
  const branch = `[!=]==? ${name}|${name} [!=]==?|case ${name}|\\[[^\\]]*${name}[^\\]]*\\]\\.includes`;
  return [...text.matchAll(new RegExp(branch, 'g'))].map(
    (match) => match.slice(1).find((part) => part !== undefined) as string,
  );
}
