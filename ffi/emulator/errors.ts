/** What cuGetErrorString says. */
import type { Driver } from '../functions.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { CUresult } from '../results.ts';
import type { HostMemory } from './host.ts';

const errorTexts: Readonly<Record<number, string>> = {
  0: 'no error',
  1: 'invalid argument',
  2: 'out of memory',
  3: 'initialization error',
  4: 'driver shutting down',
  34: 'CUDA driver is a stub library',
  46: 'CUDA-capable device(s) is/are busy or unavailable',
  100: 'no CUDA-capable device is detected',
  101: 'invalid device ordinal',
  200: 'device kernel image is invalid',
  201: 'invalid device context',
  205: 'mapping of buffer object failed',
  208: 'resource already mapped',
  209: 'no kernel image is available for execution on the device',
  215: 'limit is not supported on this architecture',
  217: 'peer access is not supported between these two devices',
  218: 'a PTX JIT compilation failed',
  304: 'OS call failed or operation not supported on this OS',
  400: 'invalid resource handle',
  401: 'the operation cannot be performed in the present state',
  500: 'named symbol not found',
  600: 'device not ready',
  700: 'an illegal memory access was encountered',
  704: 'peer access is already enabled',
  705: 'peer access has not been enabled',
  708: 'cannot set while device is active in this process',
  709: 'context is destroyed',
  712: 'part or all of the requested memory range is already mapped',
  713: 'pointer does not correspond to a registered memory region',
  716: 'misaligned address',
  719: 'unspecified launch failure',
  800: 'operation not permitted',
  801: 'operation not supported',
  802: 'system not yet initialized',
  999: 'unknown error',
};

const names = new Map<number, string>(Object.entries(CUresult).map(([name, code]) => [code, name]));

/** The rarer codes are told by the words of their names. */
const errorText = (status: number): string | undefined =>
  errorTexts[status] ??
  names
    .get(status)
    ?.replace(/^CUDA_(ERROR_)?/, '')
    .toLowerCase()
    .replaceAll('_', ' ');

export function errorStringFunctions(host: HostMemory): Pick<Driver, 'cuGetErrorString'> {
  const addresses = new Map<number, number>();
  const addressOfText = (status: number): number => {
    const known = addresses.get(status);
    if (known !== undefined) return known;
    const message = errorText(status);
    if (message === undefined) return 0;
    const bytes = Buffer.from(`${message}\0`);
    const address = allocatePermanent(bytes.length);
    new Uint8Array(viewMemory(address, bytes.length)).set(bytes);
    addresses.set(status, address);
    return address;
  };
  return {
    cuGetErrorString(status, out) {
      const address = addressOfText(status);
      host.setUint64(out, address);
      return address === 0 ? CUresult.CUDA_ERROR_INVALID_VALUE : CUresult.CUDA_SUCCESS;
    },
  };
}
