import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  decodeReply,
  decodeRequest,
  encodeRequest,
  REQUESTS,
} from '../../../../../src/ipc/inspect/inspect-messages.ts';
import { listReply } from '../../../../../src/ipc/inspect/inspect-server.ts';
import { ownFacts, programOf } from '../../../../../src/ipc/inspect/process-facts.ts';

const bytes = (value: unknown): Uint8Array => Buffer.from(JSON.stringify(value));

describe('a request', () => {
  test('is read as it was written, and anything else is refused', () => {
    for (const request of REQUESTS) assert.equal(decodeRequest(encodeRequest(request)), request);
    for (const wrong of [
      { cuffi: 2, ask: 'list' },
      { cuffi: 1, ask: 'constructor' },
      { ask: 'list' },
      [],
      null,
      7,
      { cuffi: 1, ask: 'list', more: 'x'.repeat(300) },
    ])
      assert.equal(decodeRequest(bytes(wrong)), undefined);
    assert.equal(decodeRequest(Buffer.from('{"cuffi":1')), undefined);
    // As long as a request may be, and no longer.
    for (const [byteLength, read] of [
      [256, 'list'],
      [257, undefined],
    ] as const)
      assert.equal(decodeRequest(Buffer.from('{"cuffi":1,"ask":"list"}'.padEnd(byteLength))), read);
  });
});

describe('a reply', () => {
  test('with facts of this process passes the check of the client', () => {
    const facts = JSON.parse(JSON.stringify(ownFacts()));
    assert.deepEqual(decodeReply('facts', bytes(facts)), facts);
  });

  test('with a wrong field is refused', () => {
    const facts = JSON.parse(JSON.stringify(ownFacts()));
    for (const wrong of [
      { pid: -1 },
      { capabilities: 'zz' },
      { namespaces: { pid: 'x' } },
      { namespaces: { other: 1 } },
      { devices: {} },
    ])
      assert.equal(decodeReply('facts', bytes({ ...facts, ...wrong })), undefined);
    assert.equal(decodeReply('list', bytes({})), undefined);
    assert.equal(decodeReply('probes', bytes({ ok: false })), undefined);
    assert.equal(decodeReply('list', Buffer.from('[')), undefined);
  });

  test('fits in one message, without the smallest objects if there are too many', () => {
    const objects = Array.from({ length: 5000 }, (_, index) => ({
      kind: 'memory',
      byteLength: 5000 - index,
      isOrphaned: false,
      holders: [{ pid: 123, ageMs: 1000, isRevoked: false, leases: 1 }],
    }));
    const reply = listReply(ownFacts(), objects);
    assert.ok(JSON.stringify(reply).length < 64 << 10);
    assert.ok(reply.objects.length > 100);
    assert.equal(reply.objects.length + reply.omitted, 5000);
    assert.equal(reply.objects[0]?.byteLength, 5000);
    assert.notEqual(decodeReply('list', bytes(reply)), undefined);
  });
});

describe('facts from the text of /proc', () => {
  test('a program is its script, or the program itself', () => {
    assert.equal(programOf('/usr/bin/node\0--import\0tsx\0server.ts\0--port\0'), 'server.ts');
    assert.equal(
      programOf(
        '/usr/bin/node\0--require\0/t/preflight.cjs\0--import\0file:///t/loader.mjs\0a.tsx\0',
      ),
      'a.tsx',
    );
    for (const option of ['-r', '--loader', '--experimental-loader', '--test-reporter'])
      assert.equal(programOf(`node\0${option}\0./x.js\0--import=./y.mjs\0a.cts\0b.js\0`), 'a.cts');
    assert.equal(programOf('python3.12\0-u\0model.py\0'), 'model.py');
    assert.equal(programOf('/usr/bin/node\0-e\x001\0'), '/usr/bin/node');
    assert.equal(programOf('/opt/server\0a.js\0'), '/opt/server');
    assert.equal(programOf(''), undefined);
    assert.equal(programOf(undefined), undefined);
  });
});
