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
import { factsFromProc, ownFacts, type ProcessFacts } from '../../ipc/inspect/process-facts.ts';
import { CannotRunError } from '../command.ts';
import type { PairFacts } from './pair-rules.ts';

const notTried = (reason: string): ProbeReport => ({ results: [], reason });

/**
 * Gathers facts about the process with a pid. Its socket is asked if it has one.
 *
 * @throws CannotRunError if there is no such process, or it is this one
 */
export async function gatherPair(pid: number): Promise<PairFacts> {
  const socket = socketOf(pid);
  if (socket) return viaSocket(socket);
  if (pid === process.pid) throw new CannotRunError(`${pid} is the process of this command`);
  const there = factsFromProc(pid);
  if (!there) throw new CannotRunError(`there is no process ${pid} that is seen here`);
  return {
    ...own(),
    there,
    source: '/proc',
    probes: notTried('it was not tried'),
  };
}

/** As {@link gatherPair}, for the process that made a descriptor. */
export async function gatherExporter(descriptor: IpcDescriptor): Promise<PairFacts> {
  const { machine, pid, pidNamespace, startTime, device } = descriptor;
  const self = localProcess();
  const isSeen = machine === self.machine && pidNamespace === self.pidNamespace;
  if (isSeen && self.isAlive(pid, startTime)) return gatherPair(pid);
  const there: ProcessFacts = {
    pid,
    startTime,
    machine,
    namespaces: { pid: pidNamespace || undefined },
    limits: {},
    devices: [{ ordinal: 0, uuid: device, name: '', computeMode: 0, peers: [] }],
  };
  const reason = isSeen
    ? `process ${pid}, which made it, has ended`
    : 'the process that made it is not seen here';
  return { ...own(), there, source: 'its descriptor', probes: notTried(reason) };
}

function own(): Pick<PairFacts, 'here' | 'ptraceScope'> {
  return { here: ownFacts(), ptraceScope: ptraceScope() };
}

export function ptraceScope(): number | undefined {
  try {
    return Number(readFileSync('/proc/sys/kernel/yama/ptrace_scope', 'latin1'));
  } catch {
    return undefined;
  }
}

/** The socket of a process: by its pid here, or by its own if its pid namespace is not seen. */
function socketOf(pid: number): InspectedProcess | undefined {
  const all = inspectableProcesses();
  return (
    all.find((candidate) => candidate.pid === pid) ??
    all.find(({ pid: seen, path }) => seen === 0 && basename(path).startsWith(`${pid}-`))
  );
}

async function viaSocket({ path }: InspectedProcess): Promise<PairFacts> {
  let there: ProcessFacts;
  try {
    there = await inspect(path, 'facts');
  } catch (error) {
    throw new CannotRunError((error as Error).message);
  }
  const probes = await probe(path).catch((error: Error) => notTried(error.message));
  return { ...own(), there, source: 'its socket', probes };
}
