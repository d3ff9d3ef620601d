/** Processes with different versions of cuffi: a copy of the package whose protocol has another number. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { packageFolder } from '../../ffi/package.ts';
import { IpcError } from '../../src/index.ts';
import { listen, type Peer, spawnPeer, spawnPython } from '../../src/ipc/index.ts';
import { until } from '../support/iterations.ts';
import { killed, startProcess } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const options = { timeout: 120_000 };
/** The versions as dist has them. */
const VERSIONS = /VERSIONS ?= ?\{ ?"?min"?: ?4, ?"?max"?: ?4 ?\}/;
const root = packageFolder() as string;
let folder = '';
let copy = '';
let companion = '';
let count = 0;

/** Writes the error of a connection, or that there was none. The last argument names the file. */
const node = `
import { writeFileSync } from 'node:fs';
import { connect, parentPeer } from '${'cuffi'}/ipc';
const [what, name, result] = process.argv.slice(2);
const peer = name === 'parent' ? parentPeer() : await connect(name, { timeoutMs: 10000 });
let said = 'ended in order';
try {
  if (what === 'send') await peer.send('first');
  if (what === 'request') await peer.request('first');
  else for await (const value of peer) said = 'got ' + value;
} catch (error) {
  said = [error.name, error.code, error.message].join('\\n');
}
writeFileSync(result, said);
`;
const python = `
import sys
import cuffi
what, name, result = sys.argv[1:]
said = 'ended in order'
try:
    peer = cuffi.parent() if name == 'parent' else cuffi.connect(name, timeout=10)
    if what == 'send':
        peer.send('first')
    if what == 'request':
        peer.request('first')
    else:
        for value in peer:
            said = f'got {value}'
except cuffi.CuffiError as error:
    said = chr(10).join((type(error).__name__, error.code, str(error)))
open(result, 'w').write(said)
`;

before(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'cuffi-version-test-')));
  copy = join(folder, 'node_modules', 'cuffi');
  companion = join(folder, 'cuffi');
  mkdirSync(join(copy, 'src', 'python'), { recursive: true });
  cpSync(join(root, 'dist'), join(copy, 'dist'), { recursive: true });
  for (const name of ['koffi', '@koromix'])
    if (existsSync(join(root, 'node_modules', name)))
      symlinkSync(join(root, 'node_modules', name), join(folder, 'node_modules', name));
  const manifest = readFileSync(join(root, 'package.json'), 'utf8');
  writeFileSync(
    join(copy, 'package.json'),
    manifest.replace(/"version": "[^"]*"/, '"version": "9.8.7"'),
  );
  let changed = 0;
  for (const name of readdirSync(join(copy, 'dist'), { recursive: true }) as string[]) {
    if (!name.endsWith('.js')) continue;
    const file = join(copy, 'dist', name);
    const text = readFileSync(file, 'utf8');
    if (!VERSIONS.test(text)) continue;
    writeFileSync(file, text.replace(VERSIONS, 'VERSIONS={min:5,max:5}'));
    changed += 1;
  }
  assert.equal(changed, 1);
  cpSync(join(root, 'src', 'python', 'cuffi'), companion, { recursive: true });
  for (const [name, from, to] of [
    ['_protocol.py', 'MIN_VERSION, MAX_VERSION = 4, 4', 'MIN_VERSION, MAX_VERSION = 5, 5'],
    ['_version.py', /__version__ = '[^']*'/, "__version__ = '9.8.7'"],
  ] as const) {
    const text = readFileSync(join(companion, name), 'utf8');
    assert.notEqual(text.replace(from, to), text);
    writeFileSync(join(companion, name), text.replace(from, to));
  }
  writeFileSync(join(folder, 'end.mjs'), node);
  writeFileSync(join(folder, 'end.py'), python);
});
after(() => rmSync(folder, { recursive: true, force: true }));

/** The other end's file for what it says. */
const resultFile = (): string => {
  count += 1;
  return join(folder, `result-${count}`);
};

async function contentOf(file: string): Promise<string> {
  await until(() => existsSync(file) && readFileSync(file, 'utf8') !== '');
  return readFileSync(file, 'utf8');
}

/** What this end does first: the other one waits for it, or is first itself. */
const first = {
  send: (peer: Peer) => peer.send('first').then(() => peer.receive()),
  request: (peer: Peer) => peer.request('first'),
  receive: (peer: Peer) => peer.receive(),
  loop: async (peer: Peer) => {
    for await (const value of peer) assert.fail(String(value));
    assert.fail('the loop ended in order');
  },
} as const;

async function assertMismatch(peer: Peer, call: keyof typeof first, file: string, where: string) {
  const isPython = where === companion;
  const other = `cuffi 9.8.7${isPython ? ' for Python' : ''} in ${where}`;
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  // Python takes the version of Node; two ends of Node take the later one.
  const command = isPython
    ? `npx cuffi@${version} python --copy ${folder}`
    : 'npm install cuffi@9.8.7';
  await assert.rejects(first[call](peer), (error: unknown) => {
    assert.ok(error instanceof IpcError, String(error));
    assert.equal(error.code, 'version-mismatch', error.message);
    assert.match(error.message, /speaks version 5 of the protocol, this one version 4\. /);
    assert.ok(
      error.message.endsWith(
        `There: ${other}. Here: cuffi ${version} in ${root}. ` +
          `Install the same version of cuffi on both sides. Run ${isPython ? 'there' : 'here'}: ${command}`,
      ),
      error.message,
    );
    return true;
  });
  const [name, code, message = ''] = (await contentOf(file)).split('\n');
  assert.deepEqual([name, code], ['IpcError', 'version-mismatch']);
  assert.match(message, /speaks version 4 of the protocol, this one version 5\. /);
  assert.ok(message.includes(` in ${root}. Here: ${other}. Install`), message);
  assert.ok(message.endsWith(`Run ${isPython ? 'here' : 'there'}: ${command}`), message);
}

const orders = [
  ['send', 'loop'],
  ['request', 'loop'],
  ['loop', 'send'],
  ['receive', 'request'],
  ['send', 'send'],
] as const;

describe('two versions of the protocol', options, () => {
  for (const [ours, theirs] of orders) {
    test(`are told to both ends of spawnPeer: ${ours} here, ${theirs} there`, options, async () => {
      const file = resultFile();
      using child = spawnPeer(join(folder, 'end.mjs'), { args: [theirs, 'parent', file] });
      await assertMismatch(child, ours, file, copy);
      await killed(child.process);
    });

    test(`are told to both ends of spawnPython: ${ours} here, ${theirs} there`, {
      ...options,
      skip: noPython,
    }, async () => {
      const file = resultFile();
      using child = spawnPython(join(folder, 'end.py'), { args: [theirs, 'parent', file] });
      await assertMismatch(child, ours, file, companion);
      await killed(child.process);
    });

    for (const [command, script, skip] of [
      [process.execPath, 'end.mjs', false],
      ['python3', 'end.py', noPython],
    ] as const)
      test(`are told to both ends of listen and connect: ${ours} here, ${theirs} in ${script}`, {
        ...options,
        skip,
      }, async () => {
        const file = resultFile();
        const name = `@cuffi-version-${process.pid}-${count}`;
        using listener = listen(name);
        const child = startProcess(command, [join(folder, script), theirs, name, file], {
          stdio: 'inherit',
        });
        using peer = await listener.accept({ timeoutMs: 60_000 });
        const where = script === 'end.mjs' ? copy : companion;
        await assertMismatch(peer, ours, file, where);
        await killed(child);
      });
  }

  test('the companion for Python has the version of the package', { skip: noPython }, () => {
    const program = 'import cuffi; print(cuffi.__version__)';
    const env = { ...process.env, PYTHONPATH: join(root, 'src', 'python') };
    const { stdout } = spawnSync('python3', ['-c', program], { env, encoding: 'utf8' });
    const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    assert.equal(stdout.trim(), version);
  });
});
