/** Allocation, ranges, attributes, copies and freeing of plain device memory. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';

const INVENTED = 0x1234_5600;

export const memoryFacts: FactGroup = async (note) => {
  await using peer = new DriverProcess();
  await enterContext(peer);
  const { call } = peer;
  const status = async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await call(name, ...args)).status;
  const allocate = async (byteLength: number): Promise<number> =>
    (await call('cuMemAlloc_v2', 'OUT0', byteLength)).out0;
  const attribute = async (number: number, address: number): Promise<string> => {
    const answer = await call('cuPointerGetAttribute', 'OUT0', number, address);
    return answer.status === 0 ? String(answer.int0) : `status ${answer.status}`;
  };

  note('attribute 125 (IPC events)', (await call('cuDeviceGetAttribute', 'OUT0', 125, 0)).int0);
  note(
    'attribute 41 (unified addressing)',
    (await call('cuDeviceGetAttribute', 'OUT0', 41, 0)).int0,
  );
  note('allocating nothing', await status('cuMemAlloc_v2', 'OUT0', 0));
  note('allocating more than the device has', await status('cuMemAlloc_v2', 'OUT0', 2 ** 46));

  const first = await allocate(1024);
  const second = await allocate(1024);
  note('two allocations of 1024 bytes lie apart by', second - first);
  const range = await call('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', second + 100);
  note(
    'the range of an interior pointer: begins at its base',
    range.out0 === second ? 'yes' : 'no',
  );
  note('the range of an interior pointer: bytes', range.out1);
  const tiny = await allocate(1);
  const next = await allocate(1);
  note('two allocations of 1 byte lie apart by', next - tiny);
  note('the range of a byte', (await call('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', tiny)).out1);
  note(
    'the range of an invented pointer',
    await status('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', INVENTED),
  );

  note('attribute memory type', await attribute(2, first));
  note('attribute is managed', await attribute(8, first));
  note('attribute device ordinal', await attribute(9, first));
  note('attribute legacy IPC capable', await attribute(10, first));
  note('attribute range size', await attribute(12, first));
  note('attribute mapped', await attribute(13, first));
  note('attribute buffer id of an invented pointer', await attribute(7, INVENTED));
  note('attribute memory type of an invented pointer', await attribute(2, INVENTED));

  const before = Number(await attribute(7, first));
  await status('cuMemFree_v2', first);
  note('a copy from a small freed allocation', await status('cuMemcpyDtoH_v2', 'BLOCK', first, 64));
  const again = await allocate(1024);
  note('freed and allocated again: the same address', again === first ? 'yes' : 'no');
  note(
    'freed and allocated again: the buffer id grew',
    Number(await attribute(7, again)) > before ? 'yes' : 'no',
  );

  const big = await allocate(8 << 20);
  note(
    'copying beyond a small allocation, inside its block',
    await status('cuMemcpyDtoH_v2', 'BLOCK', again, 2048),
  );
  note(
    'copying beyond a large allocation',
    await status('cuMemcpyDtoH_v2', 'BLOCK', big + (8 << 20) - 64, 128),
  );
  note(
    'setting beyond a large allocation',
    await status('cuMemsetD8Async', big, 1, (8 << 20) + 1, 0),
  );
  note(
    'setting 16-bit values at an odd address',
    await status('cuMemsetD16Async', big + 1, 1, 4, 0),
  );
  note(
    'copying to an invented device address',
    await status('cuMemcpyHtoD_v2', INVENTED, 'BLOCK', 64),
  );
  note('copying nothing', await status('cuMemcpyHtoD_v2', big, 'BLOCK', 0));
  note('setting nothing', await status('cuMemsetD8Async', big, 1, 0, 0));

  note('freeing null', await status('cuMemFree_v2', 0));
  note('freeing an invented pointer', await status('cuMemFree_v2', INVENTED));
  note('freeing an interior pointer', await status('cuMemFree_v2', big + 4096));
  note('freeing', await status('cuMemFree_v2', big));
  note('freeing twice', await status('cuMemFree_v2', big));
  note('copying from a freed large allocation', await status('cuMemcpyDtoH_v2', 'BLOCK', big, 64));
  for (const address of [again, second, tiny, next]) await status('cuMemFree_v2', address);

  const free = async (): Promise<number> => (await call('cuMemGetInfo_v2', 'OUT0', 'OUT1')).out0;
  const atFirst = await free();
  const large = await allocate(64 << 20);
  note('an allocation of 64 MiB takes', atFirst - (await free()));
  await status('cuMemFree_v2', large);
  note('and gives back', atFirst - (await free()) === 0 ? 'all' : 'not all');
  note(
    'registering host memory twice',
    await (async () => {
      const latch = await peer.latch();
      return status('cuMemHostRegister_v2', latch.devicePointer, 4096, 3);
    })(),
  );
  note('unregistering what was not', await status('cuMemHostUnregister', INVENTED));
};
