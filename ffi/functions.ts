/**
 * The table of driver functions, one row each. `Driver`, koffi's declarations, the functions of the
 * emulated driver and the tests against cuda.h follow from it. functions/ has a file per subject.
 *
 * The names are the exported symbols, version suffix included: an unsuffixed `cuMemAlloc` is
 * another, older function with 32-bit sizes.
 */
import { copyRows } from './functions/copy.ts';
import { deviceRows } from './functions/device.ts';
import { graphRows } from './functions/graph.ts';
import { ipcRows } from './functions/ipc.ts';
import { kernelRows } from './functions/kernel.ts';
import { linkRows } from './functions/link.ts';
import { memoryRows } from './functions/memory.ts';
import { moduleRows } from './functions/module.ts';
import { poolRows } from './functions/pool.ts';
import type { Row } from './functions/row.ts';
import { streamRows } from './functions/stream.ts';
import { virtualRows } from './functions/virtual.ts';
import type { CUresult } from './results.ts';
import type { Arguments } from './types.ts';

export type { Needs, Row } from './functions/row.ts';

export const functions = {
  ...deviceRows,
  ...streamRows,
  ...memoryRows,
  ...poolRows,
  ...virtualRows,
  ...copyRows,
  ...ipcRows,
  ...moduleRows,
  ...kernelRows,
  ...linkRows,
  ...graphRows,
} as const;

/** The name of a driver function, version suffix included. */
export type FunctionName = keyof typeof functions;

/** The driver as callable functions. Every call returns its status and never throws. */
export type Driver = {
  readonly [K in FunctionName]: (...args: Arguments<(typeof functions)[K]['params']>) => CUresult;
};

/** The rows without their individual types, for code that iterates over the table. */
export const rows: Readonly<Record<FunctionName, Row>> = functions;
export const functionNames = Object.keys(functions) as FunctionName[];
