import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Ring, Seat } from '../../../../../src/ipc/channel/ring.ts';
import { localProcess } from '../../../../../src/ipc/identity.ts';
import { RingWord, SeatWord } from '../../../../../src/ipc/protocol.ts';

describe('Seat', () => {
  test('wanted is 0 for what another process stored that is no number of messages', () => {
    const seat = Seat.create(2, 0);
    using words = seat.words;
    for (const [value, wanted] of [
      [3, 3],
      [2 ** 53 - 1, 2 ** 53 - 1],
      [2 ** 53, 0],
      [2 ** 62, 0],
    ] as const) {
      words.write(SeatWord.wanted, value);
      assert.equal(seat.wanted, wanted);
    }
    words.endWaits(SeatWord.wanted, SeatWord.wanted + 1);
    assert.equal(seat.wanted, 0);
  });

  test('holds as many grants as there are slots, and a further one replaces the oldest', () => {
    const seat = Seat.create(3, 0);
    using words = seat.words;
    const grants = [
      { message: 4, redelivered: false },
      { message: 6, redelivered: true },
      { message: 7, redelivered: false },
    ];
    for (const [granted, grant] of grants.entries()) seat.grant(granted, grant);
    assert.deepEqual(
      grants.map((_, count) => seat.grantAt(count)),
      grants,
    );
    const later = { message: 9, redelivered: true };
    seat.grant(3, later);
    assert.deepEqual(
      [1, 2, 3].map((count) => seat.grantAt(count)),
      [...grants.slice(1), later],
    );
    assert.equal(words.read(SeatWord.granted), 4);
  });
});

describe('Ring', () => {
  test('producerPid is 0 for what is no pid, and for one of another pid namespace', () => {
    const ring = Ring.create({ slots: 2, hasRecords: true });
    using words = ring.words;
    assert.equal(ring.producerPid, process.pid);
    for (const pid of [0, 2 ** 32, 2 ** 53]) {
      words.write(RingWord.producerPid, pid);
      assert.equal(ring.producerPid, 0);
    }
    words.write(RingWord.producerPid, process.pid);
    words.write(RingWord.producerNamespace, localProcess().pidNamespace + 1);
    assert.equal(ring.producerPid, 0);
  });
});
