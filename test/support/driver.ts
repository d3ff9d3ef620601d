/** Which driver the suite runs on, chosen by the npm script through CUFFI_DRIVER. */

export const emulated: boolean = process.env['CUFFI_DRIVER'] === 'emulated';
export const onHardware: boolean = !emulated;
