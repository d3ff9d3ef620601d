/** The program of a Peer: makes each driver call that it is sent, and answers with the outcome. */
import { registerKernel } from '../../ffi/emulated-kernels.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { closeFd } from '../../ffi/libc.ts';
import { receiveMessage, sendMessage } from '../../ffi/message.ts';
import { acceptSocket, connectSocket, listenSocket } from '../../ffi/socket.ts';
import { type Argument, callHere } from './calls.ts';
import { LatchWord } from './latch.ts';

interface Message {
  readonly name?: FunctionName;
  readonly args?: Argument[];
  readonly latch?: boolean;
  readonly listen?: string;
  readonly sendFd?: number;
  readonly to?: string;
  readonly receiveFd?: boolean;
  readonly closeFd?: number;
}

// The kernels of facts/kernel.ts.
registerKernel('k', { params: [], run() {} });
registerKernel('p', { params: ['uint32', 'pointer'], run() {} });

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

function answer(message: Message): object {
  if (message.latch) return makeLatch();
  if (message.listen !== undefined) listener = listenSocket(message.listen);
  if (message.sendFd !== undefined) sendFd(message.sendFd, message.to as string);
  if (message.receiveFd) return { fd: receiveFd() };
  if (message.closeFd !== undefined) closeFd(message.closeFd);
  if (!message.name) return {};
  return { ...callHere(message.name, message.args ?? []), latchOpen: word?.isOpen };
}

process.on('message', (message: Message) => {
  process.send?.(answer(message));
});
