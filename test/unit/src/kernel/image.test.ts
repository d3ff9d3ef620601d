/** What is known of code before the driver loads it. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { checkImage, LINK_FIRST, linkageOf, loadHint } from '../../../../src/kernel/image.ts';
import { ptx } from '../../../support/kernels.ts';

const read = (file: string): Buffer =>
  readFileSync(new URL(`../../../support/ptx/${file}`, import.meta.url));

const relocatable = { isRelocatable: true, kernels: ['_Z6scaledPj', 'relocatable'] };
const complete = { isRelocatable: false, kernels: [] };

/** A cubin with nothing but a header, of a type and for a machine. */
function elf(type: number, machine: number): Buffer {
  const bytes = Buffer.alloc(64);
  bytes.write('\x7fELF', 'latin1');
  bytes.writeUInt16LE(type, 16);
  bytes.writeUInt16LE(machine, 18);
  return bytes;
}

const [EXECUTABLE, OBJECT] = [2, 1];
const [X86_64, CUDA] = [62, 190];

describe('linkageOf', () => {
  test('code that nvcc -rdc=true has compiled is relocatable, and has its kernels', () => {
    assert.deepEqual(linkageOf(checkImage(read('relocatable.cubin'))), relocatable);
    assert.deepEqual(linkageOf(checkImage(read('relocatable.fatbin'))), relocatable);
    const compressed = linkageOf(checkImage(read('relocatable.compressed.fatbin')));
    assert.deepEqual(compressed, { isRelocatable: undefined, kernels: [] });
  });

  test('other code is not: PTX, a fatbin of PTX, and a cubin that can be executed', () => {
    assert.deepEqual(linkageOf(checkImage(ptx)), complete);
    assert.deepEqual(linkageOf(checkImage(read('nine.fatbin'))), complete);
    assert.deepEqual(linkageOf(checkImage(elf(EXECUTABLE, CUDA))), complete);
  });

  test('it reads damaged code to its end, and no further', () => {
    for (const file of ['relocatable.cubin', 'relocatable.fatbin']) {
      const whole = read(file);
      // Each field of the headers in turn leads as far as it can.
      for (let at = 16; at < 160; at += 4) {
        const bytes = Buffer.from(whole);
        bytes.writeUInt32LE(0xff_ff_ff_f0, at);
        const kind = file.endsWith('cubin') ? 'cubin' : 'fatbin';
        assert.equal(typeof linkageOf({ kind, bytes }), 'object', `${file} ${at}`);
      }
    }
  });
});

describe('loadHint', () => {
  test('distinguishes code that must be linked from objects for the CPU and from other code', () => {
    const hint = (bytes: Buffer | string, log = ''): string | undefined =>
      loadHint(checkImage(bytes), log);
    assert.equal(hint(read('relocatable.cubin')), LINK_FIRST);
    assert.match(String(hint(elf(OBJECT, X86_64))), /an object file for the CPU .*-cubin/);
    assert.equal(hint(elf(EXECUTABLE, CUDA)), undefined);
    assert.equal(hint(ptx), undefined);
    for (const log of [
      "ptxas fatal   : Unresolved extern function '_Z6helperi'",
      "error   : Undefined reference to '_Z6helperi' in ''",
    ])
      assert.match(String(hint(ptx, log)), /uses functions or variables of other code: link it/);
  });
});

describe('checkImage', () => {
  test('code is known by its first four bytes, and too short from there to the end of its headers', () => {
    const cubin = elf(EXECUTABLE, CUDA);
    const fatbin = read('nine.fatbin');
    for (const [kind, bytes, header] of [
      ['cubin', cubin, 64],
      ['fatbin', fatbin, 16],
    ] as const) {
      for (const length of [4, 5, header - 1])
        assert.throws(
          () => checkImage(bytes.subarray(0, length)),
          { name: 'RangeError', message: new RegExp(`^source is truncated: the ${kind} has \\d+`) },
          `${kind} ${length}`,
        );
      assert.equal(checkImage(bytes).kind, kind);
      // The beginning of a text, for all that is known.
      if (kind === 'cubin') assert.equal(checkImage(bytes.subarray(0, 3)).kind, 'PTX');
    }
    for (const [text, kept] of [
      ['x', 'x\0'],
      ['x\0', 'x\0'],
      ['x\0rest', 'x\0'],
    ] as const)
      for (const source of [text, Buffer.from(text)])
        assert.equal(Buffer.from(checkImage(source).bytes).toString(), kept);
    for (const nothing of ['', ' \n', '\0x', Buffer.alloc(4)])
      assert.throws(() => checkImage(nothing), /nothing in it can be read/);
  });
});
