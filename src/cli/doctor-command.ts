/** `cuffi doctor`: what works on this machine, and between two processes. */
import { arch, platform } from 'node:process';
import { type Machine, thisMachine } from '../ipc/inspect/process-facts.ts';
import { parseDescriptor } from '../ipc/sharing/descriptor-codec.ts';
import { type Explanation, explain } from '../ipc/sharing/explain.ts';
import {
  CannotRunError,
  type Command,
  deviceOption,
  driverOption,
  parseCommand,
  refuseArguments,
  UsageError,
} from './command.ts';
import { readDescriptor } from './descriptor-input.ts';
import {
  describeFindings,
  type Finding,
  failures,
  finding,
  isSound,
  namesOf,
} from './doctor/finding.ts';
import { gatherFacts } from './doctor/gather.ts';
import { gatherExporter, gatherPair } from './doctor/pair.ts';
import { judgePair, type PairFacts } from './doctor/pair-rules.ts';
import { isEmulated, judge, type MachineFacts } from './doctor/rules.ts';
import { tryDriver } from './driver-choice.ts';
import { print, printJson } from './output.ts';
import { type Line, type Span, styled } from './text.ts';

export const doctorCommand: Command = {
  summary: 'tries what works here, or with another process, and says what to do about the rest',
  usage: `usage: cuffi doctor [options]
       cuffi doctor --with PID [options]

Tries every kind of sharing with a second process, and looks at the driver, the devices, the
container, limits, libraries and environment. Each line: ok, no or unknown, the fact, and what to do.
(no) in parentheses: sharing works without it.

  --with PID     compare this process with that one, and try each kind with it: which work
                 between them, and why others do not. Only with a process that has shared
                 something with cuffi is anything tried; of others, /proc tells a part
  --with -       the same with the process that made the descriptor on stdin (JSON)
  --device N     the device that is tried, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of text
  --help         print this

Exit code: 0 if all that sharing needs works, 1 if something does not, 2 for wrong use or if it
could not run. What is unknown does not count.`,
  run: (argv) => runDoctor(argv),
};

/** As {@link doctorCommand}, on any machine. */
export async function runDoctor(
  argv: readonly string[],
  machine: Machine = thisMachine,
): Promise<boolean> {
  const { values, positionals } = parseCommand(argv, {
    with: { type: 'string' },
    device: { type: 'string', default: '0' },
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('doctor', positionals);
  const device = deviceOption(values.device);
  const driver = driverOption(values.driver);
  if (values.with !== undefined) return runWith(values.with, driver, values.json, machine);
  const facts = await gatherFacts({ driver, device }, machine);
  const findings = judge(facts);
  const ok = isSound(findings);
  if (values.json) printJson({ ok, findings, facts });
  else print([...header(facts), '', ...describeFindings(findings), '', [verdict(findings, facts)]]);
  return ok;
}

const header = ({ versions }: MachineFacts): Line[] => [
  `cuffi ${versions.cuffi}, Node ${versions.node.slice(1)}, ${platform} ${arch} ${versions.kernel}`,
];

function verdict(findings: readonly Finding[], facts: MachineFacts): Span {
  const failed = failures(findings);
  if (failed.length > 0)
    return styled('bad', `Does not work: ${namesOf(failed)}. Each line with no says what to do.`);
  return styled(
    'good',
    isEmulated(facts)
      ? 'All works, with the emulated driver: this says nothing about a GPU.'
      : 'All that sharing needs works.',
  );
}

// ---- With another process ----

const MAX_PID = 2 ** 22;

async function runWith(
  other: string,
  driver: string | undefined,
  isJson: boolean,
  machine: Machine,
): Promise<boolean> {
  const isDescriptor = other === '-';
  if (!isDescriptor && !(/^[1-9]\d*$/.test(other) && Number(other) <= MAX_PID))
    throw new UsageError(
      `--with takes a pid, or - for a descriptor on stdin, not ${JSON.stringify(other)}`,
    );
  const message = isDescriptor ? readDescriptor('-') : undefined;
  const { error, name, reason } = tryDriver(driver);
  if (name === undefined) throw new CannotRunError(`${error}\nRun cuffi doctor.`);
  const facts = isDescriptor
    ? await gatherExporter(checked(message), machine)
    : await gatherPair(Number(other), machine);
  const findings = [
    ...judgePair(facts),
    ...(isDescriptor ? [descriptorFinding(explain(message))] : []),
  ];
  const ok = isSound(findings);
  if (isJson) printJson({ ok, findings, facts });
  else
    print([
      pairHeader(facts, reason),
      '',
      ...describeFindings(findings),
      '',
      [pairVerdict(findings, ok)],
    ]);
  return ok;
}

/** @throws UsageError */
function checked(message: unknown) {
  try {
    return parseDescriptor(message);
  } catch (error) {
    throw new UsageError(`stdin has no descriptor: ${(error as Error).message}`);
  }
}

function pairHeader({ here, there, source }: PairFacts, reason: string): string {
  const named = ({ pid, program }: PairFacts['there']): string =>
    `process ${pid}${program === undefined ? '' : ` (${program})`}`;
  const driver = here.driver?.name === 'emulated' ? `; the driver here is emulated, ${reason}` : '';
  return `${named(there)}, by ${source}, and this ${named(here)}${driver}`;
}

/** What is known of the descriptor itself. Its file descriptors are not at hand here. */
function descriptorFinding({ openable, code, reason, hint }: Explanation): Finding {
  const needsFds = code === 'no-file-descriptor';
  const status = code === undefined ? 'ok' : openable || needsFds ? 'unknown' : 'no';
  return finding('descriptor', 'openable', status, reason || 'yes', { remedy: hint });
}

function pairVerdict(findings: readonly Finding[], ok: boolean): Span {
  const kinds = findings.filter(({ group }) => group === 'works between them');
  const list = (status: Finding['status']): string =>
    namesOf(kinds.filter((each) => each.status === status)) || 'none';
  const isClosed = failures(findings).some(({ group }) => group === 'descriptor');
  const kept = isClosed ? ' The descriptor cannot be opened.' : '';
  return styled(
    ok ? 'good' : 'bad',
    `Works: ${list('ok')}. Does not: ${list('no')}. Unknown: ${list('unknown')}.${kept}`,
  );
}
