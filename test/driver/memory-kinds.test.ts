/** What was measured of pools and of virtual memory, and holds on every driver. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { collectFacts, type FactValue } from './facts/facts.ts';
import { memoryKindFacts } from './facts/memory-kinds.ts';

const measured: Readonly<Record<string, FactValue>> = {
  'device attribute 115': 1,
  'pool: created to be shared': 0,
  'pool: access of the owner set to none': 101,
  'pool: access of the owner set to read': 801,
  'pool: access of the owner set to read and write': 0,
  'pool memory: legacy handle': 1,
  'pool memory: attribute 10': 0,
  'pool memory: attribute 14': 1,
  'plain memory: attribute 14': 0,
  'pool memory: 64-bit wait': 1,
  'pool: exported': 0,
  'pool: an interior pointer exported': 1,
  'pool: imported': 0,
  'pool: imported twice': 0,
  'pool: imported twice, with the same handle': 'yes',
  'pool: access of the importer': 3,
  'pool pointer: imported': 0,
  'pool pointer: read': 42,
  'pool pointer: imported twice': 0,
  'pool pointer: imported twice, at the same address': 'yes',
  'pool pointer: of another pool': 1,
  'pool pointer: 64 zero bytes': 1,
  'pool pointer: altered': 1,
  'pool pointer: exported again': 1,
  'imported pool: allocated from': 1,
  'imported pool: exported again': 1,
  'imported pool: 64-bit wait on its memory': 1,
  'pool pointer: read after one free of two imports': 1,
  'pool pointer: freed twice of two imports': 1,
  'pool memory: freed by its owner while imported': 0,
  'pool pointer: read when its owner has freed': 42,
  'pool pointer: freed in a stream': 0,
  'device attribute 102': 1,
  'device attribute 103': 1,
  'virtual: granularity 0': 2 ** 21,
  'virtual: set with access to read': 1,
  'virtual: copied to with access to read': 1,
  'virtual: copied from with access to read': 0,
  'virtual memory: legacy handle': 1,
  'virtual memory: 64-bit wait': 0,
  'virtual: imported, set with access to read': 1,
  'virtual: imported, read': 33,
  'virtual: imported, released while mapped': 0,
  'virtual: imported, read when the owner was killed': 33,
  'pinned memory: legacy handle': 1,
  'host function: sem_post': 0,
  'host function: the semaphore': 1,
  'managed memory: legacy handle': 1,
};

test('pools and virtual memory answer as was measured', { timeout: 120_000 }, async (t) => {
  const facts = await collectFacts(memoryKindFacts);
  t.diagnostic(`${facts.size} facts asked`);
  for (const [name, value] of Object.entries(measured)) assert.equal(facts.get(name), value, name);
});

if (process.env['CUFFI_DRIVER'] === 'emulated')
  test('two devices copy with and without access, which is enabled once', async () => {
    const { twoDeviceFacts } = await import('./facts/peer.ts');
    const facts = await collectFacts([twoDeviceFacts]);
    assert.equal(facts.get('two devices: copy without access'), 0);
    assert.equal(facts.get('two devices: enabled twice'), 704);
    assert.equal(facts.get('two devices: disabled before enabled'), 705);
  });
