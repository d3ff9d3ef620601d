import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { BLOCK, OUT0, OUT1, readSize } from '../../../../ffi/arena.ts';
import { withAddress } from '../../../../ffi/native.ts';
import type { Address, CUdeviceptr, CUmodule } from '../../../../ffi/types.ts';
import { Emulated } from './support.ts';

const file = new URL('../../../support/ptx/managed.ptx', import.meta.url);
const ptx = Buffer.from(`${readFileSync(file, 'utf8')}\0`);

const load = ({ cu }: Emulated, image = ptx): number =>
  withAddress(image, (at: Address) =>
    cu.cuModuleLoadDataEx(OUT0, at, 0, 0 as Address, 0 as Address),
  );

function loaded(emulated: Emulated): CUmodule {
  emulated.ok(load(emulated));
  return readSize(OUT0) as CUmodule;
}

function globalOf({ cu, ok }: Emulated, module: CUmodule, name: string): CUdeviceptr {
  const text = Buffer.from(`${name}\0`);
  ok(withAddress(text, (at: Address) => cu.cuModuleGetGlobal_v2(OUT0, OUT1, module, at)));
  return readSize(OUT0) as CUdeviceptr;
}

const [MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED, RANGE_START] = [2, 3, 4, 8, 11];

describe('managed variables of an emulated module', () => {
  test('only unloading the module frees them', () => {
    const emulated = Emulated.inContext();
    const module = loaded(emulated);
    const address = globalOf(emulated, module, 'hits');
    assert.equal(emulated.attribute(IS_MANAGED, address), 1);
    assert.deepEqual(emulated.range(address), { base: address, byteLength: 4 });
    assert.equal(emulated.cu.cuMemFree_v2(address), 1);
    assert.equal(emulated.read(address), 41);
    emulated.ok(emulated.cu.cuModuleUnload(module));
    assert.equal(emulated.cu.cuPointerGetAttribute(OUT0, IS_MANAGED, address), 1);
  });

  test('those of a module are 512 bytes apart in one block, and are described as an H200 does', () => {
    const emulated = Emulated.inContext();
    const before = mappings();
    const module = loaded(emulated);
    assert.equal(mappings(), before + 1);
    const addresses = ['hits', 'table', 'zeros', 'bytes'].map((name) =>
      globalOf(emulated, module, name),
    );
    for (const [at, address] of addresses.entries()) {
      assert.equal(address, (addresses[0] as number) + 512 * at);
      assert.equal(emulated.attribute(MEMORY_TYPE, address) & 0xffff, 2);
      assert.equal(emulated.cu.cuIpcGetMemHandle(BLOCK, address), 1);
      assert.equal(emulated.cu.cuMemFree_v2(address), 1);
    }
    for (const attribute of [DEVICE_POINTER, HOST_POINTER, RANGE_START]) {
      const table = addresses[1] as CUdeviceptr;
      emulated.ok(emulated.cu.cuPointerGetAttribute(OUT0, attribute, table));
      assert.equal(readSize(OUT0), table);
    }
    emulated.ok(emulated.cu.cuModuleUnload(module));
    assert.equal(mappings(), before);
  });

  test('they end with their context, and so does their module', () => {
    const emulated = new Emulated();
    emulated.push(emulated.retain());
    const module = loaded(emulated);
    const address = globalOf(emulated, module, 'hits');
    emulated.ok(emulated.cu.cuDevicePrimaryCtxReset_v2(0 as never));
    emulated.push(emulated.retain());
    assert.equal(emulated.cu.cuPointerGetAttribute(OUT0, IS_MANAGED, address), 1);
    assert.throws(() => emulated.cu.cuModuleUnload(module), /the module \S+ was destroyed/);
  });

  test('a device without managed memory does not load them, and loads modules without', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_ATTRIBUTES: '83=0' });
    assert.equal(load(emulated), 801);
    const plain = Buffer.from(ptx.toString().replace(/^.*\.managed.*$/gm, ''));
    emulated.ok(load(emulated, plain));
  });

  test('a module that finds no room for its other variables leaves none of them', () => {
    const emulated = Emulated.inContext({ CUFFI_EMULATED_MEMORY: '4M' });
    const before = mappings();
    const large = '.global .align 4 .b8 large[8388608];\n\n.visible .entry';
    assert.equal(load(emulated, Buffer.from(ptx.toString().replace('.visible .entry', large))), 2);
    assert.equal(mappings(), before);
  });
});

/** The managed memory of this process: shared anonymous mappings. */
const mappings = (): number =>
  readFileSync('/proc/self/maps', 'utf8').split('/dev/zero (deleted)').length - 1;
