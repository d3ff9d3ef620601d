/** Adds a kind of shared object to a copy of the sources: one file, the list, and protocol.json. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { checkFacts, readFacts } from '../../src/protocol/facts.ts';
import { generate } from '../../src/protocol/generate.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

/** Rows of equal size in one allocation. */
const KIND = {
  name: 'batch',
  hasExporter: false,
  fields: [
    { name: 'rows', type: 'positive32' },
    { name: 'memory', type: 'virtual' },
  ],
  range: null,
  fds: 'those of the memory',
};

const FILE = `
import { IpcError } from '../../errors.ts';
import { Resource } from '../../lifetime.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import type { HostFields } from '../descriptor.ts';
import type { Kind } from './kind.ts';
import { openDescriptor } from './open.ts';
import { virtual } from './virtual.ts';

export class Batch extends Resource {
  readonly rows: number;
  readonly memory: DeviceBuffer;

  constructor(rows: number, memory: DeviceBuffer) {
    super('Batch', { owner: memory.context.resources, release: () => memory.close() });
    this.rows = rows;
    this.memory = memory;
  }

  row(at: number): DeviceBuffer {
    const byteLength = this.memory.byteLength / this.rows;
    return this.memory.subarray(at * byteLength, (at + 1) * byteLength);
  }
}

export const batch: Kind<Batch, HostFields<'batch'>> = {
  name: 'batch',
  includes: (object) => object instanceof Batch,
  check({ rows, memory }) {
    if (memory.byteLength % rows > 0) throw new IpcError('the rows of a batch have no equal size');
  },
  bufferOf: ({ memory }) => memory,
  contextOf: ({ memory }) => memory.context,
  byteLengthOf: ({ memory }) => memory.byteLength,
  export({ rows, memory }) {
    const { descriptor, fds } = virtual.export(memory);
    return {
      descriptor: { kind: 'batch', rows, memory: descriptor as HostFields<'batch'>['memory'] },
      fds,
    };
  },
  import: ({ rows, memory }, ...given) =>
    new Batch(rows, openDescriptor(virtual, memory, ...given) as DeviceBuffer),
};
`;

const PROGRAM = `
import { VirtualMemory } from './src/index.ts';
import { leases, parentPeer, spawnPeer } from './src/ipc/index.ts';
import { Batch } from './src/ipc/sharing/batch.ts';

if (process.argv[2] === 'child') {
  const parent = parentPeer();
  const { batch } = (await parent.receive()) as { batch: Batch };
  const read = await batch.row(2).copyToHost();
  await batch.row(0).copyFrom(read.map((byte) => byte + 1));
  batch.close();
  await parent.send([batch.constructor.name, batch.rows, read[0]]);
  await parent.receive().catch(() => {});
} else {
  const memory = VirtualMemory.reserve(4096, { shareable: true });
  const sent = new Batch(4, memory.grow(4096));
  await sent.row(2).copyFrom(new Uint8Array(1024).fill(7));
  using child = spawnPeer(import.meta.filename, { args: ['child'] });
  await child.send({ batch: sent });
  const kinds = leases.stats().leases.map(({ kind, byteLength }) => [kind, byteLength]);
  const received = await child.receive();
  await leases.returned(sent);
  const [written] = await sent.row(0).copyToHost();
  console.log(JSON.stringify({ kinds, received, written }));
}
`;

describe('a new kind of shared object', () => {
  let copy: string;

  before(() => {
    copy = mkdtempSync(join(tmpdir(), 'cuffi-kind-'));
    for (const name of ['src', 'ffi', 'tsconfig.json', 'package.json'])
      cpSync(join(root, name), join(copy, name), { recursive: true });
    symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
    const facts = readFacts();
    const kinds = [...facts.kinds, { ...KIND, code: facts.kinds.length }];
    const generated = generate(checkFacts({ ...facts, kinds })).get('src/ipc/protocol.ts');
    writeFileSync(join(copy, 'src/ipc/protocol.ts'), generated as string);
    writeFileSync(join(copy, 'src/ipc/sharing/batch.ts'), FILE);
    const list = join(copy, 'src/ipc/sharing/kinds.ts');
    const text = readFileSync(list, 'utf8')
      .replace(
        'import { event }',
        "import { type Batch, batch } from './batch.ts';\nimport { event }",
      )
      .replace('\n  | Channel;', '\n  | Channel\n  | Batch;')
      .replace('\n  channel,\n];', '\n  channel,\n  batch,\n];');
    writeFileSync(list, text);
    writeFileSync(join(copy, 'program.ts'), PROGRAM);
  });

  after(() => rmSync(copy, { recursive: true }));

  test('its types are right without another change', async () => {
    const tsc = join(root, 'node_modules/.bin/tsc');
    const args = [
      '-p',
      'src/tsconfig.json',
      '--noEmit',
      '--declaration',
      'false',
      '--declarationMap',
      'false',
    ];
    const { stdout } = await run(tsc, args, { cwd: copy }).catch(
      (error: { readonly stdout: string }) => error,
    );
    assert.equal(stdout, '');
  });

  test('its objects travel between processes, with leases', async () => {
    const loader = pathToFileURL(join(root, 'test/support/tsx-if-needed.mjs')).href;
    const { stdout } = await run(process.execPath, ['--import', loader, 'program.ts'], {
      cwd: copy,
      env: { ...process.env, CUFFI_DRIVER: 'emulated' },
      timeout: 60_000,
    });
    assert.deepEqual(JSON.parse(stdout), {
      kinds: [['batch', 4096]],
      received: ['Batch', 4, 7],
      written: 8,
    });
  });
});
