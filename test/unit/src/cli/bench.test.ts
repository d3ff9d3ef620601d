import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../../ffi/driver.ts';
import { type BenchOptions, bench } from '../../../../src/cli/bench.ts';
import { wayNames as allWays, figuresOf } from '../../../../src/cli/bench-figures.ts';
import { withFaults } from '../../../support/faults.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { noPython } from '../../../support/python.ts';
import { emulate } from '../emulate.ts';
import { clearVariablesAfterEach, failureOf, fixture } from './child-failures.ts';

clearVariablesAfterEach();

/** The ways without a process in Python. */
const wayNames = allWays.filter((name) => !name.endsWith('Python'));

const run = (options: Partial<BenchOptions> = {}) =>
  bench({
    sizes: [4096],
    device: 0,
    driver: { name: 'emulated', reason: 'it is a test' },
    budgetMs: 0,
    warmUpMs: 0,
    signal: new AbortController().signal,
    ...options,
  });

describe('bench', () => {
  test('a child that never replies is ended at the deadline', async () => {
    emulate();
    const error = await failureOf(() => run({ ...fixture('silent-child'), deadlineMs: 300 }));
    assert.equal(error.name, 'CuffiError');
    assert.equal(error.message, 'the child did not reply within 0.3 s');
  });

  test('the error for a child that dies says how it ended', async () => {
    emulate();
    for (const [request, how] of [
      ['start', /exited with code 3/],
      ['page-locked', /ended by SIGKILL/],
      ['open', /ended by SIGKILL/],
    ] as const) {
      process.env['CUFFI_TEST_DIES_AT'] = request;
      const error = await failureOf(() => run(fixture('dying-child')));
      assert.match(error.message, how, request);
    }
  });

  test('failed measurements leave no descriptor open', async () => {
    emulate();
    process.env['CUFFI_TEST_DIES_AT'] = 'open';
    await failureOf(() => run(fixture('dying-child')));
    const before = openDescriptors();
    await failureOf(() => run(fixture('dying-child')));
    assert.equal(openDescriptors(), before);
  });

  test('an error in the child is reported, and so is a wrong word', async () => {
    emulate();
    process.env['CUFFI_TEST_SAYS'] = '"no luck"';
    assert.equal(
      (await failureOf(() => run(fixture('wrong-child')))).message,
      'in the child: no luck',
    );
    delete process.env['CUFFI_TEST_SAYS'];
    const { message } = await failureOf(() => run(fixture('misreading-child')));
    assert.equal(message, 'connection: the child read 7 instead of 1');
  });

  test('an abort ends the measurement with its reason, at once or later', async () => {
    emulate();
    const reason = new Error('enough');
    assert.equal(await failureOf(() => run({ signal: AbortSignal.abort(reason) })), reason);
    const controller = new AbortController();
    const onSize = (): void => void setTimeout(() => controller.abort(reason), 100);
    const error = await failureOf(() =>
      run({ signal: controller.signal, onSize, budgetMs: 60_000 }),
    );
    assert.equal(error, reason);
  });

  test('a size without room and a way that does not work here are named, and the rest is measured', async () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '102=0,115=0' });
    const { figures, omitted } = await run({ sizes: [4096, 2 ** 31] });
    assert.deepEqual(
      omitted.map(({ what }) => what),
      ['2 GiB', 'channel'],
    );
    assert.match(omitted[0]?.reason ?? '', /^it takes 6 GiB of the GPU and some to spare, and /);
    assert.match(omitted[1]?.reason ?? '', /virtual memory/);
    assert.deepEqual(
      figures.map(({ way }) => way),
      wayNames.filter((name) => name !== 'channel'),
    );
    assert.deepEqual(await run({ sizes: [2 ** 31] }), { figures: [], omitted: [omitted[0]] });
  });

  test('a process in Python gets buffers in two more ways, and takes the size once more', {
    skip: noPython,
  }, async () => {
    emulate();
    const { omitted } = await run({ sizes: [2 ** 31], python: true });
    assert.match(omitted[0]?.reason ?? '', /^it takes 8 GiB of the GPU and some to spare, and /);
    const { figures, omitted: none } = await run({ python: true });
    assert.deepEqual(none, []);
    assert.deepEqual(
      figures.map(({ way }) => way),
      allWays,
    );
  });

  test('what does not work here is named once, whatever the number of sizes', async () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '41=0,102=0,115=0' });
    const { figures, omitted } = await run({ sizes: [4096, 8192] });
    assert.deepEqual(
      omitted.map(({ what }) => what),
      ['connection', 'channel'],
    );
    assert.equal(omitted[0]?.reason, 'the device does not support unified addressing');
    assert.deepEqual(
      figures.map(({ way }) => way),
      [4096, 8192].flatMap(() => wayNames.filter((name) => name.startsWith('copying'))),
    );
  });

  test('a channel that lacks memory is named with its size, once for each size', async () => {
    // The slot of a channel is the only memory of this kind.
    const { driver, fail } = withFaults(emulate(), ['cuMemCreate']);
    selectDriver(driver);
    const { figures, omitted } = await run({
      sizes: [4096, 8192, 16_384],
      onSize: (byteLength) => {
        if (byteLength !== 8192) fail('cuMemCreate', 1, 2);
      },
    });
    assert.deepEqual(
      omitted.map(({ what }) => what),
      ['channel, 4 KiB', 'channel, 16 KiB'],
    );
    for (const { reason } of omitted) assert.match(reason, /OUT_OF_MEMORY/);
    assert.deepEqual(
      figures.filter(({ way }) => way === 'channel').map(({ byteLength }) => byteLength),
      [8192],
    );
  });
});

describe('figuresOf', () => {
  test('the figures are the nearest ranks, and the speed of a copy is that of the median', () => {
    const samples = Array.from({ length: 20 }, (_, at) => 20 - at);
    assert.deepEqual(figuresOf('copying, socket', 1_000_000, samples), {
      way: 'copying, socket',
      byteLength: 1_000_000,
      rounds: 20,
      medianMs: 10,
      p95Ms: 19,
      bytesPerSecond: 100_000_000,
    });
    assert.deepEqual(figuresOf('channel', 4, [2]), {
      way: 'channel',
      byteLength: 4,
      rounds: 1,
      medianMs: 2,
      p95Ms: 2,
      bytesPerSecond: null,
    });
  });
});
