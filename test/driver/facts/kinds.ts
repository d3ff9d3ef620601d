/** What the groups of facts about kinds of memory share. */
import type { FunctionName } from '../../../ffi/functions.ts';
import { type Argument, type Bytes, type Side, struct } from '../../support/calls.ts';

export const MIB: number = 2 ** 20;
/** What virtual memory is measured in, on the hardware that was asked so far. */
export const UNIT: number = 2 * MIB;
export const FD = 1;
export const INVENTED = 0x1234_5600;

export const poolProperties = (values: object = {}): Bytes =>
  struct('CUmemPoolProps', { allocType: 1, 'location.type': 1, maxSize: 64 * MIB, ...values });
export const physicalProperties = (values: object = {}): Bytes =>
  struct('CUmemAllocationProp', { type: 1, 'location.type': 1, ...values });
export const access = (flags: number, id = 0): Bytes =>
  struct('CUmemAccessDesc', { 'location.type': 1, 'location.id': id, flags });
export const location = (id = 0): Bytes => struct('CUmemLocation', { type: 1, id });

export const statusIn =
  (side: Side) =>
  async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await side.call(name, ...args)).status;

/** The first out-value of a call, whatever its status. */
export const outOf =
  (side: Side) =>
  async (name: FunctionName, ...args: Argument[]): Promise<number> =>
    (await side.call(name, ...args)).out0;

/** A pointer's attribute as a number, or the status that was answered instead. */
export const attributeIn =
  (side: Side) =>
  async (attribute: number, address: number): Promise<number | string> => {
    const { status, out0 } = await side.call('cuPointerGetAttribute', 'OUT0', attribute, address);
    return status === 0 ? out0 : `status ${status}`;
  };

export const yesNo = (condition: boolean): string => (condition ? 'yes' : 'no');
export const firstByte = (answer: { readonly block: string }): number =>
  Buffer.from(answer.block, 'base64')[0] as number;
