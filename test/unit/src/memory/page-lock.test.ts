import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../../../ffi/driver.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import { addressOf } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { Context } from '../../../../src/index.ts';
import { findLockingContext, lockPages, type PageLock } from '../../../../src/memory/page-lock.ts';
import { emulate } from '../emulate.ts';

const PAGE = libc.getpagesize();
const FLAGS = { portable: false, mapped: false };

/** Four whole pages of an array, shared with nothing else. */
function pages(): { readonly memory: Uint8Array; readonly address: number } {
  const memory = new Uint8Array(5 * PAGE);
  return { memory, address: Math.ceil(addressOf(memory) / PAGE) * PAGE };
}

describe('findLockingContext', () => {
  test('whole pages count as locked, from the first byte to the last and no further', () => {
    emulate();
    const context = Context.primary();
    const { memory, address } = pages();
    const within = { address: (address + PAGE + 100) as Address, byteLength: PAGE };
    const lock = lockPages(context, { ...within, what: 'memory', memory }, FLAGS);
    const isLocked = (from: number, byteLength: number): boolean =>
      findLockingContext(context, (address + from) as Address, byteLength) === context;
    assert.deepEqual(
      [isLocked(PAGE, 2 * PAGE), isLocked(PAGE, 1), isLocked(3 * PAGE - 1, 1)],
      [true, true, true],
    );
    assert.deepEqual(
      [isLocked(PAGE - 1, 2), isLocked(PAGE, 2 * PAGE + 1), isLocked(3 * PAGE, 1)],
      [false, false, false],
    );
    lock.unlock();
    assert.equal(isLocked(PAGE, 1), false);
  });

  test('another context finds portable locks, and no others', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const { memory, address } = pages();
    const [mine, everyones] = [address as Address, (address + PAGE) as Address];
    const range = { byteLength: PAGE, what: 'memory', memory };
    const locks = [
      lockPages(first, { ...range, address: mine }, FLAGS),
      lockPages(first, { ...range, address: everyones }, { ...FLAGS, portable: true }),
    ];
    assert.deepEqual(
      [
        findLockingContext(first, mine, PAGE),
        findLockingContext(second, mine, PAGE),
        findLockingContext(second, everyones, PAGE),
      ],
      [first, undefined, first],
    );
    for (const lock of locks) lock.unlock();
  });
});

describe('lockPages', () => {
  test('no page is locked twice, whether it is shared by its first byte or its last', () => {
    emulate();
    const context = Context.primary();
    const { memory, address } = pages();
    const lock = (from: number, byteLength: number): PageLock =>
      lockPages(
        context,
        { address: (address + from) as Address, byteLength, what: 'it', memory },
        FLAGS,
      );
    const locked = lock(PAGE + 8, PAGE);
    const refused = {
      name: 'RangeError',
      message: /^it shares a page with memory that is already page-locked: lock one larger array/,
    };
    for (const [from, byteLength] of [
      [PAGE, 8],
      [PAGE - 1, 2],
      [3 * PAGE - 1, 1],
      [0, 4 * PAGE],
    ] as const)
      assert.throws(() => lock(from, byteLength), refused, `${from} ${byteLength}`);
    const neighbours = [lock(0, PAGE), lock(3 * PAGE, PAGE)];
    for (const each of [locked, ...neighbours]) each.unlock();
  });

  test('pages that a reset unlocked are not unlocked again, and can be locked anew', () => {
    emulate();
    const context = Context.primary();
    const { memory, address } = pages();
    const range = { address: address as Address, byteLength: PAGE, what: 'it', memory };
    const before = lockPages(context, range, FLAGS);
    context.resetSync();
    const after = lockPages(context, range, FLAGS);
    const recorder = recordCalls();
    before.unlock();
    assert.deepEqual(recorder.calls, []);
    assert.equal(findLockingContext(context, range.address, PAGE), context);
    after.unlock();
    recorder.stop();
    assert.equal(recorder.calls.filter(({ name }) => name === 'cuMemHostUnregister').length, 1);
  });
});
