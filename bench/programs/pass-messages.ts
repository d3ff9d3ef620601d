/** What a pass tells of itself, as it goes on. */
import type { DriverChoice } from '../driver.ts';
import type { Skipped } from '../peers/peer.ts';
import type { CaseResult, DelayResult, Machine } from '../result-schema.ts';

/** Its programs have started: the cases begin. */
export interface PassBegun {
  readonly type: 'begun';
  readonly driver: DriverChoice;
  readonly machine: Machine;
  /** Whether the two sides of short cases had a CPU each. */
  readonly isPinned: boolean;
  /** Programs that could not run. */
  readonly skipped: readonly Skipped[];
}

/** What a case came to in it. */
export interface PassCase {
  readonly type: 'case';
  /** Which of the run's. */
  readonly at: number;
  /** Whether this was the last of its parts. */
  readonly isLast: boolean;
  /** Undefined where nobody here can do it. */
  readonly result?: CaseResult;
  /** Why there is none, where it failed. */
  readonly error?: string;
}

/** The lateness of the event loop, which the last pass measures. */
export interface PassDelays {
  readonly type: 'delays';
  readonly delays: readonly DelayResult[];
}

/** It would go on: with its programs started, or with the next lap. It waits until it may. */
export interface PassReady {
  readonly type: 'ready';
}

export type PassMessage = PassBegun | PassCase | PassDelays;
