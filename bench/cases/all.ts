import { arrayCopyCases } from './array-copies.ts';
import { arrayCases } from './arrays.ts';
import { callCases } from './calls.ts';
import type { Case } from './case.ts';
import { compileCases } from './compile.ts';
import { copyCases } from './copies.ts';
import { gpuCopyCases } from './gpu-copies.ts';
import { graphCases } from './graphs.ts';
import { handOverCases } from './hand-over.ts';
import { kernelCases } from './kernels.ts';
import { killedCases } from './killed.ts';
import { memoryCases } from './memory.ts';
import { saxpyCases } from './saxpy.ts';
import { scaleCases } from './scale.ts';
import { startupCases } from './startup.ts';

/** All cases by their suites, in the order in which they run. */
export const suites: Readonly<Record<string, readonly Case[]>> = {
  calls: callCases,
  'hand-over': handOverCases,
  memory: memoryCases,
  copies: [...copyCases, ...gpuCopyCases],
  arrays: [...arrayCases, ...arrayCopyCases],
  kernels: [...kernelCases, ...graphCases, ...saxpyCases, ...compileCases],
  startup: startupCases,
  scale: [...scaleCases, ...killedCases],
};
