import { newLayout } from '../array/allocate-items.ts';
import { extents, type Layout } from '../array/layout.ts';
import type { Dtype } from '../dtype.ts';
import { dtype as dtypeNamed } from '../dtype-lookup.ts';
import { IpcError } from '../errors.ts';
import type { IpcLayout, IpcMemoryDescriptor } from './descriptor.ts';

/** How an array lies in memory that another process named. */
export interface NamedLayout {
  readonly dtype: Dtype;
  /** From the beginning of the range on. */
  readonly layout: Layout;
}

/**
 * How an array lies in the range that a descriptor names; undefined where it names plain bytes.
 *
 * @throws IpcError for a dtype that there is not, and for items beyond the range
 */
export function layoutOf({
  layout,
  byteLength,
  pid,
}: IpcMemoryDescriptor): NamedLayout | undefined {
  if (!layout) return undefined;
  const named = readLayout(layout, pid);
  const { high } = extents(named.layout);
  if (layout.shape.includes(0)) throw unsound(pid, 'it has no items');
  if (high > byteLength)
    throw unsound(pid, `its items take ${high} bytes of a range that has ${byteLength}`);
  return named;
}

function readLayout({ dtype: name, shape, strides }: IpcLayout, pid: number): NamedLayout {
  try {
    const dtype = dtypeNamed(name);
    if (dtype.name !== name) throw new TypeError(`the dtype is called ${dtype.name}, not ${name}`);
    return { dtype, layout: newLayout(shape, dtype.itemsize, { strides }) };
  } catch (error) {
    throw unsound(pid, (error as Error).message);
  }
}

const unsound = (pid: number, why: string): IpcError =>
  new IpcError(
    `this descriptor of an array of process ${pid} is not sound: ${why}`,
    undefined,
    'no-descriptor',
  );

/** What a descriptor says of an array whose items begin with the first byte of its range. */
export const describeLayout = (dtype: Dtype, { shape, strides }: Layout): IpcLayout => ({
  dtype: dtype.name,
  shape: [...shape],
  strides: [...strides],
});

/** @throws IpcError for a descriptor of plain bytes */
export function checkIsArray({ layout }: IpcMemoryDescriptor): void {
  if (!layout)
    throw new IpcError(
      'the descriptor is of bytes, not of an array: open it with openIpcBuffer, and see them as one ' +
        'with DeviceArray.fromBuffer',
    );
}
