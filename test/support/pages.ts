/**
 * The `ts`, `js` and `python` blocks of README.md and docs/*.md, as programs. All are compiled: TypeScript
 * as strictly as `tsc --init` asks for (test/package). All run and print what they show
 * (test/unit/docs.test.ts):
 *
 * - A block whose first line is a file's name (`// worker.ts`, `# model.py`) is that file, whole, with its
 *   imports. Such blocks under one heading are one program in one folder. Every file that no other one
 *   names is started, all at the same time. A file of tests (`sum.test.ts`) must pass; what the runner
 *   prints does not count.
 * - A block of JavaScript is such a file, `.mjs` or `.cjs`, and runs as it stands.
 * - Any other block is a module of its own. What it uses without declaring it is imported: from the
 *   package, else from test/package/page-values.ts.
 * - `console.log(…); // text` and `print(…)  # text` show what is printed. Every printed line must be
 *   shown, and every shown line must be printed.
 * - A program that needs libraries of Python and a GPU says so in a fence: `python needs cupy
 *   cuda.core>=1.3`. It runs on hardware (test/ipc/python-doors.test.ts).
 * - A `console` block has commands after `$ ` and what each prints; one shell runs them in an empty
 *   folder in which Node finds the package.
 * - A block that cannot run says so in its fence: `ts fragment`, `python fragment`. It is only compiled.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The file in test/package with what blocks use without declaring it: name and text. */
export const PAGE_VALUES = 'page-values.ts';
export const pageValues: string = readFileSync(`${root}test/package/${PAGE_VALUES}`, 'utf8');

export interface Block {
  /** The page and line of the fence, as in `docs/arrays.md:7`. */
  readonly place: string;
  readonly heading: string;
  /** The name of the file that the block is; undefined for a module of its own. */
  readonly file: string | undefined;
  readonly isPython: boolean;
  readonly isTypeScript: boolean;
  readonly isFragment: boolean;
  /** The libraries of Python that it needs, some with the version from which on. */
  readonly needs: readonly string[];
  readonly code: string;
  readonly shown: readonly Shown[];
}

/** A line that the page says is printed. */
export interface Shown {
  readonly place: string;
  readonly text: string;
}

/** Returns the blocks of a page, given by its path from the root of the project. */
export function blocksOf(page: string): Block[] {
  const text = readFileSync(root + page, 'utf8');
  return [...text.matchAll(/^```(ts|js|python)\b *([^\n]*)\n(.*?)^```$/gms)].map((match) => {
    const [, language, info = '', code = ''] = match;
    const isPython = language === 'python';
    const [, libraries] = (isPython && /^needs (.+)$/.exec(info)) || [];
    if (libraries === undefined && !['', 'fragment'].includes(info))
      throw new Error(`${page}: what is \`${language} ${info}\`?`);
    const before = text.slice(0, match.index);
    const line = before.split('\n').length;
    const name = isPython ? /^# ([\w-]+\.py)$/ : /^\/\/ ([\w.-]+\.(?:m?ts|[cm]js))$/;
    const shows = isPython ? /\bprint\(.*\) {2}# (.*)$/ : /\bconsole\.log\(.*\); \/\/ (.*)$/;
    return {
      place: `${page}:${line}`,
      heading: [...withoutCode(before).matchAll(/^#+ (.*)$/gm)].at(-1)?.[1] ?? '',
      file: name.exec(code.split('\n', 1)[0] ?? '')?.[1],
      isPython,
      isTypeScript: language === 'ts',
      isFragment: info === 'fragment',
      needs: libraries?.split(' ') ?? [],
      code,
      shown: code.split('\n').flatMap((each, at) => {
        const [, shown] = shows.exec(each) ?? [];
        return shown === undefined ? [] : [{ place: `${page}:${line + 1 + at}`, text: shown }];
      }),
    };
  });
}

/** Comments of Python look like headings. */
const withoutCode = (text: string): string => text.replaceAll(/^```.*?^```$/gms, '');

/** Blocks that are one program: the files of one folder, or a module of its own. */
export interface PageProgram {
  readonly name: string;
  readonly blocks: readonly Block[];
}

/** The programs of a page: those that need libraries of Python, or all others. */
export function programsOf(page: string, which: 'own' | 'needs libraries'): PageProgram[] {
  const programs = new Map<string, Block[]>();
  for (const block of blocksOf(page).filter(({ isFragment }) => !isFragment)) {
    const name = block.file === undefined ? block.place : `${page}, ${block.heading}`;
    programs.set(name, [...(programs.get(name) ?? []), block]);
  }
  return [...programs]
    .map(([name, blocks]) => ({ name, blocks }))
    .filter(({ blocks }) => blocks.some(({ needs }) => needs.length > 0) === (which !== 'own'));
}

/** The pages, by their paths from the root of the project. */
export const pages: readonly string[] = [
  'README.md',
  ...readdirSync(`${root}docs`)
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
];

/** Those that have blocks of TypeScript or Python. */
export const pagesWithCode: readonly string[] = pages.filter((page) => blocksOf(page).length > 0);

/** The names that each entry of the package exports. */
export type Exported = Readonly<Record<string, readonly string[]>>;

/** Returns a block with the imports that it leaves out: a file that it names has them itself. */
export function programOf({ code, file }: Block, exported: Exported): string {
  if (file !== undefined) return code;
  const given = [...pageValues.matchAll(/^export const (\w+)/gm)].map(([, name]) => String(name));
  const found = new Set<string>();
  const imports = Object.entries({ ...exported, [`./${PAGE_VALUES}`]: given }).map(
    ([specifier, names]) => {
      const used = names.filter((name) => !found.has(name) && uses(code, name));
      for (const name of used) found.add(name);
      return used.length > 0 ? `import { ${used.join(', ')} } from '${specifier}';\n` : '';
    },
  );
  const namespace =
    /(?<![.\w])cuda\./.test(code) && !/\* as cuda\b/.test(code)
      ? "import * as cuda from 'cuffi';\n"
      : '';
  return `${namespace}${imports.join('')}${code}\nexport {};\n`;
}

function uses(code: string, name: string): boolean {
  const declared = new RegExp(`\\b(?:const|let|using|function|type|import)\\b[^=;(]*\\b${name}\\b`);
  // Comments and texts name things, too.
  const bare = code.replace(/\/\/.*$|'[^'\n]*'/gm, '');
  return new RegExp(`(?<![.\\w])${name}\\b(?!:)`).test(bare) && !declared.test(bare);
}

/** A block of commands, and what each of them prints. */
export interface ConsoleBlock {
  readonly place: string;
  readonly commands: readonly { readonly command: string; readonly shown: string }[];
}

/** Returns the blocks of commands of a page. */
export function consoleBlocksOf(page: string): ConsoleBlock[] {
  const text = readFileSync(root + page, 'utf8');
  return [...text.matchAll(/^```console\n(.*?)^```$/gms)].map((match) => ({
    place: `${page}:${text.slice(0, match.index).split('\n').length}`,
    commands: (match[1] as string)
      .split(/^\$ /m)
      .slice(1)
      .map((part) => {
        const end = part.indexOf('\n') + 1;
        return { command: part.slice(0, end - 1), shown: part.slice(end) };
      }),
  }));
}
