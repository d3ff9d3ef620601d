/**
 * What is published: the files that npm would pack, with a package.json that has only what users need.
 * `prepare` and the tools of development are not in it, nor source maps of the code, which would be a
 * seventh of the package.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** Fields of package.json that only serve development. */
const DEVELOPMENT = ['scripts', 'devDependencies', 'knip'];

/** The package, packed. */
export interface PackedPackage {
  readonly path: string;
  readonly byteLength: number;
  readonly files: readonly string[];
}

/** Packs the package into `folder`, from the dist that is there. @throws Error with npm's output */
export function packPackage(folder: string): PackedPackage {
  const stage = join(folder, 'package');
  mkdirSync(stage, { recursive: true });
  copyPublished(stage);

  const manifest = JSON.parse(readFileSync(join(stage, 'package.json'), 'utf8'));
  for (const field of DEVELOPMENT) delete manifest[field];
  writeFileSync(join(stage, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  for (const name of readdirSync(join(stage, 'dist'), { recursive: true }) as string[]) {
    if (!name.endsWith('.js')) continue;
    const path = join(stage, 'dist', name);
    const text = readFileSync(path, 'utf8');
    writeFileSync(path, text.replace(/\n\/\/# sourceMappingURL=.*\n?$/, '\n'));
  }
  const packed = pack(stage, folder);
  rmSync(stage, { recursive: true });
  return packed;
}

/**
 * Copies what npm chooses from: the folders that `files` names something of, and the files beside
 * package.json. npm looks through all of what it is given, which takes seconds for the whole project.
 */
function copyPublished(to: string): void {
  const { files } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    files: string[];
  };
  const named = files.filter((name) => !name.startsWith('!')).map((name) => name.split('/')[0]);
  for (const entry of readdirSync(root, { withFileTypes: true }))
    if (entry.isFile() || named.includes(entry.name))
      cpSync(join(root, entry.name), join(to, entry.name), {
        recursive: true,
        preserveTimestamps: true,
      });
}

function pack(from: string, to: string): PackedPackage {
  const args = ['pack', '--json', '--ignore-scripts', `--pack-destination=${to}`];
  const [made] = JSON.parse(run('npm', args, from)) as [
    { filename: string; size: number; files: { path: string }[] },
  ];
  return {
    path: join(to, made.filename),
    byteLength: made.size,
    files: made.files.map(({ path }) => path),
  };
}

/** Runs a program to its end, and returns what it printed. @throws Error with all of it */
function run(file: string, args: readonly string[], cwd: string = root): string {
  const { status, stdout, stderr, error } = spawnSync(file, args, {
    cwd,
    encoding: 'utf8',
    maxBuffer: 64 << 20,
    env: { ...process.env, npm_config_update_notifier: 'false' },
  });
  if (error) throw error;
  if (status !== 0) throw new Error(`${file} ${args.join(' ')}\n${stdout}${stderr}`);
  return stdout;
}
