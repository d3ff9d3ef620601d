/** The values of the test vectors, over connections: Node and Python, each as sender and as receiver. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { connect, listen, type Peer } from '../../src/ipc/index.ts';
import { companionPath } from '../../src/python/companion.ts';
import { startProcess } from '../support/program.ts';
import { noPython } from '../support/python.ts';
import {
  assertSameValue,
  readVectors,
  toValue,
  type Vector,
  vectorFolder,
} from '../support/vectors.ts';

const fixtures = fileURLToPath(new URL('./fixtures', import.meta.url));
const options = { timeout: 60_000 };
const wait = { timeoutMs: 20_000 };

interface ValueVector extends Vector {
  readonly value: unknown;
  readonly roundtrip: boolean;
}

const values = readVectors(vectorFolder, 'values.json') as readonly ValueVector[];

/** Sends the number of each value, and the value. -1 is the end. */
async function send(peer: Peer): Promise<void> {
  for (const [at, { value, roundtrip }] of values.entries()) {
    if (!roundtrip) continue;
    await peer.send(at);
    await peer.send(toValue(value));
  }
  await peer.send(-1);
  assert.equal(await peer.receive(wait), null);
}

/** Checks the values that come. */
async function receive(peer: Peer): Promise<void> {
  let count = 0;
  for (;;) {
    const at = (await peer.receive(wait)) as number;
    if (at < 0) break;
    assertSameValue(await peer.receive(wait), toValue(values[at]?.value));
    count += 1;
  }
  await peer.send(null);
  assert.ok(count >= 40, `only ${count} values came`);
}

/** An end in Python. Resolves to what is wrong. */
function startPython(role: 'send' | 'receive', how: 'listen' | 'connect', name: string) {
  const child = startProcess(
    'python3',
    ['-B', `${fixtures}/vectors.py`, vectorFolder, role, how, name],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: options.timeout,
      env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
    },
  );
  let said = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
  const listening = how === 'listen' ? once(child.stdout, 'data') : undefined;
  const ended = once(child, 'close').then(([code]) => ({ code, said }));
  return { listening, ended };
}

describe('the values of the test vectors', options, () => {
  const name = (cell: string): string => `@cuffi-test-${process.pid}-vectors-${cell}`;

  test('go from Node to Node', options, async () => {
    using listener = listen(name('nn'));
    using to = await connect(name('nn'));
    using from = await listener.accept(wait);
    await Promise.all([send(to), receive(from)]);
  });

  test('go from Node to Python', { ...options, skip: noPython }, async () => {
    using listener = listen(name('np'));
    const { ended } = startPython('receive', 'connect', name('np'));
    using peer = await listener.accept(wait);
    await send(peer);
    assert.deepEqual(await ended, { code: 0, said: '' });
  });

  test('go from Python to Node', { ...options, skip: noPython }, async () => {
    using listener = listen(name('pn'));
    const { ended } = startPython('send', 'connect', name('pn'));
    using peer = await listener.accept(wait);
    await receive(peer);
    assert.deepEqual(await ended, { code: 0, said: '' });
  });

  test('go from Python to Python', { ...options, skip: noPython }, async () => {
    const to = startPython('receive', 'listen', name('pp'));
    await to.listening;
    const from = startPython('send', 'connect', name('pp'));
    assert.deepEqual(await from.ended, { code: 0, said: '' });
    assert.deepEqual(await to.ended, { code: 0, said: 'listening\n' });
  });
});
