import { type SpawnOptions, spawn } from 'node:child_process';
import { fstatSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { closeFd } from '../../../ffi/libc.ts';
import { socketPair } from '../../../ffi/socket.ts';
import { checkOptions, checkStrings, shown } from '../../arguments.ts';
import { ChildPeer } from './child-peer.ts';
import { PARENT_VARIABLE } from './parent.ts';
import { type BusyPollOptions, checkPeerOptions } from './peer-options.ts';

/** How the child of {@link spawnPeer} is started. */
export interface SpawnPeerOptions extends BusyPollOptions {
  /** What the script finds in `process.argv` from the third place on. */
  readonly args?: readonly string[];
  /** Default: that of this process. */
  readonly env?: NodeJS.ProcessEnv;
  /** Node's own arguments. Default: those of this process, so that TypeScript stays so. */
  readonly execArgv?: readonly string[];
  /** As of `child_process.spawn`. Default: 'inherit'. */
  readonly stdio?: SpawnOptions['stdio'];
  readonly cwd?: string | URL;
}

/**
 * Starts a Node process that is connected with this one: there, `parentPeer()` is this process.
 *
 * `peer.process` is the child. When it has ended, however it did, the peer's values end. When the
 * peer is closed, the child's `parentPeer()` ends; the child itself is left to end by itself.
 *
 * @param script a file, as of `child_process.fork`
 * @throws TypeError for wrong arguments; a script that cannot run ends the peer
 * @example
 * using child = spawnPeer(new URL('./worker.js', import.meta.url));
 * await child.send({ task: 1, input: buffer });
 * const answer = await child.receive();
 */
export function spawnPeer(script: string | URL, options?: SpawnPeerOptions): ChildPeer {
  const {
    args = [],
    env = process.env,
    execArgv = ownExecArgv(),
    stdio = 'inherit',
    cwd,
    busyPollUs,
  } = checkOptions(options, ['args', 'env', 'execArgv', 'stdio', 'cwd', 'busyPollUs'], 'spawnPeer');
  const init = checkPeerOptions({ busyPollUs });
  const given = checkStrings(args, 'args');
  const ownArgs = checkStrings(execArgv, 'execArgv');
  if (typeof env !== 'object' || env === null)
    throw new TypeError(`env must be an object, not ${shown(env)}`);
  const path = script instanceof URL ? fileURLToPath(script) : script;
  if (typeof path !== 'string' || path === '')
    throw new TypeError(`the script must be a path or a file URL, not ${shown(script)}`);
  const streams = Array.isArray(stdio) ? [...stdio] : [stdio, stdio, stdio];
  while (streams.length < 3) streams.push('inherit');

  const [own, other] = socketPair();
  let isOwned = false;
  try {
    const child = spawn(process.execPath, [...ownArgs, path, ...given], {
      env: { ...env, [PARENT_VARIABLE]: `${streams.length}:${fstatSync(other).ino}` },
      stdio: [...streams, other],
      ...(cwd === undefined ? {} : { cwd }),
    });
    isOwned = true;
    return new ChildPeer(own, child, init);
  } finally {
    if (!isOwned) closeFd(own);
    closeFd(other);
  }
}

/** Without a program given on the command line: the child has its script. */
function ownExecArgv(): string[] {
  const at = process.execArgv.findIndex((arg) => /^(-e|-p|-pe|--eval|--print)$/.test(arg));
  const args = at < 0 ? process.execArgv : process.execArgv.toSpliced(at, 2);
  return args.filter((arg) => !arg.startsWith('--input-type'));
}
