/** `cuffi ls` beside a process that shares. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, describe, test } from 'node:test';
import type { DeviceBuffer } from '../../src/index.ts';
import { connect } from '../../src/ipc/index.ts';
import { killed, startProgram } from '../support/program.ts';

const runtime = mkdtempSync(join(tmpdir(), 'cuffi-ls-'));
process.env['XDG_RUNTIME_DIR'] = runtime;
after(() => rmSync(runtime, { recursive: true }));

/** Starts a program, whose output is read line by line. */
function start(program: string, ...args: readonly string[]) {
  const child = startProgram(new URL(program, import.meta.url), args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, CUFFI_INSPECT: '' },
  });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const next = async (): Promise<string> => (await lines.next()).value ?? '';
  return { child, next, [Symbol.asyncDispose]: () => killed(child) };
}

describe('cuffi ls --watch', () => {
  test('asks again until Ctrl-C, and names the program, its device and the holder', async () => {
    const listener = join(runtime, 'listener');
    await using sharer = start('./fixtures/inspected.ts', 'share', listener);
    assert.equal(await sharer.next(), 'ready');
    await using command = start('../../src/cli/main.ts', 'ls', '--watch', '--json', '--interval=1');
    using peer = await connect<{ buffer: DeviceBuffer }>(listener);
    const { buffer } = await peer.receive();
    const read = async () => JSON.parse(await command.next());
    let list = await read();
    while (list.totals.objects === 0) list = await read();
    const [{ pid, process: owner, objects }] = list.processes;
    assert.equal(pid, sharer.child.pid);
    assert.match(owner.program, /fixtures\/inspected\.m?[jt]s$/);
    const [{ device, holders }] = objects;
    assert.equal(device, buffer.context.device.uuid);
    assert.deepEqual(
      holders.map((holder: { pid: number; leases: number }) => [holder.pid, holder.leases]),
      [[process.pid, 1]],
    );
    buffer.close();
    while (list.processes[0].objects[0].holders.length > 0) list = await read();
    const exited = once(command.child, 'exit');
    command.child.kill('SIGINT');
    assert.deepEqual(await exited, [0, null]);
  });
});
