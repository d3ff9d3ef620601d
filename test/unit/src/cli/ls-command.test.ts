import assert from 'node:assert/strict';
import { describe, mock, test } from 'node:test';
import { UsageError } from '../../../../src/cli/command.ts';
import { type LsSource, runLs } from '../../../../src/cli/ls-command.ts';
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
const held = (ageMs: number, pid = 7, { isRevoked = false, leases = 1 } = {}): HolderFacts => ({
  pid,
  ageMs,
  isRevoked,
  leases,
});
const GPU = 'GPU-20a82374-dd19-cacf-96c5-2fd06c7d7441';
const object = (byteLength: number, ...holders: HolderFacts[]): SharedObject => ({
  kind: 'memory',
  byteLength,
  device: GPU,
  isOrphaned: false,
  holders,
});
const reply = (objects: SharedObject[], omitted = 0): ListReply => ({
  process: { pid: 70, program: 'a.mjs' },
  objects,
  omitted,
});

type Answers = Readonly<Record<number, ListReply | Error>>;

/** What `cuffi ls` prints of processes, each with its pid as it is seen here; with --watch, of some lists. */
async function ls(given: Answers | readonly Answers[], ...args: string[]) {
  const { mock: log } = mock.method(console, 'log', () => {});
  const lists: readonly Answers[] = Array.isArray(given) ? given : [given];
  const waits: number[] = [];
  let processes = lists[0] as Answers;
  const source: LsSource = {
    processes: () => Object.keys(processes).map((pid) => ({ path: pid, pid: Number(pid) })),
    async ask(path) {
      const answer = processes[Number(path)];
      if (answer instanceof Error) throw answer;
      return answer as never;
    },
    async wait(ms) {
      waits.push(ms);
      const next = lists[waits.length];
      processes = next ?? processes;
      return next !== undefined;
    },
  };
  try {
    const ok = await runLs(args, source);
    const lines = log.calls.map(({ arguments: [line] }) => String(line).replace(/ {2,}/g, ' | '));
    return { ok, lines, waits };
  } finally {
    log.restore();
  }
}

const HEADING = 'PID | PROGRAM | DEVICE | KIND | BYTES | HOLDERS';
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
    assert.deepEqual(lines.slice(0, -2), [
      HEADING,
      ...ages.map((each) => `12 | a.mjs | GPU-20a82374 | memory | 1 B | 7 for ${said(each)}`),
      ...sizes.map((each) => `12 | a.mjs | GPU-20a82374 | memory | ${said(each)} | ${NOT_HELD}`),
    ]);
  });

  test('names up to eight holders, and counts the others and the objects without room', async () => {
    const holders = (count: number) => Array.from({ length: count }, () => held(SECOND));
    const eight = Array(8).fill('7 for 1 s').join(', ');
    const said = [
      { ...object(1, held(SECOND, 0), held(SECOND, 7, { isRevoked: true })), isOrphaned: true },
      object(1, ...holders(8)),
      object(1, ...holders(9)),
    ];
    assert.deepEqual((await ls({ 12: reply(said, 1) })).lines, [
      HEADING,
      '12 | a.mjs | GPU-20a82374 | memory, closed | 1 B | a process of another pid namespace for 1 s, 7 for 1 s (revoked)',
      `12 | a.mjs | GPU-20a82374 | memory | 1 B | ${eight}`,
      `12 | a.mjs | GPU-20a82374 | memory | 1 B | ${eight}, and 1 more`,
      '12 | a.mjs | … | and 1 more',
      '',
      'total | 3 objects, 3 B',
      'closed | 1 object, 1 B',
      'not counted | 1 object',
    ]);
  });

  test('fails if one of the processes does not answer, and lists the others', async () => {
    const answers = { 0: reply([]), 12: new Error('busy') };
    const table = await ls(answers);
    assert.equal(table.ok, false);
    assert.deepEqual(table.lines, [
      HEADING,
      '(70) | a.mjs | - | - | - | nothing is shared now',
      '12 | does not answer: busy',
      '',
      'total | 0 objects, 0 B',
    ]);
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
          totals: {
            objects: 0,
            byteLength: 0,
            closed: { objects: 0, byteLength: 0 },
            devices: {},
            omitted: 0,
          },
        },
      ],
    );
    const none = ['No process of this user shares anything.'];
    assert.deepEqual(await ls({}), { ok: true, lines: none, waits: [] });
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
    const { uuid } = large.context.device;
    assert.deepEqual(new Set(sharedObjects().map(({ device }) => device)), new Set([uuid]));
    const start = uuid.split('-', 2).join('-');
    assert.deepEqual(lines.slice(1, -2), [
      `12 | a.mjs | ${start} | memory | 4 KiB | 9 for 1 h`,
      `12 | a.mjs | ${start} | memory | 256 B | ${NOT_HELD}`,
    ]);
    t.mock.method(Date, 'now', () => now() - DAY);
    assert.equal(sharedObjects()[0]?.holders[0]?.ageMs, 0);
    lease.end();
  });

  test('counts the objects and bytes of all processes, and of each device if there are two', async () => {
    const other = 'MIG-11111111-2222-3333-4444-555555555555';
    const all = {
      12: reply([object(2 ** 20), { ...object(2 ** 20), device: other }], 2),
      13: reply([
        { ...object(512, held(0)), isOrphaned: true, device: other },
        { ...object(64), device: undefined },
      ]),
    };
    const { lines } = await ls(all);
    assert.deepEqual(lines.slice(3), [
      '12 | a.mjs | … | and 2 more',
      '13 | a.mjs | MIG-11111111 | memory, closed | 512 B | 7 for 0 s',
      `13 | a.mjs | host | memory | 64 B | ${NOT_HELD}`,
      '',
      'total | 4 objects, 2.001 MiB',
      `${GPU} | 1 object, 1 MiB`,
      `${other} | 2 objects, 1 MiB`,
      'closed | 1 object, 512 B',
      'not counted | 2 objects',
    ]);
    const { totals } = JSON.parse(String((await ls(all, '--json')).lines[0]));
    assert.deepEqual(totals, {
      objects: 4,
      byteLength: 2 ** 21 + 576,
      closed: { objects: 1, byteLength: 512 },
      devices: {
        [GPU]: { objects: 1, byteLength: 2 ** 20 },
        [other]: { objects: 2, byteLength: 2 ** 20 + 512 },
      },
      omitted: 2,
    });
  });

  test('names a process once that has an object many times, and since when it has it', async (t) => {
    using buffer = DeviceBuffer.allocate(4096);
    const { now } = Date;
    const table = new ExportTable({ pid: 9, name: 'process 9', revoke() {} });
    const elsewhere = [1, 2].map(() => new ExportTable({ pid: 0, name: 'a process', revoke() {} }));
    t.mock.method(Date, 'now', () => now() - HOUR);
    const parts = Array.from({ length: 70 }, (_, at) => buffer.subarray(at, at + 1));
    const [first, ...others] = table.add(parts, undefined);
    t.mock.method(Date, 'now', now);
    for (const each of [...elsewhere, table]) others.push(...each.add([buffer], undefined));
    const holders = () => sharedObjects()[0]?.holders ?? [];
    assert.deepEqual(
      holders().map(({ pid, leases, isRevoked }) => [pid, leases, isRevoked]),
      // Two connections to another pid namespace may be two processes.
      [
        [9, 71, false],
        [0, 1, false],
        [0, 1, false],
      ],
    );
    others[0]?.revoke();
    assert.equal(holders()[0]?.isRevoked, true);
    const { lines } = await ls({ 12: reply(sharedObjects()) });
    assert.match(String(lines[1]), / 9 for 1 h \(71 times\) \(revoked\), a process of another pid/);
    for (const lease of [first, ...others]) lease?.end();
  });

  test('shows the end of a long path, from one of its folders on', async () => {
    const path = '/home/someone/projects/service/dist/server.mjs';
    for (const [program, shown] of [
      [path, '…/service/dist/server.mjs'],
      ['/28/characters/are/shown.mjs', '/28/characters/are/shown.mjs'],
      [`/x/${'y'.repeat(40)}.mjs`, `…${'y'.repeat(23)}.mjs`],
    ] as const) {
      const { lines } = await ls({ 12: { ...reply([]), process: { pid: 12, program } } });
      assert.equal(String(lines[1]).split(' | ')[1], shown);
    }
  });

  test('--watch lists until it is ended, and fails if the last list lacks an answer', async () => {
    const lists = [{}, { 12: reply([object(1)]) }, { 12: new Error('busy') }];
    const { ok, lines, waits } = await ls(lists, '--watch');
    assert.deepEqual([ok, waits], [false, [2000, 2000, 2000]]);
    assert.deepEqual(lines, [
      'No process of this user shares anything.',
      '',
      'total | 1 object, 1 B',
      '',
      HEADING,
      `12 | a.mjs | GPU-20a82374 | memory | 1 B | ${NOT_HELD}`,
      '',
      'total | 0 objects, 0 B',
      '',
      HEADING,
      '12 | does not answer: busy',
      '',
    ]);
    const json = await ls(lists.slice(1).reverse(), '--watch', '--json', '--interval=7');
    assert.deepEqual([json.ok, json.waits], [true, [7000, 7000]]);
    assert.deepEqual(
      json.lines.map((line) => JSON.parse(line).totals.objects),
      [0, 1],
    );
    for (const interval of ['0', '1.5', '86401'])
      await assert.rejects(ls({}, '--watch', `--interval=${interval}`), UsageError);
  });
});
