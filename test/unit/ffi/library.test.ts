import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { LibraryNotFoundError, openLibrary } from '../../../ffi/library.ts';
import { withAddress } from '../../../ffi/native.ts';
import { constString, int, size_t } from '../../../ffi/types.ts';

const LIBC = ['libc.so.6', 'libc.so'];

describe('openLibrary', () => {
  test('the first candidate that the loader accepts is opened, and named', () => {
    const library = openLibrary(['/nonexistent/libc.so', ...LIBC]);
    assert.ok(LIBC.includes(library.path));
  });

  test('if no candidate opens, the error has a reason for each', () => {
    const text = fileURLToPath(import.meta.url);
    assert.throws(
      () => openLibrary(['libcuffi-missing.so', '/nonexistent/lib.so', text]),
      (error) => {
        assert.ok(error instanceof LibraryNotFoundError);
        assert.equal(error.name, 'LibraryNotFoundError');
        assert.equal(error.code, 'library-not-found');
        assert.deepEqual(
          error.attempts.map(({ path }) => path),
          ['libcuffi-missing.so', '/nonexistent/lib.so', text],
        );
        for (const { reason } of error.attempts) {
          assert.ok(reason.length > 0);
          assert.doesNotMatch(reason, /^Failed to load/);
        }
        assert.match(error.message, /^no library could be opened. Tried:$/m);
        assert.match(error.message, /^ {2}libcuffi-missing\.so: .*No such file/m);
        assert.ok(error.message.includes(`\n  ${text}: ${error.attempts[2]?.reason}`));
        return true;
      },
    );
    assert.throws(() => openLibrary([]), LibraryNotFoundError);
  });

  test('a function is declared by its parameter types', () => {
    const strlen = openLibrary(LIBC).bind('strlen', [constString], 'uint64');
    const text = Buffer.from('seven..\0');
    assert.equal(
      withAddress(text, (address) => (strlen as (address: number) => number)(address)),
      7,
    );
    const abs = openLibrary(LIBC).bind('abs', [int]) as (value: number) => number;
    assert.equal(abs(-5), 5);
  });

  test('bind and symbol return undefined for an unknown symbol', () => {
    const library = openLibrary(LIBC);
    assert.equal(library.bind('cuffi_no_such_function', [size_t]), undefined);
    assert.equal(library.symbol('cuffi_no_such_function'), undefined);
  });

  test('symbol returns the same address for the same name, and different ones for others', () => {
    const library = openLibrary(LIBC);
    const close = library.symbol('close') as number;
    assert.ok(Number.isSafeInteger(close) && close > 0);
    assert.equal(library.symbol('close'), close);
    assert.notEqual(library.symbol('open'), close);
  });
});
