/** Samples of the mutations that a program makes, instead of the faults of the list. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Mutant } from './mutant.ts';
import { apply, CLEANUP_NAME, KINDS, type Kind, lineAt, type Mutation } from './mutations.ts';
import { TypeScriptProject } from './typescript-mutations.ts';

/** A mutation that was drawn, as the run takes it. */
export interface RandomMutant extends Mutant {
  readonly kind: Kind;
  /** Where its text begins. */
  readonly at: number;
  /** The first line that it changes. */
  readonly line: number;
  readonly mutation: Mutation;
}

/** The rooms of the list, except for the emulated driver. A file belongs to the longest that fits. */
const ROOMS = [
  'ffi',
  'src',
  'src/array',
  'src/cli',
  'src/ipc',
  'src/ipc/channel',
  'src/ipc/lease',
  'src/ipc/peer',
  'src/ipc/timeline',
  'src/kernel',
  'src/memory',
  'src/python',
] as const;

/** What no user runs, and what is generated. */
const LEFT_OUT =
  /\.d\.ts$|(^|\/)index\.ts$|^ffi\/emulator\/|^src\/protocol\/|^src\/ipc\/protocol\.ts$|\/_(protocol|error_texts|emulated)\.py$/;

const pythonProgram = fileURLToPath(new URL('python_mutations.py', import.meta.url));

/** All mutations of some TypeScript and Python files, file by file. */
export function findMutations(
  root: string,
  project: TypeScriptProject,
  files: readonly string[],
): Mutation[] {
  const scripts = files.filter((file) => file.endsWith('.ts'));
  const modules = files.filter((file) => file.endsWith('.py'));
  const output =
    modules.length === 0 ? '[]' : runPython([CLEANUP_NAME, ...modules], { cwd: root }).stdout;
  return [
    ...scripts.flatMap((file) => project.mutations(file)),
    ...(JSON.parse(output) as Mutation[]),
  ];
}

/** Whether a compiler would already report a text. No compiler checks the types of Python here. */
export function isRefused(project: TypeScriptProject, file: string, text: string): boolean {
  if (file.endsWith('.ts')) return project.errorWith(file, text) !== undefined;
  return runPython(['--compile'], { input: text, canFail: true }).status !== 0;
}

/**
 * Draws mutants. The same seed draws the same ones from the same tree.
 *
 * Rooms take turns, in an order that is drawn, so that each has the same share (but for one) however
 * large it is. In its turn, a room draws one of its kinds, then one of its files that have such
 * mutations, then one of those: no kind that is frequent and no large file dominates. What the
 * compiler refuses is drawn again, with the same kind.
 *
 * @param isWanted selects files, by `room file`
 */
export function drawSample(
  root: string,
  count: number,
  seed: string,
  isWanted: (place: string) => boolean = () => true,
): RandomMutant[] {
  using project = new TypeScriptProject(root);
  const files = sources(root).filter((file) => isWanted(`${roomOf(file)} ${file}`));
  const pools = new Map<string, Map<Kind, Map<string, Mutation[]>>>();
  for (const mutation of findMutations(root, project, files)) {
    const { file, kind } = mutation;
    const kinds = getOrAdd(pools, roomOf(file), () => new Map<Kind, Map<string, Mutation[]>>());
    const places = getOrAdd(kinds, kind, () => new Map<string, Mutation[]>());
    getOrAdd(places, file, () => []).push(mutation);
  }
  const random = generator(seed);
  const rooms = shuffled([...pools.keys()].sort(), random);
  const drawn: RandomMutant[] = [];
  while (drawn.length < count && pools.size > 0) {
    for (const room of rooms) {
      const kinds = pools.get(room);
      if (kinds === undefined || drawn.length === count) continue;
      const mutation = drawFrom(kinds);
      if (mutation === undefined) pools.delete(room);
      else drawn.push(asMutant(room, mutation, read(mutation.file)));
    }
  }
  return drawn;

  function drawFrom(kinds: Map<Kind, Map<string, Mutation[]>>): Mutation | undefined {
    while (kinds.size > 0) {
      const kind = take([...kinds.keys()].sort(), random);
      const places = kinds.get(kind) as Map<string, Mutation[]>;
      while (places.size > 0) {
        const file = take([...places.keys()], random);
        const mutations = places.get(file) as Mutation[];
        const [mutation] = mutations.splice(Math.floor(random() * mutations.length), 1);
        if (mutations.length === 0) places.delete(file);
        if (mutation && !isRefused(project, file, apply(read(file), mutation))) return mutation;
      }
      kinds.delete(kind);
    }
    return undefined;
  }

  function read(file: string): string {
    return readFileSync(join(root, file), 'utf8');
  }
}

/** A mutation as a fault of the run. Its id stays the same as long as its file does. */
function asMutant(room: string, mutation: Mutation, source: string): RandomMutant {
  const { file, kind, begin, end, replacement } = mutation;
  const digest = createHash('sha256')
    .update(JSON.stringify([file, source, begin, end, replacement]))
    .digest('hex');
  return {
    id: `R${digest.slice(0, 8)}`,
    room,
    file,
    text: source.slice(begin, end),
    replacement,
    plants: KINDS[kind],
    near: [],
    far: [],
    kind,
    at: begin,
    line: lineAt(source, begin),
    mutation,
  };
}

function sources(root: string): string[] {
  return ['ffi', 'src']
    .flatMap((folder) =>
      readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((name) =>
        join(folder, name),
      ),
    )
    .filter((file) => /\.ts$|^src\/python\/cuffi\/[^/]+\.py$/.test(file) && !LEFT_OUT.test(file))
    .sort();
}

function roomOf(file: string): string {
  const rooms = ROOMS.filter((room) => file.startsWith(`${room}/`));
  return rooms.sort((a, b) => b.length - a.length)[0] ?? '';
}

/** Numbers from 0 to 1, the same for the same seed: mulberry32. */
function generator(seed: string): () => number {
  let state = createHash('sha256').update(seed).digest().readUInt32LE();
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const take = <T>(items: readonly T[], random: () => number): T =>
  items[Math.floor(random() * items.length)] as T;

function shuffled<T>(items: readonly T[], random: () => number): T[] {
  const left = [...items];
  return items.map(() => left.splice(Math.floor(random() * left.length), 1)[0] as T);
}

function getOrAdd<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const value = map.get(key) ?? make();
  map.set(key, value);
  return value;
}

function runPython(
  args: readonly string[],
  {
    cwd,
    input,
    canFail = false,
  }: { readonly cwd?: string; readonly input?: string; readonly canFail?: boolean },
) {
  const result = spawnSync('python3', ['-I', '-S', pythonProgram, ...args], {
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    ...(cwd === undefined ? {} : { cwd }),
    ...(input === undefined ? {} : { input }),
  });
  if (result.error) throw result.error;
  if (result.status !== 0 && !canFail) throw new Error(result.stderr);
  return result;
}
