/** Records kernel launches: graphs read those of a capture, and errors name the last of all. */
import type { CUgraphNode, CUstream } from '../../ffi/types.ts';
import { lastCapturedNode } from '../graph-capture.ts';
import { recentWork } from '../hints.ts';
import type { LaunchConfigStruct } from './launch-config.ts';

/** A kernel launch in a captured stream. */
export interface LaunchRecord extends Pick<LaunchConfigStruct, 'grid' | 'block' | 'sharedBytes'> {
  readonly kernel: object;
  readonly handle: CUgraphNode;
  readonly args: readonly unknown[];
}

/** Notes a launch that is about to be made: a fault that is found later may be of it. */
export const noteLaunch = (kernel: string): void => {
  recentWork.kernel = kernel;
};

let records: LaunchRecord[] = [];

/** Calls `work` and returns the kernel launches that it makes in captured streams. */
export function recordLaunches<T>(work: () => T): {
  readonly result: T;
  readonly launches: readonly LaunchRecord[];
} {
  records = [];
  try {
    return { result: work(), launches: records };
  } finally {
    records = [];
  }
}

/** Records the launch that was just made, if its stream is captured. */
export function recordLaunch(
  kernel: object,
  { grid, block, sharedBytes }: LaunchConfigStruct,
  stream: CUstream,
  args: readonly unknown[],
): void {
  const handle = lastCapturedNode(stream);
  if (handle !== undefined) records.push({ kernel, grid, block, sharedBytes, handle, args });
}
