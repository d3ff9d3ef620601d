import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { limitOf, linkBandwidth } from '../machine.ts';
import { resultsOf } from './results.ts';

const lanes = (speed: number, width: number) => ({ speed, width });

describe('linkBandwidth', () => {
  test('is the transfers of all lanes without their coding', () => {
    const fifth = linkBandwidth({ current: lanes(32, 16), max: lanes(32, 16) });
    assert.equal(Math.round(fifth / 1e6), 63_015);
    const second = linkBandwidth({ current: lanes(5, 16), max: lanes(5, 16) });
    assert.equal(second, 8e9);
  });

  test('takes the highest speed of an idle link, but its current width', () => {
    const idle = linkBandwidth({ current: lanes(2.5, 8), max: lanes(16, 16) });
    assert.equal(idle, linkBandwidth({ current: lanes(16, 8), max: lanes(16, 8) }));
  });
});

describe('limitOf', () => {
  test('is undefined on a machine with an unknown link', () => {
    const { machine } = resultsOf([]);
    const link = { current: lanes(5, 16), max: lanes(5, 16) };
    const of = (by: 'link' | 'memory', times: number) => ({ limit: { by, times } });
    assert.equal(limitOf(of('link', 1), machine), undefined);
    assert.equal(limitOf(of('link', 1), { ...machine, link }), 8e9);
    assert.equal(limitOf(of('memory', 2), { ...machine, memoryBandwidth: 5e12 }), 2.5e12);
    assert.equal(limitOf({ limit: null }, { ...machine, link }), undefined);
  });
});
