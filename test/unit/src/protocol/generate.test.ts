/** The facts of the protocol are stated once, and what is generated from them is up to date. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CU_IPC_HANDLE_SIZE } from '../../../../ffi/constants.ts';
import { MAX_MESSAGE_BYTE_LENGTH, MAX_MESSAGE_FDS } from '../../../../ffi/linux/message.ts';
import { MAX_NDIM } from '../../../../src/array/shape.ts';
import * as protocol from '../../../../src/ipc/protocol.ts';
import { checkFacts, readFacts, snake } from '../../../../src/protocol/facts.ts';
import { generate } from '../../../../src/protocol/generate.ts';

const root = fileURLToPath(new URL('../../../../', import.meta.url));
const read = (path: string): string => readFileSync(join(root, path), 'utf8');
const facts = readFacts();

type Writable = { -readonly [K in keyof typeof facts]: (typeof facts)[K] };

/** Returns a copy of the facts that a test may change. */
const changed = (change: (facts: Writable) => void): unknown => {
  const copy = structuredClone(facts);
  change(copy as Writable);
  return copy;
};

describe('generate', () => {
  for (const [path, text] of generate())
    test(`${path} is what the generator writes: npm run protocol`, () => {
      assert.equal(read(path), text);
    });

  test('a limit, a tag and an offset that change in the facts change in all that is generated', () => {
    const files = generate(
      checkFacts(
        changed((copy) => {
          for (const limit of copy.limits) if (limit.name === 'slots') limit.value = 77;
          for (const { name, members } of copy.enumerations) {
            if (name === 'Tag') for (const one of members) if (one.name === 'date') one.value = 99;
            if (name === 'RingWord')
              for (const one of members) if (one.name === 'filled') one.value = 16;
          }
        }),
      ),
    );
    const [typescript, python, page] = [...files.values()] as [string, string, string];
    for (const line of ['MAX_SLOTS = 77;', '  date: 99,', '  filled: 16,'])
      assert.ok(typescript.includes(line), line);
    for (const line of ['MAX_SLOTS = 77\n', 'TAG_DATE = 99\n', 'RING_FILLED = 16\n'])
      assert.ok(python.includes(line), line);
    for (const line of ['| slots | 77 |', '| 99 | date |', '| 16 | filled |'])
      assert.ok(page.includes(line), line);
  });
});

describe('checkFacts', () => {
  const refused: readonly (readonly [string, (copy: Writable) => unknown, RegExp])[] = [
    ['an unknown field', (copy) => Object.assign(copy, { more: 1 }), /more/],
    ['a missing list', (copy) => Reflect.deleteProperty(copy, 'kinds'), /kinds/],
    [
      'two members of one value',
      ({ enumerations }) => {
        const [first, second] = enumerations[0]?.members ?? [];
        if (first && second) second.value = first.value;
      },
      /the value in FrameKind 0 comes twice/,
    ],
    [
      'a field of an unknown type',
      ({ kinds }) => {
        kinds[0]?.fields.push({ name: 'more', type: 'text' });
      },
      /more has the unknown type text/,
    ],
    [
      'a kind out of place',
      ({ kinds }) => kinds.reverse(),
      /kind channel has the number 7 at place 0/,
    ],
    [
      'versions in the wrong order',
      ({ version }) => {
        version.min = 9;
      },
      /the least version is above the greatest/,
    ],
    [
      'names that are one in Python',
      ({ enumerations }) => {
        for (const one of enumerations) if (one.prefix === 'HEADER_AT') one.prefix = 'HEADER';
      },
      /the name in Python HEADER_BYTE_LENGTH comes twice/,
    ],
  ];
  for (const [what, change, why] of refused)
    test(`refuses ${what}`, () => {
      assert.throws(() => checkFacts(changed(change)), why);
    });
});

describe('protocol.json', () => {
  test('says what the layers below can do', () => {
    assert.equal(protocol.PACKET_BYTE_LENGTH, MAX_MESSAGE_BYTE_LENGTH);
    assert.equal(protocol.PACKET_FDS, MAX_MESSAGE_FDS);
    assert.equal(protocol.HANDLE_BYTE_LENGTH, CU_IPC_HANDLE_SIZE);
    assert.equal(protocol.MAX_AXES, MAX_NDIM);
  });

  // What follows from names: code that states a fact of the protocol by hand would call it so.
  const names = [
    ...facts.constants.map(({ name }) => snake(name)),
    ...facts.limits.map(({ name }) => `MAX_${snake(name)}`),
    ...facts.enumerations.map(({ name }) => name),
    ...facts.enumerations.flatMap(({ prefix, members }) =>
      members.map(({ name }) => `${prefix}_${snake(name)}`),
    ),
  ];
  const files = execFileSync(
    'git',
    ['ls-files', '-co', '--exclude-standard', 'src/ipc', 'src/python', 'src/cli'],
    {
      cwd: root,
      encoding: 'utf8',
    },
  )
    .split('\n')
    .filter((path) => /\.(ts|py)$/.test(path) && !/^src\/protocol\/|protocol\.(ts|py)$/.test(path));

  test('is the only place that states its facts', () => {
    const stated = files.flatMap((path) => {
      const text = read(path);
      return names
        .filter((name) => new RegExp(`^(export )?(const |)_?${name}\\b[^=\n(]* = `, 'm').test(text))
        .map((name) => `${path}: ${name}`);
    });
    assert.deepEqual(stated, []);
  });

  test('has no fact that nobody uses', () => {
    const text = files
      .filter((path) => /^src\/(ipc|python)\//.test(path))
      .map(read)
      .join('\n');
    const python = new Set(
      facts.enumerations.flatMap(({ prefix, members }) =>
        members.map(({ name }) => `${prefix}_${snake(name)}`),
      ),
    );
    const unused = names.filter(
      (name) => !python.has(name) && !new RegExp(`\\b${name}\\b`).test(text),
    );
    const members = facts.enumerations.flatMap(({ name, prefix, members: all }) =>
      all
        .filter(
          (one) =>
            !new RegExp(`\\b(${name}\\.${one.name}|${prefix}_${snake(one.name)})\\b`).test(text),
        )
        .map((one) => `${name}.${one.name}`),
    );
    assert.deepEqual([...unused, ...members], []);
  });
});
