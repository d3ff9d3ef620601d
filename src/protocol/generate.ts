/**
 * Writes what follows from protocol.json: src/ipc/protocol.ts, the companion's _protocol.py, the tables
 * of docs/protocol.md, and the test vectors; and what the companion knows of errors, which follows from
 * the texts of Node. `npm run protocol` runs it; a test fails if a file differs from what it would write.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { errorTexts } from './error-texts.ts';
import { type Facts, fieldsOf, readFacts, snake } from './facts.ts';
import { vectors } from './vectors.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Returns the text of each generated file, by its path in the repository. */
export function generate(facts: Facts = readFacts()): ReadonlyMap<string, string> {
  const page = 'docs/protocol.md';
  return new Map([
    ['src/ipc/protocol.ts', typescript(facts)],
    ['src/python/cuffi/_protocol.py', python(facts)],
    [page, withTables(readFileSync(join(root, page), 'utf8'), facts)],
    [
      'src/python/cuffi/_error_texts.py',
      errorTexts(readFileSync(join(root, 'docs/errors.md'), 'utf8')),
    ],
    ...vectors(facts),
  ]);
}

const NOTICE = 'Generated from src/protocol/protocol.json by `npm run protocol`: change that.';

// ---- What each language has ----

const isWide = (value: number | string): boolean => /^0x/.test(String(value));

/** The constants and limits, each with its name in code. */
const named = ({ constants, limits }: Facts) => [
  ...constants.map((one) => ({ ...one, name: snake(one.name) })),
  ...limits.map(({ name, value, about }) => ({
    name: `MAX_${snake(name)}`,
    value,
    about: `The most ${about}.`,
  })),
];

const kindsWith = (facts: Facts, hasExporter: boolean) =>
  facts.kinds.filter((kind) => kind.hasExporter === hasExporter);

// ---- TypeScript ----

function typescript(facts: Facts): string {
  const literal = (value: unknown): string =>
    JSON.stringify(value).replaceAll("'", "\\'").replaceAll('"', "'");
  const table = (fields: readonly (readonly [string, string])[]): string =>
    `[${fields.map((field) => `\n    ${literal(field)},`).join('')}\n  ]`;
  const kinds = (hasExporter: boolean): string =>
    kindsWith(facts, hasExporter)
      .map((kind) => `  ${kind.name}: ${table(fieldsOf(kind, facts))},\n`)
      .join('');
  const parts = [
    `/**\n * Every fact of the protocol. ${NOTICE}\n * docs/protocol.md says what they mean.\n */\n`,
    `/** The versions that this package speaks. */\nexport const VERSIONS = ${literal(facts.version)} as const;\n`,
    ...named(facts).map(
      ({ name, value, about }) =>
        `/** ${about} */\nexport const ${name} = ${isWide(value) ? `${value}n` : literal(value)};\n`,
    ),
    ...facts.enumerations.map(
      ({ name, about, members }) =>
        `/** ${about} */\nexport const ${name} = {\n${members.map((member) => `  ${member.name}: ${member.value},\n`).join('')}} as const;\n` +
        `export type ${name} = (typeof ${name})[keyof typeof ${name}];\n`,
    ),
    `/** The types of binary data, by their number, and the bytes of an item. */\nexport const binaryTypeFacts = ${table(facts.binaryTypes.map(({ name, itemByteLength }) => [name, itemByteLength] as never))} as const;\n`,
    `/** The classes that an error arrives as, by their number. */\nexport const errorTypeNames = ${literal(facts.errorTypes)} as const;\n`,
    `/** The access that a receiver may have, by its number. */\nexport const ACCESS = ${literal(facts.access)} as const;\n`,
    `/** Prefixes of the UUID of a GPU and of a MIG slice, by their number. */\nexport const DEVICE_PREFIXES = ${literal(facts.devicePrefixes)} as const;\n`,
    `/** The types of numbers: bytes, the least and the greatest value. */\nexport const NUMBERS = {\n${facts.numbers.map(({ name, byteLength, least, most }) => `  ${name}: [${byteLength}, ${least}, ${most}],\n`).join('')}} as const;\n`,
    `/** The kinds of objects. The index is the number of the kind. */\nexport const objectKinds = ${literal(facts.kinds.map(({ name }) => name))} as const;\n`,
    `/** The fields of an exporter. */\nexport const exporterFields = ${table(facts.exporterFields.map(({ name, type }) => [name, type]))} as const;\n`,
    `/** The fields behind those of the exporter. */\nexport const descriptorFields = {\n${kinds(true)}} as const;\n`,
    `/** The fields of objects that name no exporter. */\nexport const hostFields = {\n${kinds(false)}} as const;\n`,
  ];
  return parts.join('\n');
}

// ---- Python ----

function python(facts: Facts): string {
  const literal = (value: unknown): string => {
    if (value === null) return 'None';
    if (typeof value === 'boolean') return value ? 'True' : 'False';
    if (Array.isArray(value)) {
      const items = value.map(literal);
      return `(${items.join(', ')}${items.length === 1 ? ',' : ''})`;
    }
    return typeof value === 'string' ? `'${value}'` : String(value);
  };
  const rows = (name: string, about: string, values: readonly unknown[]): string =>
    `# ${about}\n${name} = (\n${values.map((value) => `    ${literal(value)},\n`).join('')})\n`;
  const parts = [
    `"""Every fact of the protocol. ${NOTICE}"""\n`,
    `# The versions that this package speaks.\nMIN_VERSION, MAX_VERSION = ${facts.version.min}, ${facts.version.max}\n`,
    named(facts)
      .map(
        ({ name, value, about }) =>
          `# ${about}\n${name} = ${isWide(value) ? value : literal(value)}\n`,
      )
      .join(''),
    ...facts.enumerations.map(
      ({ prefix, about, members }) =>
        `# ${about}\n${members.map((member) => `${prefix}_${snake(member.name)} = ${member.value}\n`).join('')}`,
    ),
    rows(
      'BINARY_TYPES',
      'The types of binary data, by their number, and the bytes of an item.',
      facts.binaryTypes.map(({ name, itemByteLength }) => [name, itemByteLength]),
    ),
    rows('ERROR_TYPES', 'The classes of errors, by their number.', facts.errorTypes),
    rows('ACCESS', 'The access that a receiver may have, by its number.', facts.access),
    rows('DEVICE_PREFIXES', 'Prefixes of UUIDs, by their number.', facts.devicePrefixes),
    `# The types of numbers: bytes, the least and the greatest value.\nNUMBERS = {\n${facts.numbers.map(({ name, byteLength, least, most }) => `    '${name}': ${literal([byteLength, least, most])},\n`).join('')}}\n`,
    rows(
      'EXPORTER_FIELDS',
      'The fields of an exporter.',
      facts.exporterFields.map(({ name, type }) => [name, type]),
    ),
    `# The kinds of objects by their number: name, whether an exporter comes first, the fields.\nKINDS = (\n${facts.kinds
      .map(
        (kind) =>
          `    ('${kind.name}', ${literal(kind.hasExporter)}, (\n${fieldsOf(kind, facts)
            .map((field) => `        ${literal(field)},\n`)
            .join('')}    )),\n`,
      )
      .join('')})\n`,
    facts.kinds.map(({ name, code }) => `KIND_${name.toUpperCase()} = ${code}\n`).join(''),
  ];
  return parts.join('\n');
}

// ---- The page ----

/** Replaces what stands between the markers of each table. @throws Error for a marker without a table */
function withTables(page: string, facts: Facts): string {
  const tables = tablesOf(facts);
  const unused = new Set(tables.keys());
  const text = page.replace(
    /(<!-- protocol: (\w+) -->\n)[\s\S]*?(<!-- end -->)/g,
    (_, begin: string, name: string, end: string) => {
      const table = tables.get(name);
      if (table === undefined) throw new Error(`docs/protocol.md: there is no table ${name}`);
      unused.delete(name);
      return `${begin}\n${table}\n${end}`;
    },
  );
  if (unused.size > 0) throw new Error(`docs/protocol.md has no place for ${[...unused].join()}`);
  return text;
}

function tablesOf(facts: Facts): Map<string, string> {
  const table = (columns: readonly string[], rows: readonly (readonly unknown[])[]): string =>
    [columns, columns.map(() => '---'), ...rows]
      .map((cells) =>
        `| ${cells.map((cell) => String(cell)).join(' | ')} |\n`.replace(/ +\|/g, ' |'),
      )
      .join('');
  const list = (names: readonly string[]): string =>
    table(
      ['number', 'name'],
      names.map((name, number) => [number, `\`${name}\``]),
    );
  const fields = (named: readonly { name: string; type: string; about: string }[]): string =>
    table(
      ['field', 'type', 'meaning'],
      named.map(({ name, type, about }) => [name, `\`${type}\``, about]),
    );
  return new Map([
    [
      'constants',
      table(
        ['constant', 'value', 'meaning'],
        facts.constants.map(({ name, value, about }) => [name, `\`${value}\``, about]),
      ),
    ],
    [
      'limits',
      table(
        ['limit', 'at most', ''],
        facts.limits.map(({ name, value, about }) => [name, value.toLocaleString('en-US'), about]),
      ),
    ],
    ...facts.enumerations.map(({ name, columns, members }): [string, string] => [
      name,
      table(
        columns,
        members.map((member) => [member.value, member.name, ...member.text]),
      ),
    ]),
    [
      'binaryTypes',
      table(
        ['number', 'type', 'bytes of an item'],
        facts.binaryTypes.map(({ name, itemByteLength }, number) => [number, name, itemByteLength]),
      ),
    ],
    ['errorTypes', list(facts.errorTypes)],
    ['access', list(facts.access)],
    ['devicePrefixes', list(facts.devicePrefixes)],
    [
      'fieldTypes',
      table(
        ['type', 'bytes', 'meaning'],
        [
          ...facts.numbers.map(({ name, byteLength, least, most }) => [
            `\`${name}\``,
            byteLength,
            `an integer from ${least} to ${most}`,
          ]),
          ...facts.fieldTypes.map(({ name, byteLength, about }) => [
            `\`${name}\``,
            byteLength ?? 'vary',
            about,
          ]),
        ],
      ),
    ],
    ['exporterFields', fields(facts.exporterFields)],
    ['rangeFields', fields(facts.rangeFields)],
    [
      'kinds',
      table(
        ['number', 'kind', 'fields', 'descriptors'],
        facts.kinds.map(({ name, code, hasExporter, fields: own, range, fds }) => {
          const all = [
            ...(hasExporter ? ['the exporter'] : []),
            ...own.map((field) => `${field.name} (\`${field.type}\`)`),
            ...(range === null
              ? []
              : [range === 'size' ? 'a range, which may be empty' : 'a range']),
          ];
          return [code, name, all.join(', ') || 'nothing', fds];
        }),
      ),
    ],
  ]);
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  for (const [path, text] of generate()) writeFileSync(join(root, path), text);
