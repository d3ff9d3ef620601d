/** How much of a thing a test does: little in `npm test`, all of it in `npm run test:soak`. */
export const dose = (small: number, full: number): number =>
  process.env['CUFFI_DOSE'] === 'soak' ? full : small;
