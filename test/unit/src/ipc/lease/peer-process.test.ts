/** The end of another process: reported when it can be observed, never invented. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { closeFd, libc } from '../../../../../ffi/linux/libc.ts';
import { processStartTime } from '../../../../../ffi/linux/process.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import {
  descriptorsReturnTo,
  openDescriptors,
  replaceLibc,
} from '../../../../support/process-state.ts';
import { startProcess } from '../../../../support/program.ts';
import { withRoomFor } from '../../../ffi/fixtures/descriptors.ts';
import { runProgram } from '../../emulate.ts';

let before = 0;
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

const own = { pid: process.pid, uid: process.geteuid?.() ?? 0 };

function withoutRoom<T>(make: () => T): T {
  let made: T | undefined;
  withRoomFor(1, () => {
    made = make();
  });
  return made as T;
}

describe('PeerProcess', () => {
  test('a living process does not count as gone if no descriptor is left to watch it', async () => {
    const child = startProcess('sleep', ['60'], { stdio: 'ignore' });
    const pid = child.pid as number;
    const startTime = processStartTime(pid) as number;
    let isTold = false;
    let ours: PeerProcess | undefined;
    for (const room of [0, 1])
      withRoomFor(room, () => {
        ours = PeerProcess.ofChild(pid);
        assert.deepEqual([ours.isExitObservable, ours.isGone, ours.pid], [true, false, pid]);
        const named = PeerProcess.fromIdentity(pid, startTime);
        assert.deepEqual([named.isExitObservable, named.isGone], [false, false]);
      });
    const blind = withoutRoom(() => PeerProcess.fromIdentity(pid, startTime));
    const forget = blind.onGone(() => assert.fail('nobody can tell'));
    const seen = PeerProcess.fromIdentity(pid, startTime);
    assert.deepEqual([blind.isExitObservable, seen.isExitObservable], [false, true]);
    seen.onGone(() => {})();
    forget();
    // The parent of a child is notified of its end.
    ours?.onGone(() => {
      isTold = true;
    });
    child.kill('SIGKILL');
    await once(child, 'exit');
    assert.equal(isTold, false);
    ours?.markGone();
    assert.equal(isTold, true);
    assert.equal(PeerProcess.ofChild(pid).isGone, true);
  });

  test('a process with the pid of an ended one is not taken for it', () => {
    const startTime = processStartTime('self') as number;
    for (const [pid, started, isSeen] of [
      [own.pid, startTime, true],
      [own.pid, startTime - 1, false],
      [own.pid, startTime + 1, false],
      [0, startTime, false],
    ] as const) {
      const named = PeerProcess.fromIdentity(pid, started);
      assert.deepEqual([named.isExitObservable, named.isGone], [isSeen, false]);
      assert.equal(named.pid, isSeen ? pid : 0);
      named.onGone(() => {})();
    }
  });

  test('watching a process does not keep this process alive', () => {
    const { code, stdout, stderr } = runProgram(
      new URL('../fixtures/watching.ts', import.meta.url),
      [String(process.pid), String(processStartTime('self'))],
    );
    assert.deepEqual([code, stdout, stderr], [0, 'seen: true\n', '']);
  });

  test('a shortage of descriptors throws, and any other error makes the end unobservable', () => {
    const [socket, other] = socketPair();
    withRoomFor(0, () =>
      assert.throws(() => PeerProcess.ofSocket(socket, process.pid), {
        name: 'SystemError',
        code: 'EMFILE',
      }),
    );
    const { getsockopt } = libc;
    // The kernel refuses the request for something that is not a socket.
    replaceLibc('getsockopt', (_, ...rest) => getsockopt(-1, ...rest));
    try {
      const unseen = PeerProcess.ofSocket(socket, process.pid);
      assert.deepEqual(
        [unseen.isExitObservable, unseen.isGone, unseen.pid],
        [false, false, process.pid],
      );
    } finally {
      replaceLibc('getsockopt', getsockopt);
    }
    const seen = PeerProcess.ofSocket(socket, process.pid);
    assert.deepEqual([seen.isExitObservable, seen.isGone], [true, false]);
    seen.onGone(() => {})();
    [socket, other].forEach(closeFd);
  });

  test('a connection for which there are too few descriptors fails and leaves none open', () => {
    let made = 0;
    for (let room = 0; made === 0; room++) {
      const [first, second] = socketPair();
      let peer: Peer | undefined;
      withRoomFor(room, () => {
        try {
          peer = new Peer(first, own);
        } catch (error) {
          assert.equal((error as { code?: string }).code, 'EMFILE', String(error));
        }
      });
      if (peer) made += 1;
      peer?.close();
      closeFd(second);
      assert.equal(openDescriptors(), before, `with room for ${room}`);
    }
  });
});
