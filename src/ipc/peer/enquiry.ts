import { discardFds } from '../../../ffi/discard.ts';
import { type ClosedError, IpcError } from '../../errors.ts';
import { asArray } from '../opened-array.ts';
import type { DecodedValue } from './decode.ts';
import type { Delivery } from './delivery.ts';
import { closeObjects, openArrival } from './open.ts';
import { PacketKind } from './packet.ts';
import { type Asker, confirmed, numbered, Questions } from './questions.ts';
import type { Sending } from './sending.ts';
import type { Session } from './session.ts';

/** What the two ends ask each other: whether what a descriptor names is still there. */
export class Enquiry {
  readonly #other: string;
  readonly #session: Session;
  readonly #sending: Sending;
  readonly #delivery: Delivery;
  readonly #questions = new Questions();
  #end: ClosedError | IpcError | undefined;

  /** @param other who is at the other end, in words */
  constructor(other: string, session: Session, sending: Sending, delivery: Delivery) {
    this.#other = other;
    this.#session = session;
    this.#sending = sending;
    this.#delivery = delivery;
  }

  /** Whether someone waits for an answer. */
  get isAwaited(): boolean {
    return !this.#questions.isEmpty;
  }

  /**
   * Asks the other end for what a descriptor of it names.
   *
   * @throws IpcError for too many at a time; as {@link Sending.post}
   */
  ask(asker: Asker): void {
    const number = this.#questions.ask(asker);
    try {
      const question = [number, { ...asker.descriptor }];
      this.#sending.post(question, undefined, PacketKind.question)?.catch(() => {});
    } catch (error) {
      this.#questions.take(number);
      throw error;
    }
  }

  /** Answers a question: by what the descriptor names, or by why it is not to be had. */
  answer({ root, slots }: DecodedValue, fds: readonly number[]): void {
    discardFds(fds);
    if (slots.length > 0) throw new IpcError('a question came with GPU objects');
    const [number, message] = numbered(root.value);
    const named = confirmed(message);
    // Where too much waits, as the other end does not read, it ends by this.
    this.#sending.post([number, named], undefined, PacketKind.answer)?.catch(() => {});
  }

  /** Gives an answer to the one who asked. @throws IpcError for one that nobody asked for */
  answered(decoded: DecodedValue, fds: readonly number[]): void {
    let asker: Asker;
    try {
      asker = this.#questions.take(numbered(decoded.root.value)[0]);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const arrival = openArrival(decoded, fds, this.#session);
    if ('error' in arrival) {
      asker.reject(arrival.error);
      return;
    }
    const [, named] = numbered(arrival.value);
    const [object, ...others] = arrival.objects;
    if (object !== undefined && object === named && others.length === 0) {
      const received = { ...arrival, value: asArray(object, asker.descriptor) };
      this.#delivery.give(received, asker, () => {
        if (!this.#end) {
          this.#delivery.give(received, asker);
          return;
        }
        closeObjects(received.objects);
        asker.reject(this.#end);
      });
      return;
    }
    closeObjects(arrival.objects);
    asker.reject(
      new IpcError(
        `${this.#other} does not confirm this descriptor: ${String(named)}`,
        undefined,
        'exporter-gone',
      ),
    );
  }

  /** Nobody answers any more. */
  end(reason: ClosedError | IpcError): void {
    this.#end ??= reason;
    this.#questions.rejectAll(reason);
  }
}
