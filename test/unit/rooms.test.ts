/** The order of the rooms, stated here once: who may import what, and that nothing goes in a circle. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { plantedImports } from './planted-imports.ts';

/**
 * A file imports from its own room and from earlier ones. A room is a folder, or a file that stands above the
 * others of its folder.
 */
const ROOMS = [
  'ffi',
  'ffi/emulator',
  'src',
  'src/waits',
  // What waits for the GPU asks first what may block, and so stands above that.
  'src/context.ts',
  'src/internal-event.ts',
  'src/stream.ts',
  'src/event.ts',
  'src/python',
  'src/memory',
  'src/memory/manager',
  'src/kernel',
  'src/array',
  'src/ipc',
  'src/ipc/timeline',
  'src/ipc/wire',
  'src/ipc/channel',
  'src/ipc/sharing',
  'src/ipc/lease',
  'src/ipc/peer',
  'src/ipc/pool',
  'src/ipc/inspect',
  'src/tensors',
  'src/cli',
  'src/protocol',
  'test',
  'bench',
  'docs',
] as const;

/** Folders that are a part of the room around them. All others of `ffi` and `src` are rooms. */
const PARTS: readonly string[] = ['ffi/functions', 'ffi/linux', 'src/cli/doctor'];

/** The entries only re-export, each up to a room: nothing inside imports them. */
const ENTRIES: Readonly<Record<string, string>> = {
  'ffi/index.ts': 'ffi',
  'ffi/emulator/index.ts': 'ffi/emulator',
  'src/index.ts': 'src/array',
  'src/ipc/index.ts': 'src/ipc/pool',
  'src/tensors/index.ts': 'src/tensors',
};

/** Files that import each other, and why they must. */
const PAIRS: readonly { readonly files: readonly string[]; readonly why: string }[] = [
  {
    files: ['src/kernel/kernel.ts', 'src/kernel/module.ts'],
    why: 'a module makes kernels, and a kernel has its module',
  },
];

/** What only some rooms may import. */
const PACKAGES: readonly { readonly name: RegExp; readonly in: RegExp; readonly why: string }[] = [
  {
    name: /^(koffi|@koromix)(\/|$)/,
    in: /^((ffi|test\/unit\/ffi|test\/abi)\/|bench\/ways\/bare-socket\.ts$)/,
    why: 'only ffi/, its tests and the floor of the bench talk to koffi',
  },
  {
    name: /^zod(\/|$)/,
    in: /^(src\/ipc\/zod\.ts$|(test|bench|docs)\/)/,
    why: 'the build takes what is used of zod from src/ipc/zod.ts',
  },
  {
    name: /^cuffi(\/|$)/,
    in: /^(bench|docs|test\/package)\//,
    why: 'the public names are for users: import the file itself',
  },
];

/**
 * The one file that loads another of a later room: the socket for `cuffi ls` is opened after the first export,
 * and asks all that is shared.
 */
const LOADER = { file: 'src/ipc/first-use.ts', loads: 'src/ipc/inspect/inspect-server.ts' };
const isLoader = (file: string, target: string): boolean =>
  file === LOADER.file && target === LOADER.loads;

const root = fileURLToPath(new URL('../..', import.meta.url));

const isIn = (file: string, room: string): boolean => file === room || file.startsWith(`${room}/`);
const roomOf = (file: string): number =>
  ROOMS.reduce<number>(
    (found, room, index) =>
      isIn(file, room) && room.length > (ROOMS[found]?.length ?? 0) ? index : found,
    -1,
  );

/** Why `file` may not import `specifier`, or nothing if it may. */
function objection(file: string, specifier: string): string | undefined {
  const rule = PACKAGES.find(({ name }) => name.test(specifier));
  if (rule) return rule.in.test(file) ? undefined : rule.why;
  if (!specifier.startsWith('.')) return undefined;
  const target = join(dirname(file), specifier);
  if (isIn(file, 'bench') || isIn(file, 'docs')) {
    if (/^(src|ffi|dist)\//.test(target)) return 'it uses the package as its users do';
    return isIn(file, 'docs') && !isIn(target, 'docs')
      ? 'an example stands by itself: a user copies it'
      : later(file, target);
  }
  if (isIn(file, 'test')) return later(file, target);
  if (isLoader(file, target)) return undefined;
  if (target.endsWith('/index.ts'))
    return 'an index.ts is for users: import the file that has the thing';
  if (isIn(target, 'ffi/emulator') && !isIn(file, 'ffi/emulator'))
    return 'ffi/driver.ts loads the emulated driver when it is chosen';
  return later(file, target);
}

function later(file: string, target: string): string | undefined {
  const entry = ENTRIES[file];
  const own = entry === undefined ? roomOf(file) : ROOMS.indexOf(entry as (typeof ROOMS)[number]);
  return roomOf(target) > own ? `${ROOMS[roomOf(target)]} comes after ${ROOMS[own]}` : undefined;
}

/** The specifiers of all imports and re-exports of a text: of types, of a whole file, and dynamic ones. */
function importsOf(text: string): string[] {
  const code = text.replaceAll(/^\s*(\/\/|\*|\/\*).*$/gm, '');
  return [
    ...code.matchAll(/(?:^|[\n;])\s*(?:import|export)\b(?:[^'"`;()]*?\bfrom)?\s*'([^']+)'/g),
    ...code.matchAll(/\bimport\(\s*'([^']+)'/g),
  ].map(([, specifier]) => specifier as string);
}

const filesOf = (folder: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter(({ name }) => name.endsWith('.ts'))
    .map(({ parentPath, name }) => relative(root, join(parentPath, name)));

/** The folders of `ffi` and `src` that have files of TypeScript. */
const foldersOf = (files: readonly string[]): Set<string> =>
  new Set(files.filter((file) => /^(ffi|src)\//.test(file)).map(dirname));

/** The folders that no list names, and the rooms and parts that do not exist. */
function unlisted(folders: ReadonlySet<string>, files: readonly string[]): string[] {
  const listed = [...ROOMS, ...PARTS];
  return [
    ...[...folders].filter((folder) => !listed.includes(folder)),
    ...listed.filter((room) => !files.some((file) => isIn(file, room))),
  ];
}

/** The groups of files that import each other, directly or through others, types included. */
function cycles(graph: ReadonlyMap<string, readonly string[]>): string[][] {
  const reach = (from: string): Set<string> => {
    const seen = new Set<string>();
    const open = [...(graph.get(from) ?? [])];
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      if (seen.has(next)) continue;
      seen.add(next);
      open.push(...(graph.get(next) ?? []));
    }
    return seen;
  };
  const reached = new Map([...graph.keys()].map((file) => [file, reach(file)]));
  const groups = new Map<string, string[]>();
  for (const [file, seen] of reached) {
    if (!seen.has(file)) continue;
    const group = [...seen].filter((other) => reached.get(other)?.has(file)).sort();
    groups.set(group.join(), group);
  }
  return [...groups.values()];
}

describe('the order of the rooms', () => {
  const imports = new Map(
    ['ffi', 'src', 'test', 'bench', 'docs']
      .flatMap(filesOf)
      .map((file) => [file, importsOf(readFileSync(join(root, file), 'utf8'))]),
  );

  test('lists every folder of ffi and src, and nothing that does not exist', () => {
    const files = [...imports.keys()];
    assert.deepEqual(unlisted(foldersOf(files), files), []);
  });

  test('the one file that may load another of a later room does so', () => {
    assert.ok(
      imports.get(LOADER.file)?.some((s) => join(dirname(LOADER.file), s) === LOADER.loads),
    );
  });

  test('no file imports what its room may not know', () => {
    const refused = [...imports].flatMap(([file, specifiers]) =>
      specifiers.flatMap((specifier) => {
        const reason = objection(file, specifier);
        return reason === undefined ? [] : [`${file} imports ${specifier}: ${reason}`];
      }),
    );
    assert.deepEqual(refused, []);
  });

  test('no files of ffi and src import each other, types included, but for the listed ones', () => {
    const graph = new Map(
      [...imports]
        .filter(([file]) => isIn(file, 'ffi') || isIn(file, 'src'))
        .map(([file, specifiers]) => [
          file,
          specifiers
            .filter((s) => s.startsWith('.'))
            .map((s) => join(dirname(file), s))
            .filter((target) => !isLoader(file, target)),
        ]),
    );
    assert.deepEqual(cycles(graph).sort(), PAIRS.map(({ files }) => [...files].sort()).sort());
  });

  test('an entry only re-exports', () => {
    for (const file of Object.keys(ENTRIES))
      assert.ok(isEntry(readFileSync(join(root, file), 'utf8')), file);
    assert.ok(
      isEntry(`// C\n/** D */\nexport * from './a.ts';\nexport { type A, b } from './b.ts';\n`),
    );
    assert.ok(!isEntry(`import './a.ts';\n`));
    assert.ok(!isEntry(`export * from './a.ts';\nexport const b = 1;\n`));
    assert.ok(!isEntry(`export { a };\n`));
  });
});

/** The ways to import: the check must see each. */
const forms: readonly ((specifier: string) => string)[] = [
  (specifier) => `export * from '${specifier}';`,
  (specifier) => `import '${specifier}';`,
  (specifier) => `import {\n  a,\n  type B,\n} from '${specifier}';`,
  (specifier) => `export type { T } from '${specifier}';`,
  (specifier) => `import type {} from '${specifier}';`,
  (specifier) => `const a = await import('${specifier}');`,
];

describe('the check of the rooms', () => {
  for (const { file, refused, allowed } of plantedImports)
    test(`refuses and allows what ${file} imports`, () => {
      for (const specifier of refused) assert.ok(objection(file, specifier), specifier);
      for (const specifier of allowed)
        assert.equal(objection(file, specifier), undefined, specifier);
    });

  test('sees every way to import', () => {
    const texts = forms.map((form, index) => form(`./${index}.ts`));
    assert.deepEqual(
      importsOf(`// import './comment.ts';\n${texts.join('\n')}`).sort(),
      forms.map((_, index) => `./${index}.ts`),
    );
  });

  test('sees a folder that no list names, and a room that is gone', () => {
    const files = [...ROOMS, ...PARTS].map((room) =>
      room.endsWith('.ts') ? room : `${room}/a.ts`,
    );
    const gone = files.filter((file) => file !== 'src/waits/a.ts' && file !== 'src/event.ts');
    assert.deepEqual(unlisted(foldersOf(files), files), []);
    assert.deepEqual(unlisted(foldersOf(gone), gone), ['src/waits', 'src/event.ts']);
    const added = [...files, 'src/nccl/a.ts', 'src/waits/deeper/a.ts'];
    assert.deepEqual(unlisted(foldersOf(added), added), ['src/nccl', 'src/waits/deeper']);
  });

  test('finds a circle, of types as well, and nothing besides', () => {
    const graph = new Map([
      ['a', ['b']],
      ['b', ['c', 'd']],
      ['c', ['a']],
      ['d', []],
      ['e', ['f']],
      ['f', ['e', 'a']],
    ]);
    assert.deepEqual(cycles(graph), [
      ['a', 'b', 'c'],
      ['e', 'f'],
    ]);
  });
});

function isEntry(text: string): boolean {
  return /^(export (type )?(\*( as \w+)?|\{[^{}]*\}) from '[^']+';\s*)*$/.test(
    text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '').trimStart(),
  );
}
