/** `cuffi explain`: what a descriptor describes, and whether this machine can open it. */
import { type IpcDescriptor, isMemoryFields, type MemoryFields } from '../ipc/descriptor.ts';
import { attempt } from '../ipc/inspect/process-facts.ts';
import { parseDescriptor } from '../ipc/sharing/descriptor-codec.ts';
import { type Explanation, explain } from '../ipc/sharing/explain.ts';
import { kindOfFields } from '../ipc/sharing/kinds.ts';
import { formatBytes } from '../validate.ts';
import { type Command, driverOption, parseCommand, singleArgument, UsageError } from './command.ts';
import { readDescriptor } from './descriptor-input.ts';
import { chooseDriver } from './driver-choice.ts';
import { print, printJson } from './output.ts';
import { type Line, type Style, styled } from './text.ts';

export const explainCommand: Command = {
  summary: 'says what a descriptor describes, and whether it can be opened here',
  usage: `usage: cuffi explain DESCRIPTOR [options]

Says what a descriptor describes, and whether a process started like this one can open it; if not,
why and what to do. Nothing is opened.

  DESCRIPTOR     JSON, as getIpcHandle and exportIpc return it; the path of a file with it (or
                 with the bytes of encodeDescriptor); or - for stdin
  --driver D     cuda, emulated, or the path of a libcuda (default: CUFFI_DRIVER, else
                 cuda with a GPU and emulated without)
  --json         print one JSON object instead of sentences
  --help         print this

Exit code: 0 if nothing known prevents opening it, 1 if something does, 2 for wrong use.`,
  run,
};

/** The code of a descriptor to which nothing else is missing. */
const NEEDS_FDS = 'no-file-descriptor';

function run(argv: readonly string[]): boolean {
  const { values, positionals } = parseCommand(argv, {
    driver: { type: 'string' },
    json: { type: 'boolean', default: false },
  });
  const requested = driverOption(values.driver);
  const argument = singleArgument('explain', positionals);
  if (argument === undefined) throw new UsageError('explain needs a descriptor');
  const message = readDescriptor(argument);
  const driver = chooseDriver(requested);
  const explanation = explain(message);
  const descriptor = attempt(() => parseDescriptor(message));
  // Nobody can give file descriptors on a command line.
  const isOpenable = explanation.openable || explanation.code === NEEDS_FDS;
  if (values.json)
    printJson({ driver: driver.name, openable: isOpenable, explanation, descriptor });
  else print(describe(descriptor, explanation));
  return isOpenable;
}

function describe(
  descriptor: IpcDescriptor | undefined,
  { openable, code, reason, hint }: Explanation,
): Line[] {
  const lines: Line[] = descriptor ? describeDescriptor(descriptor) : [];
  const verdict = (style: Style, text: string): Line => ['openable  ', styled(style, text)];
  if (code === undefined) return [...lines, verdict('good', 'yes')];
  return [
    ...lines,
    code === NEEDS_FDS
      ? verdict('unsure', 'with its file descriptors, which travel through a socket beside it')
      : openable
        ? verdict('good', 'yes, as far as can be seen here')
        : verdict('bad', `no (${code})`),
    `why       ${reason}`,
    `remedy    ${hint}`,
  ];
}

function describeDescriptor(descriptor: IpcDescriptor): string[] {
  const { kind, device, pid, pidNamespace, machine } = descriptor;
  return [
    `kind      ${kind}: ${kindOfFields(descriptor).description}`,
    `device    ${device}`,
    `exporter  process ${pid} of pid namespace ${pidNamespace}`,
    `machine   ${machine}`,
    ...(isMemoryFields(descriptor) ? describeRange(descriptor) : []),
  ];
}

const describeRange = ({
  byteLength,
  byteOffset,
  baseByteLength,
  access,
  layout,
}: MemoryFields): string[] => [
  ...(byteLength === 0
    ? []
    : [
        `bytes     ${formatBytes(byteLength)} from ${byteOffset} of an allocation of ${baseByteLength}, ${access}`,
      ]),
  ...(layout ? [`array     ${layout.dtype} [${layout.shape.join(', ')}]`] : []),
];
