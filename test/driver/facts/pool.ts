/** Memory pools: made, asked, and allocated from in the order of streams. */
import { DriverProcess, enterContext, pointed } from '../../support/calls.ts';
import type { FactGroup, Note } from './facts.ts';
import { withHeldStream } from './holding.ts';
import {
  access,
  attributeIn,
  FD,
  INVENTED,
  location,
  MIB,
  outOf,
  poolProperties,
  statusIn,
  yesNo,
} from './kinds.ts';

const [THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH] = [4, 5, 6, 7, 8] as const;

export const poolFacts: FactGroup = async (note) => {
  await made(note);
  await allocated(note);
  await ordered(note);
};

async function made(note: Note): Promise<void> {
  await using peer = new DriverProcess();
  await enterContext(peer);
  const status = statusIn(peer);
  const create = (values: object): Promise<number> =>
    status('cuMemPoolCreate', 'OUT0', poolProperties(values));
  for (const attribute of [115, 119])
    note(
      `device attribute ${attribute}`,
      (await peer.call('cuDeviceGetAttribute', 'OUT0', attribute, 0)).int0,
    );
  note('pool: created', await create({}));
  note('pool: created without maximum', await create({ maxSize: 0 }));
  note('pool: created to be shared', await create({ handleTypes: FD }));
  note('pool: created of no type', await create({ allocType: 0 }));
  note('pool: created nowhere', await create({ 'location.type': 0 }));
  note('pool: created on a device that is not there', await create({ 'location.id': 99 }));
  const standard = await outOf(peer)('cuDeviceGetDefaultMemPool', 'OUT0', 0);
  const current = await outOf(peer)('cuDeviceGetMemPool', 'OUT0', 0);
  note('pool: the current one is the default one', yesNo(current === standard));
  note('pool: destroying the default one', await status('cuMemPoolDestroy', standard));
  note(
    'pool: current of a device that is not there',
    await status('cuDeviceGetMemPool', 'OUT0', 99),
  );

  const pool = await outOf(peer)('cuMemPoolCreate', 'OUT0', poolProperties());
  const get = async (attribute: number): Promise<number> =>
    outOf(peer)('cuMemPoolGetAttribute', pool, attribute, 'OUT0');
  for (let attribute = 1; attribute <= 8; attribute += 1)
    note(`pool: attribute ${attribute} at first`, await get(attribute));
  note(
    'pool: an attribute that is not there',
    await status('cuMemPoolGetAttribute', pool, 99, 'OUT0'),
  );
  const set = (attribute: number, value: number | bigint): Promise<number> =>
    status('cuMemPoolSetAttribute', pool, attribute, pointed(value));
  note('pool: threshold set to the largest', await set(THRESHOLD, 2n ** 64n - 1n));
  note('pool: high-water mark set to 0', await set(USED_HIGH, 0));
  note('pool: high-water mark set to 1', await set(USED_HIGH, 1));
  note('pool: used bytes set', await set(USED, 0));
  note('pool: reuse attribute set to 0', await set(2, 0));
  note('pool: reuse attribute then', await get(2));
  const give = (flags: number, id = 0): Promise<number> =>
    status('cuMemPoolSetAccess', pool, access(flags, id), 1);
  note('pool: access of the owner set to none', await give(0));
  note('pool: access of the owner set to read', await give(1));
  note('pool: access of the owner set to read and write', await give(3));
  note('pool: access of a device that is not there', await give(3, 99));
  note('pool: access set by no descriptor', await status('cuMemPoolSetAccess', pool, access(3), 0));
  note(
    'pool: access of the owner',
    (await peer.call('cuMemPoolGetAccess', 'OUT0', pool, location())).int0,
  );
  note('pool: destroyed', await status('cuMemPoolDestroy', pool));
}

async function allocated(note: Note): Promise<void> {
  await using peer = new DriverProcess();
  const context = await enterContext(peer);
  const status = statusIn(peer);
  const out = outOf(peer);
  const stream = await out('cuStreamCreateWithPriority', 'OUT0', 1, 0);
  const pool = await out('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
  const get = (attribute: number): Promise<number> =>
    out('cuMemPoolGetAttribute', pool, attribute, 'OUT0');
  const allocate = (byteLength: number): Promise<number> =>
    out('cuMemAllocFromPoolAsync', 'OUT0', byteLength, pool, stream);
  const synchronize = (): Promise<number> => status('cuStreamSynchronize', stream);

  note('pool: allocating nothing', await status('cuMemAllocAsync', 'OUT0', 0, stream));
  note(
    'pool: allocating more than its maximum',
    await status('cuMemAllocFromPoolAsync', 'OUT0', 65 * MIB, pool, stream),
  );
  const first = await allocate(1000);
  const second = await allocate(1000);
  await synchronize();
  note('pool: two allocations of 1000 bytes lie apart by', second - first);
  note('pool: reserved by them', await get(RESERVED));
  note('pool: used by them', await get(USED));
  const attribute = attributeIn(peer);
  for (const number of [2, 8, 9, 10, 12, 13, 14, 16])
    note(`pool memory: attribute ${number}`, await attribute(number, first));
  note('pool memory: attribute 17 is its pool', yesNo((await attribute(17, first)) === pool));
  const owner = await attribute(1, first);
  note(
    'pool memory: its context',
    owner === context ? 'the current one' : owner === 0 ? 'none' : String(owner).slice(0, 6),
  );
  const plain = await out('cuMemAlloc_v2', 'OUT0', 1000);
  note('plain memory: attribute 14', await attribute(14, plain));
  note('plain memory: attribute 17', await attribute(17, plain));
  note('pool memory: legacy handle', await status('cuIpcGetMemHandle', 'BLOCK', first));
  note('pool memory: 64-bit wait', await status('cuStreamWaitValue64_v2', stream, first, 0, 0));
  note('pool memory: 32-bit wait', await status('cuStreamWaitValue32_v2', stream, first, 0, 0));
  note('pool memory: 64-bit write', await status('cuStreamWriteValue64_v2', stream, first, 0, 0));
  note('pool memory: copied from', await status('cuMemcpyDtoH_v2', 'BLOCK', first, 64));
  note(
    'pool memory: copied from beyond its end',
    await status('cuMemcpyDtoH_v2', 'BLOCK', first, 1024 + 64),
  );

  note(
    'pool memory: freed at an interior pointer',
    await status('cuMemFreeAsync', first + 512, stream),
  );
  note('pool memory: freed', await status('cuMemFreeAsync', first, stream));
  note('pool memory: freed twice', await status('cuMemFreeAsync', first, stream));
  note('pool memory: null freed', await status('cuMemFreeAsync', 0, stream));
  note('pool memory: invented pointer freed', await status('cuMemFreeAsync', INVENTED, stream));
  note('plain memory freed in a stream', await status('cuMemFreeAsync', plain, stream));
  note(
    'pool memory: freed and allocated again in its stream, at the same address',
    yesNo((await allocate(1000)) === first),
  );
  note('pool memory: freed by cuMemFree', await status('cuMemFree_v2', second));
  await status('cuMemFreeAsync', first, stream);
  note('pool: used when freed in the stream, before a wait', await get(USED));
  await synchronize();
  note('pool: used after the wait', await get(USED));
  note('pool: reserved after the wait, without threshold', await get(RESERVED));
  note('pool: most used', await get(USED_HIGH));
  note('pool: most reserved', await get(RESERVED_HIGH));
  note('pool memory: copied from when freed', await status('cuMemcpyDtoH_v2', 'BLOCK', first, 64));

  await status('cuMemPoolSetAttribute', pool, THRESHOLD, pointed(2n ** 64n - 1n));
  const large = await allocate(40 * MIB);
  note('pool: reserved for 40 MiB', await get(RESERVED));
  await status('cuMemFreeAsync', large, stream);
  await synchronize();
  note('pool: kept by a threshold', await get(RESERVED));
  note('pool: trimmed', await status('cuMemPoolTrimTo', pool, 0));
  note('pool: reserved when trimmed', await get(RESERVED));

  const tiny = await out('cuMemPoolCreate', 'OUT0', poolProperties({ maxSize: MIB }));
  for (const megabytes of [1, 2, 3, 33])
    note(
      `pool of at most 1 MiB: allocating ${megabytes} MiB`,
      await status('cuMemAllocFromPoolAsync', 'OUT0', megabytes * MIB, tiny, stream),
    );

  note('pool: made the current one', await status('cuDeviceSetMemPool', 0, pool));
  const taken = await out('cuMemAllocAsync', 'OUT0', 1000, stream);
  note('cuMemAllocAsync takes from the current pool', yesNo((await attribute(17, taken)) === pool));
  note('pool: destroyed with live memory', await status('cuMemPoolDestroy', pool));
  note('pool memory: set after that', await status('cuMemsetD8Async', taken, 1, 64, stream));
  note('pool memory: freed after that', await status('cuMemFreeAsync', taken, stream));
  const standard = await out('cuDeviceGetDefaultMemPool', 'OUT0', 0);
  note(
    'a destroyed current pool is followed by the default one',
    yesNo((await out('cuDeviceGetMemPool', 'OUT0', 0)) === standard),
  );
}

async function ordered(note: Note): Promise<void> {
  await withHeldStream(note, async ({ peer, stream, made, hold, open, waitsAs, waits }) => {
    const pool = await made('cuMemPoolCreate', 'OUT0', poolProperties({ handleTypes: FD }));
    const other = await made('cuStreamCreateWithPriority', 'OUT0', 1, 0);
    const allocate = (where: number): Promise<number> =>
      made('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, where);
    const held = await allocate(stream);
    const idle = await allocate(other);
    const plain = await made('cuMemAlloc_v2', 'OUT0', 4 * MIB);
    const spare = await made('cuMemAlloc_v2', 'OUT0', 4 * MIB);
    const free = (): Promise<number> => made('cuMemGetInfo_v2', 'OUT0', 'OUT1');
    await made('cuCtxSynchronize');
    await waits('cuMemPoolCreate', 'OUT0', poolProperties());
    await waits('cuMemAllocFromPoolAsync', 'OUT0', MIB, pool, stream);
    await waits('cuMemAllocAsync', 'OUT0', MIB, other);
    await waits('cuMemPoolTrimTo', pool, 0);
    await waits('cuMemPoolExportPointer', 'BLOCK', idle);
    await waits('cuMemPoolSetAccess', pool, access(3), 1);
    await waits('cuMemPoolGetAttribute', pool, USED, 'OUT0');
    await waits('cuMemFreeAsync', idle, stream);
    await hold();
    note(
      'cuMemFreeAsync of plain memory behind held work',
      (await peer.call('cuMemFreeAsync', plain, stream)).status,
    );
    const before = await free();
    await made('cuMemFreeAsync', spare, other);
    await made('cuStreamQuery', other);
    note(
      'plain memory freed in a stream is back when the stream is done',
      yesNo((await free()) > before),
    );
    await made('cuStreamSynchronize', other);
    note(
      'plain memory freed in a stream is back when that is waited for beside a held one',
      yesNo((await free()) > before),
    );
    await made('cuMemFreeAsync', held, stream);
    note(
      'pool: used while a free is behind held work',
      await made('cuMemPoolGetAttribute', pool, USED, 'OUT0'),
    );
    note(
      'pool memory: copied from while its free is behind held work',
      (await peer.call('cuMemcpyDtoHAsync_v2', 'BLOCK', held, 64, other)).status,
    );
    note(
      'pool memory: another stream gets what is freed behind held work',
      yesNo((await allocate(other)) === held),
    );
    await open();
    const last = await allocate(stream);
    await made('cuCtxSynchronize');
    await waitsAs(
      'cuMemFree_v2 of pool memory while a stream is held up',
      stream,
      'cuMemFree_v2',
      last,
    );
    await waits('cuMemPoolDestroy', pool);
  });
}
