/** All groups of facts about kinds of memory, for one device. */
import { contextlessFacts } from './contextless.ts';
import type { FactGroup } from './facts.ts';
import { hostFacts } from './host.ts';
import { managedFacts } from './managed.ts';
import { peerFacts } from './peer.ts';
import { poolFacts } from './pool.ts';
import { poolBoundFacts } from './pool-bound.ts';
import { poolIpcFacts } from './pool-ipc.ts';
import { resetFacts } from './reset.ts';
import { virtualFacts } from './virtual.ts';

export const memoryKindFacts: readonly FactGroup[] = [
  contextlessFacts,
  poolFacts,
  poolIpcFacts,
  poolBoundFacts,
  virtualFacts,
  hostFacts,
  managedFacts,
  peerFacts,
  resetFacts,
];
