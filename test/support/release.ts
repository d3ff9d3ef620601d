/**
 * Releases the version of package.json: `npm run release` checks, packs and tries it without
 * publishing; `npm run release -- --publish` publishes, with provenance, which npm only makes in a
 * workflow that has an identity (.github/workflows/release.yml). Both write the wheel of the companion for
 * Python into the folder `release`: the workflow keeps it, and no index gets it from here.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { packPackage } from './package-folder.ts';

/** The most that the packed package may have, in bytes. */
export const MAX_PACKED_BYTES = 1_380_000;

/** Returns what is against releasing the version of a checkout; nothing if it can be released. */
export function findObstacles(root: string): string[] {
  const { version, repository } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    version: string;
    repository?: { url?: string };
  };
  const git = (...args: string[]): string =>
    spawnSync('git', args, { cwd: root, encoding: 'utf8' }).stdout.trimEnd();
  const obstacles: string[] = [];

  const changed = git('status', '--porcelain');
  if (changed !== '') obstacles.push(`the tree has changes that are not committed:\n${changed}`);

  const heading = /^## (.*)$/m.exec(readFileSync(join(root, 'CHANGELOG.md'), 'utf8'))?.[1];
  if (heading?.split(' ')[0] !== version)
    obstacles.push(`the first heading of CHANGELOG.md is “${heading}”, not “${version}”`);

  const companion = join(root, 'src/python/cuffi/_version.py');
  if (existsSync(companion)) {
    const its = /^__version__ = '(.*)'$/m.exec(readFileSync(companion, 'utf8'))?.[1];
    if (its !== version)
      obstacles.push(`the companion for Python has the version “${its}”, not “${version}”`);
  }

  const tag = `v${version}`;
  const remote = git('remote', 'get-url', 'origin');
  const remoteTag = remote === '' ? '' : git('ls-remote', '--tags', 'origin', `refs/tags/${tag}`);
  if (git('tag', '--list', tag) !== '' || remoteTag !== '')
    obstacles.push(`the tag ${tag} exists: ${version} was released before`);

  const named = repositoryPath(repository?.url ?? '');
  if (remote !== '' && repositoryPath(remote) !== named)
    obstacles.push(
      `package.json names the repository ${named || '(none)'}, but origin is ${remote}: npm compares them for the provenance`,
    );
  return obstacles;
}

/** `owner/name` of a URL of a repository, by https or ssh. */
const repositoryPath = (url: string): string =>
  /[:/]([^/:]+\/[^/]+?)(\.git)?\/?$/.exec(url)?.[1]?.toLowerCase() ?? '';

/**
 * Writes the wheel of the companion for Python into a folder, and returns its path. The same files make the
 * same wheel.
 *
 * @throws Error with Python's output
 */
export function buildWheel(folder: string, python = 'python3'): string {
  const program = 'import sys, cuffi_build; print(cuffi_build.build_wheel(sys.argv[1]))';
  const { stdout, stderr, status, error } = spawnSync(python, ['-B', '-c', program, folder], {
    encoding: 'utf8',
    env: {
      ...process.env,
      PYTHONPATH: fileURLToPath(new URL('../../src/python', import.meta.url)),
    },
  });
  if (error) throw error;
  if (status !== 0) throw new Error(`the wheel cannot be built:\n${stderr}`);
  return join(folder, stdout.trim());
}

function release(publish: boolean): number {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const obstacles = findObstacles(root);
  if (publish && !process.env['ACTIONS_ID_TOKEN_REQUEST_URL'])
    obstacles.push(
      'npm makes the provenance only in a workflow with the permission id-token: write',
    );
  if (obstacles.length > 0) {
    console.error(obstacles.map((each) => `release: ${each}`).join('\n'));
    return 1;
  }
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-release-'));
  try {
    const { path, byteLength, files } = packPackage(folder);
    console.log(`${byteLength} bytes in ${files.length} files`);
    if (byteLength > MAX_PACKED_BYTES) {
      console.error(`release: the package has more than ${MAX_PACKED_BYTES} bytes`);
      return 1;
    }
    const made = join(root, 'release');
    mkdirSync(made, { recursive: true });
    console.log(`the wheel is ${buildWheel(made)}`);
    const args = ['publish', path, '--provenance', '--access=public', '--ignore-scripts'];
    const { status } = spawnSync('npm', publish ? args : [...args, '--dry-run'], {
      stdio: 'inherit',
    });
    return status ?? 1;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { publish: { type: 'boolean', default: false } } });
  process.exitCode = release(values.publish);
}
