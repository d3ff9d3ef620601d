/** The emulated driver takes all that it is asked for, or says that it does not. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena, openArena } from '../../../../ffi/arena.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import { type FunctionName, functionNames, rows } from '../../../../ffi/functions.ts';
import type { StructName, StructValues } from '../../../../ffi/structs.ts';
import { callHere, enterContext, pointed, struct } from '../../../support/calls.ts';
import { leaves } from '../../../support/left-open.ts';

openArena();

const side = { call: async (...[name, ...args]: Parameters<typeof call>) => call(name, ...args) };
const call = (name: FunctionName, ...args: Parameters<typeof callHere>[1]) => callHere(name, args);

describe('the arguments of the emulated driver', () => {
  test('are all taken by functions that are emulated', () => {
    const driver = createEmulatedDriver({ arena });
    const ignoring = functionNames.filter((name) => driver[name].length < rows[name].params.length);
    assert.deepEqual(ignoring, [
      // These answer that they are not supported.
      'cuOccupancyMaxActiveBlocksPerMultiprocessor',
      'cuOccupancyMaxPotentialBlockSize',
      'cuOccupancyMaxActiveClusters',
      'cuOccupancyMaxPotentialClusterSize',
      'cuLinkCreate_v2',
      'cuLinkAddData_v2',
      'cuLinkComplete',
      'cuLinkDestroy',
      // What they would say about a failure is not emulated.
      'cuGraphExecUpdate',
      'cuGraphExecUpdate_v2',
    ]);
  });
});

describe('the structs of the emulated driver', () => {
  const device = { 'location.type': 1, 'location.id': 0 };

  test('are read with all fields, or the call fails', async () => {
    leaves(/^driver: (pool|physical memory)$/, 'the calls fail when they have made something');
    await enterContext(side);
    const refuses = <S extends StructName>(
      name: S,
      values: StructValues<S>,
      field: string,
      ...given: [FunctionName, (it: ReturnType<typeof struct>) => Parameters<typeof callHere>[1]]
    ): void => {
      const [called, args] = given;
      assert.throws(() => call(called, ...args(struct(name, values))), {
        message: `${called} of the emulated driver does not know ${field} of a ${name}`,
      });
    };
    const pool = { allocType: 1, ...device };
    refuses(
      'CUmemPoolProps',
      { ...pool, usage: 2 },
      'usage, which is 2,',
      'cuMemPoolCreate',
      (it) => ['OUT0', it],
    );
    const physical = { type: 1, ...device, 'allocFlags.compressionType': 1 };
    refuses(
      'CUmemAllocationProp',
      physical,
      'allocFlags.compressionType, which is 1,',
      'cuMemCreate',
      (it) => ['OUT0', 2 ** 21, it, 0],
    );
    // The next call is not blamed.
    const { status, out0 } = call('cuMemPoolCreate', 'OUT0', struct('CUmemPoolProps', pool));
    assert.equal(status, 0);
    assert.equal(call('cuMemPoolDestroy', out0).status, 0);
  });

  test('are not looked at further by a call that refuses them', async () => {
    await enterContext(side);
    const wrong = struct('CUmemPoolProps', { allocType: 7, usage: 2, ...device });
    assert.equal(call('cuMemPoolCreate', 'OUT0', wrong).status, 1);
    assert.equal(call('cuDeviceGetDefaultMemPool', 'OUT0', 0).status, 0);
    const nothing = struct('CUDA_MEMCPY2D', { Height: 2, srcDevice: 5, srcHost: 7 });
    assert.equal(call('cuMemcpy2DUnaligned_v2', nothing).status, 0);
    assert.equal(call('cuMemPoolSetAttribute', 0, 1, pointed(1)).status, 1);
  });
});
