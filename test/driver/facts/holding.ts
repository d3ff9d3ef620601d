/** Asks which calls wait for a stream that is held up. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Answer, type Argument, DriverProcess, enterContext } from '../../support/calls.ts';
import { emulated } from '../../support/driver.ts';
import { LatchWord } from '../../support/latch.ts';
import type { Note } from './facts.ts';

const NON_BLOCKING = 1;
/** How long a call of hardware may take by itself before the latch is opened. */
const PATIENCE_MS = 500;

/** A peer with a stream, and the way to make a call while that stream is held up. */
export interface Held {
  readonly peer: DriverProcess;
  readonly stream: number;
  /** Makes calls that must succeed; returns the first out-value. */
  readonly made: (name: FunctionName, ...args: Argument[]) => Promise<number>;
  /** Holds that stream up, or another one. */
  readonly hold: (stream?: number) => Promise<void>;
  readonly open: () => Promise<void>;
  /** Notes under a name of its own whether the call waits for a stream that is held meanwhile. */
  readonly waitsAs: (
    what: string,
    stream: number,
    name: FunctionName,
    ...args: Argument[]
  ) => Promise<Answer>;
  /** Notes whether the call waits for the held stream. */
  readonly waits: (name: FunctionName, ...args: Argument[]) => Promise<Answer>;
}

/** Runs `use` with a peer in the primary context of device 0. */
export async function withHeldStream(
  note: Note,
  use: (held: Held) => Promise<void>,
): Promise<void> {
  await using peer = new DriverProcess();
  await enterContext(peer);
  const { fd, devicePointer } = await peer.latch();
  using word = LatchWord.of(peer.pid, fd);
  const made: Held['made'] = async (name, ...args) => {
    const { status, out0 } = await peer.call(name, ...args);
    if (status !== 0) throw new Error(`${name}: ${status}`);
    return out0;
  };
  const stream = await made('cuStreamCreateWithPriority', 'OUT0', NON_BLOCKING, 0);
  const hold: Held['hold'] = async (held = stream) => {
    word.shut();
    await made('cuStreamWaitValue32_v2', held, devicePointer, 1, 0);
  };
  const open = async (): Promise<void> => {
    word.open();
    await made('cuCtxSynchronize');
  };
  const waitsAs: Held['waitsAs'] = async (what, held, name, ...args) => {
    await hold(held);
    const opening = emulated ? undefined : setTimeout(() => word.open(), PATIENCE_MS);
    const answer = await peer.ask<Answer & { latchOpen: boolean }>({
      name,
      args,
      opensLatch: emulated,
    });
    clearTimeout(opening);
    note(what, answer.latchOpen ? 'waits' : 'returns');
    await open();
    return answer;
  };
  const waits: Held['waits'] = (name, ...args) =>
    waitsAs(`${name} while a stream is held up`, stream, name, ...args);
  await use({ peer, stream, made, hold, open, waitsAs, waits });
}
