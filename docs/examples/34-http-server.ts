/** An HTTP server in front of a GPU worker: requests, a crash of the worker, and the next worker. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { DeviceBuffer } from 'cuffi';
import { parentPeer, spawnPeer } from 'cuffi/ipc';

type Job = { image: DeviceBuffer };
type Result = { brightest: number };

if (process.argv[2] === 'worker') {
  await parentPeer<Job, Result>().serve(async ({ image }, { closeAfter }) => {
    const pixels = await closeAfter(image).copyToHost();
    if (pixels.includes(0)) process.exit(1); // what no worker should do
    return { brightest: Math.max(...pixels) };
  });
} else {
  const start = () => spawnPeer<Result, Job>(import.meta.filename, { args: ['worker'] });
  let worker = start();
  const server = createServer(async (request, response) => {
    try {
      const body = await buffer(request);
      using image = DeviceBuffer.allocate(body.byteLength);
      await image.copyFrom(body);
      const result = await worker.request({ image }, { timeoutMs: 5000 }); // no copy
      response.end(JSON.stringify(result));
    } catch (error) {
      if (worker.closed) worker = start();
      response.writeHead(error instanceof RangeError ? 400 : 503);
      response.end((error as Error).message.replaceAll(/\d+/g, 'N'));
    }
  });
  await once(server.listen(0), 'listening');

  const { port } = server.address() as AddressInfo;
  for (const body of ['abc', 'a\0c', 'xyz', '']) {
    const answer = await fetch(`http://localhost:${port}`, { method: 'POST', body });
    console.log(answer.status, await answer.text());
  }
  server.close();
  worker.close();
}
