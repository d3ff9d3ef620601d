/** What a report is made of, and how it is written. */

/** A table; the cells are plain text. */
export interface Table {
  readonly head: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

/** A part of a report. */
export type Block =
  | { readonly kind: 'heading'; readonly level: 1 | 2 | 3; readonly text: string }
  | { readonly kind: 'paragraph'; readonly text: string }
  | ({ readonly kind: 'table' } & Table)
  | { readonly kind: 'picture'; readonly file: string; readonly alt: string };

export const heading = (level: 1 | 2 | 3, text: string): Block => ({
  kind: 'heading',
  level,
  text,
});
export const paragraph = (text: string): Block => ({ kind: 'paragraph', text });
export const table = (head: readonly string[], rows: readonly (readonly string[])[]): Block => ({
  kind: 'table',
  head,
  rows,
});
export const picture = (file: string, alt: string): Block => ({ kind: 'picture', file, alt });

/** Blocks as Markdown; pictures are linked in a folder. */
export const markdown = (blocks: readonly Block[], folder = '.'): string =>
  blocks.map((block) => markdownBlock(block, folder)).join('\n\n');

function markdownBlock(block: Block, folder: string): string {
  if (block.kind === 'heading') return `${'#'.repeat(block.level)} ${block.text}`;
  if (block.kind === 'paragraph') return block.text;
  if (block.kind === 'picture') return `![${block.alt}](${folder}/${block.file})`;
  const lines = [block.head, block.head.map(() => '---'), ...block.rows];
  return lines.map((cells) => `| ${cells.map(inCell).join(' | ')} |`).join('\n');
}

const inCell = (text: string): string => text.replaceAll('|', '\\|');

/** Blocks as one HTML page that needs nothing else; `pictures` gives each file's SVG. */
export function html(
  title: string,
  blocks: readonly Block[],
  pictures: ReadonlyMap<string, string>,
): string {
  const body = blocks.map((block) => htmlBlock(block, pictures)).join('\n');
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<style>
body { font: 16px/1.5 sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: 0.2rem 0.6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; }
</style>
</head>
<body>
${body}
</body>
</html>
`;
}

function htmlBlock(block: Block, pictures: ReadonlyMap<string, string>): string {
  if (block.kind === 'heading') return `<h${block.level}>${escaped(block.text)}</h${block.level}>`;
  if (block.kind === 'paragraph') return `<p>${escaped(block.text)}</p>`;
  if (block.kind === 'picture')
    return `<figure role="img" aria-label="${escaped(block.alt)}">${pictures.get(block.file) ?? ''}</figure>`;
  const row = (cells: readonly string[], tag: 'th' | 'td'): string =>
    `<tr>${cells.map((cell) => `<${tag}>${escaped(cell)}</${tag}>`).join('')}</tr>`;
  return `<table>\n${[row(block.head, 'th'), ...block.rows.map((cells) => row(cells, 'td'))].join('\n')}\n</table>`;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
};

const escaped = (text: string): string =>
  text.replaceAll(/[&<>"]/g, (sign) => ENTITIES[sign] ?? sign);
