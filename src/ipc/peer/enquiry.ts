import { discardFds } from '../../../ffi/discard.ts';
import { type ClosedError, IpcError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { asArray } from '../opened-array.ts';
import type { ScannedValue } from './decode.ts';
import type { Delivery } from './delivery.ts';
import { closeObjects, openArrival, type ReceivedValue } from './open.ts';
import { PacketKind } from './packet.ts';
import {
  type Asker,
  confirmed,
  Questions,
  readAnswer,
  readQuestion,
  wrongAnswer,
} from './questions.ts';
import type { Sending } from './sending.ts';
import type { Session } from './session.ts';

/** What the two ends ask each other: whether what a descriptor names is still there. */
export class Enquiry {
  readonly #other: string;
  readonly #session: Session;
  readonly #sending: Sending;
  readonly #delivery: Delivery;
  readonly #questions = new Questions();
  /** Of each answer that came, and that the host must wait with: gives it back, as of the end. */
  readonly #heldUp = new Set<() => void>();
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
  answer(scanned: ScannedValue, fds: readonly number[]): void {
    discardFds(fds);
    const [number, message] = readQuestion(scanned);
    const named = confirmed(message);
    // Where too much waits, as the other end does not read, it ends by this.
    this.#sending.post([number, named], undefined, PacketKind.answer)?.catch(() => {});
  }

  /**
   * Gives an answer to the one who asked.
   *
   * @throws IpcError for anything but an answer to a question; then who asked waits for the end
   */
  answered(scanned: ScannedValue, fds: readonly number[]): void {
    let asker: Asker;
    let named: ReturnType<typeof readAnswer>[1];
    try {
      const [number, about] = readAnswer(scanned);
      named = about;
      asker = this.#questions.take(number);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const arrival = openArrival(scanned, fds, this.#session, this.#refusal(asker, named));
    if ('error' in arrival) asker.reject(arrival.error);
    else this.#give(arrival, asker);
  }

  /** Why an answer is not opened; what the other end says is not believed. */
  #refusal({ descriptor }: Asker, named: IpcDescriptor | IpcError | string): IpcError | undefined {
    if (named instanceof IpcError) return undefined;
    if (typeof named === 'string')
      return new IpcError(
        `${this.#other} does not confirm this descriptor: ${readable(named)}`,
        undefined,
        'exporter-gone',
      );
    const difference = wrongAnswer(descriptor, named);
    return difference
      ? new IpcError(
          `${this.#other} answered with another object than the one that the descriptor names: ` +
            `${difference}. It was not opened: do not trust this process, or have it send the ` +
            'object itself',
        )
      : undefined;
  }

  #give(arrival: ReceivedValue, asker: Asker): void {
    let received: ReceivedValue;
    try {
      const value = asArray(arrival.objects[0], asker.descriptor);
      received = { ...arrival, contents: { value, build: () => true } };
    } catch (error) {
      closeObjects(arrival.objects);
      asker.reject(error);
      return;
    }
    const giveUp = (): void => {
      closeObjects(received.objects);
      asker.reject(this.#end);
    };
    const isGiven = this.#delivery.give(received, asker, () => {
      if (this.#heldUp.delete(giveUp)) this.#delivery.give(received, asker);
    });
    if (!isGiven) this.#heldUp.add(giveUp);
  }

  /** Nobody answers any more. */
  end(reason: ClosedError | IpcError): void {
    this.#end ??= reason;
    this.#questions.rejectAll(reason);
    const heldUp = [...this.#heldUp];
    this.#heldUp.clear();
    for (const giveUp of heldUp) giveUp();
  }
}

/** Text of another process that goes into an error: short, and without control characters. */
const readable = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');
