import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { promisify } from 'node:util';
import koffi from 'koffi';
import { closeFd, duplicateFd, openPidfd } from '../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../ffi/linux/message.ts';
import { type Readiness, readable, watchFd } from '../../../../ffi/linux/poll.ts';
import { socketPair } from '../../../../ffi/linux/socket.ts';
import { turns, until } from '../../../support/iterations.ts';
import { leaves } from '../../../support/left-open.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { programFile, startProcess, startWorker } from '../../../support/program.ts';
import { eventFd, withRoomFor } from '../fixtures/descriptors.ts';

const fixture = async (name: string, ...flags: string[]): Promise<string> => {
  const { path, execArgv } = programFile(new URL(`../fixtures/${name}.ts`, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [...execArgv, ...flags, path], {
    timeout: 30_000,
  });
  return stdout;
};

const hello = Buffer.from('hello');

describe('watchFd', () => {
  test("koffi's poll calls back with a status and the events", async () => {
    const fd = eventFd(1, 0);
    const args = await new Promise<unknown[]>((resolve) => {
      const handle = koffi.node.poll(fd, { readable: true }, ((...given: unknown[]) => {
        handle.close();
        resolve(given);
      }) as never);
    });
    assert.deepEqual(args, [0, { readable: true, writable: false, disconnect: false }]);
    closeFd(fd);
  });

  test('a watch fires once a turn until the descriptor has been read, and not after', async () => {
    const before = openDescriptors();
    const fd = eventFd(1, 0);
    const seen: Readiness[] = [];
    await new Promise<void>((resolve) => {
      const watch = watchFd(fd, { readable: true }, (ready) => {
        seen.push(ready);
        if (seen.length === 3) readSync(fd, Buffer.alloc(8));
        if (seen.length === 3) setTimeout(() => resolve(watch.close()), 20);
      });
    });
    const ready = { readable: true, writable: false, disconnect: false, error: false };
    assert.deepEqual(seen, [ready, ready, ready]);
    closeFd(fd);
    assert.ok(openDescriptors() <= before);
  });

  test('tells readable, writable and disconnect apart', async () => {
    const [a, b] = socketPair();
    const next = (events: Parameters<typeof watchFd>[1]): Promise<Readiness> =>
      new Promise((resolve) => {
        const watch = watchFd(a, events, (ready) => {
          watch.close();
          resolve(ready);
        });
      });
    const all = { readable: true, writable: true, disconnect: true };
    const nothing = { readable: false, writable: false, disconnect: false, error: false };
    assert.deepEqual(await next(all), { ...nothing, writable: true });
    assert.ok(sendMessage(b, hello));
    assert.deepEqual(await next({ readable: true }), { ...nothing, readable: true });
    assert.deepEqual(await next(all), { ...nothing, readable: true, writable: true });
    closeFd(b);
    const { disconnect } = await next({ disconnect: true });
    assert.equal(disconnect, true);
    closeFd(a);
  });

  test('tells of a pending error, which the next read reports, and goes on after it', async () => {
    const [a, b] = socketPair();
    assert.ok(sendMessage(a, hello));
    // Closing with a message unread leaves ECONNRESET at the other end.
    closeFd(b);
    const seen: Readiness[] = [];
    await new Promise<void>((resolve) => {
      const watch = watchFd(a, { readable: true }, (ready) => {
        seen.push(ready);
        if (seen.length === 1) assert.equal(receiveMessage(a), 'end');
        else resolve(watch.close());
      });
    });
    assert.deepEqual(
      seen.map(({ readable, error }) => ({ readable, error })),
      [
        { readable: true, error: true },
        { readable: true, error: false },
      ],
    );
    closeFd(a);
  });

  test('is not called after close(), not even for what had already been found', async () => {
    const fds = [eventFd(1, 0), eventFd(1, 0)] as const;
    let calls = 0;
    // Both are found ready in one turn; whichever comes first closes both.
    const watches = fds.map((fd) =>
      watchFd(fd, { readable: true }, () => {
        calls++;
        for (const watch of watches) watch.close();
      }),
    );
    await until(() => calls > 0);
    await turns();
    assert.equal(calls, 1);
    assert.ok(watches.every((watch) => watch.closed));
    fds.forEach(closeFd);
  });

  test('change() watches for something else, or for nothing, with no descriptor left', async () => {
    const [a, b] = socketPair();
    let seen: Readiness[] = [];
    const watch = watchFd(a, { readable: true }, (ready) => seen.push(ready));
    const seenAfter = async (change: () => void): Promise<Readiness[]> => {
      withRoomFor(0, change);
      seen = [];
      await turns();
      return seen;
    };
    const only = (event: 'readable' | 'writable'): Readiness => ({
      ...{ readable: false, writable: false, disconnect: false, error: false },
      [event]: true,
    });
    assert.deepEqual(await seenAfter(() => {}), []);
    const writable = await seenAfter(() => watch.change({ writable: true }));
    assert.deepEqual(writable[0], only('writable'));
    assert.deepEqual(await seenAfter(() => watch.change({ readable: true })), []);
    assert.ok(sendMessage(b, hello));
    assert.deepEqual((await seenAfter(() => {}))[0], only('readable'));
    assert.deepEqual(await seenAfter(() => watch.change({})), []);
    // Nor for an error or the end, of which the kernel tells unasked.
    closeFd(b);
    assert.deepEqual(await seenAfter(() => {}), []);
    const again = await seenAfter(() => watch.change({ readable: true }));
    assert.deepEqual(again[0], only('readable'));
    watch.close();
    watch.change({ readable: true });
    assert.deepEqual(await seenAfter(() => {}), []);
    // The first watch of this process was long ago: another one needs none either.
    withRoomFor(0, () => watchFd(a, { readable: true }, () => {}).close());
    closeFd(a);
  });

  test('what was found is not delivered once the watch is for something else', async () => {
    const fds = [eventFd(1, 0), eventFd(1, 0)] as const;
    let calls = 0;
    const watches = fds.map((fd) =>
      watchFd(fd, { readable: true }, () => {
        calls++;
        for (const watch of watches) watch.change({});
      }),
    );
    await turns();
    assert.equal(calls, 1);
    for (const watch of watches) watch.close();
    fds.forEach(closeFd);
  });

  test('watches more descriptors than are found at once', async () => {
    const fds = Array.from({ length: 1100 }, () => eventFd(1, 0));
    const seen = new Set<number>();
    await new Promise<void>((resolve) => {
      for (const fd of fds) {
        const watch = watchFd(fd, { readable: true }, () => {
          readSync(fd, Buffer.alloc(8));
          watch.close();
          if (seen.add(fd).size === fds.length) resolve();
        });
      }
    });
    assert.deepEqual([...seen].sort(), fds.sort());
    fds.forEach(closeFd);
  });

  test('a worker thread refuses a file of which it watches too many copies', async () => {
    const [a, b] = socketPair();
    const watches = Array.from({ length: 501 }, () =>
      watchFd(duplicateFd(b), { readable: true }, () => {}),
    );
    for (const watch of watches) {
      watch.close();
      closeFd(watch.fd);
    }
    const worker = startWorker(new URL('../fixtures/watching-worker.ts', import.meta.url), {
      fd: a,
      how: 'copies',
    });
    assert.deepEqual(await once(worker, 'message'), ['watching']);
    const [error] = await once(worker, 'message');
    assert.match(error, /EINVAL.*more than 500 copies of descriptor \d+ are watched/);
    await worker.terminate();
    [a, b].forEach(closeFd);
  });

  for (const how of ['as Node has it', 'without datagram sockets'])
    test(`a worker thread watches, keeps itself alive by it, and may be terminated: ${how}`, async () => {
      // Where Node cannot close it.
      if (how === 'without datagram sockets')
        leaves('descriptor of anon_inode:[eventpoll]', 'that of each thread', 4);
      for (let n = 0; n < 3; n++) {
        const [a, b] = socketPair();
        const worker = startWorker(new URL('../fixtures/watching-worker.ts', import.meta.url), {
          fd: a,
          how,
        });
        const next = async (): Promise<unknown> => (await once(worker, 'message'))[0];
        assert.equal(await next(), 'watching');
        // It has nothing else to live for.
        await sleep(20);
        sendMessage(b, hello);
        assert.equal(await next(), 'hello');
        // The kernel watches a descriptor once: that of a watch that is closed is free for another.
        for (const text of ['again', 'hello']) {
          sendMessage(b, Buffer.from(text));
          assert.equal(await next(), text);
        }
        // From now on it is ready in every turn, and found to be so while the thread ends.
        sendMessage(b, Buffer.from('busy'));
        assert.equal(await next(), 'busy');
        await worker.terminate();
        [a, b].forEach(closeFd);
      }
      const [a, b] = socketPair();
      const worker = startWorker(new URL('../fixtures/watching-worker.ts', import.meta.url), {
        fd: a,
        how,
      });
      const exit = once(worker, 'exit');
      await once(worker, 'message');
      sendMessage(b, Buffer.from('close'));
      // With the watch closed there is nothing that keeps it.
      assert.deepEqual(await exit, [0]);
      [a, b].forEach(closeFd);
    });

  test('the last of the watches of a worker thread keeps it alive, whichever that is', async () => {
    for (const first of ['one', 'other'] as const) {
      const pairs = { one: socketPair(), other: socketPair() };
      const last = first === 'one' ? 'other' : 'one';
      const worker = startWorker(new URL('../fixtures/watching-worker.ts', import.meta.url), {
        fd: pairs.one[0],
        other: pairs.other[0],
        how: 'as Node has it',
      });
      const exit = once(worker, 'exit');
      const next = async (): Promise<unknown> => (await once(worker, 'message'))[0];
      assert.equal(await next(), 'watching');
      sendMessage(pairs[first][1], Buffer.from('close'));
      if (first === 'other') assert.equal(await next(), 'other: close');
      await sleep(50);
      sendMessage(pairs[last][1], hello);
      assert.equal(await next(), last === 'one' ? 'hello' : 'other: hello');
      sendMessage(pairs[last][1], Buffer.from('close'));
      assert.deepEqual(await exit, [0]);
      [...pairs.one, ...pairs.other].forEach(closeFd);
    }
  });

  test('a paused watch of a worker thread is not called for a hang-up or an error', async () => {
    const [a, b] = socketPair();
    const worker = startWorker(new URL('../fixtures/watching-worker.ts', import.meta.url), {
      fd: a,
      how: 'as Node has it',
    });
    const exit = once(worker, 'exit');
    assert.deepEqual(await once(worker, 'message'), ['watching']);
    sendMessage(b, Buffer.from('pause'));
    assert.deepEqual(await once(worker, 'message'), ['pause']);
    // The kernel reports both unasked: this end is closed with a message unread.
    closeFd(b);
    assert.deepEqual(await once(worker, 'message'), ['not called']);
    assert.deepEqual(await exit, [0]);
    closeFd(a);
  });

  test('refuses every descriptor and use that would abort the process', async () => {
    assert.deepEqual(JSON.parse(await fixture('poll-misuse')), {
      'closed descriptor': 'EBADF',
      negative: 'EBADF',
      NaN: 'EBADF',
      fraction: 'EBADF',
      'above 32 bits': 'EBADF',
      'regular file': 'EPERM',
      memfd: 'EPERM',
      directory: 'EPERM',
      '/dev/null': 'EPERM',
      'no events': 'TypeError',
      'no callback': 'TypeError',
      'watched already': 'EEXIST',
      'readable while watched': 'EEXIST',
      'use after close': 'true',
      'closed twice, watched again': 'EEXIST',
      'closed under its watch': 'EBADF',
    });
  });

  test('lives while it is open, and what its callback throws is an uncaught exception', async () => {
    assert.deepEqual(JSON.parse(await fixture('poll-callbacks', '--expose-gc')), {
      'resolves with nothing else in the loop': true,
      'fires after a collection': 'function',
      uncaught: 'thrown by onReady',
    });
  });

  test("lets the process end once it is unref'ed", async () => {
    assert.equal(await fixture('poll-unref'), 'watching');
  });

  test('readable() resolves when there is something to read, or the end', async () => {
    const [a, b] = socketPair();
    let resolved = false;
    const first = readable(a).then(() => {
      resolved = true;
    });
    await turn();
    assert.equal(resolved, false);
    sendMessage(b, hello);
    await first;
    assert.deepEqual(receiveMessage(a), { data: new Uint8Array(hello), fds: [] });
    const second = readable(a);
    closeFd(b);
    await second;
    assert.equal(receiveMessage(a), 'end');
    closeFd(a);
  });

  test("readable() rejects with the signal's reason, and leaves no watch behind", async () => {
    const [a, b] = socketPair();
    const reason = new Error('given up');
    const controller = new AbortController();
    const waiting = readable(a, { signal: controller.signal });
    controller.abort(reason);
    await assert.rejects(waiting, reason);
    await assert.rejects(readable(a, { signal: AbortSignal.abort(reason) }), reason);
    const again = readable(a);
    sendMessage(b, hello);
    await again;
    closeFd(a);
    closeFd(b);
  });

  test("a process's descriptor becomes readable at the process's end", async () => {
    const child = startProcess(process.execPath, ['-e', 'process.stdin.resume()'], {
      stdio: ['pipe', 'ignore', 'inherit'],
    });
    const exit = once(child, 'exit');
    const fd = openPidfd(child.pid as number);
    let ended = false;
    const end = readable(fd).then(() => {
      ended = true;
    });
    await turn();
    assert.equal(ended, false);
    child.stdin.end();
    await end;
    await exit;
    closeFd(fd);
  });

  test('a descriptor that becomes ready while the process ends does no harm', async () => {
    assert.equal(await fixture('ready-at-exit'), '');
  });
});
