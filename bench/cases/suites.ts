import { arrayCases } from './arrays.ts';
import { callCases } from './calls.ts';
import type { Case } from './case.ts';
import { channelCases } from './channels.ts';
import { compileCases } from './compile.ts';
import { copyCases } from './copies.ts';
import { eventLoopCases } from './event-loop.ts';
import { handOverCases } from './hand-over.ts';
import { kernelCases } from './kernels.ts';
import { memoryCases } from './memory.ts';
import { saxpyCases } from './saxpy.ts';
import { scaleCases } from './scale.ts';
import { startupCases } from './startup.ts';
import { waitingCases, waitingEventLoopCases } from './waiting.ts';

/** All cases by suite, in the order in which they run. */
export const suites: Readonly<Record<string, readonly Case[]>> = {
  calls: callCases,
  waiting: waitingCases,
  'hand-over': handOverCases,
  channels: channelCases,
  memory: memoryCases,
  copies: copyCases,
  arrays: arrayCases,
  kernels: [...kernelCases, ...saxpyCases, ...compileCases],
  startup: startupCases,
  scale: scaleCases,
  'event-loop': [...eventLoopCases, ...waitingEventLoopCases],
};
