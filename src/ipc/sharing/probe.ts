/** Memory with a pattern, which two processes share to try a kind of memory. */

import type { Context } from '../../context.ts';
import { type Access, DeviceBuffer } from '../../memory/buffer.ts';
import type { Probe, ProbeObject, SampleMemory } from './kind.ts';

const PROBE_BYTE_LENGTH = 64 << 10;

const pattern = (factor: number): Uint32Array =>
  new Uint32Array(PROBE_BYTE_LENGTH / 4).map((_, index) => Math.imul(index + 1, factor));
const OFFERED = 0x9e37_79b1;
const WRITTEN_BACK = 0x85eb_ca6b;

const isPattern = (values: Uint32Array, factor: number): boolean =>
  values.every((value, index) => value === Math.imul(index + 1, factor) >>> 0);

const read = (buffer: DeviceBuffer): Promise<Uint32Array> =>
  buffer.copyToHost(new Uint32Array(PROBE_BYTE_LENGTH / 4));

/** A probe of a kind of memory, which the other process gets with that access. */
export const memoryProbe = (
  about: Pick<Probe, 'name' | 'title' | 'how' | 'capability'>,
  allocate: (byteLength: number, context: Context) => SampleMemory,
  access?: Access,
): Probe => ({
  ...about,
  make: (context) => filled(allocate(PROBE_BYTE_LENGTH, context), access),
  check: (object) => checkProbe(object, access),
});

/** Fills memory with what the other process must find. The result owns it. */
async function filled(memory: SampleMemory, access: Access = 'read-write'): Promise<ProbeObject> {
  const { buffer } = memory;
  const dispose = (): void => memory[Symbol.dispose]();
  try {
    await buffer.copyFrom(pattern(OFFERED));
    return access === 'read'
      ? { object: buffer.readOnly(), [Symbol.dispose]: dispose }
      : { object: buffer, writable: buffer, [Symbol.dispose]: dispose };
  } catch (error) {
    dispose();
    throw error;
  }
}

/** Checks memory that has arrived, and writes back. Returns what is wrong with it. */
async function checkProbe(object: object, access: Access = 'read-write'): Promise<string> {
  if (!(object instanceof DeviceBuffer)) return 'it arrived as another object';
  if (object.byteLength !== PROBE_BYTE_LENGTH) return 'it arrived with another size';
  if (object.access !== access) return `it arrived as ${object.access} memory`;
  if (!isPattern(await read(object), OFFERED)) return 'its contents differ here';
  if (access === 'read-write') await object.copyFrom(pattern(WRITTEN_BACK));
  return '';
}

/** Whether the other process has written back. */
export const hasAnswer = async (buffer: DeviceBuffer): Promise<boolean> =>
  isPattern(await read(buffer), WRITTEN_BACK);
