/** What an argument must be, in words for messages. */
import { byteLengthOf, type Parameter, parameterName } from './parameters.ts';

/** What a parameter takes. */
export function wantedFor(param: Parameter): string {
  if (typeof param === 'object') return `the bytes of ${parameterName(param)}`;
  if (param === 'pointer' || param.endsWith('*'))
    return `in device memory (anything with an address), or an address, or null, for ${param}`;
  if (param === 'bool') return 'true or false';
  const isWide = param === 'int64' || param === 'uint64';
  return `a number${isWide ? ' or a bigint' : ''}, for ${param}`;
}

/** The integers that a parameter takes. */
export function rangeOf(param: Parameter): string {
  if (typeof param === 'object' || !/^u?int/.test(param) || param.endsWith('*'))
    return 'an address, an integer from 0 to 2^53 - 1';
  const bits = 8 * byteLengthOf(param);
  const [low, high] = param.startsWith('int') ? [`-2^${bits - 1}`, bits - 1] : ['0', bits];
  const asNumber = bits === 64 ? ' (as a number: a safe one)' : '';
  return `an integer from ${low} to 2^${high} - 1${asNumber}`;
}
