/** Gathers the facts about this process and another one, and tries each kind between them. */
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import type { IpcDescriptor } from '../../ipc/descriptor.ts';
import { localProcess } from '../../ipc/identity.ts';
import {
  type InspectedProcess,
  inspect,
  inspectableProcesses,
  probe,
} from '../../ipc/inspect/inspect-client.ts';
import type { ProbeReport } from '../../ipc/inspect/probes.ts';
import {
  attempt,
  factsFromProc,
  type Machine,
  ownFacts,
  type ProcessFacts,
  thisMachine,
} from '../../ipc/inspect/process-facts.ts';
import { CannotRunError } from '../command.ts';
import type { PairFacts } from './pair-rules.ts';

const notTried = (reason: string): ProbeReport => ({ results: [], reason });

/**
 * Gathers facts about the process with a pid. Its socket is asked if it has one.
 *
 * @throws CannotRunError if there is no such process, or it is this one
 */
export async function gatherPair(pid: number, machine: Machine = thisMachine): Promise<PairFacts> {
  const socket = socketOf(pid);
  if (socket) return viaSocket(socket, machine);
  const facts = own(machine);
  if (pid === facts.here.pid) throw new CannotRunError(`${pid} is the process of this command`);
  const there = factsFromProc(pid, machine);
  if (!there) throw new CannotRunError(`there is no process ${pid} that is seen here`);
  return {
    ...facts,
    there,
    source: '/proc',
    probes: notTried('it was not tried'),
  };
}

/** As {@link gatherPair}, for the process that made a descriptor. */
export async function gatherExporter(
  descriptor: IpcDescriptor,
  machine: Machine = thisMachine,
): Promise<PairFacts> {
  const { pid, pidNamespace, startTime, device } = descriptor;
  const self = localProcess();
  const isSeen = descriptor.machine === self.machine && pidNamespace === self.pidNamespace;
  if (isSeen && self.isAlive(pid, startTime)) return gatherPair(pid, machine);
  const facts = own(machine);
  // Its ordinal there is not known.
  const seen = facts.here.devices?.find(({ uuid }) => uuid === device);
  const there: ProcessFacts = {
    pid,
    startTime,
    machine: descriptor.machine,
    namespaces: { pid: pidNamespace || undefined },
    limits: {},
    devices: [seen ?? { ordinal: 0, uuid: device, name: '', computeMode: 0, peers: [] }],
  };
  const reason = isSeen
    ? `process ${pid}, which made it, has ended`
    : 'the process that made it is not seen here';
  return { ...facts, there, source: 'its descriptor', probes: notTried(reason) };
}

function own(machine: Machine): Pick<PairFacts, 'here' | 'ptraceScope'> {
  return { here: ownFacts(machine), ptraceScope: ptraceScope(machine) };
}

export const ptraceScope = ({ root }: Machine): number | undefined =>
  attempt(() => Number(readFileSync(`${root}/proc/sys/kernel/yama/ptrace_scope`, 'latin1')));

/** The socket of a process: by its pid here, or by its own if its pid namespace is not seen. */
function socketOf(pid: number): InspectedProcess | undefined {
  const all = inspectableProcesses();
  return (
    all.find((candidate) => candidate.pid === pid) ??
    all.find(({ pid: seen, path }) => seen === 0 && basename(path).startsWith(`${pid}-`))
  );
}

async function viaSocket({ path }: InspectedProcess, machine: Machine): Promise<PairFacts> {
  let there: ProcessFacts;
  try {
    there = await inspect(path, 'facts');
  } catch (error) {
    throw new CannotRunError((error as Error).message);
  }
  const probes = await probe(path).catch((error: Error) => notTried(error.message));
  return { ...own(machine), there, source: 'its socket', probes };
}
