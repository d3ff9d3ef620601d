/** Programs of a user's, as text: they are written beside an unpacked package and run there. */

/** Names that the entries are known to export. */
const names: Readonly<Record<string, readonly string[]>> = {
  cuffi: ['Context', 'CudaEvent', 'Device', 'DeviceBuffer', 'Stream'],
  'cuffi/ipc': [
    'connect',
    'exportIpc',
    'explain',
    'getIpcHandle',
    'openIpc',
    'openIpcBuffer',
    'openIpcEvent',
    'spawnPeer',
  ],
  'cuffi/tensors': ['TensorMap', 'loadTensors', 'saveTensors'],
  'cuffi/ffi': ['cu'],
};

const program = (load: (specifier: string, as: string) => string): string => {
  const lines = Object.entries(names).flatMap(([specifier, exported], n) => [
    load(specifier, `m${n}`),
    ...exported.map(
      (name) => `if (!m${n}.${name}) throw new Error('${specifier} has no ${name}');`,
    ),
  ]);
  return `${lines.join('\n')}\nconsole.log('ok');\n`;
};

/** Prints `ok` where every entry has its names; an ES module. */
export const esm = program((specifier, as) => `import * as ${as} from '${specifier}';`);

/** The same in CommonJS. */
export const cjs = program((specifier, as) => `const ${as} = require('${specifier}');`);

/** Prints the exported functions and classes whose own name is not that of the export. */
export const wrongNames = `
const entries = await Promise.all([
${Object.keys(names)
  .map((specifier) => `  import('${specifier}'),`)
  .join('\n')}
]);
const wrong = entries.flatMap((entry) =>
  Object.entries(entry).filter(([name, value]) => typeof value === 'function' && value.name !== name),
);
console.log(wrong.map(([name, value]) => \`\${name}: \${value.name}\`).join(', '));
`;

/** Compiles only if every entry has its types and none of their members, parameters or results is `any`. */
export const types = `
import * as cuda from 'cuffi';
import * as ffi from 'cuffi/ffi';
import * as ipc from 'cuffi/ipc';
import * as tensors from 'cuffi/tensors';

type IsAny<T> = 0 extends 1 & T ? true : false;
type Signature<F> = F extends (...args: infer Args) => infer Result ? Result | Args[number] : never;
/** The names of T's members that are \`any\`, or functions that take or return it. */
type AnyMembers<T> = {
  [K in keyof T]-?: true extends IsAny<T[K]> | IsAny<Signature<T[K]>> | IsAny<Awaited<Signature<T[K]>>>
    ? K
    : never;
}[keyof T];
type AnyInstances<T> = {
  [K in keyof T]: T[K] extends abstract new (...args: never) => infer Instance
    ? AnyMembers<Omit<Instance, keyof Error>>
    : never;
}[keyof T];
type Nothing<T> = [T] extends [never] ? true : T;

export const membersThatAreAny: [
  Nothing<AnyMembers<typeof cuda>>,
  Nothing<AnyMembers<typeof ipc>>,
  Nothing<AnyMembers<typeof tensors>>,
  Nothing<AnyMembers<typeof ffi>>,
  Nothing<AnyInstances<typeof cuda>>,
  Nothing<AnyInstances<typeof ipc>>,
  Nothing<AnyInstances<typeof tensors>>,
  Nothing<AnyMembers<typeof ffi.cu>>,
] = [true, true, true, true, true, true, true, true];

export type Objects = [cuda.Context, cuda.CudaEvent, cuda.Device, cuda.DeviceBuffer, cuda.Stream];

export async function use(): Promise<void> {
  const status: number = ffi.cu.cuInit(0);
  // @ts-expect-error
  ffi.cu.nothing;
  // @ts-expect-error
  ffi.cu.cuInit('0');
  // @ts-expect-error
  cuda.Device.nothing;

  const array = await cuda.toDevice(new Float32Array(status));
  const floats: Float32Array = await array.copyToHost();
  // @ts-expect-error
  const integers: Int32Array = await array.copyToHost();
  // @ts-expect-error
  array.nothing;

  // @ts-expect-error
  ipc.getIpcHandle(5);
  // @ts-expect-error
  ipc.openIpcBuffer.nothing;
  const child = await ipc.spawnPeer('child.mjs');
  const pid: number = child.pid;
  // @ts-expect-error
  const text: string = child.pid;
  // @ts-expect-error
  child.nothing;
}
`;

/** Prints the name of the error that the first driver call throws. */
export const bindings = `
import 'cuffi';
import { cu } from 'cuffi/ffi';
try {
  cu.cuInit(0);
} catch (error) {
  console.log(error.name);
}
`;

/**
 * Prints which of Node's modules and which scripts exist after `import 'cuffi'`, and which scripts
 * after zod and the emulated driver were used. V8 itself is asked: it knows ES modules and CommonJS alike, however they were loaded.
 */
export const loadedScripts = `
await import('cuffi');
// Node's own modules, before the inspector loads some more.
const builtins = process.moduleLoadList.map((entry) => entry.replace('NativeModule ', ''));
const { Session } = await import('node:inspector');

function scripts() {
  const urls = [];
  const session = new Session();
  session.connect();
  session.on('Debugger.scriptParsed', ({ params }) => urls.push(params.url));
  session.post('Debugger.enable');
  session.disconnect();
  return urls;
}

const atImport = scripts();
const { cu } = await import('cuffi/ffi');
cu.cuInit(0);
const { openIpcBuffer } = await import('cuffi/ipc');
try {
  openIpcBuffer({});
} catch {
  // It has read the message.
}
console.log(JSON.stringify({ builtins, atImport, afterUse: scripts() }));
`;

/**
 * Uses what needs no connection, then every way to make one. Prints `ok`, and the code of the error
 * of each of those ways, if there is one.
 */
export const withoutConnections = `
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import * as cuda from 'cuffi';
import * as ipc from 'cuffi/ipc';
import { watchFd } from 'cuffi/ffi';

if (process.send) {
  const [message] = await once(process, 'message');
  const opened = ipc.openIpcArray(message);
  const numbers = await opened.copyToHost();
  await opened.copyFrom(numbers.map((n) => n * 2));
  opened.close();
  process.disconnect();
} else {
  const stream = cuda.Stream.create();
  const array = await cuda.toDevice(new Float32Array([1, 2, 3, 4]), { stream });
  array.slice({ start: 1, stop: 3 }).fill(7, { stream });
  const event = cuda.CudaEvent.create();
  event.record(stream);
  await event.synchronize();
  await stream.synchronize();
  assert.deepEqual([...(await array.copyToHost(undefined, { stream }))], [1, 7, 7, 4]);

  const large = new Uint8Array(5 << 20).fill(3);
  const copied = await cuda.toDevice(large);
  assert.deepEqual(Buffer.from(await copied.copyToHost()), Buffer.from(large));

  const child = fork(process.argv[1]);
  const exited = once(child, 'exit');
  const handle = ipc.getIpcHandle(array);
  child.send(handle);
  assert.equal((await exited)[0], 0);
  assert.deepEqual([...(await array.copyToHost())], [2, 14, 14, 8]);
  for (const one of [handle, array, copied, event, stream]) one.close();
  await assert.rejects(async () => stream.synchronize(), { code: 'closed' });

  const script = process.argv[1] + '.not.there';
  const name = '@cuffi-package-' + process.pid;
  const ways = {
    spawnPeer: () => ipc.spawnPeer(script, { stdio: 'ignore' }),
    parentPeer: () => ipc.parentPeer(),
    listen: () => ipc.listen(name),
    connect: () => ipc.connect(name),
    // Bun would abort the process.
    watchFd: () => watchFd(0, { readable: true }, () => {}),
  };
  const codes = {};
  for (const [way, call] of Object.entries(ways)) {
    try {
      (await call()).close();
    } catch (error) {
      codes[way] = error.code;
    }
  }
  console.log('ok', JSON.stringify(codes));
}
`;

/** Prints which errors of calls that reject have no line of the program that calls. */
export const stacks = `
import { Context, DeviceBuffer, Stream, toDevice } from 'cuffi';
import { Channel, connect, listen, spawnPeer, Timeline } from 'cuffi/ipc';

const limits = { timeoutMs: 10 };
const nested = [[[[[[[[[[[[1, 'x']]]]]]]]]]]];
const stream = Stream.create({ nonBlocking: true });
const timeline = Timeline.create();
const peer = spawnPeer(process.argv[1] + '.not.there', { stdio: 'ignore' });
const channel = Channel.create({ slots: 1, byteLength: 16, deliver: 'all' });
await channel.acquire();
const closed = await toDevice([1]);
closed.close();
const calls = {
  toDevice: () => toDevice(nested),
  copyToHost: () => closed.copyToHost(),
  allocate: () => DeviceBuffer.allocate(2 ** 50),
  reached: () => timeline.reached(1, limits),
  closedMeanwhile: () => {
    setTimeout(() => channel.close(), 20);
    return channel.acquire();
  },
  acquire: () => channel.acquire(limits),
  accept: () => listen('@cuffi-stacks-' + process.pid).accept(limits),
  connect: () => connect('@cuffi-nobody-' + process.pid, limits),
  send: () => peer.send({ nested: [[[[[[[[[[[[() => 1]]]]]]]]]]]] }),
  receive: () => peer.receive(),
  request: () => peer.request(1),
  iterate: async () => {
    for await (const value of peer);
  },
};
async function lineOfTheUser(call) {
  await call();
}
const without = [];
for (const [name, call] of Object.entries(calls)) {
  try {
    await lineOfTheUser(call);
    without.push(name + ' did not reject');
  } catch (error) {
    if (!error.stack.includes('lineOfTheUser')) without.push(name);
  }
}
console.log(JSON.stringify(without));
process.exit();
`;

/** Prints the names that the entries export, as JSON. */
export const exportedNames = `
const entries = {};
for (const specifier of ['cuffi', 'cuffi/ipc', 'cuffi/tensors', 'cuffi/ffi'])
  entries[specifier] = Object.keys(await import(specifier));
console.log(JSON.stringify(entries));
`;

/**
 * Loads the package in a realm of its own, with Node's classes of memory, as Jest runs each test file;
 * needs --experimental-vm-modules. Prints `ok` where what comes from the other realm is taken.
 */
export const inAnotherRealm = `
import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { createContext, SourceTextModule, SyntheticModule } from 'node:vm';

const { Buffer, Uint8Array, process, setImmediate, setTimeout, clearTimeout, URL } = globalThis;
const { performance, AbortSignal, AbortController, DOMException, EventTarget, queueMicrotask } = globalThis;
const realm = createContext({
  Buffer, Uint8Array, process, setImmediate, setTimeout, clearTimeout, URL, console,
  performance, AbortSignal, AbortController, DOMException, EventTarget, queueMicrotask,
});
const modules = new Map();
async function load(specifier, from) {
  const isOwn = specifier.startsWith('.') || specifier.startsWith('file:');
  const url = isOwn ? new URL(specifier, from).href : specifier;
  const known = modules.get(url);
  if (known) return known;
  let made;
  if (isOwn) {
    const source = readFileSync(fileURLToPath(url), 'utf8');
    const initializeImportMeta = (meta) => Object.assign(meta, { url });
    made = new SourceTextModule(source, { identifier: url, context: realm, initializeImportMeta });
  } else {
    const core = await import(specifier);
    const names = Object.keys(core);
    made = new SyntheticModule(names, () => names.forEach((name) => made.setExport(name, core[name])), {
      context: realm,
      identifier: specifier,
    });
  }
  modules.set(url, made);
  return made;
}
const entry = await load(import.meta.resolve('cuffi'), import.meta.url);
await entry.link((specifier, { identifier }) => load(specifier, identifier));
await entry.evaluate();
const { DeviceBuffer, PinnedBuffer, float32, toDevice } = entry.namespace;

if (float32.TypedArray === Float32Array) throw new Error('it is not in a realm of its own');
const array = await toDevice(new Float32Array([1, 2]), { shape: [2] });
if ((await array.copyToHost()).join() !== '1,2') throw new Error('wrong items');
const bytes = await toDevice(Buffer.alloc(4, 7), { dtype: 'V4', shape: [] });
if ((await bytes.copyToHost()).join() !== '7,7,7,7') throw new Error('wrong bytes');
const pinned = PinnedBuffer.allocate(16);
const view = new Uint8Array(pinned.buffer);
pinned.close();
const refused = await DeviceBuffer.allocate(16).copyFrom(view).catch((error) => error);
if (refused?.name !== 'ClosedError') throw new Error('memory of a closed buffer was copied');
console.log('ok');
process.exit(0);
`;
