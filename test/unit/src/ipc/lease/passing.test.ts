/** Objects of others that go on to a third process: who is asked to keep them, and with what. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';
import { closeFd } from '../../../../../ffi/libc.ts';
import { processStartTime } from '../../../../../ffi/process.ts';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { type Lender, passOn, rememberLender } from '../../../../../src/ipc/lease/passing.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { nextTurn } from '../../../../../src/wait.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/descriptors.ts';
import { emulate } from '../../emulate.ts';
import { Stranger } from '../peer/support.ts';

let before = 0;
const buffers: DeviceBuffer[] = [];
const allocate = (): DeviceBuffer => {
  const buffer = DeviceBuffer.allocate(64);
  buffers.push(buffer);
  return buffer;
};
beforeEach(() => {
  emulate();
  // Small memory comes from a block, which has a descriptor.
  allocate();
  before = openDescriptors();
});
afterEach(async () => {
  await descriptorsReturnTo(before);
  for (const buffer of buffers.splice(0)) buffer.close();
});

const to = (pid: number): PeerProcess => ({ pid }) as PeerProcess;

/** One that has lent a buffer, and what it was asked; it refuses from the n-th time on. */
function lend(pid: number | PeerProcess, buffer: DeviceBuffer, most = 9) {
  const asked: (readonly [pid: number, startTime: number])[] = [];
  let over = 0;
  const adopt: Lender['adopt'] = (process, startTime, link) => {
    closeFd(link);
    if (asked.length === most) throw new Error('no more');
    asked.push([process, startTime]);
    return {
      answered: Promise.resolve(),
      over() {
        over += 1;
      },
    };
  };
  rememberLender(buffer, { process: typeof pid === 'number' ? to(pid) : pid, adopt });
  return { asked, over: () => over };
}

test('what goes back to its maker is its own, and nobody is asked', () => {
  const [buffer, own] = [allocate(), allocate()];
  const lender = lend(7, buffer);
  for (const objects of [[buffer], [own, buffer.subarray(0, 8)], [own], []]) {
    const { kept, links, agreed, over } = passOn(objects, to(7));
    assert.deepEqual([kept, links, agreed, over], [[], [], undefined, []]);
  }
  assert.deepEqual(lender.asked, []);
});

test('processes of other pid namespaces are told apart by their connections', () => {
  const [hidden, other] = [PeerProcess.known(0, 0), PeerProcess.known(0, 0)];
  const buffer = allocate();
  const lender = lend(hidden, buffer);
  assert.deepEqual(passOn([buffer], hidden).kept, []);
  assert.deepEqual(lender.asked, []);
  const { kept, links } = passOn([buffer], other);
  assert.deepEqual(kept, [0]);
  assert.deepEqual(lender.asked, [[0, 0]]);
  links.forEach(closeFd);
});

test('each object of another is asked for, in its place, and each has a link', async () => {
  const [own, first, second] = [allocate(), allocate(), allocate()];
  const lenders = [lend(7, first), lend(process.pid, second)] as const;
  const { kept, links, agreed, over } = passOn([own, first, second, first], to(process.pid));
  assert.deepEqual([kept, links.length, over.length], [[1, 3], 2, 2]);
  const startTime = processStartTime('self');
  assert.deepEqual(lenders[0].asked, new Array(2).fill([process.pid, startTime]));
  assert.deepEqual(lenders[1].asked, []);
  await agreed;
  for (const end of over) end();
  assert.equal(lenders[0].over(), 2);
  links.forEach(closeFd);
});

test('where one cannot be asked for, all is over, and no link is left', () => {
  const [first, second] = [allocate(), allocate()];
  const lenders = [lend(7, first), lend(8, second, 1)] as const;
  assert.throws(() => passOn([first, second, first, second], to(process.pid)), /no more/);
  assert.deepEqual(
    lenders.map(({ asked, over }) => [asked.length, over()]),
    [
      [2, 2],
      [1, 1],
    ],
  );
});

test('a send closes its ends of the links, and what is not lent after all is over', async () => {
  const [buffer, other] = [allocate(), allocate()];
  const lenders = [lend(7, buffer), lend(7, other, 999)] as const;
  using to = new Stranger();
  await to.peer.send(buffer);
  // A page of counters may come before it.
  const came: number[] = [];
  for (let next = to.receive(); typeof next === 'object'; next = to.receive()) {
    came.push(next.fds.length);
    next.fds.forEach(closeFd);
  }
  assert.equal(came.at(-1), 1);
  assert.deepEqual([lenders[0].asked.length, lenders[0].over()], [1, 0]);
  // More links than a value may have descriptors.
  await assert.rejects(to.peer.send(new Array<DeviceBuffer>(254).fill(other)), {
    name: 'RangeError',
    message: /254 file descriptors, those included by which it is passed on: it may have 253/,
  });
  assert.deepEqual([lenders[1].asked.length, lenders[1].over()], [254, 254]);
  assert.equal(to.receive(), undefined);
  // Lease 0 is given back: then it is over for its maker.
  to.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 0), { kind: 2 });
  for (let turn = 0; turn < 100 && lenders[0].over() === 0; turn++) await nextTurn();
  assert.equal(lenders[0].over(), 1);
});

test('what is passed on goes out once its maker has agreed to keep it', async () => {
  const buffer = allocate();
  let agree = (): void => {};
  const answered = new Promise<void>((resolve) => {
    agree = resolve;
  });
  const adopt: Lender['adopt'] = (_process, _startTime, link) => {
    closeFd(link);
    return { answered, over() {} };
  };
  rememberLender(buffer, { process: to(7), adopt });
  using other = new Stranger();
  /** How many values have come; a page of counters may come before. */
  const values = (): number => {
    let count = 0;
    for (let next = other.receive(); typeof next === 'object'; next = other.receive()) {
      next.fds.forEach(closeFd);
      if (next.data[3] === 1) count += 1;
    }
    return count;
  };
  const sending = other.peer.send(buffer);
  for (let turn = 0; turn < 10; turn++) await nextTurn();
  assert.equal(values(), 0);
  agree();
  await sending;
  assert.equal(values(), 1);
  other.send(Uint8Array.of(10), { kind: 2 });
  await nextTurn();
});
