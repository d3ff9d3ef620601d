/** The receiver of hand-overs, from the side of the bench. */
import type { DeviceBuffer, Stream } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import { Child } from './child.ts';
import type { Order } from './child-messages.ts';

const PROGRAM = new URL('./hand-over-child.ts', import.meta.url);

/** A process that reads a word of what it is handed, and answers with it. */
export class HandOverChild {
  readonly #child: Child;
  /** Who waits for what comes by another way than the connection. */
  #waiting: { resolve(answer: unknown): void; reject(error: Error): void } | undefined;

  private constructor(child: Child) {
    this.#child = child;
    // Listened to once, so that the other ways are measured at their best.
    const answered = (answer: unknown): void => this.#waiting?.resolve(answer);
    child.socket.on('data', answered);
    child.peer.process.on('message', answered);
    child.peer.process.once('exit', () =>
      this.#waiting?.reject(new Error('the child ended before it answered')),
    );
  }

  /**
   * Resolves when the child has opened the driver.
   *
   * @param busyPollUs for how long both ends look at the connection before they sleep
   */
  static async start(driver: DriverChoice, busyPollUs = 0): Promise<HandOverChild> {
    const args = [String(busyPollUs)];
    return new HandOverChild(await Child.start(PROGRAM, driver, { args, busyPollUs }));
  }

  /** Sends a buffer through the connection, behind the work of a stream; answers with the word that the child read. */
  async give(buffer: DeviceBuffer, stream?: Stream): Promise<unknown> {
    await this.#child.peer.send(buffer, stream && { stream });
    return this.#child.peer.receive();
  }

  /** Sends a descriptor by `process.send`; answers with the word that the child read. */
  tell(descriptor: object): Promise<unknown> {
    return this.#answer(() => this.#child.peer.process.send(descriptor));
  }

  /** Sends nothing through the connection, and is answered with nothing. */
  async greet(): Promise<unknown> {
    await this.#child.peer.send(null);
    return this.#child.peer.receive();
  }

  /** Sends a value through the connection, which comes back. */
  async exchange(value: unknown): Promise<unknown> {
    await this.#child.peer.send({ echo: value } satisfies Order);
    return this.#child.peer.receive();
  }

  /** As {@link exchange} by `process.send`, which writes JSON. */
  exchangeByProcessSend(value: object): Promise<unknown> {
    return this.tell({ echo: value });
  }

  /** Sends bytes through a socket of node:net, which come back. */
  echo(bytes: Uint8Array): Promise<unknown> {
    return this.#answer(() => this.#child.socket.write(bytes));
  }

  /** Has the child keep a buffer open, until {@link drop}. */
  keep(buffer: DeviceBuffer): Promise<void> {
    return this.#order({ keep: buffer });
  }

  /** Has the child close what it keeps. */
  drop(): Promise<void> {
    return this.#order({ drop: true });
  }

  /** Whether the child closes the pool of what it is handed as well. Before the first time: no. */
  closePools(closePools: boolean): Promise<void> {
    return this.#order({ closePools });
  }

  /** Has the child compare the whole of what comes next, and answer `COMPARED`. */
  compareNext(): Promise<void> {
    return this.#order({ compareNext: true });
  }

  /** Kills the child; resolves when it is gone. */
  end(): Promise<void> {
    return this.#child.end();
  }

  async #order(order: Order): Promise<void> {
    await this.#child.peer.send(order);
    await this.#child.peer.receive();
  }

  #answer(ask: () => void): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      ask();
    });
  }
}
