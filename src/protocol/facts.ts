/** protocol.json: every fact of the protocol, checked as it is read. */
import { readFileSync } from 'node:fs';
import * as z from '../ipc/zod.ts';

const name = z.string().regex(/^[a-z][A-Za-z0-9]*$/);
const text = z.string().regex(/^[^\n|]*$/);
const fact = z.strictObject({ name, value: z.number().or(z.string()), about: text });
const field = z.strictObject({ name, type: z.string() });

const schema = z.strictObject({
  version: z.strictObject({ min: z.int().min(1).max(255), max: z.int().min(1).max(255) }),
  constants: z.array(fact),
  limits: z.array(z.strictObject({ name, value: z.int().min(1), about: text })),
  enumerations: z.array(
    z.strictObject({
      name: z.string().regex(/^[A-Z][A-Za-z]*$/),
      prefix: z.string().regex(/^[A-Z_]+$/),
      about: text,
      columns: z.array(text),
      members: z.array(z.strictObject({ name, value: z.int().min(0), text: z.array(text) })),
    }),
  ),
  binaryTypes: z.array(z.strictObject({ name: z.string(), itemByteLength: z.int().min(1) })),
  errorTypes: z.array(z.string()),
  access: z.array(z.string()),
  devicePrefixes: z.array(z.string()),
  numbers: z.array(
    z.strictObject({ name, byteLength: z.literal([4, 8]), least: z.int(), most: z.int() }),
  ),
  fieldTypes: z.array(
    z.strictObject({
      name: z.string().regex(/^[a-z]+\??$/),
      byteLength: z.int().optional(),
      about: text,
    }),
  ),
  exporterFields: z.array(field.extend({ about: text })),
  rangeFields: z.array(field.extend({ about: text })),
  kinds: z.array(
    z.strictObject({
      name,
      code: z.int().min(0).max(255),
      hasExporter: z.boolean(),
      fields: z.array(field),
      range: z.string().nullable(),
      fds: text,
    }),
  ),
});

export type Facts = z.infer<typeof schema>;

/** Reads the facts. @throws Error for what contradicts itself */
export function readFacts(path: string | URL = new URL('protocol.json', import.meta.url)): Facts {
  return checkFacts(JSON.parse(readFileSync(path, 'utf8')));
}

/** @throws Error that says which facts are wrong */
export function checkFacts(json: unknown): Facts {
  const facts = schema.parse(json);
  const problems = [...problemsIn(facts)];
  if (problems.length > 0) throw new Error(`protocol.json: ${problems.join('; ')}`);
  return facts;
}

/** As a constant is called: `valueParts` becomes `VALUE_PARTS`. */
export const snake = (name: string): string =>
  name.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase();

/** The fields of a kind behind those of its exporter. */
export function fieldsOf({ fields, range }: Facts['kinds'][number], { rangeFields }: Facts) {
  const own = fields.map(({ name, type }) => [name, type] as const);
  // A pool itself has no size: what is at least 1 elsewhere may be 0 there.
  const shared = rangeFields.map(
    ({ name, type }) => [name, type === 'positive' ? (range as string) : type] as const,
  );
  return range === null ? own : [...own, ...shared];
}

function* problemsIn(facts: Facts): Iterable<string> {
  const { version, constants, limits, enumerations, numbers, fieldTypes, kinds } = facts;
  if (version.min > version.max) yield 'the least version is above the greatest';
  // Both ends choose one, but what they send is written for one only.
  else if (version.min !== version.max) yield 'there is no code for a second version';
  yield* repeated(
    'constant or limit',
    [...constants, ...limits].map((one) => one.name),
  );
  yield* repeated(
    'enumeration',
    enumerations.map((one) => one.name),
  );
  // As the companion names them.
  yield* repeated('name in Python', [
    ...[...constants, ...limits].map((one) => snake(one.name)),
    ...enumerations.flatMap(({ prefix, members }) =>
      members.map((one) => `${prefix}_${snake(one.name)}`),
    ),
  ]);
  for (const { name: of, columns, members } of enumerations) {
    yield* repeated(
      `member of ${of}`,
      members.map((one) => one.name),
    );
    yield* repeated(
      `value in ${of}`,
      members.map((one) => one.value),
    );
    for (const member of members)
      if (member.text.length !== columns.length - 2) yield `${of}.${member.name} has other columns`;
  }
  for (const names of [facts.binaryTypes.map((one) => one.name), facts.errorTypes, facts.access])
    yield* repeated('name of a list', names);
  const types = new Set([...numbers, ...fieldTypes].map((one) => one.name));
  const fields = [
    ...facts.exporterFields,
    ...facts.rangeFields,
    ...kinds.flatMap((one) => one.fields),
  ];
  for (const { name: of, type } of fields)
    if (!types.has(type)) yield `${of} has the unknown type ${type}`;
  for (const [index, { name: of, code, range }] of kinds.entries()) {
    if (code !== index) yield `kind ${of} has the number ${code} at place ${index}`;
    if (range !== null && !types.has(range))
      yield `kind ${of} has a range of the unknown type ${range}`;
  }
}

function* repeated(what: string, values: readonly unknown[]): Iterable<string> {
  for (const [index, value] of values.entries())
    if (values.indexOf(value) < index) yield `the ${what} ${value} comes twice`;
}
