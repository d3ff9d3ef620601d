import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { readOptions } from '../../../../src/cli/bench-command.ts';
import { UsageError } from '../../../../src/cli/command.ts';

describe('readOptions of bench', () => {
  test('sizes are given one by one or in a list, in any order and unit', () => {
    const sizes = (...args: string[]) => readOptions(args).sizes;
    assert.deepEqual(sizes('--size', '1MiB,4KiB', '--size=2GiB'), [4096, 1 << 20, 2 ** 31]);
    assert.deepEqual(sizes('--size', '4, 8B, 1k, 1KB, 3 MiB, 4b'), [4, 8, 1024, 3 << 20]);
    assert.equal(sizes(), undefined);
  });

  test('a size that is malformed, not a multiple of 4 bytes, or too large throws', () => {
    for (const size of ['', 'x', '6', '0', '1TiB', '1.5MiB', '-4', '2049MiB', '4KiB,,8KiB', '1e6'])
      assert.throws(
        () => readOptions([`--size=${size}`]),
        (error) =>
          error instanceof UsageError &&
          /^--size must be a size such as 64KiB, .* up to 2 GiB, not "/.test(error.message),
        size,
      );
  });

  test('a picture without a file name throws before anything is measured', () => {
    assert.throws(
      () => readOptions(['--svg=']),
      (error) => error instanceof UsageError && /^--svg must be the path of a/.test(error.message),
    );
    assert.equal(readOptions(['--svg=a.svg']).svg, 'a.svg');
    assert.deepEqual([readOptions([]).python, readOptions(['--python']).python], [false, true]);
  });

  test('an unknown option and an argument throw', () => {
    assert.throws(
      () => readOptions(['--sizes=4KiB']),
      /^Error: unknown option '--sizes' \(did you mean '--size'\?\)$/,
    );
    assert.throws(() => readOptions(['4KiB']), /^Error: bench takes no '4KiB'$/);
    for (const ordinal of ['x', '1024', '0x1', '1e2'])
      assert.throws(
        () => readOptions([`--device=${ordinal}`]),
        new RegExp(`^Error: --device must be an integer from 0 to 1023, not "${ordinal}"$`),
      );
    assert.equal(readOptions(['--device=1023']).device, 1023);
  });
});
