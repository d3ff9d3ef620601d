/** What is asked of a maker that answers as it likes, by the link that is for its answer. */
import assert from 'node:assert/strict';
import { readSync } from 'node:fs';
import { afterEach, beforeEach, test } from 'node:test';
import { closeFd, duplicateFd } from '../../../../../ffi/libc.ts';
import { sendMessage } from '../../../../../ffi/message.ts';
import { socketPair } from '../../../../../ffi/socket.ts';
import { Adopting, type Asked, MAX_ASKED } from '../../../../../src/ipc/lease/adopting.ts';
import { nextTurn } from '../../../../../src/wait.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/descriptors.ts';
import { withRoomFor } from '../../../ffi/fixtures/descriptors.ts';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

const ask = (adopting: Adopting): Asked & { theirs: number; ours: number } => {
  const [theirs, ours] = socketPair();
  return { ...adopting.ask(0, process.pid, 1, theirs, ours), theirs, ours };
};

/** Whether promises are resolved after some turns of the loop, which none of them keeps going. */
async function isAnswered(...promises: Promise<void>[]): Promise<boolean> {
  let count = 0;
  for (const promise of promises)
    void promise.then(() => {
      count += 1;
    });
  for (let turn = 0; turn < 20; turn++) await nextTurn();
  return count === promises.length;
}

const answers: Readonly<Record<string, (link: number) => void>> = {
  'the byte that is agreed on': (link) => sendMessage(link, Uint8Array.of(1)),
  'many messages of many bytes': (link) => {
    while (sendMessage(link, Buffer.alloc(10_000, 7)));
  },
  'file descriptors': (link) => sendMessage(link, Uint8Array.of(1), [link, link]),
  nothing: () => {},
};

for (const [what, answer] of Object.entries(answers))
  test(`${what}, and the end of the link, is an answer, and leaves no descriptor`, async () => {
    const adopting = new Adopting(() => {});
    const { answered, ours } = ask(adopting);
    const { link } = adopting.take()[0] as { link: number };
    answer(link);
    closeFd(link);
    assert.equal(await isAnswered(answered), true);
    closeFd(ours);
  });

test('the answer does not go on to the third process', async () => {
  const adopting = new Adopting(() => {});
  const { answered, ours } = ask(adopting);
  const { link } = adopting.take()[0] as { link: number };
  sendMessage(link, Uint8Array.of(1));
  assert.equal(await isAnswered(answered), true);
  assert.throws(() => readSync(ours, new Uint8Array(1)), { code: 'EAGAIN' });
  [link, ours].forEach(closeFd);
});

test('one that never answers is waited for until its connection is over', async () => {
  const adopting = new Adopting(() => {});
  const told = ask(adopting);
  const { link } = adopting.take()[0] as { link: number };
  const untold = ask(adopting);
  assert.deepEqual(
    [await isAnswered(told.answered), await isAnswered(untold.answered)],
    [false, false],
  );
  adopting.end();
  assert.equal(await isAnswered(told.answered, untold.answered), true);
  // After it nobody is asked any more.
  const late = ask(adopting);
  assert.equal(await isAnswered(late.answered), true);
  assert.deepEqual(adopting.take(), []);
  [link, told.ours, untold.ours, late.ours].forEach(closeFd);
});

test('what would be too much at a time waits until something is over', async () => {
  let news = 0;
  const adopting = new Adopting(() => {
    news += 1;
  });
  const asked = Array.from({ length: MAX_ASKED + 3 }, () => ask(adopting));
  const [first, ...others] = asked;
  const told: { readonly link: number }[] = [];
  const tell = (): number => {
    for (let taken = adopting.take(); taken.length > 0; taken = adopting.take())
      told.push(...taken);
    return told.length;
  };
  assert.equal(tell(), MAX_ASKED);
  // What was not asked for yet never is, and makes no room.
  others.at(-1)?.over();
  assert.equal(tell(), MAX_ASKED);
  news = 0;
  first?.over();
  assert.equal(news, 1);
  assert.equal(tell(), MAX_ASKED + 1);
  for (const { over } of others.slice(0, 5)) over();
  assert.equal(tell(), MAX_ASKED + 2);
  adopting.end();
  assert.equal(await isAnswered(...asked.map(({ answered }) => answered)), true);
  for (const { link } of told) closeFd(link);
  for (const { ours } of asked) closeFd(ours);
});

test('an answer that cannot be waited for is not asked for', () => {
  const adopting = new Adopting(() => {});
  const [theirs, ours] = socketPair();
  // None is left for the copy.
  withRoomFor(1, () => {
    const last = duplicateFd(ours);
    assert.throws(() => adopting.ask(0, process.pid, 1, theirs, ours), { code: 'EMFILE' });
    closeFd(last);
  });
  closeFd(ours);
  assert.deepEqual(adopting.take(), []);
});
