/** The files that a source includes, as far as its text tells. */
import { createHash } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import type { CompileRequest } from './compile-options.ts';

// A directive may have comments in it, and `%:` for `#`.
const GAP = String.raw`(?:[^\S\n]|/\*[\s\S]*?\*/)*`;
const DIRECTIVE = new RegExp(`(?:#|%:)${GAP}include\\b${GAP}([^\\n]*)`, 'g');
const ASKED = /__has_include\b([^\n]*)/g;
const NAME = /^[(\s]*(?:"([^"\n]+)"|<([^>\n]+)>)/;

/** The next file of a name: which one that is depends on where this one was found. */
const NEXT = /\b(?:__has_)?include_next\b/;

/** Options by which files come in, or go out, that the text says nothing of. */
const UNKNOWABLE = /^--?(?:\S*-)?(?:pch|time|options-file|optf)\b/;

/** What is known of a file: which one it is, and what is in it. */
interface Text {
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
export function includedFiles(request: CompileRequest): readonly string[] | undefined {
  const { compiler, headers, source } = request;
  const given = request.options.slice(0, request.options.length - compiler.headerFolders.length);
  if (given.some((option) => UNKNOWABLE.test(option))) return undefined;
  // The compiler looks beside the source, too, which lies in no file: in the working directory.
  const folders = [process.cwd(), ...valuesOf(given, /^(?:-I|--include-path)(?:=|$)?/)];
  const texts: Text[] = [
    ...valuesOf(given, /^(?:-include|--pre-include)(?:=|$)/).map((name) => ({
      text: `#include "${name}"`,
      folder: undefined,
    })),
    ...[source, ...Object.values(headers)].map((text) => ({ text, folder: undefined })),
  ];
  const known = new Map<string, string>();
  for (let text = texts.pop(); text; text = texts.pop()) {
    const names = namesIn(text.text);
    if (!names) return undefined;
    for (const name of names) {
      if (Object.hasOwn(headers, name)) continue;
      // Each file of the name counts, whichever the compiler takes.
      for (const folder of text.folder === undefined ? folders : [text.folder, ...folders]) {
        const path = resolve(folder, name);
        if (known.has(path)) continue;
        const content = contentOf(path);
        known.set(path, content === undefined ? 'missing' : digest(content));
        if (content !== undefined) texts.push({ text: content, folder: dirname(path) });
      }
      for (const folder of compiler.headerFolders) {
        const path = resolve(folder, name);
        known.set(path, stampOf(path));
      }
    }
  }
  return [...known].map(([path, what]) => `${path} ${what}`).sort();
}

/** The names that a text includes; undefined where one is not said in the text. */
function namesIn(text: string): string[] | undefined {
  const names: string[] = [];
  const joined = text.replace(/\\\r?\n/g, '');
  if (NEXT.test(joined)) return undefined;
  for (const [, rest = ''] of [...joined.matchAll(DIRECTIVE), ...joined.matchAll(ASKED)]) {
    const [, quoted, angled] = NAME.exec(rest) ?? [];
    const name = quoted ?? angled;
    if (name === undefined) return undefined;
    names.push(name);
  }
  return names;
}

/** The values of an option, which may be written together with it or behind it. */
function valuesOf(options: readonly string[], name: RegExp): string[] {
  return options.flatMap((option, n) => {
    if (!name.test(option)) return [];
    const value = option.replace(name, '') || options[n + 1];
    return value === undefined ? [] : [value];
  });
}

function contentOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

const digest = (text: string): string => createHash('sha256').update(text).digest('hex');

const stampOf = (path: string): string => {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats ? `${stats.size} ${stats.mtimeMs}` : 'missing';
};
