/** What a compiler's log says of the first line at fault. */
import { CompileError } from '../errors.ts';
import { type CompileRequest, SOURCE_NAME } from './compile-options.ts';

/** The compiler's `kernel.cu(3): error: identifier "x" is undefined`. */
const AT_FAULT = /^(.+?)\((\d+)\): (?:catastrophic )?error:? (.*)$/m;

/** The error for a source that did not compile: the line at fault, as it is in the source. */
export function compileFailure(
  { source, headers, names }: CompileRequest,
  status: string,
  log: string,
): CompileError {
  const [line, file = '', number = ''] = AT_FAULT.exec(log) ?? [];
  if (line === undefined) {
    const named = names.length > 0 ? ` (names: ${names.join(', ')})` : '';
    return new CompileError(`compiling ${SOURCE_NAME}${named} failed: ${status}`, log);
  }
  const text = file === SOURCE_NAME ? source : headers[file];
  const shown = text?.split('\n')[Number(number) - 1]?.trimEnd();
  const message = `compiling failed: ${line}`;
  return new CompileError(
    shown === undefined ? message : `${message}\n  ${number} | ${shown}`,
    log,
  );
}
