import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { mapAnonymous } from '../../../../ffi/linux/mmap.ts';
import { HostViews } from '../../../../src/memory/host-views.ts';
import { collectGarbage, collectUntil } from '../../../support/process-state.ts';

const GIB = 2 ** 30;

/** `ArrayBuffer.prototype.transfer`, which views refuse as their own method. */
function transferOfAnotherRealm(): (this: ArrayBuffer) => ArrayBuffer {
  // Node 20 needs a flag for it, which applies only to realms that are created later.
  setFlagsFromString('--harmony-rab-gsab-transfer');
  return runInNewContext('ArrayBuffer.prototype.transfer');
}

describe('HostViews', () => {
  test('the full view is one ArrayBuffer, and a window is the same while it is alive', () => {
    const mapping = mapAnonymous(8192);
    const views = new HostViews(mapping.address, 8000, () => {});
    assert.equal(views.wasViewed, false);
    assert.equal(views.fullView, views.fullView);
    assert.equal(views.wasViewed, true);
    assert.equal(views.fullView.byteLength, 8000);
    const window = views.window(4096, 100);
    assert.equal(views.window(4096, 100), window);
    assert.notEqual(views.window(4096, 101), window);
    new Uint8Array(window)[0] = 5;
    assert.equal(new Uint8Array(views.fullView)[4096], 5);
    views.cancelFinalizer();
    mapping.unmap();
  });

  test('memory longer than an ArrayBuffer is viewed in windows', () => {
    const mapping = mapAnonymous(8192);
    // Only mapped pages are accessed.
    const views = new HostViews(mapping.address, 5 * GIB, () => {});
    assert.throws(() => views.fullView, {
      name: 'RangeError',
      message:
        /5368709120 bytes \(5 GiB\) do not fit in one ArrayBuffer of at most 4294967296: use window/,
    });
    assert.equal(views.wasViewed, false);
    assert.equal(views.window(4096, 4096).byteLength, 4096);
    assert.throws(
      () => views.window(0, 5 * GIB),
      /^RangeError: byteLength must be an integer from 1 to 4294967296, not 5368709120$/,
    );
    views.cancelFinalizer();
    mapping.unmap();
  });

  test('a window beyond the memory is refused', () => {
    const mapping = mapAnonymous(4096);
    const views = new HostViews(mapping.address, 4096, () => {});
    for (const [byteOffset, byteLength] of [
      [-1, 1],
      [4096, 1],
      [0, 4097],
      [4000, 97],
      [0, 0],
      [0.5, 1],
      [0, Number.NaN],
    ] as const)
      assert.throws(
        () => views.window(byteOffset, byteLength),
        /^RangeError: byte(Offset|Length) must be an integer from \d+ to \d+, not /,
      );
    assert.throws(
      () => views.window('0' as never, 1),
      /^TypeError: byteOffset must be a number, not "0"$/,
    );
    views.cancelFinalizer();
    mapping.unmap();
  });

  test('one view that was transferred is noticed among others that were not', () => {
    const transfer = transferOfAnotherRealm();
    for (const which of ['full', 'first', 'last'] as const) {
      const mapping = mapAnonymous(8192);
      const views = new HostViews(mapping.address, 8192, () => {});
      const all = {
        full: views.fullView,
        first: views.window(0, 16),
        between: views.window(16, 16),
        last: views.window(32, 16),
      };
      assert.equal(views.hasDetachedView, false);
      transfer.call(all[which]);
      assert.equal(views.hasDetachedView, true, which);
      views.cancelFinalizer();
      mapping.retire();
    }
  });

  test('the callback runs once, after the last view was collected', async () => {
    const mapping = mapAnonymous(8192);
    let calls = 0;
    let kept: Uint8Array | undefined;
    (() => {
      const views = new HostViews(mapping.address, 8192, () => {
        calls += 1;
      });
      kept = new Uint8Array(views.window(0, 16));
      views.window(16, 16);
      views.fullView;
    })();
    await collectGarbage();
    assert.equal(calls, 0);
    kept[0] = 1;
    kept = undefined;
    assert.ok(await collectUntil(() => calls === 1));
    await collectGarbage();
    assert.equal(calls, 1);
    mapping.unmap();
  });

  test('a new window removes the record of a collected one', async () => {
    const mapping = mapAnonymous(4096);
    const views = new HostViews(mapping.address, 4096, () => {});
    const COUNT = 50;
    for (let n = 0; n < COUNT; n += 1) views.window(n, 1);
    await collectGarbage();
    views.window(COUNT, 1);
    const { prototype } = WeakRef;
    const { deref } = prototype;
    let remembered = 0;
    prototype.deref = function (): WeakKey | undefined {
      remembered += 1;
      return deref.call(this);
    };
    try {
      // Each remembered window is dereferenced.
      assert.equal(views.hasDetachedView, false);
    } finally {
      prototype.deref = deref;
    }
    assert.ok(remembered < 5, `${remembered} of ${COUNT} are remembered`);
    views.cancelFinalizer();
    mapping.unmap();
  });

  test('a view refuses transfer(), and a view that was transferred anyway is noticed', () => {
    const transfer = transferOfAnotherRealm();
    const prototype = ArrayBuffer.prototype as { transfer?: unknown };
    const before = prototype.transfer;
    prototype.transfer ??= transfer;
    const mapping = mapAnonymous(8192);
    for (const take of ['whole', 'window'] as const) {
      const views = new HostViews(mapping.address, 8192, () => {});
      const view = take === 'whole' ? views.fullView : views.window(4096, 10);
      assert.throws(() => (view as unknown as { transfer(): void }).transfer(), {
        name: 'TypeError',
        message: /cannot be transferred/,
      });
      assert.equal(views.hasDetachedView, false);
      assert.ok(transfer.call(view).byteLength > 0);
      assert.equal(views.hasDetachedView, true);
      views.cancelFinalizer();
    }
    if (before === undefined) delete prototype.transfer;
  });

  test('the callback does not run after cancelFinalizer()', async () => {
    let calls = 0;
    (() => {
      new HostViews(4096 as never, 1, () => {
        calls += 1;
      }).cancelFinalizer();
    })();
    await collectGarbage();
    assert.equal(calls, 0);
  });
});
