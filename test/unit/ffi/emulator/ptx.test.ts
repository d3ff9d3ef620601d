import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { parsePtx } from '../../../../ffi/emulator/ptx.ts';

const text = `// made by hand
.version 8.3 /* and more */
.target sm_90a, texmode_independent
.address_size 64

.visible .global .align 4 .u32 counter = 41;
.global .align 8 .f64 half[2] = {0d3FE0000000000000, 0D3FF0000000000000};
.const .align 4 .b8 bytes[2][4] = {1, 2, 255};
.extern .shared .align 16 .b8 dynamic[];
.global .f32 one = 0f3F800000;

.visible .entry plain() .maxntid 32, 2, 1 .minnctapersm 1 { .reg .b32 %r<2>; ret; }
.entry _Z3mixPffi(
	.param .u64 .ptr .align 1 mix_0,
	.param .f32 mix_1,
	.param .align 8 .b8 mix_2[24], // a struct
	.param .u8 mix_3
)
{
	.param .b32 local;
	ret;
}
.visible .entry bare
{ ret; }
`;

describe('parsePtx', () => {
  test('kernels, their parameters and the sizes of blocks are read from PTX', () => {
    const { version, target, entries } = parsePtx(text) ?? assert.fail('it was not read');
    assert.deepEqual([version, target], [83, 90]);
    assert.deepEqual(entries, [
      { name: 'plain', params: [], maxThreads: 64 },
      { name: '_Z3mixPffi', params: [8, 4, 24, 1], maxThreads: undefined },
      { name: 'bare', params: [], maxThreads: undefined },
    ]);
  });

  test('globals and constants are read with what they begin with', () => {
    const { globals } = parsePtx(text) ?? assert.fail('it was not read');
    assert.deepEqual(
      globals.map(({ name, byteLength, initial }) => [name, byteLength, [...initial]]),
      [
        ['counter', 4, [41, 0, 0, 0]],
        ['half', 16, [...new Uint8Array(new Float64Array([0.5, 1]).buffer)]],
        ['bytes', 8, [1, 2, 255]],
        ['one', 4, [...new Uint8Array(new Float32Array([1]).buffer)]],
      ],
    );
  });

  test('managed variables of nvcc are read with what they begin with', () => {
    const file = new URL('../../../support/ptx/managed.ptx', import.meta.url);
    const { globals } = parsePtx(readFileSync(file, 'utf8')) ?? assert.fail('it was not read');
    assert.deepEqual(
      globals.map(({ name, isManaged, byteLength, initial }) => [
        name,
        isManaged,
        byteLength,
        [...initial],
      ]),
      [
        ['plain', false, 4, [7, 0, 0, 0]],
        ['hits', true, 4, [41, 0, 0, 0]],
        ['table', true, 16, [...new Uint8Array(new Float32Array([1, 2, 3]).buffer)]],
        ['zeros', true, 64, []],
        ['bytes', true, 3, [1, 2, 255]],
      ],
    );
  });

  test('attributes may stand on either side of the alignment, and managed may be one of several', () => {
    const { globals } =
      parsePtx(`.version 8.0
.target sm_70
.global .align 8 .attribute(.managed) .u64 behind;
.visible .global .attribute(.managed, .unified(19,95)) .f32 both;
.global .attribute(.unified(1,2)) .align 4 .b8 other[4];
`) ?? assert.fail('it was not read');
    assert.deepEqual(
      globals.map(({ name, isManaged, byteLength }) => [name, isManaged, byteLength]),
      [
        ['behind', true, 8],
        ['both', true, 4],
        ['other', false, 4],
      ],
    );
  });

  test('text that does not begin like PTX is refused', () => {
    for (const other of ['', 'hello', '.target sm_70', ` // .version 7.4\n.target sm_70`])
      assert.equal(parsePtx(other), undefined, other);
  });

  test('an obvious compile error is reported with its line', () => {
    const fault = (rest: string): string | undefined => parsePtx(`.version 7.4\n${rest}`)?.error;
    const target = '.target sm_70, texmode_independent\n';
    for (const right of [
      '.entry k(){ret;}',
      '.file 1 "a(b.cu" // {',
      '.entry k(.param .b8 a[4]) { mov.b64 {%r1, %r2}, %rd1; tex.2d.v4.f32.f32 {a}, [t, {x, y}]; }',
    ])
      assert.equal(fault(target + right), undefined, right);
    assert.equal(fault('.target sm_121f\n'), undefined);
    assert.match(fault('') ?? '', /Missing \.target/);
    assert.match(fault('\n.target sm_999\n') ?? '', /line 3; .*Unsupported \.target 'sm_999'/);
    for (const [wrong, near] of [
      ['.entry k({ret;}', '{'],
      ['/* ( */ .entry k(.param .u32 a{ret;}', '{'],
      ['.entry k(){ret;', ''],
      ['.entry k(){ret;}}', '}'],
      ['.entry k(.param .b8 a[4){ret;}', ')'],
    ] as const)
      assert.ok(
        fault(target + wrong)?.includes(
          `line 3; fatal   : Parsing error near '${near}': syntax error`,
        ),
        wrong,
      );
  });
});
