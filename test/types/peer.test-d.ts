/** Typed peers, and what may be sent, when it is compiled. */
import { expectTypeOf } from 'expect-type';
import {
  CudaEvent,
  type DeviceArray,
  type DeviceBuffer,
  type float32,
  type Kernel,
  type MemoryPool,
  type Stream,
} from '../../src/index.ts';
import {
  type ChildPeer,
  connect,
  type Listener,
  listen,
  type Peer,
  parentPeer,
  type RequestContext,
  type Sendable,
  spawnPeer,
  spawnPython,
} from '../../src/ipc/index.ts';

declare const buffer: DeviceBuffer;
declare const pool: MemoryPool;
declare const array: DeviceArray<typeof float32>;
declare const kernel: Kernel;
declare const stream: Stream;

// ---- Anything that can be sent ----

declare const peer: Peer;
interface Frame {
  readonly step: number;
  readonly label?: string;
  readonly image: DeviceBuffer;
  readonly parts: readonly Frame[];
}
declare const frame: Frame;
class Point {
  x = 1;
}
declare const anything: unknown;
for (const value of [null, undefined, 1, 1n, 'x', true] as const) void peer.send(value);
void peer.send(frame);
void peer.send([frame, [frame]]);
void peer.send({ buffer, pool, array, event: CudaEvent.create({ interprocess: true }) });
void peer.send(new Map<string, unknown>([['a', buffer]]));
void peer.send(new Map([[buffer, new Set([array])]]));
void peer.send([
  new Date(),
  new Error('x'),
  new AggregateError([]),
  new Uint8Array(1),
  new DataView(new ArrayBuffer(1)),
]);
void peer.send(Buffer.from('x'));
void peer.send(new Point());
void peer.send(anything);
void peer.send(anything as never[]);
void peer.request(frame);

// @ts-expect-error a function
void peer.send(() => 1);
// @ts-expect-error a function inside
void peer.send({ step: 1, done: () => 1 });
// @ts-expect-error a class
void peer.send({ Point });
// @ts-expect-error a symbol
void peer.send({ tag: Symbol('x') });
// @ts-expect-error a Promise that was not awaited
void peer.send(buffer.copyToHost());
// @ts-expect-error a Promise inside
void peer.send([{ late: Promise.resolve(1) }]);
// @ts-expect-error a WeakMap
void peer.send(new WeakMap());
// @ts-expect-error a WeakRef
void peer.send({ ref: new WeakRef({}) });
// @ts-expect-error a regular expression
void peer.send(/x/);
// @ts-expect-error shared memory of the host
void peer.send(new SharedArrayBuffer(1));
// @ts-expect-error a stream
void peer.send({ stream });
// @ts-expect-error a kernel
void peer.send([kernel]);
// @ts-expect-error a function as the value of a Map
void peer.send(new Map([['a', () => 1]]));
// @ts-expect-error a symbol as a member of a Set
void peer.send(new Set([Symbol('x')]));
// @ts-expect-error requests as well
void peer.request({ done: () => 1 });

expectTypeOf<Sendable<() => void>>().toEqualTypeOf<'a function cannot be sent'>();
expectTypeOf<Sendable<{ a: Promise<1> }>>().toEqualTypeOf<{
  readonly a: 'a Promise cannot be sent: await it first';
}>();
expectTypeOf<Sendable<unknown>>().toBeUnknown();
function broadcast<T>(peers: readonly Peer[], value: T & Sendable<T>): Promise<unknown> {
  return Promise.all(peers.map((each) => each.send(value as unknown)));
}
void broadcast([peer], { frame });
// @ts-expect-error in one's own functions, too
void broadcast([peer], { done: () => 1 });

// ---- Typed for what they carry ----

type Task = { readonly do: 'scale'; readonly input: DeviceBuffer; readonly by?: number } | 'stop';
type Answer = { readonly output: DeviceBuffer };

const child = spawnPeer<Answer, Task>('worker.js');
expectTypeOf(child).toEqualTypeOf<ChildPeer<Answer, Task>>();
expectTypeOf(child.receive()).resolves.toEqualTypeOf<Answer>();
const worker = spawnPython<Answer, Task>({ module: 'pkg.worker' }, { args: ['--fast'] });
expectTypeOf(worker).toEqualTypeOf<ChildPeer<Answer, Task>>();
const controller = new AbortController();
const how = {
  stdio: ['ignore', 'pipe', 'inherit'],
  cwd: '/srv',
  signal: controller.signal,
} as const;
spawnPython('model.py', { ...how, stdio: [...how.stdio], args: ['--fast'], python: 'python3.11' });
spawnPeer('worker.js', { ...how, stdio: [...how.stdio], args: ['--fast'], execArgv: [] });
// @ts-expect-error: of Node only
spawnPython('model.py', { execArgv: [] });
// @ts-expect-error: options are the second argument
spawnPython({ module: 'pkg.worker', args: ['--fast'] });
expectTypeOf(child.request('stop')).resolves.toEqualTypeOf<Answer>();
for await (const { output } of child) expectTypeOf(output).toEqualTypeOf<DeviceBuffer>();
void child.send({ do: 'scale', input: buffer, by: 2 });
void child.send('stop');
// @ts-expect-error not a task
void child.send({ do: 'stop', input: buffer });
// @ts-expect-error a name that a task does not have
void child.send({ do: 'scale', input: buffer, times: 2 });
// @ts-expect-error not a task
void child.request({ do: 'scale' });

const parent = parentPeer<Task, Answer>();
void parent.serve((task, context) => {
  expectTypeOf(task).toEqualTypeOf<Task>();
  expectTypeOf(context).toEqualTypeOf<RequestContext>();
  expectTypeOf(context.closeAfter(buffer)).toEqualTypeOf<DeviceBuffer>();
  return { output: buffer };
});
void parent.serve(async () => ({ output: buffer }), { concurrency: 2, stream });
// @ts-expect-error not an answer
void parent.serve(() => 5);
// @ts-expect-error no option of serve
void parent.serve(() => ({ output: buffer }), { timeoutMs: 5 });
void peer.serve(() => 5);
void peer.serve(async (value) => {
  expectTypeOf(value).toBeUnknown();
});

expectTypeOf(connect<Answer, Task>('x')).resolves.toEqualTypeOf<Peer<Answer, Task>>();
const listener = listen<Task, Answer>('x');
expectTypeOf(listener).toEqualTypeOf<Listener<Task, Answer>>();
for await (const one of listener) expectTypeOf(one).toEqualTypeOf<Peer<Task, Answer>>();

// A typed peer is a peer.
const peers: Peer[] = [child, parent, peer];
peers.push(...peers);
// @ts-expect-error a peer that gets something else is not
const wrong: Peer<number> = child;
wrong.close();
