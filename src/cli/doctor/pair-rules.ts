/** Which kinds of sharing work between two processes, and why others do not: from facts alone. */
import { PROBES, type ProbeReport } from '../../ipc/inspect/probes.ts';
import type { ProcessFacts } from '../../ipc/inspect/process-facts.ts';
import type { Probe } from '../../ipc/sharing/kind.ts';
import { kinds } from '../../ipc/sharing/kinds.ts';
import { type Finding, finding, type Status } from './finding.ts';
import { remedies } from './remedies.ts';
import { hasExpandableSegments, mayTrace, YAMA_NO_ATTACH } from './rules.ts';

/** What is known about two processes. */
export interface PairFacts {
  readonly here: ProcessFacts;
  readonly there: ProcessFacts;
  /** Where the facts about the other process come from. */
  readonly source: 'its socket' | '/proc' | 'its descriptor';
  /** Yama's; undefined without Yama. */
  readonly ptraceScope: number | undefined;
  /** What was really tried. */
  readonly probes: ProbeReport;
}

/** A comparison of both sides. */
interface Comparison {
  readonly name: string;
  readonly status: Status;
  readonly fact: string;
  readonly remedy?: string;
  /** The kinds that cannot work because of it. */
  readonly blocks?: readonly Probe[];
  /** The kinds that may not work because of it. */
  readonly doubts?: readonly Probe[];
}

const ON_DEVICE = PROBES.filter(({ capability }) => capability !== undefined);
/** The driver finds what these name by the pid of their process. */
const BY_PID = kinds.flatMap((kind) =>
  'isByPid' in kind && kind.isByPid ? (kind.probes ?? []) : [],
);

/** All findings: each comparison, then each kind. */
export function judgePair(facts: PairFacts): Finding[] {
  const comparisons = compare(facts);
  const worked = new Set(facts.probes.results.filter(({ ok }) => ok).map(({ name }) => name));
  return [
    ...comparisons.map(({ name, status, fact, remedy = '', blocks = [] }) =>
      finding('both sides', name, status, fact, {
        remedy: status === 'ok' ? '' : remedy,
        // What was tried counts for more than what it follows from.
        isOptional: blocks.every(({ name: probe }) => worked.has(probe)),
      }),
    ),
    ...PROBES.map((probe) => judgeProbe(probe, comparisons, facts)),
  ];
}

function judgeProbe(probe: Probe, comparisons: readonly Comparison[], facts: PairFacts): Finding {
  const group = 'works between them';
  const { name, title } = probe;
  const result = facts.probes.results.find((candidate) => candidate.name === name);
  const blocking = comparisons.find(
    ({ status, blocks }) => status === 'no' && blocks?.includes(probe),
  );
  const doubting = comparisons.find(
    ({ status, doubts }) => status === 'no' && doubts?.includes(probe),
  );
  const cause = blocking ?? doubting;
  const remedy = cause?.remedy ?? '';
  if (result?.ok) return finding(group, title, 'ok', `tried, ${(result.ms ?? 0).toFixed(1)} ms`);
  if (result) {
    const why = result.reason.split('\n', 1)[0] as string;
    const known = cause ? `${cause.name}: ${cause.fact}; ` : '';
    return finding(group, title, 'no', `${known}tried: ${why}`, { remedy });
  }
  if (blocking)
    return finding(group, title, 'no', `${blocking.name}: ${blocking.fact}`, { remedy });
  const why = facts.probes.reason || 'it was not tried';
  return doubting
    ? finding(group, title, 'unknown', `${doubting.name}: ${doubting.fact}; ${why}`, { remedy })
    : finding(group, title, 'unknown', `nothing that is known prevents it; ${why}`);
}

// ---- The comparisons ----

function compare(facts: PairFacts): Comparison[] {
  const { here, there } = facts;
  return [
    asked(facts),
    machine(here, there),
    user(here, there),
    wsl(here, there),
    driver(here, there),
    ...devices(here, there),
    ...pids(here, there),
    sharedMemory(here, there),
    ipcNamespace(here, there),
    networkNamespace(here, there),
    pidfd(facts),
    ...segments(here, there),
  ];
}

const asked = ({ source }: PairFacts): Comparison =>
  source === 'its socket'
    ? { name: 'asked', status: 'ok', fact: 'that process itself, by its socket' }
    : {
        name: 'asked',
        status: 'unknown',
        fact: `only ${source}: it has no socket that this user sees`,
        remedy:
          'A Node process opens one when it first shares something with cuffi, unless CUFFI_INSPECT is 0.',
      };

/** Compares one fact of both. */
function compareValues(
  name: string,
  here: number | string | undefined,
  there: number | string | undefined,
  differing: Pick<Comparison, 'remedy' | 'blocks' | 'doubts'>,
): Comparison {
  if (here === undefined || there === undefined)
    return { name, status: 'unknown', fact: `here ${here ?? '?'}, there ${there ?? '?'}` };
  return here === there
    ? { name, status: 'ok', fact: `the same: ${here}` }
    : { name, status: 'no', fact: `here ${here}, there ${there}`, ...differing };
}

const machine = (here: ProcessFacts, there: ProcessFacts): Comparison =>
  compareValues('machine', here.machine, there.machine, {
    remedy: remedies.otherMachine,
    blocks: PROBES,
  });

const user = (here: ProcessFacts, there: ProcessFacts): Comparison =>
  compareValues('user', here.user, there.user, { remedy: remedies.otherUser, blocks: PROBES });

function wsl(here: ProcessFacts, there: ProcessFacts): Comparison {
  const isWsl = here.isWsl === true || there.isWsl === true;
  return isWsl
    ? {
        name: 'WSL',
        status: 'no',
        fact: 'WSL has no CUDA IPC',
        remedy: remedies.wsl,
        blocks: ON_DEVICE,
      }
    : { name: 'WSL', status: 'ok', fact: 'neither is in WSL' };
}

function driver(here: ProcessFacts, there: ProcessFacts): Comparison {
  const name = 'driver';
  if (!here.driver || !there.driver)
    return { name, status: 'unknown', fact: describeDrivers(here, there) };
  const [own, other] = [here, there].map((facts) => facts.driver?.name === 'emulated');
  return own === other
    ? { name, status: 'ok', fact: describeDrivers(here, there) }
    : {
        name,
        status: 'no',
        fact: describeDrivers(here, there),
        remedy: 'One uses the emulated driver: give both the same CUFFI_DRIVER.',
        blocks: ON_DEVICE,
      };
}

function describeDrivers(here: ProcessFacts, there: ProcessFacts): string {
  const describe = ({ driver: used }: ProcessFacts): string =>
    used ? `${used.name} (CUDA ${used.version})` : 'not known';
  const [own, other] = [describe(here), describe(there)];
  return own === other ? `the same: ${own}` : `here ${own}, there ${other}`;
}

function devices(here: ProcessFacts, there: ProcessFacts): Comparison[] {
  const name = 'GPU';
  if (!here.devices || !there.devices)
    return [{ name, status: 'unknown', fact: 'the UUIDs of both are not known' }];
  const known = here.devices;
  const uuids = (facts: ProcessFacts): string[] => (facts.devices ?? []).map(({ uuid }) => uuid);
  const common = known.filter(({ uuid }) => uuids(there).includes(uuid));
  if (common.length === 0) {
    const isMig = [...uuids(here), ...uuids(there)].some((uuid) => uuid.startsWith('MIG-'));
    return [
      {
        name,
        status: 'no',
        fact: `none in common: here ${uuids(here).join(', ') || 'none'}, there ${uuids(there).join(', ') || 'none'}`,
        remedy: isMig ? remedies.mig : remedies.otherDevice,
        blocks: ON_DEVICE,
      },
    ];
  }
  const exclusive = [...common, ...there.devices].find(
    ({ uuid, computeMode }) => computeMode !== 0 && common.some((each) => each.uuid === uuid),
  );
  const ordinals = common.map(({ uuid, ordinal }) => {
    const other = there.devices?.find((device) => device.uuid === uuid)?.ordinal;
    return ordinal === other ? uuid : `${uuid} (here ${ordinal}, there ${other})`;
  });
  return [
    { name, status: 'ok', fact: `in common: ${ordinals.join(', ')}` },
    ...(exclusive
      ? [
          {
            name: 'compute mode',
            status: 'no' as const,
            fact: `${exclusive.uuid} admits one process`,
            remedy: remedies.computeMode,
            blocks: ON_DEVICE,
          },
        ]
      : []),
  ];
}

function pids(here: ProcessFacts, there: ProcessFacts): Comparison[] {
  const [own, other] = [here.namespaces.pid, there.namespaces.pid];
  const remedy = remedies.pidNamespace;
  const namespaces = compareValues('pid namespace', own, other, { remedy, doubts: BY_PID });
  if (namespaces.status !== 'no' || here.pid !== there.pid) return [namespaces];
  return [
    {
      name: 'pid number',
      status: 'no',
      fact: `both are process ${here.pid} in their pid namespaces, so the driver takes one for the other (status 201)`,
      remedy,
      blocks: BY_PID,
    },
    namespaces,
  ];
}

const sharedMemory = (here: ProcessFacts, there: ProcessFacts): Comparison =>
  compareValues('/dev/shm', here.sharedMemory, there.sharedMemory, {
    remedy: remedies.sharedMemory,
    blocks: PROBES.filter(({ needsSharedMemory }) => needsSharedMemory),
  });

const usesMps = ({ environment }: ProcessFacts): boolean =>
  Object.keys(environment ?? {}).some((name) => name.startsWith('CUDA_MPS_'));

function ipcNamespace(here: ProcessFacts, there: ProcessFacts): Comparison {
  const isNeeded = usesMps(here) || usesMps(there);
  const compared = compareValues('ipc namespace', here.namespaces.ipc, there.namespaces.ipc, {
    remedy: remedies.mps,
    blocks: ON_DEVICE,
  });
  return isNeeded || compared.status !== 'no'
    ? compared
    : { name: compared.name, status: 'ok', fact: `${compared.fact}; only MPS needs one` };
}

const networkNamespace = (here: ProcessFacts, there: ProcessFacts): Comparison =>
  compareValues('net namespace', here.namespaces.net, there.namespaces.net, {
    remedy: "Names with '@' do not reach the other: listen at a path in a folder that both see.",
  });

function pidfd({ here, there, ptraceScope }: PairFacts): Comparison {
  const name = 'pidfd_getfd';
  const may = [here, there].map(({ capabilities }) => mayTrace(capabilities));
  if ((ptraceScope ?? 0) === 0) return { name, status: 'ok', fact: 'Yama does not restrict it' };
  const isNever = ptraceScope === YAMA_NO_ATTACH;
  if (!isNever && may.every((each) => each === true))
    return { name, status: 'ok', fact: 'both hold SYS_PTRACE' };
  return {
    name,
    status: !isNever && may.includes(undefined) ? 'unknown' : 'no',
    fact: `Yama ${ptraceScope}, SYS_PTRACE here ${word(may[0])}, there ${word(may[1])}`,
    remedy: isNever ? remedies.yama : remedies.ptrace,
  };
}

const word = (held: boolean | undefined): string =>
  held === undefined ? 'unknown' : held ? 'held' : 'not held';

function segments(here: ProcessFacts, there: ProcessFacts): Comparison[] {
  const [own, other] = [here, there].map(({ environment }) => hasExpandableSegments(environment));
  if (!own && !other) return [];
  const places = own && other ? 'here and there' : own ? 'here' : 'there';
  return [
    {
      name: 'PyTorch',
      status: 'no',
      fact: `expandable segments ${places}: such tensors have no legacy handle (status 1)`,
      remedy: remedies.expandableSegments,
    },
  ];
}
