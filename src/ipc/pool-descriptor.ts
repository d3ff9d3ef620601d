import { type IpcPoolDescriptor, sealDescriptor } from './descriptor.ts';

/** The pool itself, of the descriptor of its memory. */
export function ofPool(descriptor: IpcPoolDescriptor): IpcPoolDescriptor {
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  return sealDescriptor<'pool'>({ ...fields, ...nothing, access: 'read-write', handle: null });
}
