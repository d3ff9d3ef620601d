/**
 * The floor of a message between two event loops: what Node needs for it by the calls that a connection
 * makes (uv_poll, sendmsg, recvmsg), written out with koffi and without cuffi.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import koffi from 'koffi';

const [AF_UNIX, SOCK_SEQPACKET] = [1, 5];
const [F_GETFL, F_SETFL, O_NONBLOCK] = [3, 4, 0x800];
const [MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC] = [0x40, 0x4000, 0x40000000];
const MESSAGE_BYTES = 21;
const [MOST_BYTES, CONTROL_BYTES] = [4000, 1024];

const [PART, PAIR, CONTROL, BYTES] = [64, 128, 512, 4096];

/**
 * What is called, and the memory of a message: its header, the one part, room for descriptors, and its bytes.
 */
class Calls {
  readonly address = Number(koffi.address(koffi.alloc('uint8', 8192)));
  readonly memory = new DataView(koffi.view(BigInt(this.address), 8192));
  readonly socketpair;
  readonly fcntl;
  readonly sendmsg;
  readonly recvmsg;
  readonly close;

  constructor() {
    const libc = koffi.load('libc.so.6');
    this.socketpair = libc.func('socketpair', 'int', ['int', 'int', 'int', 'uint64']);
    this.fcntl = libc.func('fcntl', 'int', ['int', 'int', 'int64']);
    this.sendmsg = libc.func('sendmsg', 'int64', ['int', 'uint64', 'int']);
    this.recvmsg = libc.func('recvmsg', 'int64', ['int', 'uint64', 'int']);
    this.close = libc.func('close', 'int', ['int']);
    this.memory.setBigUint64(16, BigInt(this.address + PART), true);
    this.memory.setBigUint64(24, 1n, true);
    this.memory.setBigUint64(32, BigInt(this.address + CONTROL), true);
    this.memory.setBigUint64(PART, BigInt(this.address + BYTES), true);
  }

  setLengths(bytes: number, control: number): void {
    this.memory.setBigUint64(PART + 8, BigInt(bytes), true);
    this.memory.setBigUint64(40, BigInt(control), true);
  }
}

let opened: Calls | undefined;
/** Opened late: cuffi can give koffi deep stacks only before it loads its first library. */
const calls = (): Calls => {
  opened ??= new Calls();
  return opened;
};

/** The descriptor of the socket in the child. */
export const BARE_FD = 3;

/** One end of a socket. */
export class BareSocket {
  readonly #calls = calls();
  readonly #fd: number;
  readonly #poll: { close(): void };

  /** @param onMessage called in a turn of its own, as cuffi does: the callback of a poll runs no microtasks */
  constructor(fd: number, onMessage: () => void, onEnd: () => void) {
    const own = this.#calls;
    this.#fd = fd;
    own.fcntl(fd, F_SETFL, own.fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
    this.#poll = koffi.node.poll(fd, { readable: true }, () => setImmediate(receive));
    function receive(): void {
      own.setLengths(MOST_BYTES, CONTROL_BYTES);
      const length = own.recvmsg(fd, own.address, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (length > 0) onMessage();
      else if (length === 0) onEnd();
    }
  }

  /** @returns false if the other end is gone */
  send(): boolean {
    const own = this.#calls;
    own.setLengths(MESSAGE_BYTES, 0);
    return own.sendmsg(this.#fd, own.address, MSG_NOSIGNAL | MSG_DONTWAIT) === MESSAGE_BYTES;
  }

  close(): void {
    this.#poll.close();
    this.#calls.close(this.#fd);
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
    const { address, memory, socketpair, close } = calls();
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
