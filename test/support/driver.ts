/** Which driver the suite runs on, chosen by the npm script through CUFFI_DRIVER. */
import { cu, selectDriver } from '../../ffi/driver.ts';
import { type Driver, type FunctionName, functionNames } from '../../ffi/functions.ts';

export const emulated: boolean = process.env['CUFFI_DRIVER'] === 'emulated';
export const onHardware: boolean = !emulated;

/** The driver in use, with some functions that do nothing but answer success. */

/** From now on calls of `names` do nothing, as if nobody had made them. */
export function without(...names: FunctionName[]): void {
  const driver: Partial<Record<FunctionName, unknown>> = {};
  for (const name of functionNames) driver[name] = names.includes(name) ? () => 0 : cu[name];
  selectDriver(driver as Driver);
}
