/**
 * What cuffi says to common mistakes. wrong-uses.json has a row for each: what it said before these
 * sentences were written, and what it says now.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { isMainThread } from 'node:worker_threads';
import { DeviceBuffer, deviceArray, float32, int32, MemoryPool, Stream } from '../../src/index.ts';
import { getIpcHandle } from '../../src/ipc/index.ts';
import { loadKernels } from '../support/kernels.ts';
import { noPython } from '../support/python.ts';
import { inPython, type Tools, uses } from './wrong-uses.ts';

interface Row {
  /** The class and the code of the error, and what it said. */
  readonly before: readonly [name: string, code: string, message: string];
  readonly now: readonly [name: string, code: string, message: string];
}

const table = JSON.parse(
  readFileSync(new URL('./wrong-uses.json', import.meta.url), 'utf8'),
) as Readonly<Record<string, Row>>;

/** Leaves out what differs from run to run, and from device to device. */
const withoutVarying = (message: string): string =>
  message
    .replaceAll(/process \d+|pid \d+/g, 'process N')
    .replaceAll(/pid: \d+/g, 'pid: N')
    .replaceAll(/\S*\/cuffi(-\d+)?\/(?=nobody|wrong)/g, '/tmp/cuffi-N/')
    .replaceAll(/[^ :]*\/fixtures\//g, '')
    .replaceAll(/\.mjs\b/g, '.ts')
    .replace(/with \d+ bytes \([^)]*\) free/, 'with N free')
    .replace(/sees \d+ \(0 to \d+/, 'sees N (0 to N')
    .replace(/a module that has [\w, ]+/, 'a module that has ...');

async function errorOf(use: () => unknown): Promise<readonly [string, string, string]> {
  try {
    await use();
  } catch (thrown) {
    const { name, code, message } = thrown as Error & { readonly code?: unknown };
    return [name, typeof code === 'string' ? code : '', withoutVarying(message)];
  }
  return assert.fail('nothing was thrown');
}

describe('wrong uses', () => {
  let tools: Tools;
  const closables: { close(): void }[] = [];
  const keep = <T extends { close(): void }>(made: T): T => {
    closables.unshift(made);
    return made;
  };

  before(() => {
    const module = keep(loadKernels());
    tools = {
      buffer: keep(DeviceBuffer.allocate(64)),
      array: keep(deviceArray([2, 3], float32)),
      integers: keep(deviceArray([4], int32)),
      stream: keep(Stream.create({ nonBlocking: true })),
      pool: keep(MemoryPool.create({ maxSize: 4 << 20 })),
      module,
      kernel: module.kernel('saxpy', ['float32', 'float32*', 'float32*', 'uint32']),
    };
    // What the first export of an object leaves until that is closed.
    getIpcHandle(tools.buffer);
  });
  after(() => {
    for (const made of closables) made.close();
  });

  test('there are at least 60, and each has its row', () => {
    assert.ok(Object.keys(uses).length >= 60);
    assert.deepEqual(Object.keys(table), Object.keys(uses));
  });

  /** In a worker thread, parentPeer() says that it is one. */
  const reasonToSkip = (title: string): string | false =>
    (inPython.includes(title) && noPython) ||
    (!isMainThread && title.startsWith('parentPeer()') && 'it is of the main thread');

  for (const [title, use] of Object.entries(uses))
    test(title, { timeout: 60_000, skip: reasonToSkip(title) }, async () => {
      assert.deepEqual(await errorOf(() => use(tools)), table[title]?.now);
    });
});
