/** Which driver calls were made, and how many bytes they copied. */
import { DeviceBuffer } from 'cuffi';
import { bytesCopied, recordCalls } from 'cuffi/ffi';

using buffer = DeviceBuffer.allocate(1024);
using recorder = recordCalls();
buffer.fill(1);
await buffer.copyToHost();
recorder.stop();

console.log(recorder.calls.map((call) => call.name).join('\n'));
console.log(`${bytesCopied(recorder.calls)} bytes copied`);
