import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Context, DeviceBuffer } from '../src/index.ts';
import { getIpcHandle } from '../src/ipc/index.ts';

const buffer = DeviceBuffer.allocate(4096);
buffer.fill(7);
buffer.subarray(100, 116).fill(42);
await Context.primary().synchronize();
const program = `
import base64, json, sys
import numpy as np
from numba import cuda
d = json.loads(sys.stdin.readline())
handle = base64.b64decode(d["handle"])
with cuda.open_ipc_array(handle, d["byteLength"], np.uint8, offset=d["byteOffset"]) as array:
    print("numba reads", set(array.copy_to_host().tolist()), array.shape)
    array.copy_to_device(np.full(d["byteLength"], 9, np.uint8))
`;
const child = spawn('python3', ['-c', program], { stdio: ['pipe', 'inherit', 'inherit'] });
child.stdin.end(`${JSON.stringify(getIpcHandle(buffer.subarray(100, 116)))}\n`);
await once(child, 'exit');
const bytes = buffer.copyToHostSync();
console.log('cuffi reads', bytes[99], bytes[100], bytes[115], bytes[116]);
buffer.close();
