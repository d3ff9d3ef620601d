import { inspect } from 'node:util';
import { requireMade } from '../arguments.ts';
import type { CodeKind } from './architecture.ts';

/** What a compiled source is made of. */
export interface CompiledInit<K extends CodeKind> {
  readonly kind: K;
  readonly code: Uint8Array;
  readonly log: string;
  /** The names that the compiler gave, by name expression. */
  readonly names: ReadonlyMap<string, string>;
}

/**
 * A compiled source: what `Module.load` takes as `code`, and what its kernels are called there.
 *
 * @example
 * const compiled = await cuda.compile(source, { names: ['scale<float>'] });
 * using module = cuda.Module.load(compiled.code);
 * const scale = module.kernel(compiled.name('scale<float>'), ['pointer', 'float32', 'uint32']);
 */
export class CompiledCode<out K extends CodeKind = CodeKind> {
  readonly kind: K;
  /** Text for `'ptx'`, bytes for `'cubin'`. */
  readonly code: K extends 'cubin' ? Uint8Array : string;
  /** What the compiler said: warnings, mostly nothing. */
  readonly log: string;
  readonly #names: ReadonlyMap<string, string>;

  /** @internal */
  constructor(init: CompiledInit<K>) {
    requireMade(init, Object, 'CompiledCode', 'compile');
    const { kind, code, log, names } = init;
    this.kind = kind;
    this.code = (
      kind === 'cubin'
        ? code
        : Buffer.from(code.buffer, code.byteOffset, code.byteLength).toString()
    ) as CompiledCode<K>['code'];
    this.log = log;
    this.#names = names;
  }

  /**
   * What a kernel is called in the code, by the expression that `names` had for it. `extern "C"`
   * kernels are called as in the source and need none.
   *
   * @throws RangeError for an expression that was not among `names`
   */
  name(expression: string): string {
    const name = this.#names.get(expression);
    if (name !== undefined) return name;
    const known = [...this.#names.keys()].join(', ') || 'none';
    throw new RangeError(
      `'${String(expression)}' is not among the names that were compiled: ${known}`,
    );
  }

  [inspect.custom](): string {
    return `CompiledCode(${this.kind}, ${this.code.length} bytes)`;
  }
}
