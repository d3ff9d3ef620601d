/**
 * Answers by its stream: the stream waits for each value of the parent's timeline and signals it on a
 * timeline of its own. It replies when the rounds that it was asked for are queued.
 */
import { Stream } from 'cuffi';
import { parentPeer, Timeline } from 'cuffi/ipc';
import type { Rounds } from '../ways/children.ts';

const parent = parentPeer<Timeline | Rounds, Timeline | null>();
const stream = Stream.create({ nonBlocking: true });
// Messages follow the work of this stream, which has none: the other one may wait.
const idle = Stream.create({ nonBlocking: true });
const answers = Timeline.create();
await parent.send(null);
const asked = (await parent.receive({ stream: idle })) as Timeline;
await parent.send(answers, { stream: idle });
for await (const rounds of parent) {
  const { first, count } = rounds as Rounds;
  for (let value = first; value < first + count; value += 1) {
    asked.wait(value, { stream });
    answers.signal(value, { stream });
  }
  await parent.send(null, { stream: idle });
}
