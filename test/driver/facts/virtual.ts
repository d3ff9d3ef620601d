/** Virtual memory: reserved, made, mapped, given access to, shared. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import { withHeldStream } from './holding.ts';
import {
  access,
  attributeIn,
  FD,
  firstByte,
  INVENTED,
  location,
  outOf,
  physicalProperties,
  statusIn,
  UNIT,
  yesNo,
} from './kinds.ts';

export const virtualFacts: FactGroup = async (note) => {
  await using a = new DriverProcess();
  await using b = new DriverProcess();
  for (const peer of [a, b]) await enterContext(peer);
  const status = statusIn(a);
  const out = outOf(a);
  for (const attribute of [102, 103])
    note(
      `device attribute ${attribute}`,
      (await a.call('cuDeviceGetAttribute', 'OUT0', attribute, 0)).int0,
    );
  const free = (): Promise<number> => out('cuMemGetInfo_v2', 'OUT0', 'OUT1');
  const shareable = physicalProperties({ requestedHandleTypes: FD });
  for (const option of [0, 1])
    note(
      `virtual: granularity ${option}`,
      await out('cuMemGetAllocationGranularity', 'OUT0', shareable, option),
    );
  note('virtual: 4096 bytes reserved', await status('cuMemAddressReserve', 'OUT0', 4096, 0, 0, 0));
  note('virtual: 4096 bytes made', await status('cuMemCreate', 'OUT0', 4096, shareable, 0));
  note(
    'virtual: more made than there is',
    await status('cuMemCreate', 'OUT0', 2 ** 46, shareable, 0),
  );
  note(
    'virtual: made on a device that is not there',
    await status('cuMemCreate', 'OUT0', UNIT, physicalProperties({ 'location.id': 99 }), 0),
  );
  note(
    'virtual: made of no type',
    await status('cuMemCreate', 'OUT0', UNIT, physicalProperties({ type: 0 }), 0),
  );

  const memory = await out('cuMemAddressReserve', 'OUT0', 4 * UNIT, 0, 0, 0);
  note('virtual: reserved at a multiple of the granularity', yesNo(memory % UNIT === 0));
  const before = await free();
  const handle = await out('cuMemCreate', 'OUT0', 2 * UNIT, shareable, 0);
  note('virtual: memory made takes', before - (await free()));
  note('virtual: mapped in part', await status('cuMemMap', memory, UNIT, 0, handle, 0));
  note(
    'virtual: mapped beside the granularity',
    await status('cuMemMap', memory + 4096, 2 * UNIT, 0, handle, 0),
  );
  note(
    'virtual: mapped where nothing is reserved',
    await status('cuMemMap', INVENTED, 2 * UNIT, 0, handle, 0),
  );
  note('virtual: attribute 2 of what is only reserved', await attributeIn(a)(2, memory));
  if ((await status('cuMemMap', memory, 2 * UNIT, 0, handle, 0)) !== 0)
    await status('cuMemUnmap', memory, UNIT).then(() =>
      status('cuMemMap', memory, 2 * UNIT, 0, handle, 0),
    );
  note(
    'virtual: mapped twice at a place',
    await status('cuMemMap', memory, 2 * UNIT, 0, handle, 0),
  );
  note('virtual: copied from without access', await status('cuMemcpyDtoH_v2', 'BLOCK', memory, 64));
  const give = (flags: number, byteLength = 2 * UNIT, id = 0): Promise<number> =>
    status('cuMemSetAccess', memory, byteLength, access(flags, id), 1);
  note('virtual: access to part of a mapping', await give(3, UNIT));
  note('virtual: access for a device that is not there', await give(3, 2 * UNIT, 99));
  note(
    'virtual: access by no descriptor',
    await status('cuMemSetAccess', memory, 2 * UNIT, access(3), 0),
  );
  note('virtual: access beyond what is mapped', await give(3, 4 * UNIT));
  note('virtual: access to read', await give(1));
  note('virtual: set with access to read', await status('cuMemsetD8Async', memory, 1, 64, 0));
  note(
    'virtual: copied to with access to read',
    await status('cuMemcpyHtoD_v2', memory, 'BLOCK', 64),
  );
  note(
    'virtual: copied from with access to read',
    await status('cuMemcpyDtoH_v2', 'BLOCK', memory, 64),
  );
  note('virtual: access to read and write', await give(3));
  note('virtual: access asked', await out('cuMemGetAccess', 'OUT0', location(), memory));
  note('virtual: set', await status('cuMemsetD8Async', memory, 33, 2 * UNIT, 0));
  await status('cuCtxSynchronize');
  const attribute = attributeIn(a);
  for (const number of [2, 8, 9, 10, 12, 13, 14, 16, 17])
    note(`virtual memory: attribute ${number}`, await attribute(number, memory));
  note(
    'virtual memory: attribute 11 is its base',
    yesNo((await attribute(11, memory + 64)) === memory),
  );
  note('virtual memory: freed by cuMemFree', await status('cuMemFree_v2', memory));
  note('virtual memory: legacy handle', await status('cuIpcGetMemHandle', 'BLOCK', memory));
  const stream = await out('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  note(
    'virtual memory: 64-bit write',
    await status('cuStreamWriteValue64_v2', stream, memory, 0x2121, 0),
  );
  note(
    'virtual memory: 64-bit wait',
    await status('cuStreamWaitValue64_v2', stream, memory, 0x2121, 1),
  );
  await status('cuStreamSynchronize', stream);

  const more = await out('cuMemCreate', 'OUT0', UNIT, shareable, 0);
  note('virtual: grown in place', await status('cuMemMap', memory + 2 * UNIT, UNIT, 0, more, 0));
  note(
    'virtual: copied across the seam without access beyond it',
    await status('cuMemcpyDtoH_v2', 'BLOCK', memory + 2 * UNIT - 32, 64),
  );
  note('virtual: access to both', await give(3, 3 * UNIT));
  note(
    'virtual: copied across the seam',
    await status('cuMemcpyDtoH_v2', 'BLOCK', memory + 2 * UNIT - 32, 64),
  );
  note(
    'virtual: range at the seam',
    (await a.call('cuMemGetAddressRange_v2', 'OUT0', 'OUT1', memory)).out1,
  );
  note('virtual: unmapped in part', await status('cuMemUnmap', memory, UNIT));
  note('virtual: addresses freed while mapped', await status('cuMemAddressFree', memory, 4 * UNIT));
  note('virtual: addresses freed in part', await status('cuMemAddressFree', memory, UNIT));

  const exported = await a.call('cuMemExportToShareableHandle', 'OUT0', handle, FD, 0);
  note('virtual: exported', exported.status);
  note(
    'virtual: imported in its own process',
    await status('cuMemImportFromShareableHandle', 'OUT0', exported.int0, FD),
  );
  const plain = await out('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
  note(
    'virtual: exported though not made for it',
    await status('cuMemExportToShareableHandle', 'OUT0', plain, FD, 0),
  );
  const fd = await a.sendFd(exported.int0, b);
  const inB = statusIn(b);
  note(
    'virtual: imported by a descriptor of something else',
    await inB('cuMemImportFromShareableHandle', 'OUT0', 0, FD),
  );
  const imported = await b.call('cuMemImportFromShareableHandle', 'OUT0', fd, FD);
  note('virtual: imported', imported.status);
  await b.closeFd(fd);
  const mapped = await outOf(b)('cuMemAddressReserve', 'OUT0', 2 * UNIT, 0, 0, 0);
  note(
    'virtual: imported and mapped',
    await inB('cuMemMap', mapped, 2 * UNIT, 0, imported.out0, 0),
  );
  note(
    'virtual: imported, copied from without access',
    await inB('cuMemcpyDtoH_v2', 'BLOCK', mapped, 64),
  );
  await inB('cuMemSetAccess', mapped, 2 * UNIT, access(1), 1);
  note(
    'virtual: imported, set with access to read',
    await inB('cuMemsetD8Async', mapped, 1, 64, 0),
  );
  note(
    'virtual: imported, read',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', mapped + 64, 64)),
  );
  note(
    'virtual: imported, exported again',
    await inB('cuMemExportToShareableHandle', 'OUT0', imported.out0, FD, 0),
  );
  note('virtual: imported, released while mapped', await inB('cuMemRelease', imported.out0));

  note('virtual: released while mapped', await status('cuMemRelease', handle));
  note('virtual: set when released', await status('cuMemsetD8Async', memory, 34, 64, 0));
  await status('cuCtxSynchronize');
  note('virtual: both unmapped by one call', await status('cuMemUnmap', memory, 3 * UNIT));
  note('virtual: unmapped twice', await status('cuMemUnmap', memory, 3 * UNIT));
  note('virtual: addresses freed', await status('cuMemAddressFree', memory, 4 * UNIT));
  note('virtual: addresses freed twice', await status('cuMemAddressFree', memory, 4 * UNIT));
  await a.kill();
  note(
    'virtual: imported, read when the owner was killed',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', mapped + 64, 64)),
  );

  await withHeldStream(note, async ({ made, waits }) => {
    const place = await made('cuMemAddressReserve', 'OUT0', 2 * UNIT, 0, 0, 0);
    const physical = await made('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0);
    await made('cuCtxSynchronize');
    await waits('cuMemAddressReserve', 'OUT0', UNIT, 0, 0, 0);
    const spare = (await waits('cuMemCreate', 'OUT0', UNIT, physicalProperties(), 0)).out0;
    await waits('cuMemMap', place, UNIT, 0, physical, 0);
    await waits('cuMemSetAccess', place, UNIT, access(3), 1);
    await waits('cuMemUnmap', place, UNIT);
    await waits('cuMemRelease', spare);
    await waits('cuMemAddressFree', place, 2 * UNIT);
  });
};
