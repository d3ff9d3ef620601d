/** `cuffi doctor`: what works on this machine, and between two processes. */
import { arch, platform } from 'node:process';
import { type Command, parseCommand, refuseArguments, UsageError } from './command.ts';
import { describeFindings, isSound } from './doctor/finding.ts';
import { gatherFacts } from './doctor/gather.ts';
import { isEmulated, judge, type MachineFacts } from './doctor/rules.ts';

export const doctorCommand: Command = {
  summary: 'tries what works on this machine, and says what to do about the rest',
  usage: `usage: cuffi doctor [options]

Tries every kind of sharing with a second process, and looks at the driver, the devices, the
container, limits, libraries and environment. Each line: ok, no or unknown, the fact, and what to do.
(no) in parentheses: sharing works without it.

  --device N     the device that is tried, by its ordinal (default 0)
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of text
  --help         print this

Exit code: 0 if all that sharing needs works, 1 if something does not, 2 for wrong use or if it
could not run.`,
  run,
};

const MAX_DEVICE = 1023;

async function run(argv: readonly string[]): Promise<boolean> {
  const { values, positionals } = parseCommand(argv, {
    device: { type: 'string', default: '0' },
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  refuseArguments('doctor', positionals);
  const device = /^\d+$/.test(values.device) ? Number(values.device) : Number.NaN;
  if (!(device <= MAX_DEVICE))
    throw new UsageError(
      `--device must be an integer from 0 to ${MAX_DEVICE}, not ${JSON.stringify(values.device)}`,
    );
  const facts = await gatherFacts({ driver: values.driver, device });
  const findings = judge(facts);
  const ok = isSound(findings);
  if (values.json) console.log(JSON.stringify({ ok, findings, facts }));
  else
    for (const line of [
      ...header(facts),
      '',
      ...describeFindings(findings),
      '',
      verdict(ok, facts),
    ])
      console.log(line);
  return ok;
}

const header = ({ versions }: MachineFacts): string[] => [
  `cuffi ${versions.cuffi}, Node ${versions.node.slice(1)}, ${platform} ${arch} ${versions.kernel}`,
];

function verdict(ok: boolean, facts: MachineFacts): string {
  if (!ok) return 'Something does not work: see the lines with no.';
  return isEmulated(facts)
    ? 'All works, with the emulated driver: this says nothing about a GPU.'
    : 'All that sharing needs works.';
}
