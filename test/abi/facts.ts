/** What the C compiler makes of cuda.h, asked by small programs generated from the table. */
import { functionNames, rows } from '../../ffi/functions.ts';
import type { CType } from '../../ffi/types.ts';
import type { BuildFolder } from './toolchain.ts';

// Declares the symbols of older versions too: cuCtxCreate_v2, cuEventElapsedTime without suffix.
const ALL_VERSIONS = '-D__CUDA_API_VERSION_INTERNAL';
const INCLUDE = '#include <cuda.h>\n#include <stdio.h>\n';

/** A row's C parameter list. */
export const parameters = (params: readonly CType[]): string =>
  params.map((param) => param.c).join(', ') || 'void';

/** Whether the row's C type is exactly what the header declares, row by row. */
export interface RowFacts {
  readonly name: string;
  /** Whether the header as programs see it declares the symbol, or only its list of old versions. */
  readonly declaredIn: 'public' | 'all versions';
  readonly compatible: boolean;
}

/** Asks for every row of the table; a row that the header declares nowhere is left out. */
export function rowFacts(build: BuildFolder): RowFacts[] {
  const left = new Set<string>(functionNames);
  const facts: RowFacts[] = [];
  for (const declaredIn of ['public', 'all versions'] as const) {
    const flags = declaredIn === 'public' ? [] : [ALL_VERSIONS];
    const declarations = build.preprocess(INCLUDE, flags);
    const here = functionNames.filter(
      (name) => left.has(name) && new RegExp(`\\bCUresult\\s+${name}\\s*\\(`).test(declarations),
    );
    const asks = here.map(
      (name) => `
#undef ${name}
  printf("${name} %d\\n", __builtin_types_compatible_p(
    __typeof__(&${name}), CUresult (*)(${parameters(rows[name].params)})));`,
    );
    const source = `${INCLUDE}int main(void) {${asks.join('')}\n  return 0;\n}\n`;
    for (const line of lines(build.run('rows', source, flags))) {
      const [name = '', compatible] = line.split(' ');
      left.delete(name);
      facts.push({ name, declaredIn, compatible: compatible === '1' });
    }
  }
  return facts;
}

/** A C type's size and alignment, and whether it is a floating type or below zero possible. */
export interface TypeFacts {
  readonly byteLength: number;
  readonly alignment: number;
  readonly floating: boolean;
  /** undefined for a struct */
  readonly signed: boolean | undefined;
}

/** Asks for each of the C types, by their spelling. */
export function typeFacts(
  build: BuildFolder,
  types: readonly { c: string; scalar: boolean }[],
): Map<string, TypeFacts> {
  const asks = types.map(({ c, scalar }) => {
    const signed = scalar ? `(${c})-1 < (${c})1` : '2';
    const floating = `_Generic(*(${c} *)0, float: 1, double: 1, default: 0)`;
    return `  printf("%zu %zu %d %d ${c}\\n", sizeof(${c}), _Alignof(${c}), ${floating}, ${signed});`;
  });
  const source = `${INCLUDE}int main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  return new Map(
    lines(build.run('types', source)).map((line) => {
      const [byteLength, alignment, floating, signed, ...c] = line.split(' ');
      const facts = {
        byteLength: Number(byteLength),
        alignment: Number(alignment),
        floating: floating === '1',
        signed: signed === '2' ? undefined : signed === '1',
      };
      return [c.join(' '), facts];
    }),
  );
}

/** A struct as the compiler lays it out. */
export interface StructFacts {
  readonly byteLength: number;
  readonly fields: ReadonlyMap<string, readonly [offset: number, byteLength: number]>;
}

/** Asks where the fields of structs lie, nested ones by their dotted names. */
export function structFacts(
  build: BuildFolder,
  structs: Readonly<Record<string, readonly string[]>>,
): Map<string, StructFacts> {
  const asks = Object.entries(structs).flatMap(([name, fields]) => [
    `  printf("${name} - %zu 0\\n", sizeof(${name}));`,
    ...fields.map(
      (field) =>
        `  printf("${name} ${field} %zu %zu\\n", ` +
        `offsetof(${name}, ${field}), sizeof(((${name} *)0)->${field}));`,
    ),
  ]);
  const source = `${INCLUDE}#include <stddef.h>\nint main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  const facts = new Map<string, { byteLength: number; fields: Map<string, [number, number]> }>();
  for (const line of lines(build.run('structs', source))) {
    const [name = '', field = '', at, byteLength] = line.split(' ');
    if (field === '-') facts.set(name, { byteLength: Number(at), fields: new Map() });
    else facts.get(name)?.fields.set(field, [Number(at), Number(byteLength)]);
  }
  return facts;
}

/** The names of a struct's own fields, by the struct's tag. */
export function fieldNames(build: BuildFolder, tag: string): string[] {
  const source = build.preprocess(INCLUDE);
  const start = source.indexOf('{', source.search(new RegExp(`\\bstruct\\s+${tag}\\s*\\{`)));
  let depth = 1;
  let end = start + 1;
  for (; depth > 0; end += 1) depth += { '{': 1, '}': -1 }[source[end] as string] ?? 0;
  const body = source.slice(start + 1, end - 1).replace(/\{[^}]*\}/g, '');
  return [...body.matchAll(/(\w+)\s*(?:\[\w+\])?\s*;/g)].map((match) => match[1] as string);
}

/** The values of enumerators and macros. */
export function values(build: BuildFolder, names: readonly string[]): Map<string, number> {
  const asks = names.map((name) => `  printf("${name} %lld\\n", (long long)${name});`);
  const source = `${INCLUDE}int main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  return new Map(
    lines(build.run('values', source)).map((line) => {
      const [name = '', value] = line.split(' ');
      return [name, Number(value)];
    }),
  );
}

/** The names of an enum's enumerators, by the enum's tag. */
export function enumerators(build: BuildFolder, tag: string): string[] {
  const body = new RegExp(`\\benum\\s+${tag}\\s*\\{([^}]*)\\}`).exec(build.preprocess(INCLUDE));
  if (!body) throw new Error(`cuda.h has no enum ${tag}`);
  return (body[1] as string)
    .split(',')
    .map((text) => /^\s*(\w+)/.exec(text)?.[1])
    .filter((name) => name !== undefined);
}

/** A constant's name as both sides agree on it: without underscores, in capitals. */
export const bare = (name: string): string => name.replaceAll('_', '').toUpperCase();

const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');
