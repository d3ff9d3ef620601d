/**
 * The package that this code is a part of, and what is loaded from it late: at its first use. In a bundle
 * of another program there is no package around the code: what is not found then is named.
 */
import { readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** In CommonJS only. */
declare const __filename: string | undefined;

const url: string | undefined = import.meta.url;

/** This file: of the source, of dist, or of a bundle, which has no URL in CommonJS. */
const here: string =
  url !== undefined
    ? fileURLToPath(url)
    : typeof __filename === 'string'
      ? __filename
      : join(process.cwd(), 'bundle.js');

/**
 * Something that cuffi loads late is neither in the bundle that it is a part of, nor installed beside it.
 * The message says what, and what to do.
 */
export class BundledError extends Error {
  readonly code = 'bundled';

  constructor(what: string, remedy: string) {
    super(`${what}, and this is a bundle: ${here}. ${remedy}`);
    this.name = 'BundledError';
  }
}

const EXTERNAL =
  'mark cuffi as external (esbuild: --external:cuffi --external:cuffi/*), and install it where the bundle runs';

interface Manifest {
  readonly name: string;
  readonly version: string;
}

let found: { readonly folder: string; readonly version: string } | null | undefined;

/** The folder and the version of the package. Undefined in a bundle. */
function ownPackage(): { readonly folder: string; readonly version: string } | undefined {
  if (found === undefined) found = findPackage() ?? null;
  return found ?? undefined;
}

function findPackage(): { readonly folder: string; readonly version: string } | undefined {
  // The source is in ffi, and the build in dist/ffi.
  const folder = dirname(here);
  if (basename(folder) !== 'ffi') return undefined;
  const above = dirname(folder);
  const root = basename(above) === 'dist' ? dirname(above) : above;
  const manifest = manifestIn(root);
  return manifest?.name === 'cuffi' ? { folder: root, version: manifest.version } : undefined;
}

function manifestIn(folder: string): Manifest | undefined {
  try {
    return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
  } catch {
    return undefined;
  }
}

/** Whether this code was bundled into another program. */
export const isBundled = (): boolean => ownPackage() === undefined;

/** The folder of the package; in a bundle, that of the package that is installed beside it, if it is. */
export const packageFolder = (): string | undefined => ownPackage()?.folder ?? installedFolder();

function installedFolder(): string | undefined {
  try {
    return dirname(requireFrom(here).resolve('cuffi/package.json'));
  } catch {
    return undefined;
  }
}

/** The version in package.json. Undefined in a bundle. */
export const packageVersion = (): string | undefined => ownPackage()?.version;

/** Names the package, its version and its folder in an error message, as far as they are known. */
export function packageName(): string {
  const own = ownPackage();
  return own ? `cuffi ${own.version} in ${own.folder}` : `cuffi in the bundle ${here}`;
}

/**
 * Loads a module of the package, synchronously: from source (.ts) or from dist (.js).
 *
 * @param path relative to this folder, without the extension
 * @param what names it in the error
 * @param built the path in dist, if it is another one
 * @throws BundledError in a bundle
 */
export function loadModule(path: string, what: string, built: string = path): unknown {
  // A program may have a file of its own at that place beside its bundle.
  if (isBundled())
    throw new BundledError(`${what} is loaded at its first use`, `To use it, ${EXTERNAL}.`);
  const extension = extname(here);
  return requireFrom(here)(`${extension === '.ts' ? path : built}${extension}`);
}

/**
 * Loads a dependency of the package, synchronously. In a bundle: that of the package installed beside it,
 * else one that is installed beside it itself.
 *
 * @param version the version that a program with a bundle must install
 * @throws BundledError if a bundle has none beside it
 */
export function loadDependency(name: string, version: string): unknown {
  if (!isBundled()) return requireFrom(here)(name);
  const installed = installedFolder();
  const places = [...(installed === undefined ? [] : [join(installed, 'package.json')]), here];
  const place = places.find((from) => finds(from, name));
  if (place === undefined)
    throw new BundledError(
      `${name} is not found: it has native code, which no bundle contains`,
      `Install ${name}@${version} where the bundle runs, or ${EXTERNAL}.`,
    );
  return requireFrom(place)(name);
}

function finds(place: string, name: string): boolean {
  try {
    requireFrom(place).resolve(name);
    return true;
  } catch {
    return false;
  }
}

/**
 * Returns `require` of a file, to be called at once. It would not follow symbolic links, of which pnpm makes
 * node_modules, if the last file that Node has asked for its status is a pipe or a socket, as in
 * `parentPeer()`: https://github.com/nodejs/node/issues/51142
 */
function requireFrom(place: string): NodeJS.Require {
  const require = createRequire(place);
  statSync('/');
  return require;
}
