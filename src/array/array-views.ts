import { checkInteger, checkOptions } from '../arguments.ts';
import type { Dtype } from '../dtype.ts';
import { streamOf } from '../memory/buffer-copies.ts';
import type { Stream } from '../stream.ts';
import { checkDtype, shapeOf } from './allocate-items.ts';
import { ArrayMemory } from './array-memory.ts';
import type { OrderOption } from './array-options.ts';
import type { DeviceArray } from './device-array.ts';
import { index, type Sections, type Selector, split } from './indexing.ts';
import type { Layout } from './layout.ts';
import { type Reshaped, ravel, reshape, viewAs } from './reshape.ts';
import { type Shape, shown } from './shape.ts';
import { broadcastTo, expandDims, squeeze, transpose } from './views.ts';

/** In what a view differs from its array, besides the layout. */
export interface ViewTraits<D extends Dtype> {
  readonly dtype?: D;
  readonly stream?: Stream | undefined;
  readonly readOnly?: boolean;
}

/** The views of an array: the same memory, seen in another way; nothing is copied. */
export abstract class ArrayViews<out D extends Dtype> extends ArrayMemory<D> {
  /** @internal */
  protected abstract derive<E extends Dtype = D>(
    layout: Layout,
    traits?: ViewTraits<E>,
  ): DeviceArray<E>;

  /**
   * What selectors take, as Python's `array[…]`: an index, a slice `{ start, stop, step }`, or
   * `'...'`, one for each axis from the first on.
   *
   * @throws RangeError for an index beyond its axis
   * @example
   * array.slice(0, { stop: 10, step: 2 }); // array[0, :10:2]
   * array.slice('...', -1); // array[..., -1]
   * @see https://numpy.org/doc/stable/user/basics.indexing.html
   */
  slice(...selectors: readonly Selector[]): DeviceArray<D> {
    return this.derive(index(this.layout, selectors));
  }

  /** The item of an index, or a part where it names fewer axes. @throws RangeError */
  at(...indices: readonly number[]): DeviceArray<D> {
    for (const place of indices) checkInteger(place, 'index', Number.MIN_SAFE_INTEGER);
    return this.slice(...indices);
  }

  /**
   * The same items in another shape, of which one size may be -1: what is left.
   *
   * @throws RangeError for another number of items, or where they must be copied for it
   */
  reshape(shape: number | Shape, options?: OrderOption): DeviceArray<D> {
    const { order = 'C' } = checkOptions(options, ['order'], 'reshape');
    const wanted = typeof shape === 'number' ? [shape] : shape;
    return this.#viewOf(reshape(this.layout, wanted, order), order);
  }

  /** The items in one dimension. @throws RangeError where they must be copied for it */
  ravel(options?: OrderOption): DeviceArray<D> {
    const { order = 'C' } = checkOptions(options, ['order'], 'ravel');
    return this.#viewOf(ravel(this.layout, order), order);
  }

  /** The axes in another order. @param axes default: reversed. @throws RangeError */
  transpose(axes?: readonly number[]): DeviceArray<D> {
    return this.derive(transpose(this.layout, axes));
  }

  /** The axes reversed. */
  get T(): DeviceArray<D> {
    return this.transpose();
  }

  /** Without axes of size 1. @param axis those to go; default: all. @throws RangeError */
  squeeze(axis?: number | readonly number[]): DeviceArray<D> {
    return this.derive(squeeze(this.layout, axis));
  }

  /** With an axis of size 1 more, at the place `axis` of the result. @throws RangeError */
  expandDims(axis: number): DeviceArray<D> {
    return this.derive(expandDims(this.layout, axis));
  }

  /** The items repeated until they have a shape; read only. @throws RangeError */
  broadcastTo(shape: number | Shape): DeviceArray<D> {
    return this.derive(broadcastTo(this.layout, shapeOf(shape)), { readOnly: true });
  }

  /** The same bytes as items of another dtype. @throws RangeError where they make no whole items */
  view<E extends Dtype>(dtype: E): DeviceArray<E> {
    return this.derive(viewAs(this.layout, checkDtype(dtype).itemsize), { dtype });
  }

  /**
   * The array in parts, along an axis.
   *
   * @param sections how many parts of the same size, as in NumPy; the places at which to cut; or
   * `{ size }`: parts of so many items, the last one with the rest, as numba's `split`
   * @throws RangeError
   */
  split(sections: Sections, axis = 0): DeviceArray<D>[] {
    return split(this.layout, sections, axis).map((layout) => this.derive(layout));
  }

  /** The same array, whose work goes to a stream unless a call names another: numba's `bind`. */
  withStream(stream: Stream | undefined): DeviceArray<D> {
    return this.derive(this.layout, { stream: streamOf(stream) });
  }

  #viewOf({ shape, view }: Reshaped, order: string): DeviceArray<D> {
    if (view) return this.derive(view);
    throw new RangeError(
      `items of shape ${shown(this.shape)} with strides ${shown(this.strides)} must be copied to be ${shown(shape)} in order ${order}: reshape a copy, array.copy({ order: '${order}' })`,
    );
  }
}
