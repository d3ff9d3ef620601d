/**
 * Which test files share a process. Starting Node and loading cuffi takes longer than most unit tests
 * do, so files that leave the process as they found it run one after the other in the same one.
 */
import { readFileSync } from 'node:fs';

/** Folders of tests that are mostly quick. */
const QUICK = /^test\/(unit|abi|driver)\//;

/** What belongs to the whole process: hooks of all tests, settings, signals, and counts of what is open. */
const OWN_PROCESS =
  /^(before|after|beforeEach|afterEach|selectDriver|emulate|process\.|registerKernel|using|await|Object\.|for |if )|process\.(on|once|emit|exit|chdir|title)\b|process\.env\[[^\]]*\] ?=[^=]|delete process\.env|Worker\(|getActiveResources|new Program|PackageFolder|concurrency|FinalizationRegistry|CUFFI_LEAK|collectGarbage/m;

/**
 * Files that take long, one for one device, one that changes a table that all tests of a process use, and
 * one that counts all that a context releases: what other files have left to the garbage collector, too.
 */
const ALONE = [
  'test/driver/facts.test.ts',
  'test/driver/release.test.ts',
  'test/unit/src/cli/doctor/machine.test.ts',
  'test/unit/src/array/host-transfer.test.ts',
  'test/unit/src/ipc/sharing/kinds.test.ts',
];

/** Files that leave open objects to the garbage collector, which would close them during the next file. */
const LEAKING = [
  'test/abi/old-drivers.test.ts',
  'test/unit/src/ipc/shareable.test.ts',
  'test/unit/src/ipc/sharing/mapping.test.ts',
  'test/unit/src/ipc/sharing/open.test.ts',
  'test/unit/src/memory/buffer.test.ts',
  'test/unit/src/memory/pool.test.ts',
  'test/unit/src/work-tracker.test.ts',
];

/** Files that take longest. A run starts them early, so that none of them is left for its end. */
export const LONG: readonly string[] = [
  'test/ipc/python-hostile.test.ts',
  'test/unit/src/faults.test.ts',
  'test/unit/src/libc-faults.test.ts',
  'test/ipc/lease.test.ts',
  'test/unit/docs.test.ts',
  'test/unit/src/cli/main.test.ts',
];

/** So that the groups are done at about the same time. */
const FILES_OF_A_GROUP = 10;

/**
 * Returns the test files that share a process, group by group; all others run alone. Files that select
 * drivers and files that rely on the one that the environment names are never in one group.
 */
export function groupFiles(files: readonly string[]): readonly (readonly string[])[] {
  const selecting: string[] = [];
  const relying: string[] = [];
  for (const file of files) {
    const text = readFileSync(file, 'utf8');
    const staysAlone = [...ALONE, ...LEAKING].includes(file) || OWN_PROCESS.test(text);
    if (!QUICK.test(file) || staysAlone) continue;
    if (/\b(emulate|selectDriver)\(/.test(text)) selecting.push(file);
    else relying.push(file);
  }
  return [...inGroups(selecting), ...inGroups(relying)];
}

/** Every nth file is in the nth group: neighbours, which take equally long, are spread. */
function inGroups(files: readonly string[]): string[][] {
  const count = Math.ceil(files.length / FILES_OF_A_GROUP);
  return Array.from({ length: count }, (_, group) => files.filter((_, at) => at % count === group));
}
