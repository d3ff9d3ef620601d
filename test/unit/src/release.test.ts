import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { ReleaseQueue } from '../../../src/release.ts';
import { until } from './emulate.ts';

/** A queue whose idleness the test decides, and what was released so far. */
function held() {
  const state = { idle: false, released: [] as string[] };
  const queue = new ReleaseQueue(() => state.idle);
  const submit = (name: string): void => queue.submit(() => state.released.push(name));
  return { state, queue, submit };
}

test('releases at once while nothing can make it wait', () => {
  const { state, queue, submit } = held();
  state.idle = true;
  submit('a');
  assert.deepEqual(state.released, ['a']);
  assert.equal(queue.size, 0);
});

test('keeps what must wait, and releases it in order as soon as it may', async () => {
  const { state, queue, submit } = held();
  submit('a');
  submit('b');
  assert.equal(queue.size, 2);
  assert.equal(queue.collect(), false);
  assert.deepEqual(state.released, []);
  state.idle = true;
  await until(() => queue.size === 0);
  assert.deepEqual(state.released, ['a', 'b']);
});

test('nothing overtakes what waits', () => {
  const { state, queue, submit } = held();
  submit('a');
  state.idle = true;
  submit('b');
  assert.deepEqual(state.released, []);
  assert.equal(queue.collect(), true);
  assert.deepEqual(state.released, ['a', 'b']);
});

test('flush resolves when everything was released, at once where nothing waits', async () => {
  const { state, queue, submit } = held();
  await queue.flush();
  submit('a');
  let flushed = false;
  const flushing = queue.flush().then(() => {
    flushed = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(flushed, false);
  state.idle = true;
  await flushing;
  assert.deepEqual(state.released, ['a']);
});

test('a release that fails later is a warning, and the others still happen', async () => {
  const { state, queue, submit } = held();
  submit('a');
  queue.submit(() => {
    throw new Error('no such memory');
  });
  submit('c');
  const warned = once(process, 'warning') as Promise<[Error & { code?: string }]>;
  state.idle = true;
  await queue.flush();
  assert.deepEqual(state.released, ['a', 'c']);
  const [warning] = await warned;
  assert.match(warning.message, /no such memory/);
});

test('the warning of a release that fails later has the code CUFFI_RELEASE', async () => {
  const { state, queue } = held();
  queue.submit(() => {
    throw new Error('no such memory');
  });
  const warned = once(process, 'warning') as Promise<[Error & { code?: string }]>;
  state.idle = true;
  await queue.flush();
  const [warning] = await warned;
  assert.equal(warning.code, 'CUFFI_RELEASE');
});

test('what was cleared is never released, and the queue works on', async () => {
  const { state, queue, submit } = held();
  submit('a');
  queue.clear();
  assert.equal(queue.size, 0);
  submit('b');
  state.idle = true;
  await until(() => queue.size === 0);
  assert.deepEqual(state.released, ['b']);
});

test('what is submitted by a release is not lost', async () => {
  const { state, queue, submit } = held();
  queue.submit(() => {
    state.idle = false;
    submit('inner');
  });
  state.idle = true;
  queue.collect();
  assert.equal(queue.size, 1);
  state.idle = true;
  await until(() => queue.size === 0);
  assert.deepEqual(state.released, ['inner']);
});
