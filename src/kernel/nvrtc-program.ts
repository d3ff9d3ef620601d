import { OUT0, readHandle, readSize } from '../../ffi/arena.ts';
import { CStrings } from '../../ffi/c-strings.ts';
import { callOffThread, hasDeepStacks } from '../../ffi/library.ts';
import { stringAt, withAddress } from '../../ffi/native.ts';
import type { NvrtcProgram } from '../../ffi/nvrtc.ts';
import type { Address } from '../../ffi/types.ts';
import { CompileError } from '../errors.ts';
import type { CodeKind } from './architecture.ts';
import { type CompiledInit, type CompileRequest, SOURCE_NAME } from './compile-options.ts';

/** A program object of libnvrtc. */
export class Program<K extends CodeKind> implements Disposable {
  readonly #request: CompileRequest<K>;
  readonly #source: CStrings;
  readonly #headers: CStrings;
  readonly #headerNames: CStrings;
  readonly #names: CStrings;
  readonly #options: CStrings;
  readonly #handle: NvrtcProgram;

  constructor(request: CompileRequest<K>) {
    const { headers, names, options } = request;
    this.#request = request;
    this.#source = new CStrings([request.source, SOURCE_NAME]);
    this.#headers = new CStrings(Object.values(headers));
    this.#headerNames = new CStrings(Object.keys(headers));
    this.#names = new CStrings(names);
    this.#options = new CStrings(options);
    try {
      this.#handle = this.#create();
    } catch (error) {
      this.#freeStrings();
      throw error;
    }
    try {
      this.#addNames();
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  /** Compiles on this thread. @throws CompileError */
  compileSync(): CompiledInit<K> {
    const { count, table } = this.#options;
    return this.#readResult(this.#nvrtc.nvrtcCompileProgram(this.#handle, count, table));
  }

  /** Compiles on another thread. @throws CompileError */
  async compile(): Promise<CompiledInit<K>> {
    // Another user of koffi loaded it first, with thread stacks too small for a compiler.
    if (!hasDeepStacks()) return this.compileSync();
    const { count, table } = this.#options;
    const call = this.#nvrtc.nvrtcCompileProgram as (...args: number[]) => number;
    return this.#readResult(await callOffThread(call, this.#handle, count, table));
  }

  [Symbol.dispose](): void {
    withAddress(new BigUint64Array([BigInt(this.#handle)]), (address) =>
      this.#nvrtc.nvrtcDestroyProgram(address),
    );
    this.#freeStrings();
  }

  get #nvrtc(): CompileRequest['compiler']['nvrtc'] {
    return this.#request.compiler.nvrtc;
  }

  #create(): NvrtcProgram {
    const { nvrtc } = this.#request.compiler;
    this.#check(
      nvrtc.nvrtcCreateProgram(
        OUT0,
        this.#source.at(0),
        this.#source.at(1),
        this.#headers.count,
        this.#headers.table,
        this.#headerNames.table,
      ),
      'nvrtcCreateProgram',
    );
    return readHandle<NvrtcProgram>(OUT0);
  }

  #addNames(): void {
    for (let n = 0; n < this.#names.count; n += 1)
      this.#check(
        this.#nvrtc.nvrtcAddNameExpression(this.#handle, this.#names.at(n)),
        'nvrtcAddNameExpression',
      );
  }

  #readResult(status: number): CompiledInit<K> {
    const { compiler, kind, names } = this.#request;
    const handle = this.#handle;
    const { nvrtc } = this.#request.compiler;
    const logBytes = this.#read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog);
    const log = textOf(logBytes).trimEnd();
    if (status !== 0) throw sourceError(this.#request, compiler.describe(status), log);
    const lowered = names.map((name, n): [string, string] => {
      this.#check(
        nvrtc.nvrtcGetLoweredName(handle, this.#names.at(n), OUT0),
        'nvrtcGetLoweredName',
      );
      return [name, stringAt(readHandle<Address>(OUT0))];
    });
    const code =
      kind === 'ptx'
        ? withoutTerminator(this.#read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))
        : this.#read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN);
    return { kind, code, log, names: new Map(lowered) };
  }

  #read(
    size: (program: NvrtcProgram, out: Address) => number,
    get: (program: NvrtcProgram, into: Address) => number,
  ): Uint8Array {
    this.#check(size(this.#handle, OUT0), 'asking for a length');
    const bytes = new Uint8Array(readSize(OUT0));
    if (bytes.length > 0)
      this.#check(
        withAddress(bytes, (address) => get(this.#handle, address)),
        'reading what was compiled',
      );
    return bytes;
  }

  #check(status: number, doing: string): void {
    if (status === 0) return;
    const { compiler } = this.#request;
    throw new CompileError(
      `libnvrtc ${compiler.version}: ${doing} failed: ${compiler.describe(status)}`,
      '',
    );
  }

  #freeStrings(): void {
    for (const strings of [
      this.#source,
      this.#headers,
      this.#headerNames,
      this.#names,
      this.#options,
    ])
      strings[Symbol.dispose]();
  }
}

const withoutTerminator = (bytes: Uint8Array): Uint8Array =>
  bytes.at(-1) === 0 ? bytes.subarray(0, -1) : bytes;

const textOf = (bytes: Uint8Array): string => Buffer.from(withoutTerminator(bytes)).toString();

/** Matches `kernel.cu(3): error: identifier "x" is undefined` in the compiler's log. */
const ERROR_LINE = /^(.+?)\((\d+)\): (?:catastrophic )?error:? (.*)$/m;

/** The error for a source that does not compile, with the first faulty line. */
function sourceError(
  { source, headers, names }: CompileRequest,
  status: string,
  log: string,
): CompileError {
  const [line, file = '', number = ''] = ERROR_LINE.exec(log) ?? [];
  if (line === undefined) {
    const named = names.length > 0 ? ` (names: ${names.join(', ')})` : '';
    return new CompileError(`compiling ${SOURCE_NAME}${named} failed: ${status}`, log);
  }
  const text = file === SOURCE_NAME ? source : headers[file];
  const sourceLine = text?.split('\n')[Number(number) - 1]?.trimEnd();
  const message = `compiling failed: ${line}`;
  return new CompileError(
    sourceLine === undefined ? message : `${message}\n  ${number} | ${sourceLine}`,
    log,
  );
}
