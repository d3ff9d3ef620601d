/** An HTTP server in front of a pool: four workers on all GPUs, one of them in Python, that share weights. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { type DeviceArray, devices, type float32, toDevice } from 'cuffi';
import { PeerPool, parentPeer } from 'cuffi/ipc';

type Row = DeviceArray<typeof float32>;

if (process.argv[2] === 'worker') {
  const parent = parentPeer<Row, number>();
  using shared = await parent.receive();
  const weights = await shared.copyToHost();
  await parent.serve(async (row, { closeAfter }) => {
    const items = await closeAfter(row).copyToHost();
    if (items.includes(-1)) process.exit(1); // what no worker should do
    return items.reduce((sum, item, at) => sum + item * Number(weights[at]), 0);
  });
} else {
  const gpus = devices();
  const weights = await Promise.all(
    gpus.map((device) => toDevice(Float32Array.of(1, 2, 3, 4), { device })),
  );
  const pool = PeerPool.create<number, Row>({
    script: ({ index }) =>
      index === 3 ? new URL('./44-pool-server.py', import.meta.url) : import.meta.filename,
    args: ['worker'],
    devices: [0, 1, 2, 3].map((n) => n % gpus.length),
    maxQueue: 100,
    // One copy for each GPU: its workers use that one.
    setup: (peer, { device }) => peer.send(weights[device.ordinal] as Row),
  });

  let count = 0;
  const server = createServer(async (request, response) => {
    try {
      const row: number[] = JSON.parse(await text(request));
      const device = count++ % gpus.length; // a worker sees its own GPU
      using input = await toDevice(Float32Array.from(row), { device });
      response.end(String(await pool.run(input, { device, timeoutMs: 10_000 })));
    } catch (error) {
      response.writeHead(error instanceof SyntaxError ? 400 : 503).end((error as Error).message);
    }
  });
  await once(server.listen(Number(process.argv[2] ?? 0)), 'listening');
  const url = `http://localhost:${(server.address() as AddressInfo).port}`;

  if (process.argv[2] === undefined) {
    const ask = async (row: number[]): Promise<string | number> => {
      const answer = await fetch(url, { method: 'POST', body: JSON.stringify(row) });
      return answer.ok ? answer.text() : answer.status;
    };
    const rows = Array.from({ length: 8 }, (_, n) => [n, n, n, n]);
    console.log('answers:', ...(await Promise.all(rows.map(ask))));
    console.log('a task that crashes its worker:', await ask([-1, 0, 0, 0]));
    console.log('the next one:', await ask([1, 1, 1, 1]));
    const { completed, failed, members } = pool.stats();
    console.log(`${completed} done, ${failed} failed, ${members.length} workers`);
    server.close();
    await pool.close();
    for (const each of weights) each.close();
  } else console.log(`listening: curl -d '[1, 2, 3, 4]' ${url}`);
}
