import { existsSync } from 'node:fs';
import { delimiter, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readSetting } from '../../../ffi/settings.ts';
import { companionPath } from '../../python/companion.ts';
import { checkOptions, checkStrings, formatValue } from '../../validate.ts';
import { assertCanConnect } from './peer-options.ts';
import type { Anything } from './sendable.ts';
import {
  CHILD_OPTIONS,
  type ChildOptions,
  ChildPeer,
  checkChildOptions,
  checkConnectionOptions,
  isUrl,
  scriptPath,
  startChild,
} from './spawn.ts';

/** Options of {@link spawnPython}: how the child is started. */
export interface SpawnPythonOptions extends ChildOptions {
  /** The script's arguments, from `sys.argv[1]` on. */
  readonly args?: readonly string[];
  /**
   * The interpreter. Default: the environment variable `CUFFI_PYTHON`, that of the virtual environment
   * (`VIRTUAL_ENV`), or `python3`.
   */
  readonly python?: string;
}

/**
 * Starts a Python process that is connected to this one. In the script, `cuffi.parent()` is this process;
 * `import cuffi` finds the companion of this package. Its standard streams are those of this process,
 * unless `stdio` says otherwise.
 *
 * When the child exits for any reason, the peer's values end. If it failed, PeerGoneError has its exit
 * code or signal, and the last 4 KiB of its stderr.
 *
 * @param script a Python file, or `{ module }`: the name of a module that is run as `python -m` does
 * @throws NotSupportedError in Bun and Deno
 * @throws TypeError for invalid arguments; a script or an interpreter that is missing ends the peer
 * @example
 * using model = spawnPython('model.py', { args: ['--device', '0'] });
 * const result = await model.request({ image });
 * @example
 * using worker = spawnPython({ module: 'pkg.worker' }, { cwd: '/srv/app' });
 */
export function spawnPython<Receives = unknown, Sends = Anything>(
  script: string | URL | { readonly module: string },
  options?: SpawnPythonOptions,
): ChildPeer<Receives, Sends> {
  assertCanConnect('spawnPython');
  const {
    args = [],
    python,
    busyPollUs,
    requestTimeoutMs,
    startTimeoutMs,
    ...others
  } = checkOptions(options, ['args', 'python', ...CHILD_OPTIONS], 'spawnPython');
  const init = checkConnectionOptions({ busyPollUs, requestTimeoutMs, startTimeoutMs });
  const given = checkStrings(args, 'args');
  const { passesOnStderr, ...how } = checkChildOptions(others, 'spawnPython');
  const { env, cwd } = how;
  if (python !== undefined && (typeof python !== 'string' || python === ''))
    throw new TypeError(`python must be the path of an interpreter, not ${formatValue(python)}`);
  const module = moduleName(script);
  const run = module === undefined ? [scriptPath(script)] : ['-m', module];
  const file =
    module === undefined
      ? resolve(isUrl(cwd) ? fileURLToPath(cwd) : (cwd ?? '.'), String(run[0]))
      : undefined;
  const companion = companionPath();
  const command = {
    ...how,
    file: python ?? interpreterIn(env),
    args: [...run, ...given],
    env: { ...env, PYTHONPATH: withCompanion(env['PYTHONPATH'], companion) },
  };
  return startChild(
    command,
    (socket, child) =>
      new ChildPeer<Receives, Sends>(
        socket,
        child,
        {
          findFault() {
            if (file !== undefined && !existsSync(file)) return `there is no script ${file}`;
            return companion === undefined ? NO_COMPANION : undefined;
          },
          parentCall: 'cuffi.parent()',
          passesOnStderr,
          remedy: ': name the interpreter with { python } or CUFFI_PYTHON',
        },
        init,
      ),
  );
}

/**
 * Returns the name in `{ module }`; undefined for a script.
 *
 * @throws TypeError for another object, and for what no module is called
 */
function moduleName(script: unknown): string | undefined {
  if (typeof script !== 'object' || script === null || !('module' in script)) return undefined;
  const { module } = checkOptions(script, ['module'], 'spawnPython');
  if (typeof module === 'string' && MODULE_NAME.test(module)) return module;
  throw new TypeError(
    `module must be the name of a Python module, such as 'pkg.worker', not ${formatValue(module)}`,
  );
}

/** Neither an option nor a path. */
const MODULE_NAME = /^[\p{L}\p{N}_][\p{L}\p{N}_-]*(\.[\p{L}\p{N}_][\p{L}\p{N}_-]*)*$/u;

function interpreterIn(env: NodeJS.ProcessEnv): string {
  const chosen = readSetting('CUFFI_PYTHON', env);
  const { VIRTUAL_ENV: environment } = env;
  if (chosen) return chosen;
  const own = environment && join(environment, 'bin', 'python3');
  return own && existsSync(own) ? own : 'python3';
}

/** A bundle may lack it, while the interpreter has one that pip installed. */
const NO_COMPANION =
  'if it has not found the module cuffi: the companion for Python is not in this bundle. Mark cuffi as ' +
  'external and install it where the bundle runs, or install the companion: pip install "$(npx cuffi python)"';

/** The companion of this package comes first, so that both ends have the same version. */
const withCompanion = (path: string | undefined, companion: string | undefined): string =>
  [...(companion === undefined ? [] : [companion]), ...(path ? [path] : [])].join(delimiter);
