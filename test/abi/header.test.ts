// The table of driver functions, the types and the constants, against cuda.h as a C compiler
// reads it; without either, against what is on record of cuda.h 13.0.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { deviceAttributes } from '../../ffi/attributes.ts';
import * as constants from '../../ffi/constants.ts';
import { functionNames, rows } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import {
  decodeStruct,
  encodeStruct,
  type Layout,
  type StructName,
  structs,
} from '../../ffi/structs.ts';
import type { CType } from '../../ffi/types.ts';
import { bare, headerFacts, parameters, record, recorded } from './facts.ts';
import { compiler, header, noCompiler, noHeader, openBuildFolder } from './toolchain.ts';

const noAnswer = noHeader || noCompiler;
const build = openBuildFolder();
const facts = headerFacts(build);

// Of newer headers these tests ask less: what they add is no error of the table's.
const KNOWN = 13_000;
const isNewer = facts.version >= KNOWN + 10;
const isOlder = facts.version < KNOWN;

describe('cuda.h', () => {
  test('where cuda.h exists, it is asked: a compiler is there', { skip: noHeader }, (t) => {
    assert.ok(compiler, `${header} exists, but ${noCompiler}`);
    t.diagnostic(`${header}: CUDA ${facts.version}, by ${compiler}`);
  });

  test('the record says what cuda.h 13.0 says', {
    skip: noAnswer || (isNewer || isOlder ? `cuda.h is of CUDA ${facts.version}` : false),
  }, () => {
    if (process.env['CUFFI_ABI'] === 'write') record(facts);
    assert.deepEqual(recorded(), facts);
  });

  test('every row has exactly the type that cuda.h declares for its symbol', (t) => {
    assert.deepEqual(
      functionNames.filter((name) => facts.rows[name] === undefined),
      [],
      'rows that cuda.h does not declare',
    );
    assert.deepEqual(
      functionNames.filter(
        (name) => facts.rows[name]?.parameters !== parameters(rows[name].params),
      ),
      [],
      'rows whose parameters differ from cuda.h',
    );
    const old = functionNames.filter((name) => facts.rows[name]?.declaredIn === 'all versions');
    t.diagnostic(
      `${functionNames.length} rows checked, ${old.length} among the older versions: ${old.join(', ')}`,
    );
  });

  test('a row says which version its symbol came with, if drivers of 11.4 lack it', (t) => {
    const wrong = functionNames.filter((name) => {
      const version = facts.rows[name]?.since ?? 0;
      return version === 0 || rows[name].since !== (version > 11_040 ? version : undefined);
    });
    assert.deepEqual(
      wrong.map((name) => [name, rows[name].since, facts.rows[name]?.since]),
      [],
    );
    const newer = functionNames.filter((name) => rows[name].since !== undefined);
    t.diagnostic(`newer than 11.4: ${newer.join(', ')}`);
  });

  test('every C type has the width, sign and class that its row passes', (t) => {
    const byValue = new Map<string, CType>();
    for (const name of functionNames)
      for (const param of rows[name].params) byValue.set(param.c, param);
    for (const [c, param] of byValue) {
      const fact = facts.types[c];
      assert.ok(fact, c);
      assert.equal(fact.byteLength, param.byteLength, `sizeof ${c}`);
      assert.equal(fact.floating, false, `${c} would be passed in a floating-point register`);
      if (param.ffi === 'handle64') {
        assert.deepEqual([fact.byteLength, fact.alignment], [constants.CU_IPC_HANDLE_SIZE, 1], c);
        continue;
      }
      // An integer below 32 bits travels in the low bits of a register of 32.
      const width = param.ffi.endsWith('64') ? 8 : 4;
      assert.ok(width === 8 ? param.byteLength === 8 : param.byteLength <= 4, `width of ${c}`);
      assert.equal(fact.signed, param.ffi.startsWith('int'), `sign of ${c}`);
    }
    t.diagnostic(`${byValue.size} types checked`);
  });

  test('what a row points to has the width that its type says', async () => {
    const types = await import('../../ffi/types.ts');
    const all = Object.values(types).filter((value) => typeof value === 'object') as CType[];
    for (const { c, byteLength } of all) assert.equal(facts.types[c]?.byteLength, byteLength, c);
  });

  test('every struct has the size and the fields of cuda.h, each where the compiler puts it', (t) => {
    const ours = Object.entries<Layout>(structs);
    for (const [name, { byteLength, fields }] of ours) {
      const theirs = facts.structs[name];
      assert.equal(theirs?.byteLength, byteLength, `sizeof ${name}`);
      for (const [field, place] of Object.entries(fields))
        assert.deepEqual(theirs?.fields[field], [...place], `${name}.${field}`);
      const known = new Set(Object.keys(fields).map((field) => field.split('.')[0]));
      const missing = theirs?.own.filter((field) => !known.has(field));
      if (!isNewer) assert.deepEqual(missing, [], `fields of ${name} that the layout lacks`);
    }
    t.diagnostic(`${ours.length} structs checked`);
  });

  /** The fields of a struct in memory as C reads them; where C cannot be asked, by where they lie. */
  function readFields(name: string, bytes: Uint8Array, fields: readonly string[]): number[] {
    const view = Buffer.from(bytes);
    if (noAnswer)
      return fields.map((field) => {
        const [at = 0, width] = facts.structs[name]?.fields[field] ?? [];
        return width === 8 ? Number(view.readBigUInt64LE(at)) : view.readUIntLE(at, width ?? 0);
      });
    const asks = fields.map((field) => `  printf("%llu\\n", (unsigned long long)s->${field});`);
    const source = `#include <cuda.h>
#include <stdio.h>
static _Alignas(8) unsigned char bytes[] = {${bytes.join(',')}};
int main(void) {
  ${name} *s = (${name} *)bytes;
  (void)s;
${asks.join('\n')}
  return 0;
}
`;
    return build.run('written', source).split('\n').filter(Boolean).map(Number);
  }

  test('what is written into the arena is what C reads, field by field', () => {
    for (const [name, { byteLength, fields }] of Object.entries<Layout>(structs)) {
      const writable = Object.entries(fields).filter(([field]) => !/(reserved|pad)$/.test(field));
      const given = Object.fromEntries(
        writable.map(([field, [, width]], at) => [
          field,
          (at + 3) * (width === 8 ? 2 ** 33 + 1 : 1),
        ]),
      );
      const view = new DataView(new ArrayBuffer(byteLength + 16));
      new Uint8Array(view.buffer).fill(0xee);
      encodeStruct(name as StructName, given, view, 8);
      const bytes = new Uint8Array(view.buffer);
      const named = Object.keys(given);
      const read = readFields(name, bytes.slice(8, 8 + byteLength), named);
      assert.deepEqual(read, Object.values(given), name);
      assert.ok(
        [...bytes.subarray(0, 8), ...bytes.subarray(8 + byteLength)].every((byte) => byte === 0xee),
        `${name} is written beyond its end`,
      );
      const decoded = decodeStruct(name as StructName, bytes.subarray(8)) as Record<string, number>;
      for (const [field, value] of Object.entries(given))
        assert.equal(decoded[field], value, `${name}.${field}`);
    }
  });

  test('every flag and enumerator has the value of cuda.h', (t) => {
    const ours = Object.entries(constants).filter(([name]) => name.startsWith('CU_'));
    for (const [name, value] of ours) assert.equal(facts.constants[name], value, name);
    t.diagnostic(`${ours.length} constants checked`);
  });

  /** One enum against its table: equal values, and nothing missing but aliases. */
  function compareEnum(
    tag: string,
    prefix: string,
    ours: Readonly<Record<string, number>>,
    ignored: readonly string[] = [],
  ): number {
    const theirs = facts.enums[tag] ?? {};
    const names = Object.keys(theirs).filter((name) => !ignored.includes(name));
    assert.ok(names.length > 0, `enum ${tag}`);
    const theirsBare = new Map(
      names.map((name) => [bare(name.slice(prefix.length)), theirs[name]]),
    );
    const unknown: string[] = [];
    for (const [name, value] of Object.entries(ours)) {
      const expected = theirsBare.get(bare(name));
      if (expected === undefined) unknown.push(name);
      else assert.equal(value, expected, name);
    }
    if (!isOlder) assert.deepEqual(unknown, [], `names that enum ${tag} lacks`);
    const have = new Set(Object.values(ours));
    const missing = names.filter((name) => !have.has(theirs[name] as number));
    if (!isNewer) assert.deepEqual(missing, [], `enumerators of ${tag} that the table lacks`);
    return Object.keys(ours).length;
  }

  test('every status code has the value of cuda.h, and none is missing', (t) => {
    t.diagnostic(`${compareEnum('cudaError_enum', '', CUresult)} status codes checked`);
  });

  test('every device attribute has the value of cuda.h, and none is missing', (t) => {
    const count = compareEnum('CUdevice_attribute_enum', 'CU_DEVICE_ATTRIBUTE_', deviceAttributes, [
      'CU_DEVICE_ATTRIBUTE_MAX',
    ]);
    t.diagnostic(`${count} device attributes checked`);
  });

  test('every limit has the value of cuda.h', () => {
    const theirs = new Map(
      Object.entries(facts.enums['CUlimit_enum'] ?? {}).map(([name, value]) => [
        bare(name.slice('CU_LIMIT_'.length)),
        value,
      ]),
    );
    for (const [name, value] of Object.entries(constants.limits))
      assert.equal(value, theirs.get(bare(name)), name);
  });
});
