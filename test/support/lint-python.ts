/**
 * Checks the Python of the repository with ruff, by its package of npm: the companion by the settings
 * in its pyproject.toml, all other Python by some of its rules.
 *
 *     npm run check:python    # prints what is wrong
 *     npm run fix             # repairs what ruff can repair
 *
 * Both run it with --liftoff-only: V8 would optimise the WebAssembly for longer than it runs.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { PositionEncoding, Workspace } from '@astral-sh/ruff-wasm-nodejs';
import { parse } from 'smol-toml';
import { z } from 'zod';

const companion = 'src/python/';
// As `npm run protocol` writes them.
const generated = ['_protocol.py', '_error_texts.py'].map((name) => `${companion}cuffi/${name}`);
const root = fileURLToPath(new URL('../../', import.meta.url));

const settings = z
  .object({
    tool: z.object({
      ruff: z.looseObject({
        lint: z.looseObject({ select: z.array(z.string()), ignore: z.array(z.string()) }),
      }),
    }),
  })
  .parse(parse(readFileSync(`${root}${companion}pyproject.toml`, 'utf8'))).tool.ruff;

const place = z.object({ row: z.number(), column: z.number() });
const diagnostics = z.array(
  z.object({
    code: z.string().nullable(),
    message: z.string(),
    start_location: place,
    fix: z
      .object({
        edits: z.array(
          z.object({ content: z.string().nullable(), location: place, end_location: place }),
        ),
      })
      .nullable(),
  }),
);
type Edit = NonNullable<z.infer<typeof diagnostics>[number]['fix']>['edits'][number];

/** Rules whose repairs change no behaviour. */
const repaired = /^(F401|I\d+|RUF022|UP006|UP035|UP037)$/;
const strict = new Workspace(settings, PositionEncoding.Utf16);
// Tests and examples may have long lines, and do on purpose what looks wrong.
const lenient = new Workspace(
  {
    ...settings,
    lint: {
      ...settings.lint,
      select: ['E', 'F', 'W', 'I', 'C4', 'PIE', 'UP'],
      ignore: [...settings.lint.ignore, 'E501'],
    },
  },
  PositionEncoding.Utf16,
);

function check(workspace: Workspace, text: string): z.infer<typeof diagnostics> {
  return diagnostics.parse(workspace.check(text));
}

/** Repairs what can be repaired without a look. One repair may make room for the next. */
function repair(workspace: Workspace, text: string): string {
  for (;;) {
    const found = check(workspace, text).find(
      ({ code, fix }) => fix !== null && repaired.test(code ?? ''),
    );
    if (found?.fix == null) return text;
    text = edited(text, found.fix.edits);
  }
}

/** Replaces parts of a text. Rows and columns are counted from 1. */
function edited(text: string, edits: readonly Edit[]): string {
  const lines = [0];
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lines.push(at + 1);
  const offset = ({ row, column }: z.infer<typeof place>): number =>
    (lines[row - 1] ?? text.length) + column - 1;
  // From the end, so that the offsets of the others stay right.
  for (const { content, location, end_location } of edits.toReversed())
    text = text.slice(0, offset(location)) + (content ?? '') + text.slice(offset(end_location));
  return text;
}

const files = spawnSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '*.py'], {
  cwd: root,
  encoding: 'utf8',
}).stdout;
let count = 0;
for (const file of files.trim().split('\n')) {
  if (generated.includes(file)) continue;
  const isCompanion = file.startsWith(companion);
  const workspace = isCompanion ? strict : lenient;
  let text = readFileSync(root + file, 'utf8');
  if (process.argv.includes('--fix')) {
    const before = text;
    text = repair(workspace, text);
    if (isCompanion) text = workspace.format(text);
    if (text !== before) writeFileSync(root + file, text);
  }
  if (isCompanion && workspace.format(text) !== text) {
    console.error(`${file}: npm run fix formats it`);
    count++;
  }
  for (const { code, message, start_location: at } of check(workspace, text)) {
    console.error(`${file}:${at.row}:${at.column}: ${code ?? 'syntax'} ${message}`);
    count++;
  }
}
if (count > 0) {
  console.error(`ruff: ${count} faults in the Python`);
  process.exitCode = 1;
}
