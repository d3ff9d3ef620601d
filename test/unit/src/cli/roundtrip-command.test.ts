import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { UsageError } from '../../../../src/cli/command.ts';
import { readOptions } from '../../../../src/cli/roundtrip-command.ts';

const read = (args: string) => readOptions(args.split(' ').filter(Boolean));

function misused(args: string, what: RegExp): void {
  assert.throws(
    () => read(args),
    (error) => error instanceof UsageError && what.test(error.message),
    args,
  );
}

describe('readOptions', () => {
  test('a word that is no option throws', () => {
    misused('twice', /^roundtrip takes no 'twice'$/);
  });

  test('an unknown option throws', () => {
    misused('--fast', /--fast/);
    misused('--json=yes', /--json/);
    misused('--elements', /--elements/);
  });

  test('elements and device must be integers in range', () => {
    for (const value of ['0', '1.5', 'abc', '', '1e99', 'NaN'])
      misused(`--elements=${value}`, /^--elements must be an integer from 1 to /);
    misused('--elements=-1', /^--elements must be an integer from 1 to .*, not "-1"$/);
    misused('--elements -1', /--elements/);
    misused('--device=-1', /^--device must be an integer from 0 to 1023/);
    for (const ordinal of ['x', '0x1', '1e2'])
      misused(
        `--device=${ordinal}`,
        new RegExp(`^--device must be an integer .*, not "${ordinal}"$`),
      );
  });

  test('elements and device accept their bounds, and nothing beyond', () => {
    const bounds: readonly ['elements' | 'device', least: number, most: number][] = [
      ['elements', 1, 2 ** 32],
      ['device', 0, 1023],
    ];
    for (const [name, least, most] of bounds) {
      for (const value of [least, most])
        assert.equal(read(`--${name}=${value}`)[name], value, `${name} ${value}`);
      for (const value of [least - 1, most + 1])
        misused(`--${name}=${value}`, new RegExp(`^--${name} must be .* not "${value}"$`));
    }
  });

  test('an unknown kind throws', () => {
    misused('--kind event', /^--kind must be pool or legacy or virtual, not "event"/);
    misused('--kind', /--kind/);
  });

  test('missing options have defaults', () => {
    assert.deepEqual(read('--kind legacy --device=1'), {
      elements: 16_777_216,
      device: 1,
      kind: 'legacy',
      driver: undefined,
      json: false,
    });
  });
});
