import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { fromBfloat16, fromFloat16, toBfloat16, toFloat16 } from '../../../src/float16.ts';
import { trials } from '../../support/iterations.ts';

const formats = [
  { name: 'float16', to: toFloat16, from: fromFloat16, mantissaBits: 10, bias: 15 },
  { name: 'bfloat16', to: toBfloat16, from: fromBfloat16, mantissaBits: 7, bias: 127 },
] as const;

/** A double as an integer times 2^-1074: exact, however large. */
function exact(value: number): bigint {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.abs(value));
  const bits = view.getBigUint64(0);
  const exponent = bits >> 52n;
  const mantissa = bits & ((1n << 52n) - 1n);
  const magnitude = exponent === 0n ? mantissa : ((1n << 52n) | mantissa) << (exponent - 1n);
  return value < 0 ? -magnitude : magnitude;
}

for (const { name, to, from, mantissaBits, bias } of formats) {
  const infinity = (2 * bias + 1) << mantissaBits;

  /** What the bits of a finite number mean, as the standard has it, times 2^1074. */
  const meaning = (bits: number): bigint => {
    const mantissa = BigInt(bits & ((1 << mantissaBits) - 1));
    const exponent = (bits & 0x7fff) >> mantissaBits;
    const whole = exponent === 0 ? mantissa : mantissa | (1n << BigInt(mantissaBits));
    return whole << BigInt(1074 - bias - mantissaBits + Math.max(exponent, 1));
  };
  const meanings = Array.from({ length: infinity + 1 }, (_, bits) => meaning(bits));

  /** The nearest of all numbers that there are, the even one of two as near. */
  const nearest = (value: number): number => {
    if (Math.abs(value) === Infinity) return infinity;
    const sought = exact(Math.abs(value));
    let low = 0;
    let high = infinity;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((meanings[middle] as bigint) < sought) low = middle + 1;
      else high = middle;
    }
    if ((meanings[low] as bigint) <= sought) return low;
    const above = (meanings[low] as bigint) - sought;
    const below = sought - (meanings[low - 1] as bigint);
    if (above === below) return low % 2 === 0 ? low : low - 1;
    return above < below ? low : low - 1;
  };

  describe(name, () => {
    test('every 16-bit number has the value of the standard, and converts back', () => {
      for (let bits = 0; bits < 0x8000; bits += 1) {
        const value = from(bits);
        if (bits > infinity) assert.ok(Number.isNaN(value) && Number.isNaN(from(bits | 0x8000)));
        else {
          if (bits === infinity) assert.equal(value, Infinity);
          else assert.equal(exact(value), meanings[bits]);
          assert.equal(to(value), bits);
          assert.ok(Object.is(from(bits | 0x8000), -value));
          assert.equal(to(-value), bits | 0x8000);
        }
      }
      assert.equal(to(Number.NaN), infinity | (1 << (mantissaBits - 1)));
    });

    test('any number becomes the nearest 16-bit number, ties to even', () => {
      const check = (value: number): void => {
        assert.equal(to(value) & 0x7fff, nearest(value), String(value));
        assert.equal(to(value) >> 15, Number(value < 0 || Object.is(value, -0)), String(value));
      };
      const ulp = 2 ** -52;
      // Halfway between neighbours, and a double's width beside that: rounded once, not twice.
      const nearTies = fc
        .record({
          bits: fc.nat(infinity - 1),
          side: fc.constantFrom(0, 1, -1),
          sign: fc.constantFrom(1, -1),
        })
        .map(({ bits, side, sign }) => {
          const low = from(bits);
          const gap = 2 ** (Math.max((bits >> mantissaBits) - 1, 0) + 1 - bias - mantissaBits);
          return sign * (low + gap / 2) * (1 + side * ulp);
        });
      const doubles = fc.double({ noNaN: true });
      const singles = fc.float({ noNaN: true });
      const middling = fc.double({ min: -70_000, max: 70_000, noNaN: true });
      fc.assert(
        fc.property(fc.oneof(nearTies, doubles, singles, middling), check),
        trials(5000, 1_000_000),
      );
    });

    test('arrays are converted number by number', () => {
      const values = [0, -0, 1, -2.5, 1e-7, 1e30, 3e38, Infinity, -Infinity, Number.NaN, Math.PI];
      const bits = to(values);
      assert.ok(bits instanceof Uint16Array);
      assert.deepEqual(
        [...bits],
        values.map((value) => to(value)),
      );
      assert.deepEqual(to(new Float64Array(values)), bits);
      const back = from(bits);
      assert.ok(back instanceof Float32Array);
      assert.deepEqual(
        [...back],
        [...bits].map((each) => from(each)),
      );
      assert.deepEqual(to([]), new Uint16Array(0));
    });

    test('anything but numbers is rejected', () => {
      for (const wrong of ['1', 1n, null, undefined, {}, ['1'], [1, undefined], [1n], Symbol('s')])
        assert.throws(() => to(wrong as never), TypeError);
      for (const wrong of ['1', 1n, null, undefined, [1], new Float32Array(1)])
        assert.throws(() => from(wrong as never), TypeError);
    });
  });
}
