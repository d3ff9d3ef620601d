/** The file descriptors that test vectors name: what an object needs, and what comes in its place. */
import { execFileSync } from 'node:child_process';
import { constants, mkdtempSync, openSync, rmSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { closeFd, createPipe, libc } from '../../../../ffi/linux/libc.ts';
import { allocatePages, createSealedMemfd } from '../../../../ffi/linux/memfd.ts';
import { oneWaySockets, socketPair } from '../../../../ffi/linux/socket.ts';
import { addressOf, withAddress } from '../../../../ffi/native.ts';

const SEALS: Readonly<Record<string, number>> = { shrink: 2, grow: 4 };
const F_ADD_SEALS = 1033;
const MFD_ALLOW_SEALING = 2;
const O_PATH = 0o1000_0000;
const [AF_UNIX, SOCK_STREAM, SOCK_DGRAM] = [1, 1, 2];
const PIECE = 2 << 20;
/** The pages of page-locked memory of 10,000 bytes. */
const PINNED = 12_288;

/** Memory as a vector describes it. */
export interface Memory {
  readonly type: 'memfd' | 'file' | 'pipe';
  readonly byteLength?: number;
  readonly seals?: readonly string[];
}

/** What the parts of an object need. */
export interface Sizes {
  readonly ring: number;
  readonly seat: number;
}

/** Descriptors of vectors, with the other ends of pipes and sockets. Dispose closes all of them. */
export class VectorFds implements Disposable {
  readonly #open = new Set<number>();

  /** @param sizes those of a channel, if it has one */
  named(name: string, sizes?: Sizes): number {
    switch (name) {
      case 'page':
        return this.#keep(createSealedMemfd('cuffi-vector', 4096));
      case 'ring':
      case 'seat':
        return this.#keep(createSealedMemfd('cuffi-vector', sizes?.[name] ?? 4096));
      case 'memory':
        return this.#keep(createSealedMemfd('cuffi.virtual.0', PIECE));
      case 'sparse pages':
        return this.#keep(createSealedMemfd('cuffi-vector', PINNED));
      case 'longer pages':
        return this.#allocated({ byteLength: PINNED + 4096, seals: ['shrink', 'grow'] });
      case 'unsealed pages':
        return this.#allocated({ byteLength: PINNED });
      case 'receives':
        return this.#end(oneWaySockets(), 0);
      case 'sends':
        return this.#end(oneWaySockets(), 1);
      case 'lifeline':
        return this.#end(createPipe(), 0);
      case 'write end':
        return this.#end(createPipe(), 1);
      case 'socket':
        return this.#end(socketPair(), 0);
      case 'datagram socket':
        return this.#sockets(SOCK_DGRAM);
      case 'named socket':
        return this.#sockets(SOCK_STREAM, true);
      case 'unsealed memory':
        return this.memory({ type: 'memfd', byteLength: 4096 });
      case 'page for reading':
        return this.#keep(openSync(`/proc/self/fd/${this.named('page')}`, 'r'));
      case 'device':
        return this.#keep(openSync('/dev/null', 'r+'));
      case 'folder':
        return this.#keep(openSync('/', 'r'));
      default:
        return this.#file(name, 0);
    }
  }

  memory({ type, byteLength = 0, seals = [] }: Memory): number {
    if (type === 'pipe') return this.named('lifeline');
    if (type === 'file') return this.#file('file', byteLength);
    const fd = withAddress(Buffer.from('cuffi-vector\0'), (name) =>
      libc.memfd_create(name, MFD_ALLOW_SEALING),
    );
    libc.ftruncate(fd, byteLength);
    const bits = seals.reduce((sum, name) => sum + (SEALS[name] as number), 0);
    libc.fcntl(fd, F_ADD_SEALS, bits);
    return this.#keep(fd);
  }

  #allocated({ byteLength, ...memory }: Omit<Memory, 'type'> & { byteLength: number }): number {
    const fd = this.memory({ type: 'memfd', byteLength, ...memory });
    allocatePages(fd, byteLength);
    return fd;
  }

  /** The caller owns it from now on. */
  release(fd: number): number {
    this.#open.delete(fd);
    return fd;
  }

  #end(ends: [number, number], which: 0 | 1): number {
    this.#keep(ends[1 - which] as number);
    return this.#keep(ends[which]);
  }

  #sockets(type: number, isNamed = false): number {
    const ends = new Int32Array(2);
    libc.socketpair(AF_UNIX, type, 0, addressOf(ends));
    const [fd = -1, other = -1] = ends;
    // A name of the kernel's choice.
    if (isNamed) libc.bind(fd, addressOf(Uint16Array.of(AF_UNIX)), 2);
    return this.#end([fd, other], 0);
  }

  #file(what: string, byteLength: number): number {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-vector-'));
    const path = join(folder, 'file');
    try {
      if (what === 'fifo') execFileSync('mkfifo', [path]);
      else closeFd(openSync(path, 'w'));
      if (byteLength > 0) truncateSync(path, byteLength);
      const flags = { fifo: constants.O_RDONLY | constants.O_NONBLOCK, path: O_PATH }[what];
      return this.#keep(openSync(path, flags ?? 'r+'));
    } finally {
      rmSync(folder, { recursive: true });
    }
  }

  #keep(fd: number): number {
    this.#open.add(fd);
    return fd;
  }

  [Symbol.dispose](): void {
    for (const fd of this.#open) closeFd(fd);
    this.#open.clear();
  }
}
