/** Where an axis is labelled, and with what. */

/** Of each decade, where there are more than so many. */
const STEPS = [
  { from: 4, steps: [1] },
  { from: 1, steps: [1, 2, 5] },
  { from: 0.3, steps: [1, 1.5, 2, 3, 4, 5, 7] },
  { from: -1, steps: [1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9] },
];

/** Numbers from one to the other that an axis is labelled at: the fewer decades, the closer. */
export function logTicks(from: number, to: number): number[] {
  const decades = Math.log10(to / from);
  const steps = STEPS.find(({ from: least }) => decades > least)?.steps ?? [];
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1)
    for (const step of steps) {
      const tick = Number(`${step}e${power}`);
      if (tick >= from * 0.999 && tick <= to * 1.001) ticks.push(tick);
    }
  return ticks;
}

const shortest = (divisor: number): string => `format(datum.value / ${divisor}, '.3~r')`;

/** Nanoseconds with a unit, as an expression of vega. */
export const timeLabel =
  `datum.value === 0 ? '0' : datum.value < 1e3 ? ${shortest(1)} + ' ns' : datum.value < 1e6 ? ${shortest(1e3)} + ' µs' : ` +
  `datum.value < 1e9 ? ${shortest(1e6)} + ' ms' : ${shortest(1e9)} + ' s'`;

/** Bytes with a unit, as an expression of vega. */
export const bytesLabel =
  `datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : ` +
  `datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'`;
