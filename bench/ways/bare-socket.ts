/**
 * The floor of a message between two event loops: what Node needs for it by the calls that a connection
 * makes (uv_poll, sendmsg, recvmsg), written out with koffi and without cuffi.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import koffi from 'koffi';

const libc = koffi.load('libc.so.6');
const socketpair = libc.func('socketpair', 'int', ['int', 'int', 'int', 'uint64']);
const fcntl = libc.func('fcntl', 'int', ['int', 'int', 'int64']);
const sendmsg = libc.func('sendmsg', 'int64', ['int', 'uint64', 'int']);
const recvmsg = libc.func('recvmsg', 'int64', ['int', 'uint64', 'int']);
const close = libc.func('close', 'int', ['int']);

const [AF_UNIX, SOCK_SEQPACKET] = [1, 5];
const [F_GETFL, F_SETFL, O_NONBLOCK] = [3, 4, 0x800];
const [MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC] = [0x40, 0x4000, 0x40000000];
const MESSAGE_BYTES = 21;
const [MOST_BYTES, CONTROL_BYTES] = [4000, 1024];

/** The header, its one part, room for descriptors, and the bytes of the message. */
const address = Number(koffi.address(koffi.alloc('uint8', 8192)));
const [PART, PAIR, CONTROL, BYTES] = [64, 128, 512, 4096];
const memory = new DataView(koffi.view(BigInt(address), 8192));
memory.setBigUint64(16, BigInt(address + PART), true);
memory.setBigUint64(24, 1n, true);
memory.setBigUint64(32, BigInt(address + CONTROL), true);
memory.setBigUint64(PART, BigInt(address + BYTES), true);

function setLengths(bytes: number, control: number): void {
  memory.setBigUint64(PART + 8, BigInt(bytes), true);
  memory.setBigUint64(40, BigInt(control), true);
}

/** The descriptor of the socket in the child. */
export const BARE_FD = 3;

/** One end of a socket. */
export class BareSocket {
  readonly #fd: number;
  readonly #poll: { close(): void };

  /** @param onMessage called in a turn of its own, as cuffi does: the callback of a poll runs no microtasks */
  constructor(fd: number, onMessage: () => void, onEnd: () => void) {
    this.#fd = fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
    this.#poll = koffi.node.poll(fd, { readable: true }, () => setImmediate(receive));
    function receive(): void {
      setLengths(MOST_BYTES, CONTROL_BYTES);
      const length = recvmsg(fd, address, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (length > 0) onMessage();
      else if (length === 0) onEnd();
    }
  }

  /** @returns false if the other end is gone */
  send(): boolean {
    setLengths(MESSAGE_BYTES, 0);
    return sendmsg(this.#fd, address, MSG_NOSIGNAL | MSG_DONTWAIT) === MESSAGE_BYTES;
  }

  close(): void {
    this.#poll.close();
    close(this.#fd);
  }
}

/** A process that sends each message back. */
export class BareChild {
  readonly #child: ChildProcess;
  readonly #socket: BareSocket;
  #answered: () => void = () => {};

  private constructor(child: ChildProcess, fd: number) {
    this.#child = child;
    this.#socket = new BareSocket(
      fd,
      () => this.#answered(),
      () => {},
    );
  }

  static async start(): Promise<BareChild> {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, address + PAIR) !== 0)
      throw new Error('there is no pair of sockets');
    const [here, there] = [memory.getInt32(PAIR, true), memory.getInt32(PAIR + 4, true)];
    const program = fileURLToPath(new URL('../programs/bare-child.ts', import.meta.url));
    const child = spawn(process.execPath, [...process.execArgv, program], {
      stdio: ['inherit', 'inherit', 'inherit', there],
    });
    await once(child, 'spawn');
    close(there);
    const started = new BareChild(child, here);
    await started.exchange();
    return started;
  }

  /** Sends a message there and back. */
  async exchange(): Promise<void> {
    if (!this.#socket.send()) throw new Error('the bare child is gone');
    await new Promise<void>((resolve) => {
      this.#answered = resolve;
    });
  }

  async end(): Promise<void> {
    const { exitCode, signalCode } = this.#child;
    const exited = exitCode === null && signalCode === null && once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
    this.#socket.close();
  }
}
