import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { readCommandLine, UsageError } from '../../../../src/cli/command-line.ts';

const read = (args: string) => readCommandLine(args.split(' ').filter(Boolean));

function misused(args: string, what: RegExp): void {
  assert.throws(
    () => read(args),
    (error) => error instanceof UsageError && what.test(error.message),
    args,
  );
}

describe('readCommandLine', () => {
  test('a missing or unknown command throws', () => {
    misused('', /^no command given$/);
    misused('roundtrop', /^there is no command 'roundtrop'$/);
    misused('roundtrip twice', /^roundtrip takes no 'twice'$/);
  });

  test('an unknown option throws', () => {
    misused('roundtrip --fast', /--fast/);
    misused('roundtrip --json=yes', /--json/);
    misused('roundtrip --elements', /--elements/);
  });

  test('elements and device must be integers in range', () => {
    for (const value of ['0', '1.5', 'abc', '', '1e99', 'NaN'])
      misused(`roundtrip --elements=${value}`, /^--elements must be an integer from 1 to /);
    misused('roundtrip --elements=-1', /^--elements must be an integer from 1 to .*, not "-1"$/);
    misused('roundtrip --elements -1', /--elements/);
    misused('roundtrip --device=-1', /^--device must be an integer from 0 to 1023/);
    misused('roundtrip --device=x', /^--device must be an integer .*, not "x"$/);
  });

  test('an unknown kind throws', () => {
    misused('roundtrip --kind event', /^--kind must be pool or legacy or virtual, not "event"/);
    misused('roundtrip --kind', /--kind/);
  });

  test('missing options have defaults, and help requests nothing', () => {
    assert.deepEqual(read('roundtrip --kind legacy --device=1'), {
      elements: 16_777_216,
      device: 1,
      kind: 'legacy',
      driver: undefined,
      json: false,
    });
    assert.equal(read('roundtrip --help'), undefined);
  });
});
