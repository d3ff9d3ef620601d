/** The length check of code, and the linking of several sources. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { writeUint64 } from '../../../../ffi/arena.ts';
import * as constants from '../../../../ffi/constants.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { addressOf, stringAt, viewMemory } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { Context, link } from '../../../../src/index.ts';
import { checkImage } from '../../../../src/kernel/image.ts';
import { recordCallsOf } from '../../../support/arguments.ts';
import { emulate } from '../emulate.ts';

/** A cubin with its tables, three segments of 56 bytes and two sections of 64, at given offsets. */
function cubin(tables: { segmentsAt?: number; sectionsAt?: number }, byteLength: number) {
  const bytes = new DataView(new ArrayBuffer(byteLength));
  bytes.setUint32(0, 0x46_4c_45_7f, true);
  const { segmentsAt, sectionsAt } = tables;
  if (segmentsAt !== undefined) {
    bytes.setBigUint64(32, BigInt(segmentsAt), true);
    bytes.setUint16(54, 56, true);
    bytes.setUint16(56, 3, true);
  }
  if (sectionsAt !== undefined) {
    bytes.setBigUint64(40, BigInt(sectionsAt), true);
    bytes.setUint16(58, 64, true);
    bytes.setUint16(60, 2, true);
  }
  return new Uint8Array(bytes.buffer);
}

function fatbin(bodyLength: number, byteLength: number): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(byteLength));
  bytes.setUint32(0, 0xba_55_ed_50, true);
  bytes.setUint16(6, 16, true);
  bytes.setBigUint64(8, BigInt(bodyLength), true);
  return new Uint8Array(bytes.buffer);
}

describe('checkImage', () => {
  test('code that is one byte too short never reaches the driver', () => {
    for (const [make, wanted, kind] of [
      [(length: number) => cubin({ segmentsAt: 232 }, length), 400, 'cubin'],
      [(length: number) => cubin({ sectionsAt: 272 }, length), 400, 'cubin'],
      [(length: number) => cubin({ segmentsAt: 232, sectionsAt: 64 }, length), 400, 'cubin'],
      [(length: number) => fatbin(100, length), 116, 'fatbin'],
    ] as const) {
      assert.equal(checkImage(make(wanted)).kind, kind);
      assert.equal(checkImage(make(wanted + 1)).kind, kind);
      assert.throws(() => checkImage(make(wanted - 1)), {
        name: 'RangeError',
        message: `source is truncated: the ${kind} has ${wanted} bytes, but only ${wanted - 1} are given`,
      });
    }
    for (const [start, least] of [
      [cubin({}, 64), 64],
      [fatbin(0, 16), 16],
    ] as const) {
      checkImage(start);
      for (const length of [4, least - 1])
        assert.throws(() => checkImage(start.slice(0, length)), /^RangeError: source is truncated/);
    }
  });
});

describe('link', () => {
  const CALLS = [
    'cuLinkCreate_v2',
    'cuLinkAddData_v2',
    'cuLinkComplete',
    'cuLinkDestroy',
  ] as const satisfies readonly FunctionName[];
  const STATE = 0x7f01_2345_6780;
  const CUBIN = Uint8Array.of(1, 2, 3, 4, 5);

  /** A linker that returns {@link CUBIN}, or fails at one call, and records its calls with their bytes. */
  function linker(failing?: FunctionName) {
    const emulated = emulate();
    const made = CUBIN.slice();
    const added: [name: string, bytes: number[]][] = [];
    const options: [option: number, value: number][] = [];
    const or = (name: FunctionName): 0 | 2 => (name === failing ? 2 : 0);
    const driver: Driver = {
      ...emulated,
      cuLinkCreate_v2(count, numbers, values, out) {
        const words = new BigUint64Array(viewMemory(values, 8 * count));
        for (const [at, option] of new Uint32Array(viewMemory(numbers, 4 * count)).entries())
          options.push([option, Number(words[at])]);
        writeUint64(STATE, out);
        return or('cuLinkCreate_v2');
      },
      cuLinkAddData_v2(_state, _type, data, byteLength, name) {
        const bytes = [...new Uint8Array(viewMemory(data, Number(byteLength)))];
        added.push([stringAt(name as unknown as Address), bytes]);
        return added.length === 2 ? or('cuLinkAddData_v2') : 0;
      },
      cuLinkComplete(_state, out, length) {
        writeUint64(addressOf(made), out);
        writeUint64(made.length, length);
        return or('cuLinkComplete');
      },
      cuLinkDestroy() {
        // This frees the driver's memory.
        made.fill(0);
        return 0;
      },
    };
    const told = recordCallsOf(driver, ...CALLS);
    return { told, added, options };
  }

  test('sources are linked in order, each by its kind, with the compiler options', () => {
    const { told, added, options } = linker();
    const text = '.version 7.4\n';
    const [machine, fat] = [cubin({}, 64), fatbin(0, 16)];
    assert.deepEqual(
      link([text, machine, fat], { jit: { maxRegisters: 40, lineInfo: true } }),
      CUBIN,
    );
    assert.deepEqual(
      told.map(([name, state, type]) => (name === 'cuLinkAddData_v2' ? [state, type] : name)),
      [
        'cuLinkCreate_v2',
        [STATE, constants.CU_JIT_INPUT_PTX],
        [STATE, constants.CU_JIT_INPUT_CUBIN],
        [STATE, constants.CU_JIT_INPUT_FATBINARY],
        'cuLinkComplete',
        'cuLinkDestroy',
      ],
    );
    assert.deepEqual(added, [
      ['sources[0]', [...Buffer.from(`${text}\0`)]],
      ['sources[1]', [...machine]],
      ['sources[2]', [...fat]],
    ]);
    assert.deepEqual(options.slice(4), [
      [constants.CU_JIT_MAX_REGISTERS, 40],
      [constants.CU_JIT_GENERATE_LINE_INFO, 1],
    ]);
    assert.deepEqual(told.at(-1), ['cuLinkDestroy', STATE]);
    assert.equal(Context.current(), undefined);
  });

  test('a failed link is destroyed once, and its error names the failed step', () => {
    for (const [name, message] of [
      ['cuLinkCreate_v2', /while beginning to link/],
      ['cuLinkAddData_v2', /while adding sources\[1\], a cubin, to link/],
      ['cuLinkComplete', /while linking 2 sources/],
    ] as const) {
      const { told } = linker(name);
      assert.throws(() => link(['.version 7.4', cubin({}, 64)]), { call: name, message });
      const destroyed = told.filter(([each]) => each === 'cuLinkDestroy');
      assert.deepEqual(destroyed, name === 'cuLinkCreate_v2' ? [] : [['cuLinkDestroy', STATE]]);
      assert.equal(Context.current(), undefined);
    }
  });
});
