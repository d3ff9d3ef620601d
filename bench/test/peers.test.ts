/** A program of another language, asked as in a run, with a driver in C that always succeeds. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { callCases } from '../cases/calls.ts';
import { Peer } from '../peers/peers.ts';

const HANDLES = ['DevicePrimaryCtxRetain', 'StreamCreate', 'EventCreate', 'MemAlloc_v2'];
const OTHERS = [
  'Init',
  'CtxPushCurrent_v2',
  'StreamSynchronize',
  'StreamQuery',
  'EventRecord',
  'IpcGetMemHandle',
];
const DRIVER = `
#include <string.h>
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 0xab, 16); return device; }
${HANDLES.map((name) => `int cu${name}(void **made) { *made = made; return 0; }`).join('\n')}
${OTHERS.map((name) => `int cu${name}(void) { return 0; }`).join('\n')}`;

const [COMPILER, PYTHON] = ['cc', 'python3'] as const;
/** What it cannot be built or run without, if that is not here. */
const lacking = [COMPILER, PYTHON].find(
  (command) => spawnSync(command, ['--version']).status !== 0,
);

describe('Peer', () => {
  test('the program of ctypes makes the calls that it is asked for', {
    skip: lacking !== undefined && `${lacking} is not here`,
  }, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-peer-'));
    const { LD_LIBRARY_PATH: before } = process.env;
    try {
      const library = join(folder, 'libcuda.so.1');
      const built = spawnSync(COMPILER, ['-shared', '-fPIC', '-xc', '-', '-o', library], {
        input: DRIVER,
        encoding: 'utf8',
      });
      assert.equal(built.status, 0, built.stderr);
      process.env['LD_LIBRARY_PATH'] = folder;
      const path = fileURLToPath(new URL('../peers/python/ctypes_calls.py', import.meta.url));
      const program = { name: 'ctypes', command: PYTHON, args: ['-B', path] };
      const uuid = `GPU-${'ab'.repeat(16)}`;
      const peer = await Peer.start(program, uuid, new AbortController().signal);
      assert.ok(peer instanceof Peer, JSON.stringify(peer));
      try {
        const batches = callCases.flatMap(({ peers }) =>
          peers.filter((one) => one.peer === 'ctypes').map(({ batch }) => batch),
        );
        assert.equal(batches.length, 3);
        for (const batch of batches) {
          assert.equal(await peer.lacks(batch, 0), undefined);
          assert.ok((await peer.run({ batch, calls: 100, untimed: 10, byteLength: 0 })) > 0, batch);
          await peer.verify(batch, 0);
        }
        assert.equal(await peer.lacks('another', 0), 'it has no such batch');
      } finally {
        await peer.close();
      }
    } finally {
      if (before === undefined) delete process.env['LD_LIBRARY_PATH'];
      else process.env['LD_LIBRARY_PATH'] = before;
      rmSync(folder, { recursive: true });
    }
  });
});
