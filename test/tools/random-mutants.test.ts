/** The mutations that a program makes, and samples of them. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { type Coverage, decodeMappings, testsThatRun } from '../mutants/coverage.ts';
import { mutate } from '../mutants/mutant.ts';
import { apply, diffOf, KINDS, type Kind, lineAt } from '../mutants/mutations.ts';
import { drawSample, findMutations, isRefused } from '../mutants/random.ts';
import type { Result } from '../mutants/results.ts';
import { sampleReport, sampleTable } from '../mutants/sample-report.ts';
import { TypeScriptProject } from '../mutants/typescript-mutations.ts';
import { noPython } from '../support/python.ts';

const root = mkdtempSync(join(tmpdir(), 'cuffi-random-mutants-'));
after(() => rmSync(root, { recursive: true, force: true }));

const script = `// Comments and types have none: 1 < 2 && 3.
type Digit = 1 | 2;
export interface Options { readonly size?: 3; readonly isFast?: boolean }
const names = new Map<number, string>([[0x10, '–𝄞']]);
declare function wait(): Promise<void>;
export function check(low: number, high: number, { isFast = true }: { isFast?: boolean } = {}): boolean {
  if (low > high) throw new RangeError('low');
  if (isFast) return low < high; else return low <= high;
}
export class Thing {
  items: number[] = [];
  add(item: number): void {
    this.items.push(item);
    names.delete(item);
  }
  async close(): Promise<void> {
    if (this.items.length === 0) names.clear();
    try {
      await wait();
    } catch (error) {
      names.clear();
      throw error;
    }
  }
  has(digit: Digit): boolean {
    const all = this.items.every((item) => check(item, digit));
    return all || this.items.some((item) => item === digit);
  }
}
`;

const module = `"""Comments and annotations have none: 1 < 2 and 3."""
# 1 < 2
from typing import Literal, overload
LIMIT: Literal[7] = 7

@overload
def check(low: int, high: int, is_fast: bool = ...) -> bool: ...

def check(low, high, is_fast=True, *, size: int = 3):
    if low > high:
        raise ValueError(f"{low}: 1 < 2 –𝄞")
    return low < high if is_fast else (low  # and <
        ) <= high

class Thing:
    def add(self, item, other):
        self.items.append(item)
        check(item, other)

    async def close(self):
        try:
            await self.wait()
        finally:
            self.items.clear()

    def has(self, digit):
        return any(item == digit for item in self.items) or all(self.items)
`;

/** The changes of each kind, with their lines. */
const expected: Readonly<Record<string, Readonly<Record<Kind, readonly string[]>>>> = {
  'src/thing.ts': {
    cleanup: [
      '17: names.clear(); -> {}',
      '19: await wait(); -> ',
      '21: names.clear(); -> ',
      '22: throw error; -> ',
    ],
    await: ['19: await  -> '],
    guard: ["7: if (low > high) throw new RangeError('low'); -> "],
    quantifier: ['26: every -> some', '27: some -> every'],
    logic: ['27: || -> &&'],
    limit: ['7: > -> >=', '8: < -> <=', '8: <= -> <'],
    order: [
      '13: this.items.push(item); names.delete(item); -> names.delete(item); this.items.push(item);',
    ],
    arguments: ['26: item, digit -> digit, item'],
    constant: ['4: 0x10 -> 17', '17: 0 -> 1'],
    default: ['6: true -> false'],
  },
  'src/python/cuffi/_thing.py': {
    cleanup: ['22: await self.wait() -> pass', '24: self.items.clear() -> pass'],
    await: ['22: await  -> '],
    guard: ['10: if low > high: raise ValueError(f"{low}: 1 < 2 –𝄞") -> pass'],
    quantifier: ['27: any -> all', '27: all -> any'],
    logic: ['27: or -> and'],
    limit: ['10: > -> >=', '12: < -> <=', '13: <= -> <'],
    order: [
      '17: self.items.append(item) check(item, other) -> check(item, other) self.items.append(item)',
    ],
    arguments: ['18: item, other -> other, item'],
    constant: ['4: 7 -> 8'],
    default: ['9: True -> False', '9: 3 -> 4'],
  },
};

const files = { 'ffi/other.ts': '', 'src/thing.ts': script, 'src/python/cuffi/_thing.py': module };
let project: TypeScriptProject;
before(() => {
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(join(root, dirname(file)), { recursive: true });
    writeFileSync(join(root, file), text);
  }
  const compilerOptions = { target: 'es2022', strict: true, noEmit: true, types: [] };
  writeFileSync(
    join(root, 'tsconfig.json'),
    JSON.stringify({ compilerOptions, include: ['ffi', 'src'] }),
  );
  project = new TypeScriptProject(root);
});
after(() => project[Symbol.dispose]());

describe('findMutations', { skip: noPython }, () => {
  for (const [file, kinds] of Object.entries(expected))
    test(`finds the mutations of each kind in ${file}, and nothing else`, () => {
      const source = files[file as keyof typeof files];
      const found = findMutations(root, project, [file]);
      const tell = ({ begin, end, replacement }: (typeof found)[number]): string =>
        `${lineAt(source, begin)}: ${source.slice(begin, end)} -> ${replacement}`.replace(
          /\n +/g,
          ' ',
        );
      const told = Object.keys(KINDS).map((kind) => [
        kind,
        found.filter((each) => each.kind === kind).map(tell),
      ]);
      assert.deepEqual(Object.fromEntries(told), kinds);
      for (const mutation of found)
        assert.equal(isRefused(project, file, apply(source, mutation)), false, tell(mutation));
    });

  test('refuses what does not compile', () => {
    assert.equal(isRefused(project, 'src/thing.ts', `${script}const x: string = 1;`), true);
    assert.equal(isRefused(project, 'src/python/cuffi/_thing.py', `${module}return`), true);
    assert.equal(isRefused(project, 'src/thing.ts', script), false);
  });
});

describe('drawSample', { skip: noPython }, () => {
  test('draws the same mutants from the same seed, and others from another', () => {
    const ids = (seed: string): string[] =>
      drawSample(root, 10, seed, (place) => place.includes('thing.ts')).map(({ id }) => id);
    assert.deepEqual(ids('a'), ids('a'));
    assert.notDeepEqual(ids('a'), ids('b'));
  });

  test('gives each room the same share, and draws no mutation twice', () => {
    const drawn = drawSample(root, 8, 'a');
    const count = (room: string): number => drawn.filter((each) => each.room === room).length;
    assert.deepEqual([count('src'), count('src/python')], [4, 4]);
    assert.equal(new Set(drawn.map(({ id }) => id)).size, 8);
  });

  test('draws what the run can plant, up to the last mutation of the files that are wanted', () => {
    const drawn = drawSample(root, 1000, 'a', (place) => place.includes('thing.ts'));
    assert.equal(drawn.length, Object.values(expected['src/thing.ts'] ?? {}).flat().length);
    for (const mutant of drawn)
      assert.equal(mutate(script, mutant), apply(script, mutant.mutation));
  });
});

describe('diffOf', () => {
  const source = 'first\nsecond\nthird\n';
  const change = (begin: number, end: number, replacement: string): string =>
    diffOf(source, { file: 'a', kind: 'order', begin, end, replacement });

  test('shows the lines that change, and those that stand instead', () => {
    assert.equal(change(6, 7, 'S'), '-second\n+Second');
    assert.equal(change(6, 12, ''), '-second');
    assert.equal(change(0, 12, 'second\nfirst'), '-first\n-second\n+second\n+first');
  });

  test('leaves out the lines at both ends that stay', () => {
    assert.equal(change(0, 18, 'first\nother\nthird'), '-second\n+other');
  });
});

describe('the coverage', () => {
  const lines = { 'src/a.ts': [1, 2, 3] };
  const coverage: Coverage = {
    'slow.test.ts': { isGreen: true, seconds: 100, lines },
    'quick.test.ts': { isGreen: true, seconds: 1, lines },
    'other.test.ts': { isGreen: true, seconds: 1, lines: { 'src/a.ts': [1] } },
  };

  test('names the tests that run a line, the quick and thorough ones first', () => {
    assert.deepEqual(testsThatRun(coverage, 'src/a.ts', 1), [
      'quick.test.ts',
      'other.test.ts',
      'slow.test.ts',
    ]);
    assert.deepEqual(testsThatRun(coverage, 'src/a.ts', 3), ['quick.test.ts', 'slow.test.ts']);
    assert.deepEqual(testsThatRun(coverage, 'src/b.ts', 1), []);
  });

  test('reads the mappings of a source map: offsets, sources and lines', () => {
    // Column 0 of source 0, line 1; column 4 of line 3; then the second row: source 1, line 2.
    assert.deepEqual(
      [...decodeMappings('AAAA,IAEA;ACDA', [10, 5])],
      [
        [0, 0, 1],
        [4, 0, 3],
        [11, 1, 2],
      ],
    );
  });
});

describe('the report of a sample', { skip: noPython }, () => {
  test('has the shares by room and kind, and each survivor as a diff', () => {
    const drawn = drawSample(root, 3, 'a', (place) => place.includes('thing.ts'));
    const sample = drawn.map((mutant, at) =>
      at === 2 ? { ...mutant, equivalent: 'nobody reads it' } : mutant,
    );
    const statuses = ['noticed', 'survived', 'survived'] as const;
    const results = new Map(
      sample.map(({ id }, at): [string, Result] => [
        id,
        { key: id, id, status: statuses[at] ?? 'survived', by: '', seconds: 1 },
      ]),
    );
    const page = sampleTable('a', sample, results, () => script);
    assert.match(page, /^Seed a: 3 drawn, 2 counted$/m);
    assert.match(page, /^\| src \| 1 of 2 \| 50 % \|$/m);
    assert.match(page, /^Not noticed \(1\):$/m);
    assert.match(page, /\(survived\) nobody reads it/);
    const [, survivor] = sample;
    assert.ok(
      survivor &&
        page.includes(`${survivor.id} ${survivor.kind} \`src/thing.ts:${survivor.line}\``),
    );
    assert.doesNotMatch(page, /undecided/);
    const report = sampleReport('a', sample, results, () => script) as { mutants: object[] };
    assert.equal(report.mutants.length, 3);
  });

  test('counts what is not decided yet as not noticed, and says so', () => {
    const sample = drawSample(root, 2, 'a', (place) => place.includes('thing.ts'));
    const page = sampleTable('a', sample, new Map(), () => script);
    assert.match(page, /^\*\*Not finished\*\*: 2 are undecided, and count as not noticed\.$/m);
    assert.match(page, /^\| \*\*all\*\* \| 0 of 2 \| 0 % \|$/m);
  });
});
