/**
 * Answers by its stream: the stream waits for each value of the parent's timeline and signals it on a
 * timeline of its own. It replies when the rounds that it was asked for are queued.
 */
import { PinnedBuffer, Stream } from 'cuffi';
import { parentPeer, Timeline } from 'cuffi/ipc';
import { requireSuccess } from '../cases/case.ts';
import { RawWords, type Rounds } from '../ways/children.ts';

const parent = parentPeer<Timeline | PinnedBuffer | Rounds, Timeline | null>();
const stream = Stream.create({ nonBlocking: true });
// Messages follow the work of this stream, which has none: the other one may wait.
const idle = Stream.create({ nonBlocking: true });
const answers = Timeline.create();
await parent.send(null);
const asked = (await parent.receive({ stream: idle })) as Timeline;
await parent.send(answers, { stream: idle });
let words: RawWords | undefined;

function queue({ first, count }: Rounds): void {
  for (let value = first; value < first + count; value += 1) {
    asked.wait(value, { stream });
    answers.signal(value, { stream });
  }
}

function queueRaw({ first, count }: Rounds, raw: RawWords): void {
  let status = 0;
  for (let value = first; value < first + count; value += 1)
    status |= raw.wait(stream, 'ours', value) | raw.write(stream, 'theirs', value);
  requireSuccess(status === 0, 'queueing');
}

for await (const order of parent) {
  if (order instanceof PinnedBuffer) words = new RawWords(order);
  else if (!(order as Rounds).isRaw) queue(order as Rounds);
  else queueRaw(order as Rounds, words as RawWords);
  await parent.send(null, { stream: idle });
}
