import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { closedMessage, type Release, Resource, Scope, stateKey } from '../../../src/lifetime.ts';
import { collectGarbage } from '../../support/process-state.ts';
import { runProgram } from './emulate.ts';

class Thing extends Resource {
  constructor(release?: Release, owner?: Scope) {
    super('Thing', { release, owner });
  }
  use(): void {
    this.assertOpen();
  }
  moved(): Thing {
    const { release, owner } = this.transferOwnership('it was moved');
    return new Thing(release, owner);
  }
}

describe('Resource and Scope', () => {
  test('a resource is released once, however often it is closed', () => {
    let released = 0;
    const thing = new Thing(() => {
      released += 1;
    });
    assert.equal(thing.closed, false);
    thing.use();
    thing.close();
    thing.close();
    thing[Symbol.dispose]();
    assert.equal(thing.closed, true);
    assert.equal(released, 1);
    assert.throws(() => thing.use(), { name: 'ClosedError', message: /^this Thing is closed: / });
  });

  test('copies and JSON of a resource contain neither its state nor its token', () => {
    const owner = new Scope();
    const [, thing] = [new Thing(() => {}, owner), new Thing(() => {}, owner)];
    assert.equal(JSON.stringify(thing), '"Thing"');
    assert.deepEqual(structuredClone(thing), {});
  });

  test('a release may be an object, which the last keepalive calls, too', () => {
    const order = {
      released: 0,
      release() {
        this.released += 1;
      },
    };
    new Thing(order).close();
    assert.equal(order.released, 1);
    const thing = new Thing(order);
    const letGo = thing.addKeepalive();
    thing.close();
    assert.equal(order.released, 1);
    letGo();
    assert.equal(order.released, 2);
  });

  test('the last keepalive releases a closed resource, unless its owner was reset', () => {
    const owner = new Scope();
    let released = 0;
    const make = (): Thing => new Thing(() => (released += 1), owner);
    const thing = make();
    const letGo = [thing.addKeepalive(), thing.addKeepalive()];
    letGo.pop()?.();
    thing.close();
    assert.deepEqual([thing.closed, owner.size, released], [true, 0, 0]);
    assert.throws(() => thing.addKeepalive(), { name: 'ClosedError' });
    letGo.pop()?.();
    assert.equal(released, 1);
    const open = make();
    open.addKeepalive()();
    assert.equal(released, 1);
    open.close();
    assert.equal(released, 2);
    const lost = make();
    const last = lost.addKeepalive();
    lost.close();
    owner.discardAll('the context was reset');
    last();
    assert.equal(released, 2);
  });

  test('a transferred resource belongs to another object, with the same owner', () => {
    const owner = new Scope();
    let released = 0;
    const first = new Thing(() => (released += 1), owner);
    const letGo = first.addKeepalive();
    assert.throws(() => first.moved(), { name: 'CuffiError', message: /in use by a handle/ });
    letGo();
    const second = first.moved();
    first.close();
    assert.throws(() => first.use(), { message: /^this Thing is closed: it was moved$/m });
    assert.deepEqual([first.closed, second.closed, owner.size, released], [true, false, 1, 0]);
    owner.closeAll('the owner was closed');
    assert.deepEqual([second.closed, released], [true, 1]);
  });

  test('a using scope closes a resource, even if the scope throws', () => {
    const released: string[] = [];
    assert.throws(() => {
      using _first = new Thing(() => released.push('first'));
      using _second = new Thing(() => released.push('second'));
      throw new Error('out');
    }, /^Error: out$/);
    assert.deepEqual(released, ['second', 'first']);
  });

  test('what is used after its end says what closed it, and how to find the place', () => {
    const trace = 'CUFFI_TRACE=1 shows where it was opened and closed.';
    const wordsOf = (thing: Thing): string => {
      try {
        thing.use();
      } catch (error) {
        return (error as Error).message;
      }
      return 'it is open';
    };
    const make = (): Thing => new Thing(() => {});
    const closed = make();
    closed.close();
    assert.equal(wordsOf(closed), `this Thing is closed: close() was called\n${trace}`);
    // The scope comes too late.
    closed[Symbol.dispose]();
    assert.equal(wordsOf(closed), `this Thing is closed: close() was called\n${trace}`);
    let kept: Thing;
    {
      using scoped = make();
      kept = scoped;
    }
    assert.equal(wordsOf(kept), `this Thing is closed: its using scope ended\n${trace}`);
    kept.close();
    assert.equal(wordsOf(kept), `this Thing is closed: its using scope ended\n${trace}`);
    const owner = new Scope();
    const owned = new Thing(() => {}, owner);
    owner.closeAll('the owner was closed');
    owned[Symbol.dispose]();
    assert.equal(wordsOf(owned), `this Thing is closed: the owner was closed\n${trace}`);
  });

  test('a scope whose end does not close a resource is not named by its later close()', () => {
    class Refusing extends Thing {
      isRefusing = true;

      override close(): void {
        if (this.isRefusing) throw new Error('it is in use');
        super.close();
      }
    }
    const thing = new Refusing(() => {});
    assert.throws(() => thing[Symbol.dispose](), /it is in use/);
    assert.equal(thing.closed, false);
    thing.isRefusing = false;
    thing.close();
    assert.throws(() => thing.use(), { message: /^this Thing is closed: close\(\) was called$/m });
  });

  test('its state says why, while it is released and after its object is gone', () => {
    const words: string[] = [];
    const make = (): Thing => {
      const thing: Thing = new Thing(() => words.push(closedMessage('Thing', state)));
      const state = thing[stateKey];
      return thing;
    };
    make().close();
    make()[Symbol.dispose]();
    const kept = make();
    const letGo = kept.addKeepalive();
    kept[Symbol.dispose]();
    assert.equal(words.length, 2);
    letGo();
    assert.deepEqual(
      words.map((text) => text.split('\n', 1)[0]),
      [
        'this Thing is closed: close() was called',
        'this Thing is closed: its using scope ended',
        'this Thing is closed: its using scope ended',
      ],
    );
  });

  test('a resource that ends with another says how that ended', () => {
    class Part extends Thing {
      readonly #whole: Thing;

      constructor(whole: Thing) {
        super(() => {});
        this.#whole = whole;
      }

      override get closed(): boolean {
        return super.closed || this.#whole.closed;
      }

      protected override get closedWith(): Resource {
        return this.#whole;
      }
    }
    const whole = new Thing(() => {});
    const [part, own] = [new Part(whole), new Part(whole)];
    own.close();
    whole[Symbol.dispose]();
    assert.throws(() => part.use(), {
      message: /^this Thing is closed: its Thing is closed: its using scope ended$/m,
    });
    assert.throws(() => own.use(), { message: /^this Thing is closed: close\(\) was called$/m });
  });

  test('a resource is closed even if its release fails, and the error is thrown once', () => {
    const thing = new Thing(() => {
      throw new Error('busy');
    });
    assert.throws(() => thing.close(), /busy/);
    assert.equal(thing.closed, true);
    thing.close();
  });

  test('a scope closes the newest first, and forgets what was closed before', () => {
    const owner = new Scope();
    const released: number[] = [];
    const things = [1, 2, 3, 4].map((n) => new Thing(() => released.push(n), owner));
    assert.equal(owner.size, 4);
    things[1]?.close();
    assert.equal(owner.size, 3);
    owner.closeAll('the owner was closed');
    assert.deepEqual(released, [2, 4, 3, 1]);
    assert.equal(owner.size, 0);
    assert.throws(() => things[0]?.use(), {
      message: /^this Thing is closed: the owner was closed$/m,
    });
    assert.throws(() => things[1]?.use(), { message: /^this Thing is closed: / });
  });

  test('a release that fails does not stop the others', () => {
    const owner = new Scope();
    const released: string[] = [];
    const things = ['a', 'b', 'c'].map(
      (name) =>
        new Thing(() => {
          if (name !== 'a') throw new Error(name);
          released.push(name);
        }, owner),
    );
    assert.throws(() => owner.closeAll('over'), /^Error: c$/);
    assert.deepEqual(released, ['a']);
    assert.ok(things.every((thing) => thing.closed));
    assert.equal(owner.size, 0);
  });

  /** What a thing releases, by a reference that does not keep it. */
  function watched(owner?: Scope): { thing: Thing; release: WeakRef<object> } {
    const release = { release() {} };
    return { thing: new Thing(release, owner), release: new WeakRef(release) };
  }

  /** Asserts that nothing keeps what was made, and is not given back. */
  async function assertCollected(references: readonly WeakRef<object>[]): Promise<void> {
    await collectGarbage();
    assert.equal(references.filter((each) => each.deref() !== undefined).length, 0);
  }

  /** All orders of some numbers. */
  const orders = (numbers: readonly number[]): number[][] =>
    numbers.length === 0
      ? [[]]
      : numbers.flatMap((first) =>
          orders(numbers.filter((each) => each !== first)).map((rest) => [first, ...rest]),
        );

  test('a closed resource is not kept, whatever else stays open in its scope', async () => {
    /** Makes four, and closes some of them in an order. */
    const closeSome = (order: readonly number[]) => {
      const owner = new Scope();
      const made = [0, 1, 2, 3].map(() => watched(owner));
      for (const at of order) made[at]?.thing.close();
      return {
        owner,
        open: made.filter(({ thing }) => !thing.closed).map(({ thing }) => thing),
        closed: order.map((at) => (made[at] as (typeof made)[0]).release),
      };
    };
    const cases = orders([0, 1, 2, 3]).flatMap((order) =>
      [1, 2, 3].map((count) => closeSome(order.slice(0, count))),
    );
    /** Without an owner only the guard, which is used again, could keep it. */
    const closeAlone = (): WeakRef<object> => {
      const { thing, release } = watched();
      thing.close();
      return release;
    };
    await assertCollected([closeAlone(), ...cases.flatMap(({ closed }) => closed)]);
    for (const { owner, open } of cases) {
      assert.equal(owner.size, open.length);
      owner.closeAll('the owner was closed');
      assert.ok(open.every((thing) => thing.closed));
      assert.equal(owner.size, 0);
    }
  });

  test('a scope closes its open resources newest first, whatever was closed between them', () => {
    for (const order of orders([0, 1, 2, 3]))
      for (let count = 0; count < 4; count += 1) {
        const owner = new Scope();
        const released: number[] = [];
        const things = [0, 1, 2, 3].map((n) => new Thing(() => released.push(n), owner));
        for (const at of order.slice(0, count)) things[at]?.close();
        released.length = 0;
        new Thing(() => released.push(4), owner);
        owner.closeAll('over');
        assert.deepEqual(
          released,
          [4, ...order.slice(count).sort().reverse()],
          `${order} ${count}`,
        );
      }
  });

  test('one of many closed or discarded resources does not keep its neighbors', async () => {
    const owner = new Scope();
    const makeClosed = () => {
      const made = Array.from({ length: 3 }, () => watched(owner));
      for (const at of [1, 0, 2]) made[at]?.thing.close();
      const [middle] = made.splice(1, 1);
      return { closed: middle?.thing as Thing, besides: made.map(({ release }) => release) };
    };
    const make = () => {
      const made = Array.from({ length: 5 }, () => watched(owner));
      const [middle] = made.splice(2, 1);
      return { kept: middle?.thing as Thing, others: made.map(({ release }) => release) };
    };
    const { closed, besides } = makeClosed();
    const { kept, others } = make();
    owner.discardAll('its context was reset');
    await assertCollected([...besides, ...others]);
    assert.ok(closed.closed && kept.closed);
  });

  test('a scope is listed in its parent once, while something in it is open', () => {
    const outer = new Scope();
    const inner = new Scope(outer, true);
    const released: string[] = [];
    assert.equal(outer.size, 0);
    for (let round = 0; round < 3; round += 1) {
      const [a, b] = [new Thing(() => {}, inner), new Thing(() => {}, inner)];
      assert.equal(outer.size, 1);
      b.close();
      assert.equal(outer.size, 1);
      a.close();
      assert.equal(outer.size, 0);
    }
    const first = new Thing(() => released.push('first'), outer);
    const within = new Thing(() => released.push('within'), inner);
    const last = new Thing(() => released.push('last'), outer);
    outer.closeAll('the owner was closed');
    assert.deepEqual(released, ['last', 'within', 'first']);
    assert.ok([first, within, last].every((thing) => thing.closed));
    assert.throws(() => within.use(), { message: /^this Thing is closed: the owner was closed$/m });
    assert.deepEqual([outer.size, inner.size], [0, 0]);
    // Not listed: its own owner closes what is in it.
    const apart = new Scope(outer);
    new Thing(() => released.push('apart'), apart);
    assert.equal(outer.size, 0);
  });

  test('discardAll() marks resources as closed, and releases nothing', () => {
    const owner = new Scope();
    const thing = new Thing(() => assert.fail('released'), owner);
    owner.discardAll('its context was reset');
    thing.close();
    assert.throws(() => thing.use(), { message: /^this Thing is closed: its context was reset$/m });
  });

  test('discardAll() of a scope within another one takes its own resources only', () => {
    const outer = new Scope();
    const inner = new Scope(outer, true);
    const inOuter = new Thing(() => {}, outer);
    const taken = new Thing(() => assert.fail('released'), inner);
    const letGo = taken.addKeepalive();
    inner.discardAll('its memory was freed');
    letGo();
    assert.throws(() => taken.use(), { message: /^this Thing is closed: its memory was freed$/m });
    assert.deepEqual([taken.closed, inOuter.closed], [true, false]);
    assert.deepEqual([outer.size, inner.size], [1, 0]);
    // The scope goes on, and a reset of the outer one takes what is in it since.
    const later = new Thing(() => assert.fail('released'), inner);
    assert.equal(outer.size, 2);
    outer.discardAll('the context was reset');
    assert.throws(() => later.use(), { message: /^this Thing is closed: the context was reset$/m });
    assert.equal(new Thing(() => {}, inner).closed, false);
  });

  test('a borrowed resource is forgotten: closing it releases nothing', () => {
    const owner = new Scope();
    const thing = new Thing(undefined, owner);
    thing.close();
    assert.equal(owner.size, 0);
    assert.throws(() => thing.use(), { name: 'ClosedError' });
  });

  const leak = (mode: string, env: NodeJS.ProcessEnv = {}) =>
    runProgram(new URL('./fixtures/leak.ts', import.meta.url), [mode], env, [
      '--expose-gc',
      '--enable-source-maps',
    ]);

  test('resources that are dropped are released on the main thread, with one warning', () => {
    const { code, stdout } = leak('dropped');
    const { warnings, ...left } = JSON.parse(stdout);
    assert.deepEqual(left, { open: 0, resources: 0, currentContext: 0 });
    assert.equal(warnings.length, 1);
    assert.equal(warnings[0].code, 'CUFFI_LEAK');
    // Which is found first is the collector's choice.
    assert.match(
      warnings[0].message,
      /^a (DeviceBuffer|Stream|CudaEvent) was garbage collected without close\(\)$/,
    );
    assert.equal(warnings[0].detail, 'CUFFI_TRACE=1 shows where each was opened.');
    assert.equal(code, 0);
  });

  test('with CUFFI_TRACE=1 every leak has a warning with the place where it was opened', () => {
    const { code, stdout } = leak('dropped', { CUFFI_TRACE: '1' });
    const { warnings } = JSON.parse(stdout) as { warnings: { detail: string }[] };
    assert.equal(warnings.length, 6);
    for (const { detail } of warnings) assert.match(detail, /fixtures\/leak\.ts/);
    assert.equal(code, 0);
  });

  test('with CUFFI_TRACE=1 the ClosedError says where the object was opened and closed', () => {
    const { stdout } = leak('closed', { CUFFI_TRACE: '1' });
    const lineOf = (what: string): string =>
      `${what} at\\n( +at .*\\n)*? +at .*fixtures/leak\\.ts:`;
    assert.match(stdout, /^this DeviceBuffer is closed: close\(\) was called$/m);
    assert.match(stdout, new RegExp(`${lineOf('opened')}\\d+`));
    assert.match(stdout, new RegExp(`${lineOf('closed')}\\d+`));
    assert.doesNotMatch(stdout, /CUFFI_TRACE/);
  });

  test('a closed resource causes no warning when it is collected', () => {
    const { code, stdout } = leak('kept');
    assert.deepEqual(JSON.parse(stdout), {
      warnings: [],
      open: 0,
      resources: 0,
      currentContext: 0,
    });
    assert.equal(code, 0);
  });

  test('views and borrowed objects that are dropped leave nothing behind, and cause no warning', () => {
    const { stdout } = leak('borrowed');
    assert.deepEqual(JSON.parse(stdout), {
      warnings: [],
      open: 0,
      resources: 0,
      currentContext: 0,
    });
  });

  test('a release that fails after a collection is a warning, and does not end the process', () => {
    const { code, stdout, stderr } = leak('failing');
    assert.equal(code, 0, stderr);
    const { warnings } = JSON.parse(stdout) as { warnings: { code: string; message: string }[] };
    assert.deepEqual(
      warnings.map((warning) => warning.code),
      ['CUFFI_LEAK', 'CUFFI_RELEASE'],
    );
    assert.match(String(warnings[1]?.message), /cuMemFree_v2 failed/);
  });

  test('a resource with keepalives is closed at once, and released by the last of them', () => {
    const owner = new Scope();
    let released = 0;
    const thing = new Thing(() => {
      released += 1;
    }, owner);
    const [first, second] = [thing.addKeepalive('process 1'), thing.addKeepalive('process 2')];
    assert.deepEqual(thing.keepaliveNames, ['process 1', 'process 2']);
    first();
    thing.invalidate('process 3 has revoked it');
    assert.throws(() => thing.use(), {
      message: /^this Thing is closed: process 3 has revoked it$/m,
    });
    assert.equal(owner.size, 0);
    first();
    assert.equal(released, 0);
    second();
    second();
    assert.equal(released, 1);
    assert.throws(() => thing.addKeepalive(), { name: 'ClosedError' });
    // What is gone with its context is not released again.
    const gone = new Thing(() => assert.fail('released'), owner);
    const letGo = gone.addKeepalive();
    gone.close();
    owner.discardAll('its context was reset');
    letGo();
  });
});
