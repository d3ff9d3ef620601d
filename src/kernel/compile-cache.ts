/** A cache of compiled code on disk, so that only the first run of a program compiles. */

import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { dirname, isAbsolute, join, resolve } from 'node:path';
import { readSetting } from '../../ffi/settings.ts';
import { randomBytes, sha256 } from '../crypto.ts';
import type { CodeKind } from './architecture.ts';
import type { CompiledInit, CompileRequest } from './compile-options.ts';

/** The version of the file format and of the key. */
const FORMAT = 1;

/** The size limit of the folder; the least recently used files are removed first. */
const MAX_FOLDER_BYTES = 256 << 20;
const DIGEST_BYTES = 32;

/** The JSON part of a file. */
interface Header {
  readonly log: string;
  readonly names: readonly (readonly [expression: string, name: string])[];
}

/**
 * The cache file of one source. Its name is a digest of everything that matters: the source, its
 * headers and included files, the options with the architecture, the names, the kind of code, and the
 * libnvrtc in use. A folder that other users can write to is not used. A damaged file is ignored. If
 * writing fails, nothing is cached.
 */
export class CompileCache<K extends CodeKind> {
  readonly #kind: K;
  readonly #folder: string;
  readonly #path: string;

  private constructor(kind: K, folder: string, key: string) {
    this.#kind = kind;
    this.#folder = folder;
    this.#path = join(folder, key);
  }

  /** Undefined if the cache is off, or cannot track all included files. */
  static forRequest<K extends CodeKind>(request: CompileRequest<K>): CompileCache<K> | undefined {
    const folder = folderOf(request.cache);
    if (folder === undefined) return undefined;
    const included = includedFiles(request);
    if (!included || !makePrivateFolder(folder)) return undefined;
    const { compiler, source, kind, options, headers, names } = request;
    const keyParts = [
      FORMAT,
      compiler.identity,
      kind,
      options,
      names,
      source,
      Object.entries(headers).sort(([a], [b]) => (a < b ? -1 : 1)),
      included,
    ];
    const key = sha256(JSON.stringify(keyParts));
    return new CompileCache(kind, folder, key);
  }

  /** Undefined if there is no file, or it is damaged. */
  read(): CompiledInit<K> | undefined {
    try {
      const file = readPrivateFile(this.#path);
      const body = file.subarray(DIGEST_BYTES);
      if (!digest(body).equals(file.subarray(0, DIGEST_BYTES))) return undefined;
      const end = 4 + body.readUInt32LE(0);
      const { log, names } = JSON.parse(body.toString('utf8', 4, end)) as Header;
      this.#touch();
      return {
        kind: this.#kind,
        code: new Uint8Array(body.subarray(end)),
        log,
        names: new Map(names),
      };
    } catch {
      return undefined;
    }
  }

  write({ code, log, names }: CompiledInit<K>): void {
    const header = Buffer.from(JSON.stringify({ log, names: [...names] } satisfies Header));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(header.length);
    const body = Buffer.concat([length, header, code]);
    const temporaryPath = `${this.#path}.${randomBytes(6).toString('hex')}`;
    try {
      writeFileSync(temporaryPath, Buffer.concat([digest(body), body]), {
        mode: 0o600,
        flag: 'wx',
      });
      renameSync(temporaryPath, this.#path);
      this.#evictOldest();
    } catch {
      rmSync(temporaryPath, { force: true });
    }
  }

  /** Marks the file as used; a read-only folder still serves reads. */
  #touch(): void {
    try {
      const now = new Date();
      utimesSync(this.#path, now, now);
    } catch {
      // A read-only folder is never evicted from either.
    }
  }

  #evictOldest(): void {
    const files = readdirSync(this.#folder)
      .flatMap((name) => {
        const path = join(this.#folder, name);
        const stats = statSync(path, { throwIfNoEntry: false });
        return stats ? [{ path, byteLength: stats.size, usedMs: stats.mtimeMs }] : [];
      })
      .sort((a, b) => b.usedMs - a.usedMs);
    let byteLength = 0;
    for (const file of files) {
      byteLength += file.byteLength;
      if (byteLength > MAX_FOLDER_BYTES) rmSync(file.path, { force: true });
    }
  }
}

/**
 * Reads a file that only this user can have written. Checks the open file, because a path that was
 * checked before may be replaced by another user who can rename folders above.
 *
 * @throws Error for a file that others can write to
 */
function readPrivateFile(path: string): Buffer {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    if (!isPrivate(fstatSync(fd))) throw new Error(`${path} may have been written by others`);
    return readFileSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Whether only this user can write to the file. */
const isPrivate = ({ uid, mode }: Stats): boolean =>
  uid === process.getuid?.() && (mode & 0o022) === 0;

const digest = (bytes: Uint8Array): Buffer => Buffer.from(sha256(bytes), 'hex');

/** The folder of the cache, by the option and the environment; undefined if the cache is off. */
function folderOf(cache: boolean | string): string | undefined {
  const chosen = readSetting('CUFFI_CACHE');
  const { XDG_CACHE_HOME: xdgCacheHome } = process.env;
  if (cache === false || chosen === 'off') return undefined;
  const userCacheHome =
    xdgCacheHome && isAbsolute(xdgCacheHome) ? xdgCacheHome : join(homedir(), '.cache');
  const base = typeof cache === 'string' ? cache : chosen || join(userCacheHome, 'cuffi');
  return join(base, 'compiled');
}

/** Makes a folder that only this user can write to; returns false if that fails. */
function makePrivateFolder(folder: string): boolean {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const stats = lstatSync(folder);
    return stats.isDirectory() && isPrivate(stats);
  } catch {
    return false;
  }
}

// ---- The files that a source includes, found in its text ----

// A directive may contain comments, and `%:` for `#`.
const GAP = String.raw`(?:[^\S\n]|/\*[\s\S]*?\*/)*`;
const DIRECTIVE = new RegExp(`(?:#|%:)${GAP}include\\b${GAP}([^\\n]*)`, 'g');
const HAS_INCLUDE = /__has_include\b([^\n]*)/g;
const INCLUDE_NAME = /^[(\s]*(?:"([^"\n]+)"|<([^>\n]+)>)/;

/** `#include_next` depends on where the current file was found, so it cannot be tracked. */
const INCLUDE_NEXT = /\b(?:__has_)?include_next\b/;

/** Options that read or write files which the text does not mention. */
const UNTRACKABLE_OPTION = /^--?(?:\S*-)?(?:pch|time|options-file|optf)\b/;

/** A source text to search for includes. */
interface SourceText {
  readonly text: string;
  /** The folder of the file; undefined for text that is not in a file. */
  readonly folder: string | undefined;
}

/**
 * Identifies all files that a source may include: for each path a digest of its text, or that it is
 * missing. CUDA's own headers count by size and time, and only those that the source names. Returns
 * undefined if the text does not name an included file, as with macros and precompiled headers.
 */
function includedFiles(request: CompileRequest): readonly string[] | undefined {
  const { compiler, headers, source } = request;
  const userOptions = request.options.slice(
    0,
    request.options.length - compiler.headerFolders.length,
  );
  if (userOptions.some((option) => UNTRACKABLE_OPTION.test(option))) return undefined;
  // The compiler also searches the working directory, as the source is not in a file.
  const folders = [process.cwd(), ...optionValues(userOptions, /^(?:-I|--include-path)(?:=|$)?/)];
  const texts: SourceText[] = [
    ...optionValues(userOptions, /^(?:-include|--pre-include)(?:=|$)/).map((name) => ({
      text: `#include "${name}"`,
      folder: undefined,
    })),
    ...[source, ...Object.values(headers)].map((text) => ({ text, folder: undefined })),
  ];
  const stampByPath = new Map<string, string>();
  for (let text = texts.pop(); text; text = texts.pop()) {
    const names = includeNames(text.text);
    if (!names) return undefined;
    for (const name of names) {
      if (Object.hasOwn(headers, name)) continue;
      // Every file with that name counts, whichever the compiler takes.
      for (const folder of text.folder === undefined ? folders : [text.folder, ...folders]) {
        const path = resolve(folder, name);
        if (stampByPath.has(path)) continue;
        const content = tryReadText(path);
        stampByPath.set(path, content === undefined ? 'missing' : sha256(content));
        if (content !== undefined) texts.push({ text: content, folder: dirname(path) });
      }
      for (const folder of compiler.headerFolders) {
        const path = resolve(folder, name);
        stampByPath.set(path, fileStamp(path));
      }
    }
  }
  return [...stampByPath].map(([path, what]) => `${path} ${what}`).sort();
}

/** The names that a text includes; undefined if one is not literal. */
function includeNames(text: string): string[] | undefined {
  const names: string[] = [];
  const joined = text.replace(/\\\r?\n/g, '');
  if (INCLUDE_NEXT.test(joined)) return undefined;
  for (const [, rest = ''] of [...joined.matchAll(DIRECTIVE), ...joined.matchAll(HAS_INCLUDE)]) {
    const [, quoted, angled] = INCLUDE_NAME.exec(rest) ?? [];
    const name = quoted ?? angled;
    if (name === undefined) return undefined;
    names.push(name);
  }
  return names;
}

/** The values of an option, written in the same argument or in the next. */
function optionValues(options: readonly string[], name: RegExp): string[] {
  return options.flatMap((option, n) => {
    if (!name.test(option)) return [];
    const value = option.replace(name, '') || options[n + 1];
    return value === undefined ? [] : [value];
  });
}

function tryReadText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

const fileStamp = (path: string): string => {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats ? `${stats.size} ${stats.mtimeMs}` : 'missing';
};
