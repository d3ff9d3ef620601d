/** PTX that is checked in: for every driver from CUDA 11.4 on, and every device from Volta on. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { comparePtx } from '../../../../src/kernel/ptx/compare.ts';
import { copyPtx, fillPtx } from '../../../../src/kernel/ptx/strided.ts';

const root = fileURLToPath(new URL('../../../..', import.meta.url));

/** Every file of a folder that ends so, at any depth. */
const filesOf = (folder: string, ending: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith(ending))
    .map((name) => join(root, folder, name));

const texts = new Map([
  ['copyPtx', copyPtx()],
  ['fillPtx', fillPtx()],
  ['comparePtx', comparePtx],
  ...['src', 'test', 'docs', 'bench']
    .flatMap((folder) => filesOf(folder, '.ptx'))
    .map((path): [string, string] => [path, readFileSync(path, 'utf8')]),
]);

test('every PTX is of ISA 7.4 for sm_70, with 64-bit addresses', () => {
  for (const [name, text] of texts) {
    const head = text.split('\n').filter((line) => /^\.(version|target|address_size)/.test(line));
    assert.deepEqual(head, ['.version 7.4', '.target sm_70', '.address_size 64'], name);
  }
});

test('every folder of src that has PTX is known here', () => {
  assert.deepEqual(
    filesOf('src', '.ts').filter((path) => readFileSync(path, 'utf8').includes('.target sm_')),
    ['compare', 'strided'].map((name) => join(root, `src/kernel/ptx/${name}.ts`)),
  );
});

const noPtxas = spawnSync('ptxas', ['--version']).status === 0 ? false : 'ptxas is not installed';

test('ptxas assembles every PTX, without a stack for cuffi’s own', { skip: noPtxas }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-ptx-'));
  try {
    for (const [name, text] of texts) {
      const [input, output] = [join(folder, 'in.ptx'), join(folder, 'out.cubin')];
      writeFileSync(input, text);
      // The oldest device that every ptxas of today knows.
      const args = ['-v', '-c', '-arch=sm_75', input, '-o', output];
      const { status, stderr } = spawnSync('ptxas', args, { encoding: 'utf8' });
      assert.equal(status, 0, `${name}: ${stderr}`);
      if (!name.includes('/')) assert.doesNotMatch(stderr, /[1-9]\d* bytes stack frame/, name);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('the kernels of docs/kernels.md that share memory are those that are tested', () => {
  const tested = readFileSync(join(root, 'test/support/ptx/shared-memory.cu'), 'utf8');
  const page = readFileSync(join(root, 'docs/kernels.md'), 'utf8');
  const blocks = [...page.matchAll(/```cpp\n([\s\S]*?)```/g)].map(([, block = '']) => block);
  const found = blocks.filter((block) => tested.includes(block));
  assert.equal(found.length, 4);
  assert.deepEqual(
    blocks.filter((block) => block.includes('__syncthreads') && !found.includes(block)),
    [],
  );
});
