/** The PTX in the repository, for drivers from CUDA 11.4 on and devices from Volta on. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  copyKernelName,
  copyPtx,
  fillKernelName,
  fillPtx,
  MAX_AXES,
  WORD_LENGTHS,
} from '../../../../src/kernel/builtin-ptx.ts';
import { PtxKernel } from './ptx-machine.ts';

const root = fileURLToPath(new URL('../../../..', import.meta.url));

/** The files of a folder with an ending, at any depth. */
const filesOf = (folder: string, ending: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith(ending))
    .map((name) => join(root, folder, name));

const texts = new Map([
  ['copyPtx', copyPtx()],
  ['fillPtx', fillPtx()],
  ...['src', 'test', 'docs', 'bench']
    .flatMap((folder) => filesOf(folder, '.ptx'))
    .map((path): [string, string] => [path, readFileSync(path, 'utf8')]),
]);

describe('PTX in the repository', () => {
  test('every PTX is of ISA 7.4 for sm_70, with 64-bit addresses', () => {
    for (const [name, text] of texts) {
      const head = text.split('\n').filter((line) => /^\.(version|target|address_size)/.test(line));
      assert.deepEqual(head, ['.version 7.4', '.target sm_70', '.address_size 64'], name);
    }
  });

  test('every file of src with PTX is checked here', () => {
    assert.deepEqual(
      filesOf('src', '.ts').filter((path) => readFileSync(path, 'utf8').includes('.target sm_')),
      ['builtin-ptx'].map((name) => join(root, `src/kernel/${name}.ts`)),
    );
  });

  const noPtxas = spawnSync('ptxas', ['--version']).status === 0 ? false : 'ptxas is not installed';

  test('ptxas assembles every PTX, without a stack for the built-in kernels', {
    skip: noPtxas,
  }, () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-ptx-'));
    try {
      for (const [name, text] of texts) {
        const [input, output] = [join(folder, 'in.ptx'), join(folder, 'out.cubin')];
        writeFileSync(input, text);
        // The oldest device that every current ptxas supports.
        const args = ['-v', '-c', '-arch=sm_75', input, '-o', output];
        const { status, stderr } = spawnSync('ptxas', args, { encoding: 'utf8' });
        assert.equal(status, 0, `${name}: ${stderr}`);
        if (!name.includes('/')) assert.doesNotMatch(stderr, /[1-9]\d* bytes stack frame/, name);
      }
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('the kernels with shared memory in docs/kernel-patterns.md are the tested ones', () => {
    const tested = readFileSync(join(root, 'test/support/ptx/shared-memory.cu'), 'utf8');
    const page = readFileSync(join(root, 'docs/kernel-patterns.md'), 'utf8');
    const blocks = [...page.matchAll(/```cpp\n([\s\S]*?)```/g)].map(([, block = '']) => block);
    const found = blocks.filter((block) => tested.includes(block));
    assert.equal(found.length, 4);
    assert.deepEqual(
      blocks.filter((block) => block.includes('__syncthreads') && !found.includes(block)),
      [],
    );
  });
});

describe('PTX of the built-in kernels', () => {
  /** An axis with its length and, counted in words, its strides on both sides. */
  type Axis = readonly [length: number, to: number, from: number];

  /** The fastest axis first; only wide kernels take more than 32 bits. */
  const SHAPES: readonly { readonly axes: readonly Axis[]; readonly isWide?: boolean }[] = [
    { axes: [[1, 1, 1]] },
    { axes: [[70, 3, -2]] },
    {
      axes: [
        [5, 1, 33],
        [3, 6, -3],
        [4, 43, 200],
      ],
    },
    // Strides of 0.
    {
      axes: [
        [4, 1, 0],
        [3, 0, 5],
      ],
    },
    { axes: Array.from({ length: MAX_AXES }, (_, n): Axis => [2, 3 ** n, -(4 ** n)]) },
    // Up to the greatest stride that 32 bits hold, for words of 16 bytes.
    {
      axes: [
        [2, 2 ** 27 - 1, -(2 ** 27 - 1)],
        [2, -(2 ** 27 - 1), 2 ** 27 - 1],
      ],
    },
    {
      axes: [
        [3, 2 ** 33, 2 ** 34],
        [2, -(2 ** 31), 7],
      ],
      isWide: true,
    },
  ];

  const TO = 2n ** 46n;
  const FROM = 2n ** 45n;

  /** The argument of 192 bytes, for words of a length. */
  function axesBytes(axes: readonly Axis[], word: number): Uint8Array {
    // The kernels never read beyond the axes.
    const table = new BigInt64Array(3 * MAX_AXES).fill(0x7777n);
    for (const [n, [length, to, from]] of axes.entries()) {
      table[n] = BigInt(length);
      table[MAX_AXES + n] = BigInt(word * to);
      table[2 * MAX_AXES + n] = BigInt(word * from);
    }
    return new Uint8Array(table.buffer);
  }

  /** The addresses of all words on both sides, in the order of nested loops. */
  const wordsOf = (axes: readonly Axis[], word: number): [to: bigint, from: bigint][] =>
    axes
      .toReversed()
      .reduce<[bigint, bigint][]>(
        (starts, [length, to, from]) =>
          starts.flatMap(([a, b]) =>
            Array.from({ length }, (_, i): [bigint, bigint] => [
              a + BigInt(i * word * to),
              b + BigInt(i * word * from),
            ]),
          ),
        [[TO, FROM]],
      );

  const BLOCK = 32;

  test('copies and fills set the words along the axes, and no other byte', () => {
    const [low, high] = [0x0123_4567_89ab_cdefn, 0xfedc_ba98_7654_3210n];
    const value = new Uint8Array(BigUint64Array.of(low, high).buffer);
    for (const word of WORD_LENGTHS)
      for (const bits of [32, 64] as const) {
        const copy = new PtxKernel(copyPtx(), copyKernelName(word, bits));
        const fill = new PtxKernel(fillPtx(), fillKernelName(word, bits));
        for (const { axes, isWide = false } of SHAPES) {
          if (isWide && bits === 32) continue;
          const words = wordsOf(axes, word);
          const count = BigInt(words.length);
          const shape = { grid: Math.ceil(words.length / BLOCK) + 1, block: BLOCK };
          const table = axesBytes(axes, word);
          const expected = new Map<bigint, number>();
          const written = new Set<bigint>();
          for (const [n, [, from]] of words.entries())
            for (let byte = 0n; byte < word; byte += 1n)
              expected.set(from + byte, (31 * n + Number(byte)) & 0xff);
          const bytes = new Map(expected);
          for (const [to, from] of words)
            for (let byte = 0n; byte < word; byte += 1n) {
              expected.set(to + byte, bytes.get(from + byte) as number);
              written.add(to + byte);
            }
          const memory = { bytes, isWritable: (at: bigint) => written.has(at) };
          // Threads beyond the last word are in the last blocks, and do nothing.
          for (let at = 0; at < shape.grid; at += 1)
            copy.runBlock(at, shape, [TO, FROM, count, BigInt(axes.length), table], memory);
          const what = `${word} bytes, ${bits} bits, ${JSON.stringify(axes)}`;
          assert.deepEqual(bytes, expected, what);
          for (let at = 0; at < shape.grid; at += 1)
            fill.runBlock(at, shape, [TO, low, high, count, BigInt(axes.length), table], memory);
          for (const [to] of words)
            for (let byte = 0; byte < word; byte += 1)
              expected.set(to + BigInt(byte), value[byte] as number);
          assert.deepEqual(bytes, expected, what);
        }
      }
  });

  test('wide indices reach words beyond the 2^32nd, narrow ones up to the 2^31st', () => {
    for (const [bits, axes, at] of [
      [
        64,
        [
          [2 ** 20, 1, 2],
          [2 ** 16, 2 ** 21, 3],
        ],
        2 ** 36 - 1,
      ],
      [
        64,
        [
          [2 ** 33 + 1, 3, 1],
          [3, 1, 2 ** 35],
        ],
        2 ** 33 + 5,
      ],
      [
        64,
        [
          [2 ** 33 + 1, 3, 1],
          [3, 1, 2 ** 35],
        ],
        3 * (2 ** 33 + 1) - 1,
      ],
      [
        32,
        [
          [2 ** 15, 1, 2],
          [2 ** 15, 3, -1],
        ],
        2 ** 30 - 1,
      ],
      [32, [[2 ** 31 - 1, 1, -1]], 2 ** 31 - 2],
    ] as const) {
      let [rest, to, from] = [at, TO, FROM];
      for (const [length, toStride, fromStride] of axes) {
        to += BigInt(rest % length) * BigInt(toStride);
        from += BigInt(rest % length) * BigInt(fromStride);
        rest = Math.floor(rest / length);
      }
      assert.equal(rest, 0);
      const count = axes.reduce((product, [length]) => product * BigInt(length), 1n);
      const bytes = new Map([[from, 42]]);
      const block = 256;
      const place = {
        at: Math.floor(at / block),
        grid: Math.ceil(Number(count) / block),
        block,
        lane: at % block,
      };
      const args = [TO, FROM, count, BigInt(axes.length), axesBytes(axes, 1)];
      const memory = { bytes, isWritable: (address: bigint) => address === to };
      new PtxKernel(copyPtx(), copyKernelName(1, bits)).runThread(place, args, memory);
      assert.equal(bytes.get(to), 42, `${bits} bits, ${at}`);
    }
  });
});
