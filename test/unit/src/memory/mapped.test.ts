import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  CU_MEMHOSTALLOC_DEVICEMAP,
  CU_MEMHOSTALLOC_PORTABLE,
  CU_MEMHOSTALLOC_WRITECOMBINED,
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../../ffi/constants.ts';
import { recordCalls } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { Context, MappedMemory, type MappedMemoryOptions, Stream } from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

describe('MappedMemory', () => {
  test('arguments are checked before any driver call', () => {
    emulate();
    const memory = MappedMemory.create();
    const recorder = recordCalls();
    for (const size of [0, -1, 1.5, Number.NaN])
      assert.throws(
        () => memory.allocate(size),
        /^RangeError: byteLength must be an integer of at/,
      );
    assert.throws(() => memory.allocate(1, { streams: 1 } as never), /unknown option 'streams'/);
    assert.throws(() => MappedMemory.create({ wc: 1 } as never), /unknown option 'wc'/);
    assert.throws(
      () => MappedMemory.create({ portable: 1 as never }),
      /^TypeError: portable must be true or false, not 1/,
    );
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('each option reaches the driver, in the given context', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const cases: readonly [
      options: MappedMemoryOptions,
      name: FunctionName,
      flags: number,
      Context,
    ][] = [
      [
        {},
        'cuMemHostRegister_v2',
        CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
        first,
      ],
      [
        { context: second, portable: false },
        'cuMemHostRegister_v2',
        CU_MEMHOSTREGISTER_DEVICEMAP,
        second,
      ],
      [
        { device: 1, writeCombined: true },
        'cuMemHostAlloc',
        CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE,
        second,
      ],
      [
        { writeCombined: true, portable: false },
        'cuMemHostAlloc',
        CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP,
        first,
      ],
    ];
    for (const [options, name, flags, context] of cases) {
      recorder.calls.length = 0;
      using buffer = MappedMemory.create(options).allocate(5000);
      const locks = recorder.calls.filter((call) => /HostAlloc|HostRegister/.test(call.name));
      assert.deepEqual(
        locks.map((call) => [call.name, call.args[2], call.context]),
        [[name, flags, context.handle]],
      );
      assert.deepEqual([buffer.context, buffer.byteLength], [context, 5000]);
    }
  });

  test('allocate() throws if the device cannot access host memory', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '19=0' });
    assert.throws(() => MappedMemory.create().allocate(1), {
      name: 'NotSupportedError',
      message: /cannot access host memory/,
    });
  });

  test('memory stays locked and readable until the work that uses it is done', async () => {
    emulate();
    const context = Context.primary();
    const buffer = MappedMemory.create().allocate(4096);
    const view = new Uint8Array(buffer.buffer);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(7, { stream });
    buffer.close();
    view[0] = 3;
    assert.equal(view[0], 3);
    latch.open();
    await context.flush();
    assert.equal(view[0], 0);
  });

  test('window() views a part of the memory, and refuses a range beyond it', () => {
    emulate();
    using buffer = MappedMemory.create().allocate(8192);
    new Uint8Array(buffer.window(4096, 4096)).fill(5);
    assert.equal(new Uint8Array(buffer.buffer)[4096], 5);
    assert.throws(
      () => buffer.window(0, 8193),
      /^RangeError: byteLength must be an integer from 1 to 8192, not 8193/,
    );
  });
});
