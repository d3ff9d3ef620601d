/**
 * What the C compiler makes of cuda.h, asked by small programs generated from the table, and the
 * record of what it made of that of CUDA 13.0: `CUFFI_ABI=record` makes the tests use it although
 * there is a cuda.h, `CUFFI_ABI=write` has it written.
 */

import { readFileSync, writeFileSync } from 'node:fs';
import * as constants from '../../ffi/constants.ts';
import { type FunctionName, functionNames, rows } from '../../ffi/functions.ts';
import { type Layout, structs } from '../../ffi/structs.ts';
import type { CType } from '../../ffi/types.ts';
import * as types from '../../ffi/types.ts';
import { type BuildFolder, compiler, header } from './toolchain.ts';

// Declares the symbols of older versions too: cuCtxCreate_v2, cuEventElapsedTime without suffix.
const ALL_VERSIONS = '-D__CUDA_API_VERSION_INTERNAL';
const INCLUDE = '#include <cuda.h>\n#include <stdio.h>\n';

/** A row's C parameter list. */
export const parameters = (params: readonly CType[]): string =>
  params.map((param) => param.c).join(', ') || 'void';

/** What the header declares of a function. */
export interface RowFacts {
  /** Whether the header as programs see it declares the symbol, or only its list of old versions. */
  readonly declaredIn: 'public' | 'all versions';
  /** The C parameter list; empty where it is not what the table says. */
  readonly parameters: string;
  /** The CUDA version that the symbol came with, by cudaTypedefs.h. */
  readonly since: number;
}

/** The versions that functions came with, by name without suffix, oldest first: their symbols' order. */
function typedefVersions(build: BuildFolder): Map<string, number[]> {
  const versions = new Map<string, Set<number>>();
  for (const flags of [[], [ALL_VERSIONS]])
    for (const [, name = '', version] of build
      .preprocess('#include <cuda.h>\n#include <cudaTypedefs.h>\n', flags)
      .matchAll(/\*\s*PFN_(\w+?)_v(\d{4,5})(?:_pt[ds][sz])?\)/g))
      versions.set(name, (versions.get(name) ?? new Set()).add(Number(version)));
  return new Map([...versions].map(([name, all]) => [name, [...all].sort((a, b) => a - b)]));
}

/** Asks for every row of the table; a row that the header declares nowhere is left out. */
function rowFacts(build: BuildFolder): Record<string, RowFacts> {
  const versions = typedefVersions(build);
  const sinceOf = (symbol: string): number => {
    const [, name = '', form = '1'] = /^(\w+?)(?:_v(\d))?$/.exec(symbol) ?? [];
    return versions.get(name)?.[Number(form) - 1] ?? 0;
  };
  const left = new Set<string>(functionNames);
  const facts: Record<string, RowFacts> = {};
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
      const list = parameters(rows[name as FunctionName].params);
      facts[name] = {
        declaredIn,
        parameters: compatible === '1' ? list : '',
        since: sinceOf(name),
      };
    }
  }
  return facts;
}

/** A C type's size and alignment, and whether it is a floating type or below zero possible. */
export interface TypeFacts {
  readonly byteLength: number;
  readonly alignment: number;
  readonly floating: boolean;
  /** Not asked of structs and pointers. */
  readonly signed?: boolean;
}

/** Asks for each of the C types, by their spelling. */
function typeFacts(
  build: BuildFolder,
  types: readonly { c: string; scalar: boolean }[],
): Record<string, TypeFacts> {
  const asks = types.map(({ c, scalar }) => {
    const signed = scalar ? `(${c})-1 < (${c})1` : '2';
    const floating = `_Generic(*(${c} *)0, float: 1, double: 1, default: 0)`;
    return `  printf("%zu %zu %d %d ${c}\\n", sizeof(${c}), _Alignof(${c}), ${floating}, ${signed});`;
  });
  const source = `${INCLUDE}int main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  return Object.fromEntries(
    lines(build.run('types', source)).map((line) => {
      const [byteLength, alignment, floating, signed, ...c] = line.split(' ');
      const facts = {
        byteLength: Number(byteLength),
        alignment: Number(alignment),
        floating: floating === '1',
        ...(signed === '2' ? {} : { signed: signed === '1' }),
      };
      return [c.join(' '), facts];
    }),
  );
}

/** A struct as the compiler lays it out. */
export interface StructFacts {
  readonly byteLength: number;
  readonly fields: Readonly<Record<string, readonly [offset: number, byteLength: number]>>;
  /** The names of its own fields, be they in the table or not. */
  readonly own: readonly string[];
}

/** Asks where the fields of structs lie, nested ones by their dotted names. */
function structFacts(build: BuildFolder): Record<string, StructFacts> {
  const ours = Object.entries<Layout>(structs);
  const asks = ours.flatMap(([name, { fields }]) => [
    `  printf("${name} - %zu 0\\n", sizeof(${name}));`,
    ...Object.keys(fields).map(
      (field) =>
        `  printf("${name} ${field} %zu %zu\\n", ` +
        `offsetof(${name}, ${field}), sizeof(((${name} *)0)->${field}));`,
    ),
  ]);
  const source = `${INCLUDE}#include <stddef.h>\nint main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  const facts: Record<string, StructFacts & { fields: Record<string, [number, number]> }> = {};
  for (const line of lines(build.run('structs', source))) {
    const [name = '', field = '', at, byteLength] = line.split(' ');
    if (field === '-')
      facts[name] = {
        byteLength: Number(at),
        fields: {},
        own: fieldNames(build, `${name}_st`),
      };
    else (facts[name] as (typeof facts)[string]).fields[field] = [Number(at), Number(byteLength)];
  }
  return facts;
}

/** The names of a struct's own fields, by the struct's tag. */
function fieldNames(build: BuildFolder, tag: string): string[] {
  const source = build.preprocess(INCLUDE);
  const start = source.indexOf('{', source.search(new RegExp(`\\bstruct\\s+${tag}\\s*\\{`)));
  let depth = 1;
  let end = start + 1;
  for (; depth > 0; end += 1) depth += { '{': 1, '}': -1 }[source[end] as string] ?? 0;
  const body = source.slice(start + 1, end - 1).replace(/\{[^}]*\}/g, '');
  return [...body.matchAll(/(\w+)\s*(?:\[\w+\])?\s*;/g)].map((match) => match[1] as string);
}

/** The values of enumerators and macros. */
function values(build: BuildFolder, names: readonly string[]): Record<string, number> {
  const asks = names.map((name) => `  printf("${name} %lld\\n", (long long)${name});`);
  const source = `${INCLUDE}int main(void) {\n${asks.join('\n')}\n  return 0;\n}\n`;
  return Object.fromEntries(
    lines(build.run('values', source)).map((line) => {
      const [name = '', value] = line.split(' ');
      return [name, Number(value)];
    }),
  );
}

/** The names of an enum's enumerators, by the enum's tag. */
function enumerators(build: BuildFolder, tag: string): string[] {
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

/** Everything that the table is compared with. */
export interface HeaderFacts {
  /** As CUDA_VERSION has it: 13000 is 13.0. */
  readonly version: number;
  readonly rows: Readonly<Record<string, RowFacts>>;
  readonly types: Readonly<Record<string, TypeFacts>>;
  readonly structs: Readonly<Record<string, StructFacts>>;
  readonly constants: Readonly<Record<string, number>>;
  /** The enumerators of each enum, by its tag. */
  readonly enums: Readonly<Record<string, Readonly<Record<string, number>>>>;
}

/** Every C type of the table, and whether it can be a number: what a row passes, not a handle's bytes. */
const cTypes = new Map<string, { readonly c: string; readonly scalar: boolean }>();
for (const type of Object.values(types))
  if (typeof type === 'object') cTypes.set(type.c, { c: type.c, scalar: false });
for (const name of functionNames)
  for (const { c, ffi } of rows[name].params as readonly CType[])
    cTypes.set(c, { c, scalar: ffi !== 'handle64' });

/** What cuda.h 13.0 says, as {@link askHeader} read it. */
const RECORD = new URL('./cuda-13.0.json', import.meta.url);

/** Asks the compiler of this machine about its cuda.h. */
function askHeader(build: BuildFolder): HeaderFacts {
  const names = Object.keys(constants).filter((name) => name.startsWith('CU_'));
  const tags = ['cudaError_enum', 'CUdevice_attribute_enum', 'CUlimit_enum'];
  return {
    version: values(build, ['CUDA_VERSION'])['CUDA_VERSION'] as number,
    rows: rowFacts(build),
    types: typeFacts(build, [...cTypes.values()]),
    structs: structFacts(build),
    constants: values(build, names),
    enums: Object.fromEntries(tags.map((tag) => [tag, values(build, enumerators(build, tag))])),
  };
}

/** What cuda.h 13.0 says, for machines without one. */
export const recorded = (): HeaderFacts => JSON.parse(readFileSync(RECORD, 'utf8')) as HeaderFacts;

/** Writes the record. */
export const record = (facts: HeaderFacts): void =>
  writeFileSync(RECORD, `${JSON.stringify(facts, null, 2)}\n`);

/** What the header of this machine says, else what is on record. */
export const headerFacts = (build: BuildFolder): HeaderFacts =>
  header === undefined || compiler === undefined ? recorded() : askHeader(build);
