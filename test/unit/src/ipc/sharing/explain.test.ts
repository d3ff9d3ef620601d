import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { after, before, describe, test } from 'node:test';
import { BLOCK, writeBytes } from '../../../../../ffi/arena.ts';
import { deviceAttributes } from '../../../../../ffi/attributes.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import { createMemfd } from '../../../../../ffi/linux/libc.ts';
import { processStartTime } from '../../../../../ffi/linux/process.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  VirtualMemory,
} from '../../../../../src/index.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { localProcess } from '../../../../../src/ipc/identity.ts';
import {
  type Explanation,
  explain,
  exportIpc,
  type OpenOptions,
  openIpc,
} from '../../../../../src/ipc/index.ts';
import { withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { legacy as legacyKind } from '../../../../../src/ipc/sharing/legacy.ts';
import { openBlocker } from '../../../../../src/ipc/sharing/open.ts';
import { leaves } from '../../../../support/left-open.ts';
import { killed, startProcess } from '../../../../support/program.ts';
import { emulate, runProgram } from '../../emulate.ts';

/** Another running process of the same user. */
let neighbour: ChildProcess;
const identityOf = (pid: number) => ({ pid, startTime: processStartTime(pid) ?? 0 });

before(() => {
  neighbour = startProcess('sleep', ['60']);
});
after(() => killed(neighbour));

/** A descriptor of each kind, as from another process. */
function descriptors(fields: object = {}): Record<IpcDescriptor['kind'], IpcDescriptor> {
  const pool = MemoryPool.create({ maxSize: 1 << 20, shareable: true });
  const memory = VirtualMemory.reserve(2 << 20, { shareable: true });
  memory.grow(100);
  const objects = {
    legacy: DeviceBuffer.allocate(16),
    pool: pool.allocate(16),
    virtual: memory.buffer,
    event: CudaEvent.create({ interprocess: true }),
  };
  const by = { ...identityOf(neighbour.pid as number), ...fields };
  return Object.fromEntries(
    Object.entries(objects).map(([kind, object]) => {
      const { descriptor } = exportIpc(object);
      return [kind, withChecksum({ ...descriptor, ...by } as never)];
    }),
  ) as unknown as Record<IpcDescriptor['kind'], IpcDescriptor>;
}

const FD_STANDING_FOR_ONE = createMemfd('cuffi.stand-in', 0);
const fdsFor = ({ kind }: IpcDescriptor): number[] =>
  kind === 'pool' || kind === 'virtual' ? [FD_STANDING_FOR_ONE] : [];

/** All codes of explain, and those that a test has provoked. */
const causes: Readonly<Record<NonNullable<Explanation['code']>, true>> = {
  'invalid-descriptor': true,
  'version-mismatch': true,
  corrupted: true,
  'other-machine': true,
  'same-process': true,
  'same-pid': true,
  wsl: true,
  'device-not-visible': true,
  mig: true,
  'compute-mode': true,
  'not-supported': true,
  'exporter-gone': true,
  'other-user': true,
  'no-file-descriptor': true,
  unverified: true,
};
const provoked = new Set<string | undefined>();

/** Asserts that explain and openIpc refuse a descriptor for a reason before anything is opened. */
function refused(
  descriptor: unknown,
  code: string,
  reason: RegExp,
  options: OpenOptions = {},
): void {
  const recorder = recordCalls();
  const found = explain(descriptor, options);
  assert.deepEqual([found.openable, found.code], [false, code], found.reason);
  assert.match(found.reason, reason);
  assert.ok(found.hint.length > 10);
  provoked.add(found.code);
  const { fds: _, ...rest } = options;
  assert.throws(() => openIpc(descriptor, rest), { name: 'IpcError', code });
  recorder.stop();
  const asked = recorder.calls.filter(({ name }) => /Ipc|Import|AddressReserve/.test(name));
  assert.deepEqual(asked, []);
}

describe('explain', () => {
  test('descriptors of a living process are openable, and `unverified` unless a file descriptor keeps the object', () => {
    emulate();
    const fine = { openable: true, code: undefined, reason: '', hint: '' };
    const { virtual, ...byHandle } = descriptors();
    assert.deepEqual(explain(virtual, { fds: fdsFor(virtual) }), fine);
    const pool = withChecksum({
      ...exportIpc(MemoryPool.create({ maxSize: 1 << 20, shareable: true })).descriptor,
      ...identityOf(neighbour.pid as number),
    } as never);
    assert.deepEqual(explain(pool, { fds: fdsFor(pool) }), fine);
    for (const descriptor of Object.values(byHandle)) {
      const { openable, code, reason, hint } = explain(descriptor, { fds: fdsFor(descriptor) });
      assert.deepEqual([openable, code], [true, 'unverified']);
      assert.match(reason, new RegExp(`process ${neighbour.pid} knows .* cannot be verified`));
      assert.match(hint, /peer\.open/);
    }
  });

  test('a message that is not a descriptor, or is corrupted, is reported as such', () => {
    emulate();
    const { legacy } = descriptors();
    refused({}, 'invalid-descriptor', /kind/);
    refused({ ...legacy, version: 1 }, 'version-mismatch', /version 1 of the protocol/);
    refused({ ...legacy, byteLength: 15 }, 'corrupted', /checksum/);
  });

  test('a descriptor of another machine or an earlier boot is refused by its boot id', () => {
    emulate();
    const machine = '00000000-0000-0000-0000-000000000000';
    for (const descriptor of Object.values(descriptors({ machine })))
      refused(
        descriptor,
        'other-machine',
        new RegExp(`boot id ${machine}, here ${localProcess().machine}`),
      );
  });

  test('a descriptor of this process is refused unless an alias is requested', () => {
    emulate();
    const { pid, startTime } = localProcess();
    for (const descriptor of Object.values(descriptors({ pid, startTime }))) {
      refused(descriptor, 'same-process', /this very process/);
      assert.equal(explain(descriptor, { sameProcess: 'alias' }).openable, true);
    }
  });

  test('an equal pid in another pid namespace is refused for kinds that the driver finds by pid', () => {
    emulate();
    const { pool, virtual, legacy, event } = descriptors({ pid: process.pid, pidNamespace: 1 });
    for (const descriptor of [legacy, event])
      refused(descriptor, 'same-pid', /has the same pid as this process/);
    for (const descriptor of [pool, virtual])
      assert.equal(explain(descriptor, { fds: fdsFor(descriptor) }).openable, true);
  });

  test('WSL is detected by /proc/version, and nothing can be opened there without a driver call', () => {
    const { code, stdout, stderr } = runProgram(new URL('../fixtures/on-wsl.ts', import.meta.url));
    assert.equal(code, 0, stderr);
    const found = JSON.parse(stdout) as Record<'legacy' | 'pool' | 'virtual' | 'event', object>;
    const refused = { code: 'wsl', thrown: 'wsl', asked: [] };
    assert.deepEqual(found, {
      legacy: refused,
      pool: refused,
      virtual: refused,
      event: refused,
      support: 'WSL does not support CUDA IPC',
    });
    provoked.add(refused.code);
  });

  test('an invisible GPU is named unless a context or device is given, and a MIG slice is reported as one', () => {
    const driver = emulate();
    const device = 'GPU-00000000-0000-0000-0000-000000000000';
    for (const descriptor of Object.values(descriptors({ device }))) {
      refused(
        descriptor,
        'device-not-visible',
        new RegExp(`${device}, which this process does not see`),
      );
      assert.equal(explain(descriptor, { device: 0, fds: fdsFor(descriptor) }).openable, true);
    }
    refused(descriptors({ device: device.replace('GPU', 'MIG') }).legacy, 'mig', /MIG-/);
    const { legacy } = descriptors({ device });
    const name = Buffer.from('NVIDIA H200 MIG 1g.18gb\0');
    selectDriver({
      ...driver,
      cuDeviceGetName: () => {
        writeBytes(name, BLOCK);
        return 0;
      },
    });
    refused(legacy, 'mig', /it sees MIG-/);
  });

  test('an exclusive compute mode and a missing capability of the device are reported', () => {
    leaves(
      'entry of src/memory/pool-state.ts sharedPools',
      'its pool is of a driver that is no longer selected',
    );
    const attributes = (text: string) => emulate({ CUFFI_EMULATED_ATTRIBUTES: text });
    emulate();
    const made = descriptors();
    attributes(`${deviceAttributes.computeMode}=3`);
    for (const descriptor of Object.values(made))
      refused(descriptor, 'compute-mode', /exclusive to one process/, { fds: fdsFor(descriptor) });
    attributes(`${deviceAttributes.unifiedAddressing}=0`);
    refused(made.legacy, 'not-supported', /unified addressing/);
    attributes(`${deviceAttributes.mempoolSupportedHandleTypes}=8`);
    refused(made.pool, 'not-supported', /file descriptor/, { fds: fdsFor(made.pool) });
    attributes(`${deviceAttributes.handleTypePosixFileDescriptorSupported}=0`);
    refused(made.virtual, 'not-supported', /file descriptor/, { fds: fdsFor(made.virtual) });
    attributes(`${deviceAttributes.ipcEventSupported}=0`);
    refused(made.event, 'not-supported', /interprocess events/);
  });

  test('read-only memory of a kind that the driver maps writable is refused', () => {
    emulate();
    const { legacy, pool, virtual } = descriptors({ access: 'read' });
    for (const [descriptor, what] of [
      [legacy, 'plain device memory'],
      [pool, 'memory of a pool'],
    ] as const) {
      const options = { fds: fdsFor(descriptor) };
      refused(descriptor, 'not-supported', new RegExp(`shared ${what} read-only`), options);
    }
    assert.equal(explain(virtual, { fds: fdsFor(virtual) }).openable, true);
  });

  test('a pool allocation that would crash this process is refused, whatever limit its sender has', (t) => {
    t.after(() => delete process.env['CUFFI_POOL_SHARE_LIMIT']);
    emulate();
    const baseByteLength = 5 * 2 ** 30 + 1;
    const { pool } = descriptors({ baseByteLength });
    const options = { fds: fdsFor(pool) };
    refused(pool, 'not-supported', /5368709121 bytes .* above 5368709120/, options);
    process.env['CUFFI_POOL_SHARE_LIMIT'] = String(baseByteLength);
    assert.equal(explain(pool, options).code, 'unverified');
    const { legacy } = descriptors({ baseByteLength: 2 ** 40 });
    assert.equal(explain(legacy).code, 'unverified');
  });

  test('only virtual memory of an exited process is openable, because its file descriptors keep it', async () => {
    emulate();
    const child = startProcess('sleep', ['60']);
    const gone = identityOf(child.pid as number);
    await killed(child);
    const reused = { pid: neighbour.pid as number, startTime: gone.startTime - 1 };
    for (const by of [gone, reused]) {
      const { legacy, pool, event, virtual } = descriptors(by);
      for (const descriptor of [legacy, pool, event])
        refused(descriptor, 'exporter-gone', /has exited/, { fds: fdsFor(descriptor) });
      assert.equal(explain(virtual, { fds: fdsFor(virtual) }).openable, true);
    }
  });

  test('an exporter of another user is refused unless allowed', async () => {
    leaves('descriptor of anon_inode:[pidfd]', 'the process that was checked last');
    emulate();
    // Root can start a process as another user; for all others, process 1 belongs to another user.
    const isRoot = process.getuid?.() === 0;
    const otherUser = isRoot ? startProcess('sleep', ['60'], { uid: 65_534 }) : undefined;
    try {
      const made = descriptors(identityOf(otherUser?.pid ?? 1));
      for (const descriptor of Object.values(made)) {
        refused(descriptor, 'other-user', /runs as user \d+/, { fds: fdsFor(descriptor) });
        const options = { fds: fdsFor(descriptor), allowOtherUsers: true };
        assert.equal(explain(descriptor, options).openable, true);
      }
    } finally {
      if (otherUser) await killed(otherUser);
    }
  });

  test('an exporter that the system hides is refused, and one that it does not hide is accepted', () => {
    emulate();
    const { legacy } = descriptors();
    const context = Context.primary();
    const hidden = { ...localProcess(), userOf: () => undefined };
    const none = { numbers: [], isNameTrusted: true };
    const found = openBlocker(legacyKind, legacy, context, none, false, {
      ...hidden,
      isForeign: () => true,
    });
    assert.equal(found?.code, 'other-user');
    assert.match(found.reason, /a hidden user/);
    assert.equal(openBlocker(legacyKind, legacy, context, none, false, hidden), undefined);
    assert.equal(
      openBlocker(legacyKind, legacy, context, none, true, { ...hidden, isForeign: () => true }),
      undefined,
    );
  });

  test('missing file descriptors are reported', () => {
    emulate();
    const { pool, virtual } = descriptors();
    refused(pool, 'no-file-descriptor', /needs 1 .*, but 0 came/);
    refused(virtual, 'no-file-descriptor', /needs 1 .*, but 0 came/);
    assert.equal(explain(virtual, { fds: [0, 1] }).code, 'no-file-descriptor');
    for (const descriptor of [pool, virtual])
      refused(descriptor, 'no-file-descriptor', /not one of the driver's/, { fds: [0] });
  });

  test('a descriptor whose exporter cannot be seen is openable and `unverified`', () => {
    emulate();
    for (const descriptor of Object.values(descriptors({ pidNamespace: 1 }))) {
      const { openable, code, reason } = explain(descriptor, { fds: fdsFor(descriptor) });
      assert.deepEqual([openable, code], [true, 'unverified']);
      assert.match(reason, /another pid namespace/);
      provoked.add(code);
    }
  });

  test('the tests of explain cover every code', () => {
    assert.deepEqual([...provoked].sort(), Object.keys(causes).sort());
  });
});
