/**
 * Packs what the project's scripts need into .gpu/, for a machine with a GPU that has neither Node
 * nor a network: this machine's Node and the modules that the build, the demo, the tests and the
 * bench use. `bash .gpu/run.sh` on the other machine does the rest.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** What is packed, with everything that it depends on. No linters, no checkers. */
const packages = [
  'koffi',
  'zod',
  'tsx',
  'typescript',
  '@types/node',
  'fast-check',
  'expect-type',
  'markdown-table',
];

/** What is still quickly copied along with the tree. */
const MAX_BYTES = 45 * 2 ** 20;

/** Files that only a reader needs, and sources whose build is there. */
const unneeded = /\.map$|\.md$|^zod\/src\/|^koffi\/doc\//;

const root = fileURLToPath(new URL('../..', import.meta.url));
const modules = join(root, 'node_modules');
const output = join(root, '.gpu');

const staging = mkdtempSync(join(tmpdir(), 'cuffi-pack-gpu-'));
try {
  const folders = withDependencies(packages);
  for (const folder of folders) {
    cpSync(folder, join(staging, relative(root, folder)), {
      recursive: true,
      filter: (file) =>
        !unneeded.test(relative(modules, file)) && !relative(folder, file).includes('node_modules'),
    });
  }
  linkPrograms(folders);
  addNode();

  rmSync(output, { recursive: true, force: true });
  mkdirSync(output);
  const archive = join(output, 'tools.tar.xz');
  compress(archive);
  const checksum = createHash('sha256').update(readFileSync(archive)).digest('hex');
  writeFileSync(join(output, 'run.sh'), template('run.sh').replace('@CHECKSUM@', checksum), {
    mode: 0o755,
  });

  const { size } = statSync(archive);
  console.log(`.gpu: ${(size / 2 ** 20).toFixed(1)} MiB, node ${process.version} and`);
  console.log(folders.map((folder) => `  ${relative(modules, folder)}`).join('\n'));
  if (size > MAX_BYTES) throw new Error(`.gpu is larger than ${MAX_BYTES / 2 ** 20} MiB`);
} finally {
  rmSync(staging, { recursive: true, force: true });
}

/** The folders of packages and of all that they depend on, as they are installed. */
function withDependencies(names: readonly string[]): string[] {
  const found = new Set<string>();
  const visit = (name: string, from: string, optional: boolean): void => {
    const folder = installedFrom(name, from);
    if (folder === undefined) {
      // An optional dependency is installed for its own platform only.
      if (optional) return;
      throw new Error(`${name} is not installed: npm ci`);
    }
    if (found.has(folder)) return;
    found.add(folder);
    const { dependencies = {}, optionalDependencies = {} } = manifest(folder);
    for (const dependency of Object.keys({ ...dependencies, ...optionalDependencies }))
      visit(dependency, folder, dependency in optionalDependencies);
  };
  for (const name of names) visit(name, root, false);
  return [...found].sort();
}

/** Where node would find a package, looked for from a folder upwards, in this tree only. */
function installedFrom(name: string, from: string): string | undefined {
  for (let folder = from; folder.startsWith(resolve(root)); folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name);
    if (existsSync(join(candidate, 'package.json'))) return candidate;
  }
  return undefined;
}

interface Manifest {
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

function manifest(folder: string): Manifest {
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
}

/** The links in node_modules/.bin whose programs are packed. */
function linkPrograms(folders: readonly string[]): void {
  const bin = join(modules, '.bin');
  mkdirSync(join(staging, 'node_modules/.bin'));
  for (const name of readdirSync(bin)) {
    const target = readlinkSync(join(bin, name));
    const isPacked = folders.some((folder) => resolve(bin, target).startsWith(`${folder}/`));
    if (isPacked) symlinkSync(target, join(staging, 'node_modules/.bin', name));
  }
}

/** bin/node, without its symbols where `strip` is there, and a small bin/npm. */
function addNode(): void {
  const bin = join(staging, 'bin');
  mkdirSync(bin);
  cpSync(process.execPath, join(bin, 'node'), { dereference: true });
  if (spawnSync('strip', ['--version']).status === 0) run('strip', join(bin, 'node'));
  writeFileSync(join(bin, 'npm'), template('npm.sh'));
  chmodSync(join(bin, 'npm'), 0o755);
}

/** The same files make the same archive, so that what is unpacked elsewhere stays valid. */
function compress(archive: string): void {
  const tar = join(staging, 'tools.tar');
  const same = '--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner'.split(' ');
  run('tar', '-cf', tar, ...same, '-C', staging, 'bin', 'node_modules');
  run('xz', '-T0', '-6', tar);
  cpSync(`${tar}.xz`, archive);
}

function template(name: string): string {
  return readFileSync(new URL(`gpu/${name}`, import.meta.url), 'utf8');
}

function run(file: string, ...args: string[]): void {
  const { status, error } = spawnSync(file, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`${file} ended with ${status}`);
}
