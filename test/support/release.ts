/**
 * Releases the version of package.json: `npm run release` checks, packs and tries it without
 * publishing; `npm run release -- --publish` publishes, with provenance. npm trusts the workflow that does so by
 * its identity (.github/workflows/release.yml), so there is no token. Both write the wheel of the companion for
 * Python and the list of what the package contains (SBOM) into the folder `release`: the workflow adds them to the
 * release on GitHub, and no index gets the wheel from here.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { packPackage } from './package-folder.ts';

/** The most that the packed package may have, in bytes. */
export const MAX_PACKED_BYTES = 1_440_000;

/**
 * A placeholder: nobody has made this repository yet. It stands in package.json, and in the files that must name
 * the same one. Who makes the repository replaces it there (`git grep github.com/cuffi`), and undefines it here.
 */
export const PLACEHOLDER_REPOSITORY: string | undefined = 'cuffi/cuffi';

/** The first npm that publishes for a workflow which a package trusts. */
const MIN_NPM = [11, 5, 1] as const;

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

/**
 * Returns what is against publishing from here.
 *
 * @param url of the repository of package.json
 */
export function findPublishingObstacles(
  url: string,
  npmVersion: string,
  env: NodeJS.ProcessEnv = process.env,
): string[] {
  const obstacles: string[] = [];
  if (!env['ACTIONS_ID_TOKEN_REQUEST_URL'])
    obstacles.push(
      'npm publishes without a token, and makes the provenance, only in a workflow with the permission id-token: write',
    );
  const found = npmVersion.split('.').map(Number);
  const at = MIN_NPM.findIndex((part, index) => part !== found[index]);
  if (at >= 0 && !((found[at] as number) > (MIN_NPM[at] as number)))
    obstacles.push(`npm ${npmVersion} needs a token to publish: use ${MIN_NPM.join('.')} or later`);
  const path = repositoryPath(url);
  if (path === PLACEHOLDER_REPOSITORY)
    obstacles.push(
      `package.json names the repository ${path}, a placeholder: see PLACEHOLDER_REPOSITORY in test/support/release.ts`,
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

// ---- What the package contains ----

interface Component {
  name: string;
  'bom-ref': string;
  version: string;
  hashes?: { readonly alg: string; readonly content: string }[];
  [field: string]: unknown;
}

/** The fields of an SBOM in the format CycloneDX that are changed here. */
interface Sbom {
  readonly metadata: { readonly component: Component; readonly lifecycles: { phase: string }[] };
  readonly components: Component[];
  readonly dependencies: { readonly ref: string; readonly dependsOn: string[] }[];
}

/** What the build takes parts of into dist: no dependency of package.json names it. */
const CONTAINED = { name: 'zod', in: 'dist/ffi/zod.js' } as const;

/**
 * Writes into a folder what a packed package contains and depends on, as CycloneDX, and returns its path. npm
 * writes it from the lock file; it lacks the hash of the package, and what the build took in.
 *
 * @throws Error with npm's output
 */
export function writeSbom(folder: string, packed: string): string {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const args = ['sbom', '--sbom-format=cyclonedx', '--sbom-type=library', '--omit=dev'];
  const { stdout, stderr, status, error } = spawnSync('npm', [...args, '--package-lock-only'], {
    cwd: root,
    encoding: 'utf8',
  });
  if (error) throw error;
  if (status !== 0) throw new Error(`npm sbom failed:\n${stderr}`);
  const sbom = JSON.parse(stdout) as Sbom;
  const { component } = sbom.metadata;
  // npm takes the name of the folder.
  component.name = (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Component).name;
  const digest = createHash('sha512').update(readFileSync(packed)).digest('hex');
  component.hashes = [{ alg: 'SHA-512', content: digest }];
  for (const lifecycle of sbom.metadata.lifecycles) lifecycle.phase = 'build';
  const zod = containedComponent(root);
  sbom.components.push(zod);
  sbom.dependencies.find(({ ref }) => ref === component['bom-ref'])?.dependsOn.push(zod['bom-ref']);
  sbom.dependencies.push({ ref: zod['bom-ref'], dependsOn: [] });
  const path = join(folder, `${component.name}-${component.version}.cdx.json`);
  writeFileSync(path, `${JSON.stringify(sbom, null, 2)}\n`);
  return path;
}

function containedComponent(root: string): Component {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { version: string; integrity: string; license: string }>;
  };
  const { name } = CONTAINED;
  const { version, integrity, license } = packages[`node_modules/${name}`] as (typeof packages)[''];
  const content = Buffer.from(integrity.replace('sha512-', ''), 'base64').toString('hex');
  return {
    'bom-ref': `${name}@${version}`,
    type: 'library',
    name,
    version,
    scope: 'required',
    purl: `pkg:npm/${name}@${version}`,
    pedigree: { notes: `Parts of it, without its unused code, are in ${CONTAINED.in}.` },
    hashes: [{ alg: 'SHA-512', content }],
    licenses: [{ license: { id: license } }],
  };
}

function release(publish: boolean): number {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const obstacles = findObstacles(root);
  if (publish) {
    const { stdout } = spawnSync('npm', ['--version'], { encoding: 'utf8' });
    const { repository } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
      repository: { url: string };
    };
    obstacles.push(...findPublishingObstacles(repository.url, stdout.trim()));
  }
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
    console.log(`the SBOM is ${writeSbom(made, path)}`);
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
