/** Processes with different CUDA_VISIBLE_DEVICES share memory: devices are found by their UUIDs. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readInt32 } from '../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { kindNames, kinds } from '../../src/cli/kinds.ts';
import { Context, Device, DeviceBuffer, devices } from '../../src/index.ts';
import { type ChildPeer, getIpcHandle, ipcSupport, spawnPeer } from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { leaves } from '../support/left-open.ts';
import { killed, programFile } from '../support/program.ts';
import { noPython, PythonWorker } from '../support/python.ts';
import type { Request } from './fixtures/seeing.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '4';

const deadline = { timeout: 60_000 };
const needsTwo = { ...deadline, skip: Device.count < 2 ? 'needs a second GPU' : false };
const uuids = devices().map(({ uuid }) => uuid);
const last = uuids.length - 1;

/** Where it was set for the suite, what it lists are places among those, not ordinals here. */
const isInherited = process.env['CUDA_VISIBLE_DEVICES'] !== undefined;
const all = { ...deadline, skip: isInherited ? 'the suite has CUDA_VISIBLE_DEVICES' : false };

/** A child that sees what `list` says. */
class Seeing implements AsyncDisposable {
  readonly peer: ChildPeer;

  constructor(list: string | undefined) {
    const { path, execArgv } = programFile(new URL('./fixtures/seeing.ts', import.meta.url));
    const env = { ...process.env };
    delete env['CUDA_VISIBLE_DEVICES'];
    if (list !== undefined) env['CUDA_VISIBLE_DEVICES'] = list;
    this.peer = spawnPeer(path, { execArgv, env });
  }

  ask<T>(request: Request): Promise<T> {
    return this.peer.request(request as never, { timeoutMs: 30_000 }) as Promise<T>;
  }

  async uuids(): Promise<readonly string[]> {
    const seen = await this.ask<readonly { uuid: string; pciAddress: string }[]>({ do: 'devices' });
    for (const { uuid, pciAddress } of seen)
      assert.equal(pciAddress, devices().find((device) => device.uuid === uuid)?.pciAddress);
    return seen.map(({ uuid }) => uuid);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.peer.close();
    await killed(this.peer.process);
  }
}

/** The kinds of memory that a device shares. */
const sharedKinds = kindNames.filter(
  (kind) => ipcSupport(Device.get(0))[kinds[kind].capability].supported,
);

interface Found {
  readonly ordinal: number;
  readonly uuid: string;
  readonly bytes: readonly number[];
}

describe('CUDA_VISIBLE_DEVICES', () => {
  test('a process sees what it lists, in its order, up to the first wrong entry', all, async () => {
    const reversed = [...uuids].reverse();
    const cases: readonly (readonly [string, readonly string[]])[] = [
      [uuids.map((_, at) => last - at).join(), reversed],
      [reversed.join(), reversed],
      [`0,${uuids.length},${last}`, [uuids[0] as string]],
      ['0,-1', [uuids[0] as string]],
      ['0,-1,0', [uuids[0] as string]],
      [`${uuids[0]},0`, [uuids[0] as string]],
      [`GPU-${uuids[0]?.slice(4).toUpperCase()}x`, [uuids[0] as string]],
    ];
    for (const [list, expected] of cases) {
      await using child = new Seeing(list);
      assert.deepEqual(await child.uuids(), expected, list);
    }
  });

  test('cuInit answers NO_DEVICE in a process that sees none', all, async () => {
    for (const list of ['', '-1', String(uuids.length), 'MIG-0', `gpu-${uuids[0]?.slice(4)}`]) {
      await using child = new Seeing(list);
      await assert.rejects(
        child.ask({ do: 'devices' }),
        (error: Error) => /CUDA_ERROR_NO_DEVICE, 100/.test(`${error.message} ${error.cause}`),
        list,
      );
    }
  });

  test(
    'cuInit answers INVALID_DEVICE in a process whose list names a device twice',
    all,
    async () => {
      for (const list of ['0,0', `${uuids[0]},${uuids[0]}`]) {
        await using child = new Seeing(list);
        await assert.rejects(
          child.ask({ do: 'devices' }),
          (error: Error) =>
            /CUDA_ERROR_INVALID_DEVICE, 101/.test(`${error.message} ${error.cause}`),
          list,
        );
      }
    },
  );

  test('each worker of a pool sees one GPU', {
    ...needsTwo,
    skip: needsTwo.skip || all.skip,
  }, async () => {
    for (const [ordinal, uuid] of uuids.entries()) {
      await using child = new Seeing(String(ordinal));
      assert.deepEqual(await child.uuids(), [uuid]);
    }
  });

  test(
    'memory of every kind opens on the same device, which has another ordinal',
    needsTwo,
    async () => {
      await using child = new Seeing([...uuids].reverse().join());
      for (const kind of sharedKinds) {
        using memory = kinds[kind].allocate(4096, Context.primary(0));
        memory.buffer.fill(7);
        assert.deepEqual(
          await child.ask<Found>({ do: 'read', buffer: memory.buffer }),
          { ordinal: last, uuid: uuids[0], bytes: [7] },
          kind,
        );
        const { buffer, uuid } = await child.ask<{ buffer: DeviceBuffer; uuid: string }>({
          do: 'make',
          kind,
          value: 9,
        });
        assert.equal(uuid, uuids[last], kind);
        assert.equal(buffer.context.device.ordinal, last, kind);
        // The driver, too, says that it is in memory of that device.
        const { address, context } = buffer;
        const ordinal = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        assert.equal(
          context.run(() => cu.cuPointerGetAttribute(OUT0, ordinal, address)),
          0,
        );
        assert.equal(readInt32(OUT0), last, kind);
        assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([9]), kind);
        buffer.close();
      }
    },
  );

  test('memory of a device that a process does not see is refused by name', needsTwo, async () => {
    leaves('descriptor of cuffi.virtual', 'what makes sharing quick, of one more device');
    await using child = new Seeing(uuids[last]);
    for (const kind of sharedKinds) {
      using memory = kinds[kind].allocate(4096, Context.primary(0));
      const refused: unknown = await child
        .ask({ do: 'read', buffer: memory.buffer })
        .catch((error: unknown) => error);
      const text = `${(refused as Error).message} ${(refused as Error).cause}`;
      assert.equal((refused as { code?: string }).code, 'device-not-visible', kind);
      assert.ok(text.includes(uuids[0] as string) && text.includes(uuids[last] as string), kind);
      // The connection goes on.
      using visible = kinds[kind].allocate(4096, Context.primary(last));
      visible.buffer.fill(3);
      assert.deepEqual(
        await child.ask<Found>({ do: 'read', buffer: visible.buffer }),
        { ordinal: 0, uuid: uuids[last], bytes: [3] },
        kind,
      );
    }
  });
});

describe('openIpcBuffer', () => {
  const reaches = Device.count > 1 && Device.get(last).canAccessPeer(0);
  const skip = needsTwo.skip || (reaches ? false : 'needs a second GPU that reaches the first');

  test('opens plain memory of a device that is not visible on one that is named', {
    ...deadline,
    skip,
  }, async () => {
    await using child = new Seeing(uuids[last]);
    using buffer = DeviceBuffer.allocate(4096, { device: 0 });
    buffer.fill(6);
    await Context.primary(0).synchronize();
    const descriptor = getIpcHandle(buffer);
    await assert.rejects(child.ask({ do: 'open', descriptor }), { code: 'device-not-visible' });
    assert.deepEqual(await child.ask<Found>({ do: 'open', descriptor, device: 0 }), {
      ordinal: 0,
      uuid: uuids[last],
      bytes: [6],
    });
  });
});

describe('CUDA_VISIBLE_DEVICES in Python', { ...needsTwo, skip: noPython || needsTwo.skip }, () => {
  const worker = (list: string): PythonWorker =>
    new PythonWorker('serve', { env: { ...process.env, CUDA_VISIBLE_DEVICES: list } });
  const SEEN =
    '[cuffi._devices.format_uuid(device.uuid) for device in cuffi._devices.all_devices()]';

  test('a process sees what it lists, and opens memory by UUID', deadline, async () => {
    await using python = worker([...uuids].reverse().join());
    assert.deepEqual(await python.ask('evaluate', { source: SEEN }), [...uuids].reverse());
    for (const kind of sharedKinds) {
      using memory = kinds[kind].allocate(4096, Context.primary(0));
      memory.buffer.fill(5);
      await Context.primary(0).synchronize();
      const data = await python.ask<Uint8Array>('read', { thing: memory.buffer });
      assert.deepEqual(new Set(data), new Set([5]), kind);
    }
  });

  test('memory of a device that it does not see is refused by name', deadline, async () => {
    await using python = worker(uuids[last] as string);
    for (const kind of sharedKinds) {
      using memory = kinds[kind].allocate(4096, Context.primary(0));
      await assert.rejects(
        python.ask('read', { thing: memory.buffer }),
        (error: Error) => {
          assert.equal((error as { code?: string }).code, 'device-not-visible', kind);
          const text = `${error.message} ${error.cause}`;
          return text.includes(`this memory is on GPU ${uuids[0]}`) && text.includes('it sees');
        },
        kind,
      );
    }
  });

  test('indices, wrong entries and duplicates as in Node', {
    ...deadline,
    skip: all.skip,
  }, async () => {
    for (const [list, expected] of [
      [`${last},0`, [uuids[last], uuids[0]]],
      [`${last},-1,0`, [uuids[last]]],
      [`${uuids[0]},GPU-,${uuids[last]}`, [uuids[0]]],
      [`GPU-${uuids[0]?.slice(4).toUpperCase()}x`, [uuids[0]]],
    ] as const) {
      await using python = worker(list);
      assert.deepEqual(await python.ask('evaluate', { source: SEEN }), expected, list);
    }
    for (const [list, status] of [
      ['', 100],
      ['0,0', 101],
      [`${uuids[0]},${uuids[0]}`, 101],
      ['MIG-0', 100],
      [`gpu-${uuids[0]?.slice(4)}`, 100],
    ] as const) {
      await using python = worker(list);
      const caught = await python.ask('evaluate', { source: SEEN }).catch((error: Error) => error);
      const text = String((caught as Error).cause ?? caught) + caught;
      assert.match(text, /cuInit/, list);
      assert.match(text, new RegExp(`, ${status}\\)`), list);
    }
  });
});
