import assert from 'node:assert/strict';
import { describe, mock, test } from 'node:test';
import { runLs } from '../../../../src/cli/ls-command.ts';
import { DeviceBuffer } from '../../../../src/index.ts';
import { getIpcHandle } from '../../../../src/ipc/index.ts';
import type { ListReply } from '../../../../src/ipc/inspect/inspect-messages.ts';
import {
  type HolderFacts,
  type SharedObject,
  sharedObjects,
} from '../../../../src/ipc/inspect/shared-objects.ts';
import { ExportTable } from '../../../../src/ipc/lease/export-table.ts';

const SECOND = 1000;
const [MINUTE, HOUR, DAY] = [60 * SECOND, 3600 * SECOND, 86_400 * SECOND];
const held = (ageMs: number, pid = 7, isRevoked = false): HolderFacts => ({
  pid,
  ageMs,
  isRevoked,
});
const object = (byteLength: number, ...holders: HolderFacts[]): SharedObject => ({
  kind: 'memory',
  byteLength,
  isOrphaned: false,
  holders,
});
const reply = (objects: SharedObject[], omitted = 0): ListReply => ({
  process: { pid: 70, program: 'a.mjs' },
  objects,
  omitted,
});

/** What `cuffi ls` prints of processes, each with its pid as it is seen here. */
async function ls(processes: Readonly<Record<number, ListReply | Error>>, ...args: string[]) {
  const { mock: log } = mock.method(console, 'log', () => {});
  try {
    const all = Object.keys(processes).map((pid) => ({ path: pid, pid: Number(pid) }));
    const ask = async (path: string) => {
      const answer = processes[Number(path)];
      if (answer instanceof Error) throw answer;
      return answer as never;
    };
    const ok = await runLs(args, () => all, ask);
    const lines = log.calls.map(({ arguments: [line] }) => String(line).replace(/ {2,}/g, ' | '));
    return { ok, lines };
  } finally {
    log.restore();
  }
}

const HEADING = 'PID | PROGRAM | KIND | BYTES | HOLDERS';
const NOT_HELD = 'none by a connection; a descriptor was made';

describe('cuffi ls', () => {
  test('gives each age and size in the largest unit that fits', async () => {
    const ages =
      `0 0 s, ${SECOND - 1} 0 s, ${SECOND} 1 s, ${MINUTE - 1} 59 s, ${MINUTE} 1 min, ${HOUR - 1} 59 min,
      ${HOUR} 1 h, ${DAY - 1} 23 h, ${DAY} 1 d, ${2 * DAY - 1} 1 d`.split(/,\s+/);
    const sizes =
      `0 -, 1 1 B, 1023 1023 B, 1024 1 KiB, ${2 ** 20 - 513} 1023 KiB, ${2 ** 20 - 512} 1 MiB, ${2 ** 20} 1 MiB,
      ${2 ** 30 - 1} 1 GiB, ${1.5 * 2 ** 30} 1.5 GiB, ${2 ** 40} 1 TiB, ${2 ** 52} 4096 TiB`.split(
        /,\s+/,
      );
    const value = (each: string): number => Number(each.split(' ', 1));
    const said = (each: string): string => each.replace(/^\S+ /, '');
    const { ok, lines } = await ls({
      12: reply([
        ...ages.map((each) => object(1, held(value(each)))),
        ...sizes.map((each) => object(value(each))),
      ]),
    });
    assert.equal(ok, true);
    assert.deepEqual(lines, [
      HEADING,
      ...ages.map((each) => `12 | a.mjs | memory | 1 B | 7 for ${said(each)}`),
      ...sizes.map((each) => `12 | a.mjs | memory | ${said(each)} | ${NOT_HELD}`),
    ]);
  });

  test('names up to eight holders, and counts the others and the objects without room', async () => {
    const holders = (count: number) => Array.from({ length: count }, () => held(SECOND));
    const eight = Array(8).fill('7 for 1 s').join(', ');
    const said = [
      { ...object(1, held(SECOND, 0), held(SECOND, 7, true)), isOrphaned: true },
      object(1, ...holders(8)),
      object(1, ...holders(9)),
    ];
    assert.deepEqual((await ls({ 12: reply(said, 1) })).lines, [
      HEADING,
      '12 | a.mjs | memory, closed | 1 B | a process of another pid namespace for 1 s, 7 for 1 s (revoked)',
      `12 | a.mjs | memory | 1 B | ${eight}`,
      `12 | a.mjs | memory | 1 B | ${eight}, and 1 more`,
      '12 | a.mjs | … | and 1 more',
    ]);
  });

  test('fails if one of the processes does not answer, and lists the others', async () => {
    const answers = { 0: reply([]), 12: new Error('busy') };
    assert.deepEqual(await ls(answers), {
      ok: false,
      lines: [
        HEADING,
        '(70) | a.mjs | - | - | nothing is shared now',
        '12 | does not answer: busy',
      ],
    });
    const { ok, lines } = await ls(answers, '--json');
    assert.deepEqual(
      [ok, JSON.parse(String(lines[0]))],
      [
        false,
        {
          processes: [
            { pid: 0, ...reply([]) },
            { pid: 12, error: 'busy' },
          ],
        },
      ],
    );
    const none = ['No process of this user shares anything.'];
    assert.deepEqual(await ls({}), { ok: true, lines: none });
  });

  test('lists what this process shares, the largest first, and since when', async (t) => {
    using small = DeviceBuffer.allocate(256);
    using large = DeviceBuffer.allocate(4096);
    getIpcHandle(small);
    const { now } = Date;
    const holder = { pid: 9, name: 'process 9', revoke() {} };
    const [lease] = new ExportTable(holder).add([large], undefined);
    assert.ok(lease);
    t.mock.method(Date, 'now', () => now() + HOUR);
    const { lines } = await ls({ 12: reply(sharedObjects()) });
    assert.deepEqual(lines.slice(1), [
      '12 | a.mjs | memory | 4 KiB | 9 for 1 h',
      `12 | a.mjs | memory | 256 B | ${NOT_HELD}`,
    ]);
    t.mock.method(Date, 'now', () => now() - DAY);
    assert.equal(sharedObjects()[0]?.holders[0]?.ageMs, 0);
    lease.end();
  });
});
