/** A Python model beside a Node server: arrays go to it and come back, and nothing is copied. */
import { type DeviceArray, toDevice } from 'cuffi';
import { spawnPython } from 'cuffi/ipc';

type Request = { readonly image: DeviceArray };

// Python finds `import cuffi` in this package: nothing is installed for it.
using model = spawnPython<unknown, Request>(new URL('./40-python-model.py', import.meta.url));

using image = await toDevice(new Float32Array([1, 2, 3, 4]), { shape: [2, 2] });
const answer = (await model.request({ image })) as { sum: number; doubled: DeviceArray };
using doubled = answer.doubled;
console.log(`sum ${answer.sum}, doubled [${await doubled.copyToHost()}], shape [${doubled.shape}]`);

// What Python raises is thrown here, with its traceback.
using empty = await toDevice(new Uint8Array(4));
await model.request({ image: empty }).catch(({ name, message }: Error) => {
  console.log(`${name}: ${message}`);
});
