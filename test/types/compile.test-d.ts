// What was compiled: text or bytes, by what was asked for.
import { expectTypeOf } from 'expect-type';
import { type CompiledCode, compile, compileSync, link, Module } from '../../src/index.ts';

const ptx = await compile('');
expectTypeOf(ptx).toEqualTypeOf<CompiledCode<'ptx'>>();
expectTypeOf(ptx.code).toEqualTypeOf<string>();

const cubin = compileSync('', { to: 'cubin', names: ['f<int>'] });
expectTypeOf(cubin.kind).toEqualTypeOf<'cubin'>();
expectTypeOf(cubin.code).toEqualTypeOf<Uint8Array>();
expectTypeOf(cubin.name('f<int>')).toEqualTypeOf<string>();

const either = compileSync('', { to: ptx.code === '' ? 'ptx' : 'cubin' });
expectTypeOf(either.code).toEqualTypeOf<string | Uint8Array>();
Module.load(either.code);
expectTypeOf(link([ptx.code, cubin.code])).toEqualTypeOf<Uint8Array<ArrayBuffer>>();

// @ts-expect-error: no such kind
compileSync('', { to: 'sass' });
// @ts-expect-error: no such option
compileSync('', { target: 'ptx' });
