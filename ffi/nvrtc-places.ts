/** Finds libnvrtc and the CUDA headers of toolkits, pip and conda. */

import { readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, delimiter, dirname, join, resolve } from 'node:path';
import { readSetting } from './settings.ts';

/** Names to try in the loader's own folders. */
const LOADER_NAMES = [
  'libnvrtc.so.14',
  'libnvrtc.so.13',
  'libnvrtc.so.12',
  'libnvrtc.so.11.2',
  'libnvrtc.so',
];

const LIBRARY = /^libnvrtc\.so((?:\.\d+)*)$/;
const TARGETS = ['targets/x86_64-linux', 'targets/sbsa-linux', 'targets/aarch64-linux'];

const entriesOf = (folder: string): string[] => {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
};

const isFile = (path: string): boolean =>
  statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;

const isNamed = (path: string | undefined): path is string => path !== undefined && path !== '';

/** Package folders of Python: of the active environment, of every python3 in PATH, of the user. */
function sitePackages(env: NodeJS.ProcessEnv): string[] {
  const pythons = (env['PATH'] ?? '')
    .split(delimiter)
    .filter((folder) => folder !== '' && isFile(join(folder, 'python3')));
  const prefixes = [
    env['VIRTUAL_ENV'],
    env['CONDA_PREFIX'],
    // python3 of an environment is a link to another Python, which has packages too.
    ...pythons.flatMap((folder) => [
      dirname(folder),
      dirname(dirname(realpathSync(join(folder, 'python3')))),
    ]),
    join(homedir(), '.local'),
    '/usr/local',
    '/usr',
  ].filter(isNamed);
  const sites = prefixes.flatMap((prefix) =>
    ['lib', 'lib64'].flatMap((lib) =>
      entriesOf(join(prefix, lib))
        .filter((name) => /^python3(\.\d+)?$/.test(name))
        .flatMap((name) =>
          ['site-packages', 'dist-packages'].map((packages) => join(prefix, lib, name, packages)),
        ),
    ),
  );
  const named = (env['PYTHONPATH'] ?? '').split(delimiter).filter(isNamed);
  return [...named, ...sites];
}

/** Folders that may have lib and include, in order of preference. */
function toolkitRoots(env: NodeJS.ProcessEnv): string[] {
  const named = [env['CUDA_HOME'], env['CUDA_PATH'], env['CONDA_PREFIX']].filter(isNamed);
  const toolkits = entriesOf('/usr/local').filter((name) => /^cuda(-[\d.]+)?$/.test(name));
  const wheels = sitePackages(env).flatMap((site) =>
    entriesOf(join(site, 'nvidia'))
      .filter((name) => /^(cu\d+|cuda_nvrtc|cuda_runtime|cuda_cccl)$/.test(name))
      .map((name) => join(site, 'nvidia', name)),
  );
  const installed = toolkits.map((name) => join('/usr/local', name));
  const all = [...named, ...wheels, ...installed, '/opt/cuda'];
  return [
    ...new Set(all.flatMap((root) => [root, ...TARGETS.map((target) => join(root, target))])),
  ];
}

const versionOf = (path: string): number[] =>
  (LIBRARY.exec(basename(path))?.[1] ?? '').split('.').slice(1).map(Number);

const newestFirst = (a: readonly number[], b: readonly number[]): number =>
  [0, 1, 2].map((n) => (b[n] ?? 0) - (a[n] ?? 0)).find((difference) => difference !== 0) ?? 0;

/** All libnvrtc in a folder. The version of a link is that of its target. */
const nvrtcLibrariesIn = (
  folder: string,
): { readonly path: string; readonly version: number[] }[] =>
  entriesOf(folder)
    .filter((name) => LIBRARY.test(name))
    .map((name) => join(folder, name))
    .filter(isFile)
    .map((path) => ({ path, version: versionOf(realpathSync(path)) }));

/**
 * Paths and names of libnvrtc to try: `CUFFI_NVRTC` alone if it is set, otherwise all that the loader
 * and the usual folders may have, newest first.
 */
export function nvrtcCandidates(env: NodeJS.ProcessEnv = process.env): readonly string[] {
  const chosen = readSetting('CUFFI_NVRTC', env);
  if (chosen) return [chosen];
  const found = [
    ...LOADER_NAMES.map((path) => ({ path, version: versionOf(path) })),
    ...toolkitRoots(env).flatMap((root) =>
      ['lib64', 'lib'].flatMap((lib) => nvrtcLibrariesIn(join(root, lib))),
    ),
  ];
  return [
    ...new Set(found.sort((a, b) => newestFirst(a.version, b.version)).map(({ path }) => path)),
  ];
}

/** The file of a loaded library, by the name or path that opened it. */
export function loadedFile(path: string): string | undefined {
  if (path.includes('/')) return realpathSync(path);
  const line = readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .find((mapping) => basename(mapping).startsWith(path));
  return line?.slice(line.indexOf('/'));
}

/**
 * The folders of CUDA's headers (`cuda_fp16.h`, `cooperative_groups.h`), preferably next to the
 * library
 * `file`. Empty if no headers are found.
 */
export function headerFolders(
  file: string | undefined,
  env: NodeJS.ProcessEnv = process.env,
): readonly string[] {
  const beside = file ? [resolve(dirname(file), '..')] : [];
  const folder = [...beside, ...toolkitRoots(env)]
    .map((root) => join(root, 'include'))
    .find((include) => isFile(join(include, 'cuda_fp16.h')));
  // Since CUDA 13 the C++ library has a folder of its own.
  return folder ? [folder, join(folder, 'cccl')].filter((path) => entriesOf(path).length > 0) : [];
}
