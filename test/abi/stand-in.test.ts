// Every row, called through the real path (selectDriver, koffi, the arena) into C that says what
// it received: a wrong signature fails here and not on a GPU.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  arena,
  readBytes,
  readFloat32,
  readHandle,
  readInt32,
  readSize,
  readUint32,
} from '../../ffi/arena.ts';
import { cu, driverName, selectDriver } from '../../ffi/driver.ts';
import { type FunctionName, functionNames, rows } from '../../ffi/functions.ts';
import { stringAt } from '../../ffi/native.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CType } from '../../ffi/types.ts';
import { buildStandIn, pointee, prototype, StandInState } from './stand-in.ts';
import { noCompiler, openBuildFolder } from './toolchain.ts';

const skip = noCompiler;
const build = openBuildFolder();

const library = skip ? '' : buildStandIn(build, 'stand-in.so');
const state = skip ? undefined : new StandInState(library);
const standIn = (): StandInState => state as StandInState;
if (!skip) selectDriver(library);

const call = (name: FunctionName, args: readonly unknown[]): number =>
  (cu[name] as (...args: unknown[]) => number)(...args);

const handleBytes = (seed: number): Uint8Array =>
  Uint8Array.from({ length: 64 }, (_, i) => (seed + 37 * i) & 0xff);

/** A value of the parameter's type that no other position of any row gets. */
function distinctive(param: CType, row: number, position: number): number | Uint8Array {
  const id = row * 16 + position + 1;
  if (param.ffi === 'handle64') return handleBytes(id);
  if (param.ffi === 'int32') return -(id * 65_537);
  if (param.ffi === 'uint32') {
    const large = 0xf000_0000 + id * 65_537;
    return param.byteLength === 4 ? large : large % 2 ** (8 * param.byteLength);
  }
  return 2 ** 53 - 1 - id * 4_294_967_311;
}

const asArgument = (value: number | Uint8Array): unknown =>
  typeof value === 'number' ? value : { reserved: value };

describe('cu', () => {
  test('the driver in use is the stand-in, by its path', { skip }, () => {
    assert.equal(driverName(), library);
  });

  test('C receives exactly the arguments of every row', { skip }, (t) => {
    for (const [index, name] of functionNames.entries()) {
      standIn().clear();
      standIn().status = index + 1;
      const { params } = rows[name];
      const given = params.map((param, position) => distinctive(param, index, position));
      assert.equal(call(name, given.map(asArgument)), index + 1, `status of ${name}`);
      assert.deepEqual(
        [standIn().calls, standIn().index, standIn().count],
        [1, index, params.length],
        name,
      );
      for (const [position, value] of given.entries()) {
        const what = `parameter ${position} of ${prototype(name)}`;
        assert.equal(standIn().width(position), params[position]?.byteLength, what);
        if (typeof value === 'number')
          assert.equal(BigInt.asIntN(64, standIn().value(position)), BigInt(value), what);
        else assert.deepEqual(standIn().passed(position), value, what);
      }
    }
    t.diagnostic(`${functionNames.length} rows called`);
  });

  test('C receives the extremes of every type', { skip }, () => {
    for (const name of functionNames) {
      const { params } = rows[name];
      for (const end of ['low', 'high'] as const) {
        standIn().clear();
        const given = params.map((param) => extreme(param, end));
        call(name, given.map(asArgument));
        for (const [position, value] of given.entries())
          if (typeof value === 'number')
            assert.equal(
              BigInt.asIntN(64, standIn().value(position)),
              BigInt(value),
              `parameter ${position} of ${prototype(name)}`,
            );
      }
    }
  });

  function extreme(param: CType, end: 'low' | 'high'): number | Uint8Array {
    if (param.ffi === 'handle64') return new Uint8Array(64).fill(end === 'low' ? 0 : 0xff);
    if (param.ffi === 'int32') return end === 'low' ? -(2 ** 31) : 2 ** 31 - 1;
    if (end === 'low') return 0;
    return param.byteLength === 8 ? Number.MAX_SAFE_INTEGER : 2 ** (8 * param.byteLength) - 1;
  }

  // The width of what a pointer points to is the C compiler's word here, not the table's.
  const outValues: Readonly<Record<string, { byteLength: number; read(at: Address): unknown }>> = {
    int: { byteLength: 4, read: readInt32 },
    CUdevice: { byteLength: 4, read: readInt32 },
    'unsigned int': { byteLength: 4, read: readUint32 },
    float: { byteLength: 4, read: readFloat32 },
    size_t: { byteLength: 8, read: readSize },
    cuuint64_t: { byteLength: 8, read: readSize },
    CUcontext: { byteLength: 8, read: readHandle },
    CUstream: { byteLength: 8, read: readHandle },
    CUevent: { byteLength: 8, read: readHandle },
    CUdeviceptr: { byteLength: 8, read: readHandle },
    CUmemoryPool: { byteLength: 8, read: readHandle },
    CUmemGenericAllocationHandle: { byteLength: 8, read: readHandle },
    CUlinkState: { byteLength: 8, read: readHandle },
    CUmodule: { byteLength: 8, read: readHandle },
    CUfunction: { byteLength: 8, read: readHandle },
    CUgraph: { byteLength: 8, read: readHandle },
    CUgraphExec: { byteLength: 8, read: readHandle },
    CUjit_option: { byteLength: 4, read: readUint32 },
    CUstreamCaptureStatus: { byteLength: 4, read: readUint32 },
    CUgraphExecUpdateResult: { byteLength: 4, read: readUint32 },
    CUgraphNode: { byteLength: 8, read: readHandle },
    CUgraphExecUpdateResultInfo: {
      byteLength: 24,
      read: (at) => Buffer.from(readBytes(at, 24)).toString('hex'),
    },
    CUmemAccess_flags: { byteLength: 4, read: readUint32 },
    'unsigned long long': { byteLength: 8, read: readSize },
    'void *': { byteLength: 8, read: readHandle },
    CUmemLocation: { byteLength: 8, read: (at) => Buffer.from(readBytes(at, 8)).toString('hex') },
    CUmemPoolPtrExportData: {
      byteLength: 64,
      read: (at) => Buffer.from(readBytes(at, 64)).toString('hex'),
    },
    'const char *': { byteLength: 8, read: (at) => stringAt(readHandle(at)) },
    char: { byteLength: 1, read: (at) => readBytes(at, 1)[0] },
    CUuuid: { byteLength: 16, read: (at) => Buffer.from(readBytes(at, 16)).toString('hex') },
    CUipcMemHandle: {
      byteLength: 64,
      read: (at) => Buffer.from(readBytes(at, 64)).toString('hex'),
    },
    CUipcEventHandle: {
      byteLength: 64,
      read: (at) => Buffer.from(readBytes(at, 64)).toString('hex'),
    },
  };

  /** Bytes of an out-value that is like no other, and what the arena's reader must make of them. */
  function outValue(type: string, id: number): { bytes: Buffer; expected: unknown } {
    const bytes = Buffer.alloc(64);
    switch (type) {
      case 'int':
      case 'CUdevice':
        bytes.writeInt32LE(-(id * 65_537));
        return { bytes, expected: -(id * 65_537) };
      case 'unsigned int':
      case 'CUmemAccess_flags':
      case 'CUjit_option':
      case 'CUstreamCaptureStatus':
      case 'CUgraphExecUpdateResult':
        bytes.writeUInt32LE(0xf000_0000 + id);
        return { bytes, expected: 0xf000_0000 + id };
      case 'float':
        bytes.writeFloatLE(id + 0.25);
        return { bytes, expected: id + 0.25 };
      case 'const char *':
        bytes.writeBigUInt64LE(BigInt(standIn().text));
        return { bytes, expected: 'text of the stand-in' };
      case 'char':
        bytes[0] = id & 0xff;
        return { bytes, expected: id & 0xff };
      case 'CUuuid':
      case 'CUmemLocation':
      case 'CUmemPoolPtrExportData':
      case 'CUgraphExecUpdateResultInfo':
      case 'CUipcMemHandle':
      case 'CUipcEventHandle': {
        bytes.set(handleBytes(id));
        const byteLength = outValues[type]?.byteLength as number;
        return { bytes, expected: bytes.subarray(0, byteLength).toString('hex') };
      }
      default: {
        const expected = 2 ** 53 - 1 - id * 4_294_967_311;
        bytes.writeBigUInt64LE(BigInt(expected));
        return { bytes, expected };
      }
    }
  }

  test("what C writes is what the arena's readers answer, and not a byte more", { skip }, (t) => {
    const memory = new Uint8Array(arena.buffer);
    const slots = Array.from({ length: 8 }, (_, position) => 4096 + 128 * position);
    let written = 0;
    for (const [index, name] of functionNames.entries()) {
      standIn().clear();
      standIn().writes = true;
      memory.fill(0xee, 4096, 8192);
      const outs = rows[name].params.map((param, position) => {
        const type = pointee(param);
        if (type === undefined) return undefined;
        const value = outValue(type, index * 16 + position + 1);
        standIn().setOut(position, value.bytes);
        return { type, position, offset: slots[position] as number, expected: value.expected };
      });
      const args = rows[name].params.map((param, position) => {
        const offset = outs[position]?.offset;
        if (offset !== undefined) return arena.address + offset;
        return asArgument(distinctive(param, index, position));
      });
      assert.equal(call(name, args), CUresult.CUDA_SUCCESS);
      for (const out of outs) {
        if (out === undefined) continue;
        const kind = outValues[out.type];
        assert.ok(kind, `no reader for ${out.type}`);
        const what = `parameter ${out.position} of ${prototype(name)}`;
        assert.equal(kind.read((arena.address + out.offset) as Address), out.expected, what);
        const after = memory.subarray(out.offset + kind.byteLength, out.offset + 128);
        assert.ok(
          after.every((byte) => byte === 0xee),
          `${what} is wider than ${kind.byteLength} bytes`,
        );
        written++;
      }
    }
    standIn().writes = false;
    t.diagnostic(`${written} out-values read back`);
  });

  test('every status code comes through as it is', { skip }, () => {
    for (const status of [...Object.values(CUresult), 123_456]) {
      standIn().status = status;
      assert.equal(cu.cuInit(0), status);
    }
  });

  test('a handle is passed by its property: koffi reads a bare array as zeros', { skip }, () => {
    standIn().clear();
    call('cuIpcOpenMemHandle_v2', [0, { reserved: handleBytes(7) }, 0]);
    assert.deepEqual(standIn().passed(1), handleBytes(7));
    // Why the type of the argument names the property, and a bare array does not compile.
    call('cuIpcOpenMemHandle_v2', [0, handleBytes(7), 0]);
    assert.deepEqual(standIn().passed(1), new Uint8Array(64));
  });

  test('too few arguments, and arguments that are no number, never reach C', { skip }, () => {
    standIn().clear();
    assert.throws(() => call('cuMemAlloc_v2', [4096]), TypeError);
    for (const wrong of [undefined, null, '1', {}, new Uint8Array(8)])
      assert.throws(() => call('cuMemAlloc_v2', [wrong, 4096]), TypeError);
    assert.equal(standIn().calls, 0);
  });

  test('a symbol that the driver lacks answers CALL_REQUIRES_NEWER_DRIVER', { skip }, () => {
    const older = buildStandIn(build, 'older.so', (name) => name === 'cuMemGetAddressRange_v2');
    selectDriver(older);
    const olderState = new StandInState(older);
    assert.equal(call('cuMemGetAddressRange_v2', [0, 0, 0]), 36);
    assert.equal(olderState.calls, 0);
    assert.equal(call('cuInit', [0]), 0);
    assert.equal(olderState.calls, 1);
    selectDriver(library);
  });
});
