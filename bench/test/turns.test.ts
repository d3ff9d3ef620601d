import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Turn, Turns } from '../turns.ts';

describe('Turns', () => {
  test('one has its turn at a time, and one that is over holds up nobody', async () => {
    const turns = new Turns();
    const [a, b, c] = [new Turn(turns), new Turn(turns), new Turn(turns)] as const;
    const order: string[] = [];
    const laps = async (name: string, turn: Turn, count: number): Promise<void> => {
      for (let lap = 1; lap <= count; lap += 1) {
        await turn.next();
        order.push(`${name}${lap} begins`);
        await new Promise(setImmediate);
        order.push(`${name}${lap} ends`);
      }
      turn.over();
    };
    // It never has its first one.
    b.over();
    await Promise.all([laps('c', c, 2), laps('a', a, 3)]);
    assert.deepEqual(
      order,
      ['a1', 'c1', 'a2', 'c2', 'a3'].flatMap((lap) => [`${lap} begins`, `${lap} ends`]),
    );
  });
});
