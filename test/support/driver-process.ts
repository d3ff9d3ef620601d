/** The program of a Peer: makes each driver call that it receives, and returns the outcome. */
import { once } from 'node:events';
import { closeSync, openSync, writeFileSync } from 'node:fs';
import type { Worker } from 'node:worker_threads';
import { selectDriver } from '../../ffi/driver.ts';
import { registerKernel } from '../../ffi/emulated-kernels.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { closeFd, libc } from '../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../ffi/linux/message.ts';
import { acceptSocket, connectSocket, listenSocket } from '../../ffi/linux/socket.ts';
import type { LaterCalls } from '../driver/fixtures/caller.ts';
import { type Answer, type Argument, callHere } from './calls.ts';
import { LatchWord } from './latch.ts';
import { startWorker } from './program.ts';

interface Message {
  readonly name?: FunctionName;
  readonly args?: Argument[];
  readonly latch?: boolean;
  readonly listen?: string;
  readonly sendFd?: number;
  readonly to?: string;
  readonly receiveFd?: boolean;
  readonly closeFd?: number;
  readonly map?: {
    readonly byteLength: number;
    readonly isReadOnly?: boolean;
    readonly file?: string;
  };
  readonly later?: LaterCalls;
  readonly exit?: boolean;
  readonly renew?: boolean;
  readonly mayThrow?: boolean;
  readonly opensLatch?: boolean;
  /** The call is made so often, unless it fails, or waits for the latch. */
  readonly times?: number;
}

// The kernels of facts/kernel.ts.
registerKernel('k', { params: [], run() {} });
registerKernel('p', { params: ['uint32', 'pointer'], run() {} });
// Those of facts/asked.ts.
registerKernel('write', {
  params: ['pointer'],
  run({ view }, [to]) {
    view(to, Uint32Array, 1)[0] = 7;
  },
});
registerKernel('trap', {
  params: [],
  run() {
    throw new Error('trap');
  },
});

/** After this many sleeps, of a millisecond or more, a call of the emulated driver waits. */
const SLEEPS = 50;

/**
 * Makes a call, and opens the latch if the call waits for it. On hardware the process that asks does
 * that after a while. The emulated driver shows that a call waits, because it sleeps meanwhile: so no
 * clock decides, and a machine under load answers as any other.
 */
function callAndOpenLatch(name: FunctionName, args: Argument[]): Answer {
  const { wait } = Atomics;
  let sleeps = 0;
  Atomics.wait = ((...given: Parameters<typeof wait>) => {
    if (++sleeps === SLEEPS) word?.open();
    return wait(...given);
  }) as typeof wait;
  try {
    return callHere(name, args);
  } finally {
    Atomics.wait = wait;
  }
}

let word: LatchWord | undefined;
let listener: number | undefined;

function makeLatch(): object {
  word = LatchWord.create();
  const { address, byteLength } = word.mapping;
  callHere('cuMemHostRegister_v2', [address, byteLength, 3]);
  const { out0 } = callHere('cuMemHostGetDevicePointer_v2', ['OUT0', address, 0]);
  return { fd: word.fd, devicePointer: out0 };
}

function sendFd(fd: number, to: string): void {
  const socket = connectSocket(to);
  sendMessage(socket, Buffer.from('f'), [fd]);
  closeFd(socket);
}

/** What was sent is there: the sender has answered before this is asked. */
function receiveFd(): number {
  const socket = acceptSocket(listener as number) as number;
  const message = receiveMessage(socket);
  closeFd(socket);
  closeFd(listener as number);
  return (message as { fds: readonly number[] }).fds[0] as number;
}

const PROT_READ = 1;
const PROT_READ_WRITE = 3;
const MAP_SHARED = 1;
const MAP_PRIVATE_ANONYMOUS = 0x22;

/** Host memory in whole pages: of no file, or of a file, which is made so long. */
function mapMemory({ byteLength, isReadOnly, file }: NonNullable<Message['map']>): object {
  const protection = isReadOnly ? PROT_READ : PROT_READ_WRITE;
  if (file === undefined)
    return { address: Number(libc.mmap(0, byteLength, protection, MAP_PRIVATE_ANONYMOUS, -1, 0)) };
  writeFileSync(file, Buffer.alloc(byteLength));
  const fd = openSync(file, isReadOnly ? 'r' : 'r+');
  const address = libc.mmap(0, byteLength, protection, MAP_SHARED, fd, 0);
  closeSync(fd);
  return { address: Number(address) };
}

/** The thread that makes calls while this one waits in the driver. */
let caller: Worker | undefined;

async function callLater(calls: LaterCalls): Promise<object> {
  if (caller === undefined) {
    caller = startWorker(new URL('../driver/fixtures/caller.ts', import.meta.url), undefined);
    await once(caller, 'message');
  }
  caller.postMessage(calls);
  return {};
}

/** Starts anew with another emulated driver: the one that was has nothing that can be reached. */
function renew(): object {
  callHere('cuDevicePrimaryCtxReset_v2', [0]);
  selectDriver('emulated');
  word = undefined;
  return {};
}

function answer(message: Message): object | Promise<object> {
  if (message.renew) return renew();
  if (message.latch) return makeLatch();
  if (message.map) return mapMemory(message.map);
  if (message.later) return callLater(message.later);
  if (message.exit) process.exit(0);
  if (message.listen !== undefined) listener = listenSocket(message.listen);
  if (message.sendFd !== undefined) sendFd(message.sendFd, message.to as string);
  if (message.receiveFd) return { fd: receiveFd() };
  if (message.closeFd !== undefined) closeFd(message.closeFd);
  if (!message.name) return {};
  const make = message.opensLatch ? callAndOpenLatch : callHere;
  for (let made = 1; ; made++) {
    const found = make(message.name, message.args ?? []);
    const latchOpen = word?.isOpen;
    if (found.status !== 0 || latchOpen || made >= (message.times ?? 1))
      return { ...found, latchOpen, made };
  }
}

process.on('message', async (message: Message) => {
  try {
    process.send?.(await answer(message));
  } catch (error) {
    // The emulated driver throws where hardware would crash or block.
    if (!message.mayThrow) throw error;
    process.send?.({ threw: (error as Error).message });
  }
});
