/** The driver in use, with some functions that do nothing but answer success. */
import { cu, selectDriver } from '../../ffi/driver.ts';
import { type Driver, type FunctionName, functionNames } from '../../ffi/functions.ts';

/** From now on calls of `names` do nothing, as if nobody had made them. */
export function without(...names: FunctionName[]): void {
  const driver: Partial<Record<FunctionName, unknown>> = {};
  for (const name of functionNames) driver[name] = names.includes(name) ? () => 0 : cu[name];
  selectDriver(driver as Driver);
}
