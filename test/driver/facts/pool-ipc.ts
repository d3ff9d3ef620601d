/** Memory pools shared by two processes. */
import { DriverProcess, enterContext } from '../../support/calls.ts';
import type { FactGroup } from './facts.ts';
import {
  attributeIn,
  FD,
  firstByte,
  location,
  MIB,
  outOf,
  poolProperties,
  statusIn,
  yesNo,
} from './kinds.ts';

const USED = 7;

export const poolIpcFacts: FactGroup = async (note) => {
  await using a = new DriverProcess();
  await using b = new DriverProcess();
  await enterContext(a);
  await enterContext(b);
  const inA = statusIn(a);
  const inB = statusIn(b);
  const stream = await outOf(a)('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  const share = async () => {
    const pool = await outOf(a)('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
    const memory = await outOf(a)('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
    await inA('cuMemsetD8Async', memory, 42, MIB, stream);
    await inA('cuStreamSynchronize', stream);
    const exported = await a.call('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0);
    const data = (await a.call('cuMemPoolExportPointer', 'BLOCK', memory)).block;
    const fd = await a.sendFd(exported.int0, b);
    return {
      pool,
      memory,
      ownFd: exported.int0,
      fd,
      data: { bytes: data },
      status: exported.status,
    };
  };
  const one = await share();
  const two = await share();
  note('pool: exported', one.status);
  note(
    'pool: an interior pointer exported',
    await inA('cuMemPoolExportPointer', 'BLOCK', one.memory + 512),
  );
  note(
    'pool: imported in its own process',
    await inA('cuMemPoolImportFromShareableHandle', 'OUT0', one.ownFd, FD, 0),
  );
  const imported = await b.call('cuMemPoolImportFromShareableHandle', 'OUT0', one.fd, FD, 0);
  note('pool: imported', imported.status);
  const pool = imported.out0;
  const importPool = (fd: number) =>
    b.call('cuMemPoolImportFromShareableHandle', 'OUT0', fd, FD, 0);
  const twice = await importPool(one.fd);
  note('pool: imported twice', twice.status);
  note('pool: imported twice, with the same handle', yesNo(twice.out0 === pool));
  note('pool: destroyed once of two imports', await inB('cuMemPoolDestroy', pool));
  await b.closeFd(one.fd);
  note('pool: imported by a descriptor of something else', (await importPool(0)).status);
  const importPointer = (data: { bytes: string }) =>
    b.call('cuMemPoolImportPointer', 'OUT0', pool, data);
  const first = await importPointer(one.data);
  note('pool pointer: imported', first.status);
  note('pool pointer: read', firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', first.out0, 64)));
  const attribute = attributeIn(b);
  for (const number of [10, 12, 14])
    note(`pool pointer: attribute ${number}`, await attribute(number, first.out0));
  note('pool pointer: attribute 17 is the pool', yesNo((await attribute(17, first.out0)) === pool));
  note(
    'pool: access of the importer',
    (await b.call('cuMemPoolGetAccess', 'OUT0', pool, location())).int0,
  );
  const again = await importPointer(one.data);
  note('pool pointer: imported twice', again.status);
  note('pool pointer: imported twice, at the same address', yesNo(again.out0 === first.out0));
  note('pool pointer: of another pool', (await importPointer(two.data)).status);
  const zeros = { bytes: Buffer.alloc(64).toString('base64') };
  note('pool pointer: 64 zero bytes', (await importPointer(zeros)).status);
  const altered = Buffer.from(one.data.bytes, 'base64');
  altered[0] = (altered[0] as number) ^ 1;
  note(
    'pool pointer: altered',
    (await importPointer({ bytes: altered.toString('base64') })).status,
  );
  note('pool pointer: exported again', await inB('cuMemPoolExportPointer', 'BLOCK', first.out0));
  const streamOfB = await outOf(b)('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  note(
    'imported pool: allocated from',
    await inB('cuMemAllocFromPoolAsync', 'OUT0', 64, pool, streamOfB),
  );
  note('imported pool: made the current one', await inB('cuDeviceSetMemPool', 0, pool));
  note('imported pool: used bytes asked', await inB('cuMemPoolGetAttribute', pool, USED, 'OUT0'));
  note(
    'imported pool: 64-bit wait on its memory',
    await inB('cuStreamWaitValue64_v2', streamOfB, first.out0, 0, 0),
  );
  note('pool pointer: freed once of two imports', await inB('cuMemFree_v2', first.out0));
  note(
    'pool pointer: read after one free of two imports',
    await inB('cuMemcpyDtoH_v2', 'BLOCK', first.out0, 64),
  );
  note('pool pointer: freed twice of two imports', await inB('cuMemFree_v2', first.out0));
  const late = await importPointer(one.data);
  note('pool pointer: imported when freed', late.status);
  note(
    'pool memory: freed by its owner while imported',
    await inA('cuMemFreeAsync', one.memory, stream),
  );
  await inA('cuStreamSynchronize', stream);
  note(
    'pool pointer: read when its owner has freed',
    firstByte(await b.call('cuMemcpyDtoH_v2', 'BLOCK', late.out0, 64)),
  );
  note('pool pointer: freed in a stream', await inB('cuMemFreeAsync', late.out0, streamOfB));
  await inB('cuStreamSynchronize', streamOfB);
  const gone = await importPointer(one.data);
  note('pool pointer: imported when its owner has freed it', gone.status);
  for (const when of ['alone', 'with a pointer of it']) {
    const three = await share();
    const handles: number[] = [];
    for (let n = 0; n < 3; n += 1) handles.push((await importPool(three.fd)).out0);
    const [handle = 0] = handles;
    const isMapped = when !== 'alone';
    const mapped = isMapped
      ? (await b.call('cuMemPoolImportPointer', 'OUT0', handle, three.data)).out0
      : 0;
    const destroy = async (nth: string): Promise<void> =>
      note(
        `pool: imported three times, ${when}: destroyed ${nth}`,
        await inB('cuMemPoolDestroy', handle),
      );
    await destroy('once');
    if (isMapped) {
      note(
        `pool: imported three times, ${when}: read after`,
        await inB('cuMemcpyDtoH_v2', 'BLOCK', mapped, 64),
      );
      note(
        `pool: imported three times, ${when}: pointer freed after`,
        await inB('cuMemFree_v2', mapped),
      );
    }
    await destroy('twice');
    await destroy('three times');
    await destroy('four times');
  }
  // Last, and nothing is destroyed after it: the driver of CUDA 13.0 may crash then.
  note(
    'imported pool: exported again',
    await inB('cuMemPoolExportToShareableHandle', 'OUT0', pool, FD, 0),
  );
  await a.kill();
  const orphan = await importPool(two.fd);
  note('pool: imported when its owner was killed', orphan.status);
};
