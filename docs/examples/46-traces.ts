/** Spans of requests, as OpenTelemetry has them: `tracingChannel` of Node tells of each, and of its failure. */
import { AsyncLocalStorage } from 'node:async_hooks';
import { tracingChannel } from 'node:diagnostics_channel';
import { parentPeer, type RequestTrace, spawnPeer } from 'cuffi/ipc';

/** In the place of a span of @opentelemetry/api: tracer.startSpan(name), setStatus, end. */
interface Span {
  readonly name: string;
  readonly pid: number;
  readonly parent: string | undefined;
  readonly begin: number;
  status: string;
}

if (process.argv[2] === 'worker') {
  await parentPeer<number, number>().serve((n) => {
    if (n < 0) throw new RangeError(`${n} is negative`);
    return Math.sqrt(n);
  });
} else {
  const current = new AsyncLocalStorage<string>();
  const spans = new WeakMap<object, Span>();
  const ended: Span[] = [];
  tracingChannel<unknown, RequestTrace>('cuffi.request').subscribe({
    start(trace) {
      const [name, parent] = ['cuffi.request', current.getStore()];
      spans.set(trace, { name, pid: trace.pid, parent, begin: performance.now(), status: 'ok' });
    },
    error(trace) {
      const span = spans.get(trace);
      if (span) span.status = String(trace.error);
    },
    asyncEnd(trace) {
      const span = spans.get(trace);
      if (span) ended.push(span);
    },
    end() {},
    asyncStart() {},
  });

  await using worker = spawnPeer<number, number>(import.meta.filename, { args: ['worker'] });
  await current.run('GET /root/16', async () => {
    console.log('answer:', await worker.request(16));
    await worker.request(-1).catch(() => {});
  });
  for (const { name, pid, parent, status } of ended)
    console.log(`${name} of ${parent}, to the worker: ${pid === worker.pid}, ${status}`);
}
