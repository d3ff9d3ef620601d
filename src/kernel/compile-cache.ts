/** What was compiled before, on disk: so that only the first start of a program waits for it. */
import { createHash, randomBytes } from 'node:crypto';
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
import type { CodeKind } from './architecture.ts';
import type { CompiledInit } from './compile.ts';
import type { CompileRequest } from './compile-options.ts';

/** Raised when what a file holds, or what its name is made of, changes. */
const FORMAT = 1;

/** The files of a folder may have so many bytes; what was not read for the longest time goes first. */
const MAX_FOLDER_BYTES = 256 << 20;
const DIGEST_BYTES = 32;

/** A file's text part. */
interface Header {
  readonly log: string;
  readonly names: readonly (readonly [expression: string, name: string])[];
}

/**
 * The place of one source in the cache. Its name is a digest of all that matters: the source, its
 * headers and included files, the options with the architecture, the names, what is made, and which
 * libnvrtc makes it. A folder that others may write to is not used; a file that was damaged is not
 * read; where nothing can be written, nothing is kept.
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

  /** Undefined where the cache is off, or cannot tell whether what it has is still right. */
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
    const key = createHash('sha256').update(JSON.stringify(keyParts)).digest('hex');
    return new CompileCache(kind, folder, key);
  }

  /** Undefined where there is nothing, or nothing whole. */
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

  /** Where the folder can only be read, what is in it is good all the same. */
  #touch(): void {
    try {
      const now = new Date();
      utimesSync(this.#path, now, now);
    } catch {
      // Nothing makes room there either.
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
 * A file that only this user can have written. Asked of the open file: whoever may rename folders above
 * could put another one in the place of one that was looked at.
 *
 * @throws where it is none
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

/** Whether only this user can write to what it tells of. */
const isPrivate = ({ uid, mode }: Stats): boolean =>
  uid === process.getuid?.() && (mode & 0o022) === 0;

const digest = (bytes: Uint8Array): Buffer => createHash('sha256').update(bytes).digest();

/** Where files are kept, by the option and the environment; undefined: nowhere. */
function folderOf(cache: boolean | string): string | undefined {
  const { CUFFI_CACHE: chosen, XDG_CACHE_HOME: xdgCacheHome } = process.env;
  if (cache === false || chosen === 'off' || chosen === '0') return undefined;
  const userCacheHome =
    xdgCacheHome && isAbsolute(xdgCacheHome) ? xdgCacheHome : join(homedir(), '.cache');
  const base = typeof cache === 'string' ? cache : chosen || join(userCacheHome, 'cuffi');
  return join(base, 'compiled');
}

/** Makes a folder for this user alone; false where it is not. */
function makePrivateFolder(folder: string): boolean {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const stats = lstatSync(folder);
    return stats.isDirectory() && isPrivate(stats);
  } catch {
    return false;
  }
}

/** The files that a source includes, as far as its text tells. */

// A directive may have comments in it, and `%:` for `#`.
const GAP = String.raw`(?:[^\S\n]|/\*[\s\S]*?\*/)*`;
const DIRECTIVE = new RegExp(`(?:#|%:)${GAP}include\\b${GAP}([^\\n]*)`, 'g');
const HAS_INCLUDE = /__has_include\b([^\n]*)/g;
const INCLUDE_NAME = /^[(\s]*(?:"([^"\n]+)"|<([^>\n]+)>)/;

/** The next file of a name: which one that is depends on where this one was found. */
const INCLUDE_NEXT = /\b(?:__has_)?include_next\b/;

/** Options by which files come in, or go out, that the text says nothing of. */
const UNTRACKABLE_OPTION = /^--?(?:\S*-)?(?:pch|time|options-file|optf)\b/;

/** What is known of a file: which one it is, and what is in it. */
interface SourceText {
  readonly text: string;
  /** Where it lies, if it is a file. */
  readonly folder: string | undefined;
}

/**
 * What tells the included files from others of their names: for each its path and what is in it,
 * or that it is missing. Of CUDA's own headers only those that the source names, by their length and
 * time. Undefined where the text does not say what is included: by a macro, or in a precompiled
 * header.
 */
function includedFiles(request: CompileRequest): readonly string[] | undefined {
  const { compiler, headers, source } = request;
  const userOptions = request.options.slice(
    0,
    request.options.length - compiler.headerFolders.length,
  );
  if (userOptions.some((option) => UNTRACKABLE_OPTION.test(option))) return undefined;
  // The compiler looks beside the source, too, which lies in no file: in the working directory.
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
      // Each file of the name counts, whichever the compiler takes.
      for (const folder of text.folder === undefined ? folders : [text.folder, ...folders]) {
        const path = resolve(folder, name);
        if (stampByPath.has(path)) continue;
        const content = tryReadText(path);
        stampByPath.set(path, content === undefined ? 'missing' : textDigest(content));
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

/** The names that a text includes; undefined where one is not said in the text. */
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

/** The values of an option, which may be written together with it or behind it. */
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

const textDigest = (text: string): string => createHash('sha256').update(text).digest('hex');

const fileStamp = (path: string): string => {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats ? `${stats.size} ${stats.mtimeMs}` : 'missing';
};
