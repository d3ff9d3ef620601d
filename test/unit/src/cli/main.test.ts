import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { DeviceBuffer } from '../../../../src/index.ts';
import { encodeDescriptor, getIpcHandle } from '../../../../src/ipc/index.ts';
import { InTurn } from '../../../support/in-turn.ts';
import { isSoak } from '../../../support/iterations.ts';
import { programFile } from '../../../support/program.ts';
import { type Outcome, runProgram } from '../emulate.ts';

const DEADLINE_MS = 60_000;
const main = new URL('../../../../src/cli/main.ts', import.meta.url);
const cuffi = (args: string, env: NodeJS.ProcessEnv = {}): Outcome =>
  runProgram(main, args.split(' ').filter(Boolean), env);

const commands = new InTurn();
after(() => commands[Symbol.asyncDispose]());

/** Runs the command in a process of several commands, which shows of most of them what its own would. */
async function inTurn(args: string, env: NodeJS.ProcessEnv = {}): Promise<Outcome> {
  const { text, complaints, ending } = await commands.run(
    { path: programFile(main).path, args: args.split(' '), directory: process.cwd(), env },
    DEADLINE_MS,
  );
  return { code: Number(ending), stdout: text, stderr: complaints };
}

const roundtrips = new Map<number, Promise<Outcome>>();

/** A round trip of so many elements, made once for several tests. */
function roundtripOf(elements: number): Promise<Outcome> {
  const made = roundtrips.get(elements) ?? inTurn(`roundtrip --elements=${elements}`);
  roundtrips.set(elements, made);
  return made;
}

/** Runs the command in a shell with its output redirected by `to`; stdout has the exit code. */
function cuffiInShell(args: string, to: string): { readonly code: number; readonly said: string } {
  const { path, execArgv } = programFile(main);
  const command = [process.execPath, ...execArgv, path, ...args.split(' ')];
  const { stdout, stderr, error } = spawnSync(
    'sh',
    ['-c', `exec 3>&1; { "$@"; echo $? >&3; } ${to}`, 'sh', ...command],
    { encoding: 'utf8', timeout: DEADLINE_MS, killSignal: 'SIGKILL' },
  );
  if (error) throw error;
  return { code: Number(stdout), said: stderr };
}

describe('cuffi command', () => {
  test('an invalid command line prints why and where help is on stderr, and nothing runs', () => {
    const { code, stdout, stderr } = cuffi('roundtrip --elements=0');
    assert.deepEqual({ code, stdout }, { code: 2, stdout: '' });
    assert.match(stderr, /^cuffi: --elements must be .+\nSee cuffi help roundtrip\.\n$/);
  });

  test('version prints that of package.json', () => {
    const file = new URL('../../../../package.json', import.meta.url);
    const { version } = JSON.parse(readFileSync(file, 'utf8')) as { version: string };
    for (const option of ['--version', '-v'])
      assert.deepEqual(cuffi(option), { code: 0, stdout: `${version}\n`, stderr: '' });
  });

  test('doctor tries every kind of sharing, and says what it tried with', () => {
    const { code, stdout, stderr } = cuffi('doctor');
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    for (const name of ['plain memory', 'pool', 'virtual memory', 'read-only', 'event', 'timeline'])
      assert.match(stdout, new RegExp(`^  ok +${name} .* ms$`, 'm'));
    assert.match(stdout, /^ {2}ok +driver +emulated, as CUFFI_DRIVER says: .* no GPU$/m);
    assert.match(
      stdout,
      /^ {2}ok +legacy handle +none for memory of a pool, of ManagedMemory, of Mapped/m,
    );
    assert.match(
      stdout,
      /\nAll works, with the emulated driver: this says nothing about a GPU\.\n$/,
    );
  });

  test('doctor finds what does not work, and goes on', () => {
    const { code, stdout } = cuffi('doctor --json', {
      CUFFI_EMULATED_FAULTS: 'cuIpcOpenMemHandle_v2:*=201',
      CUFFI_EMULATED_ATTRIBUTES: '125=0',
      CUDA_DEVICE_MAX_CONNECTIONS: '1',
    });
    const { ok, findings, facts } = JSON.parse(stdout);
    assert.deepEqual([code, ok, facts.driver.name], [1, false, 'emulated']);
    const found = (name: string) => findings.find((each: { name: string }) => each.name === name);
    assert.equal(found('plain memory').status, 'no');
    assert.match(found('plain memory').fact, /CUDA_ERROR_INVALID_CONTEXT, 201/);
    assert.match(found('event').fact, /does not support interprocess events/);
    assert.equal(found('pool').status, 'ok');
    assert.equal(found('CUDA_DEVICE_MAX_CONNECTIONS').fact, '1');
  });

  test('a list that hides every GPU does not hide the devices that replace them', () => {
    const env = { CUFFI_DRIVER: '', CUDA_VISIBLE_DEVICES: '-1' };
    const { findings, facts } = JSON.parse(cuffi('doctor --json', env).stdout);
    assert.deepEqual([facts.driver.name, facts.devices.length], ['emulated', 1]);
    const found = (name: string) => findings.find((each: { name: string }) => each.name === name);
    assert.deepEqual(
      [found('CUDA_VISIBLE_DEVICES').fact, found('CUDA_VISIBLE_DEVICES').status],
      ['-1', 'no'],
    );
    assert.equal(found('pool').status, 'ok');
    assert.match(
      cuffi('devices', env).stdout,
      /no GPU is here: these are no GPUs\.\n.*\n0 {2}cuffi emulated device .* GPU-/,
    );
    // Named, the emulated driver reads the list as the real one does.
    assert.match(
      cuffi('devices', { CUDA_VISIBLE_DEVICES: '-1' }).stderr,
      /CUDA_ERROR_NO_DEVICE, 100/,
    );
  });

  test('doctor reports a broken driver, which no other one replaces', () => {
    const { code, stdout } = cuffi('doctor', { CUFFI_EMULATED_FAULTS: 'cuInit:*=999' });
    assert.equal(code, 1);
    assert.match(
      stdout,
      /^ {2}no +GPU driver +cuInit failed .*\(CUDA_ERROR_UNKNOWN, 999\)\n +→ Likely causes: .* Check dmesg/m,
    );
    assert.match(stdout, /^ {2}unknown +plain memory +not tried/m);
    assert.match(stdout, /\nDoes not work: GPU driver\. Each line with no says what to do\.\n$/);
  });

  test('devices lists what the driver shows, and what it can share', async () => {
    const env = { CUFFI_EMULATED_DEVICES: '2', CUFFI_EMULATED_ATTRIBUTES: '125=0' };
    const { code, stdout, stderr } = await inTurn('devices', env);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    assert.match(
      stdout,
      /^The emulated driver is used, as CUFFI_DRIVER says: these are no GPUs\.\n/,
    );
    assert.match(
      stdout,
      /^0 {2}cuffi emulated device {3}4 GiB {2}4 GiB {2}9\.0 {2}plain, pools, virtual {2}1 +GPU-\S+$/m,
    );
    const { driver, devices } = JSON.parse((await inTurn('devices --json', env)).stdout);
    const small = { ...env, CUFFI_EMULATED_MEMORY: '64M' };
    assert.deepEqual(
      JSON.parse((await inTurn('devices --json', small)).stdout).devices.map(
        (device: { freeMemory: number }) => device.freeMemory,
      ),
      [64 << 20, 64 << 20],
    );
    assert.equal(driver, 'emulated');
    assert.deepEqual(
      devices.map((device: { ordinal: number }) => device.ordinal),
      [0, 1],
    );
    assert.equal(devices[1].support.events.supported, false);
  });

  test('devices says why the free memory of a device is unknown, and lists it', async () => {
    const env = {
      CUFFI_EMULATED_DEVICES: '2',
      CUFFI_EMULATED_FAULTS: 'cuDevicePrimaryCtxRetain:2=101',
    };
    const { code, stdout } = await inTurn('devices', env);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^0 {2}cuffi .* 4 GiB {2}4 GiB {2}9\.0 .*\n1 {2}cuffi .* 4 GiB {6}\? {2}9\.0 /m,
    );
    assert.match(stdout, /\nThe free memory of device 1 is unknown: .*INVALID_DEVICE, 101\)/);
    const { devices } = JSON.parse((await inTurn('devices --json', env)).stdout);
    assert.match(devices[1].freeMemoryError, /INVALID_DEVICE/);
    assert.equal(devices[1].freeMemory, undefined);
  });

  test('a pipe gets no colours and no marks, unless FORCE_COLOR asks for colours', async () => {
    const env = { FORCE_COLOR: undefined, NO_COLOR: undefined };
    // As `cat -v` shows it.
    const shown = (text: string): string => text.replaceAll('\u001b', '^[');
    assert.doesNotMatch(shown(cuffi('doctor', env).stdout), /\^\[|✓/);
    const { stdout } = cuffi('doctor', { ...env, FORCE_COLOR: '1' });
    assert.match(shown(stdout), /^ {2}\^\[\[32mok +\^\[\[39mpool /m);
    assert.doesNotMatch(stdout, /✓/);
  });

  test('the text of a file does not reach the terminal as it is, and its length is bounded', () => {
    const { path, execArgv } = programFile(main);
    const ask = (args: readonly string[], input: string | Buffer = ''): Outcome => {
      const { status, stdout, stderr } = spawnSync(process.execPath, [...execArgv, path, ...args], {
        env: { ...process.env, CUFFI_DRIVER: 'emulated' },
        encoding: 'utf8',
        input,
        timeout: DEADLINE_MS,
      });
      return { code: status, stdout, stderr };
    };
    const escapes = '\u001b]0;OWNED\u0007\u009b2J\u202e';
    for (const args of [
      ['explain', '-'],
      ['doctor', '--with', '-'],
    ]) {
      const { code, stderr } = ask(args, `${escapes}\ncuffi: fine`);
      assert.equal(code, 2);
      assert.match(stderr, /^cuffi: .* is not a descriptor: /);
      assert.doesNotMatch(stderr.replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u);
      assert.doesNotMatch(stderr, /^cuffi: fine/m);
    }
    const unknownKey = JSON.stringify({ kind: 'legacy', [`\u009b2J\nopenable  yes`]: 1 });
    const { code, stdout } = ask(['explain', '-'], unknownKey);
    assert.equal(code, 1);
    assert.match(stdout, /is not a field of a descriptor of kind legacy/);
    assert.doesNotMatch(stdout.replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u);
    assert.doesNotMatch(stdout, /^openable {2}yes/m);
    for (const [file, input] of [
      ['/dev/zero', ''],
      ['-', Buffer.alloc(3 << 20, 0x20)],
    ] as const) {
      const long = ask(['explain', file], input);
      assert.equal(long.code, 2, file);
      assert.match(long.stderr, /^cuffi: .* is not a descriptor: it has more than 1048576 bytes/);
    }
  });

  test('explain says what a descriptor is, and why it cannot be opened', async () => {
    using buffer = DeviceBuffer.allocate(4096);
    const descriptor = getIpcHandle(buffer.subarray(16, 48));
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-explain-'));
    try {
      const [json, binary] = [join(folder, 'json'), join(folder, 'binary')];
      writeFileSync(json, JSON.stringify({ descriptor, fds: [] }));
      writeFileSync(binary, encodeDescriptor(descriptor));
      for (const file of [json, binary]) {
        const { code, stdout, stderr } = await inTurn(`explain ${file}`);
        assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
        assert.match(stdout, /^kind {6}legacy: plain device memory, by its handle\n/);
        assert.match(stdout, /^bytes {5}32 bytes from 16 of an allocation of 4096, read-write$/m);
        assert.match(stdout, /^openable {2}yes, as far as can be seen here\nwhy +only process \d/m);
      }
      writeFileSync(json, JSON.stringify({ ...descriptor, machine: descriptor.device.slice(4) }));
      const { code, stdout } = await inTurn(`explain ${json} --json`);
      assert.deepEqual([code, JSON.parse(stdout).explanation.code], [1, 'corrupted']);
    } finally {
      rmSync(folder, { recursive: true });
    }
    assert.match((await inTurn('explain {}')).stdout, /^openable {2}no \(invalid-descriptor\)$/m);
  });

  test('ls lists no process where none shares anything, and sweeps', async () => {
    const runtime = mkdtempSync(join(tmpdir(), 'cuffi-ls-'));
    try {
      const env = { XDG_RUNTIME_DIR: runtime };
      assert.deepEqual(await inTurn('ls', env), {
        code: 0,
        stdout: 'No process of this user shares anything.\n',
        stderr: '',
      });
      assert.match((await inTurn('ls --json', env)).stdout, /^\{"processes":\[\],"totals":.*\}\n$/);
    } finally {
      rmSync(runtime, { recursive: true });
    }
  });

  test('copying is said to take longer, or to be quicker, and never a part of the time', async () => {
    const { code, stdout } = await roundtripOf(1);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^hand-over .*\((?:[1-9]\d*\.\d times as long|[1-9]\d*\.\d times as fast: IPC pays for larger buffers)\)$/m,
    );
  });

  test('a missing device ends the command, and the error names the existing ones', async () => {
    const { code, stdout, stderr } = await inTurn('roundtrip --device 99');
    assert.equal(code, 1);
    assert.match(stdout, /^driver +emulated/);
    assert.match(stderr, /^cuffi: there is no device 99: this process sees 1 /);
  });

  test('a missing driver ends the command, and the error names what was tried', async () => {
    const { code, stderr } = await inTurn('roundtrip --driver /nowhere/libcuda.so.1');
    assert.equal(code, 1);
    assert.match(
      stderr,
      /^cuffi: the chosen library is not a CUDA driver:\n {2}\/nowhere\/libcuda\.so\.1: /,
    );
  });

  test('a broken driver is an error, and never replaced by the emulated one', async () => {
    const { code, stdout, stderr } = await inTurn('roundtrip', {
      CUFFI_EMULATED_FAULTS: 'cuInit:*=999',
    });
    assert.equal(code, 1);
    assert.doesNotMatch(stdout, /round trip/);
    assert.match(stderr, /^cuffi: cuInit failed .*\(CUDA_ERROR_UNKNOWN, 999\)/);
  });

  test('a device that cannot share memory ends the command with 0 and the reason', async () => {
    const env = { CUFFI_EMULATED_ATTRIBUTES: '41=0' };
    const spoken = await inTurn('roundtrip --kind legacy', env);
    assert.deepEqual({ code: spoken.code, stderr: spoken.stderr }, { code: 0, stderr: '' });
    assert.match(
      spoken.stdout,
      /This device cannot share legacy memory between processes: the device does not support unified addressing\. Nothing to show\.\n$/,
    );
    const { code, stdout } = await inTurn('roundtrip --kind legacy --json', env);
    assert.equal(code, 0);
    const { result, support } = JSON.parse(stdout);
    assert.equal(result, null);
    assert.equal(support.memory.supported, false);
  });

  test('--json prints one object and no sentence', () => {
    const { code, stdout, stderr } = cuffi('roundtrip --json --elements 1000');
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    const { driver, device, result } = JSON.parse(stdout);
    assert.equal(driver, 'emulated');
    assert.equal(device.ordinal, 0);
    assert.equal(result.byteLength, 4000);
    assert.deepEqual(result.mismatches, { child: 0, parent: 0 });
    assert.equal(result.bytesCopied, 0);
    assert.equal(result.ok, true);
  });

  test('the first line names the driver and the last the verdict, even for one element', async () => {
    // Fewer and more than the values that are shown.
    for (const elements of isSoak ? [1, 3, 5] : [1, 5]) {
      const { code, stdout } = await roundtripOf(elements);
      assert.equal(code, 0);
      assert.match(stdout, /^driver +emulated, as CUFFI_DRIVER says: .* no GPU/);
      assert.match(stdout, /\nround trip: OK\n$/);
    }
  });

  test('bench exits with 1 and says why if no size fits', async () => {
    const { code, stdout, stderr } = await inTurn('bench --size 2GiB');
    assert.deepEqual({ code, stderr }, { code: 1, stderr: '' });
    assert.match(stdout, /\nnot measured: 2 GiB: it takes 6 GiB of the GPU and some to spare, /);
    assert.doesNotMatch(stdout, /MEDIAN/);
  });

  test('wrong data ends the command with 1 and is reported', async () => {
    // The first copy to the device reports success but does nothing, so both sides miss their values.
    const env = { CUFFI_EMULATED_FAULTS: 'cuMemcpyHtoDAsync_v2:1=0' };
    const spoken = await inTurn('roundtrip --elements 8', env);
    assert.deepEqual({ code: spoken.code, stderr: spoken.stderr }, { code: 1, stderr: '' });
    assert.doesNotMatch(spoken.stdout, /OK/);
    const { code, stdout } = await inTurn('roundtrip --elements 8 --json', env);
    assert.equal(code, 1);
    const { ok, mismatches } = JSON.parse(stdout).result;
    assert.deepEqual({ ok, mismatches }, { ok: false, mismatches: { child: 8, parent: 8 } });
  });

  test('both processes use the given device', () => {
    // Each process prints its arguments at exit: the child gets the device.
    const telling = "process.on('exit',()=>console.error(process.argv.slice(2).join()))";
    const { code, stderr } = cuffi('roundtrip --elements 4 --device 1', {
      CUFFI_EMULATED_DEVICES: '2',
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(telling)}`,
    });
    assert.equal(code, 0);
    assert.deepEqual(stderr.trim().split('\n').sort(), ['1', 'roundtrip,--elements,4,--device,1']);
  });

  test('--driver takes precedence over the environment', async () => {
    const { code, stdout } = await inTurn('roundtrip --driver emulated --elements 4', {
      CUFFI_DRIVER: '/nowhere/libcuda.so.1',
    });
    assert.equal(code, 0);
    assert.match(stdout, /^driver +emulated, as --driver says: /);
  });

  for (const args of ['roundtrip --elements 1000', 'roundtrip --elements 1000 --json', '--help'])
    test(`a closed pipe ends the command like SIGPIPE, without a message: ${args}`, () => {
      assert.deepEqual(cuffiInShell(args, '| true'), { code: 141, said: '' });
    });

  test('an error keeps its exit code if nobody reads the message', () => {
    assert.deepEqual(cuffiInShell('--elements', '2>&1 | true'), { code: 2, said: '' });
  });

  test('output that cannot be written ends the command with the reason', () => {
    const { code, said } = cuffiInShell('roundtrip --elements 1000', '>/dev/full');
    assert.equal(code, 1);
    assert.match(said, /^cuffi: the output cannot be written: ENOSPC: .+\n$/);
  });
});
