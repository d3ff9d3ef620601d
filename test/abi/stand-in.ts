/**
 * A driver in C, generated from the table: each function records what it was given, writes
 * settable out-values and returns a settable status. Where cuda.h exists it is compiled against
 * its prototypes, so that what C sees is what a real driver would see.
 */
import { type FunctionName, functionNames, rows } from '../../ffi/functions.ts';
import { openLibrary } from '../../ffi/library.ts';
import { viewMemory } from '../../ffi/native.ts';
import type { Address, CType } from '../../ffi/types.ts';
import { parameters } from './facts.ts';
import { type BuildFolder, header } from './toolchain.ts';

const MAX_PARAMETERS = 12;
const SLOT = 64;

// Only where there is no cuda.h; elsewhere the header's own declarations judge the table.
const DECLARATIONS = `
#include <stddef.h>
#define CUDAAPI
typedef int CUdevice;
typedef unsigned int cuuint32_t;
typedef unsigned long long cuuint64_t;
typedef unsigned int CUresult, CUdevice_attribute, CUlimit, CUpointer_attribute;
typedef unsigned int CUmemPool_attribute, CUmemAccess_flags, CUmemAllocationHandleType;
typedef unsigned int CUmemAllocationGranularity_flags, CUmem_advise, CUdevice_P2PAttribute;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef unsigned int CUjitInputType, CUjit_option, CUfunction_attribute, CUfunc_cache;
typedef unsigned int CUstreamCaptureMode, CUstreamCaptureStatus;
typedef struct CUmod_st *CUmodule;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef size_t (*CUoccupancyB2DSize)(int);
typedef struct { char reserved[56]; } CUlaunchConfig;
typedef struct { char reserved[24]; } CUgraphExecUpdateResultInfo;
typedef unsigned int CUgraphExecUpdateResult;
typedef struct { char reserved[56]; } CUDA_KERNEL_NODE_PARAMS_v1;
typedef struct { char reserved[72]; } CUDA_KERNEL_NODE_PARAMS_v2;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef void (*CUhostFn)(void *);
typedef struct { char reserved[88]; } CUmemPoolProps;
typedef struct { int type, id; } CUmemLocation;
typedef struct { char reserved[12]; } CUmemAccessDesc;
typedef struct { char reserved[32]; } CUmemAllocationProp;
typedef struct { char reserved[64]; } CUmemPoolPtrExportData;
typedef struct { char reserved[128]; } CUDA_MEMCPY2D;
typedef struct { char reserved[200]; } CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct { char reserved[64]; } CUipcMemHandle, CUipcEventHandle;
typedef struct { char bytes[16]; } CUuuid;
`;

const STATE = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>
struct {
  uint32_t calls, index, count, status, writes, reserved;
  uint32_t width[${MAX_PARAMETERS}];
  uint64_t value[${MAX_PARAMETERS}];
  unsigned char passed[${MAX_PARAMETERS}][${SLOT}];
  unsigned char out[${MAX_PARAMETERS}][${SLOT}];
} stand_in;
const char stand_in_text[] = "text of the stand-in";
`;
const WIDTH = 24;
const VALUE = WIDTH + 4 * MAX_PARAMETERS;
const PASSED = VALUE + 8 * MAX_PARAMETERS;
const OUT = PASSED + SLOT * MAX_PARAMETERS;
const BYTE_LENGTH = OUT + SLOT * MAX_PARAMETERS;

/** What a parameter points to, as C spells it; undefined where the driver writes nothing. */
export const pointee = ({ c }: CType): string | undefined =>
  /^(void|const \w+) \*$/.test(c) ? undefined : /^(.*) \*$/.exec(c)?.[1];

function definition(name: FunctionName, index: number): string {
  const { params } = rows[name];
  const list = params.map(({ c }, i) => `${c} a${i}`).join(', ') || 'void';
  const body = params.flatMap((param, i) => {
    const width = `stand_in.width[${i}] = sizeof a${i};`;
    if (param.ffi === 'handle64')
      return [width, `memcpy(stand_in.passed[${i}], &a${i}, sizeof a${i});`];
    const cast = param.c.endsWith('*') ? '(uint64_t)(uintptr_t)' : '(uint64_t)';
    const record = `stand_in.value[${i}] = ${cast}a${i};`;
    const write = `if (stand_in.writes) memcpy(a${i}, stand_in.out[${i}], sizeof *a${i});`;
    return pointee(param) === undefined ? [width, record] : [width, record, write];
  });
  return `
#undef ${name}
CUresult CUDAAPI ${name}(${list}) {
  stand_in.calls++;
  stand_in.index = ${index};
  stand_in.count = ${params.length};
  ${body.join('\n  ')}
  return (CUresult)stand_in.status;
}`;
}

/** The C source; `lacks` says which functions an older driver would lack. */
function standInSource(lacks: (name: FunctionName) => boolean): string {
  const includes = header ? '#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>' : DECLARATIONS;
  const definitions = functionNames.map((name, index) =>
    lacks(name) ? '' : definition(name, index),
  );
  return `${includes}\n${STATE}\n${definitions.join('\n')}\n`;
}

/** The prototypes as the table has them, for messages. */
export const prototype = (name: FunctionName): string =>
  `${name}(${parameters(rows[name].params)})`;

/** Builds the shared library and returns its path. */
export const buildStandIn = (
  build: BuildFolder,
  name: string,
  lacks: (name: FunctionName) => boolean = () => false,
): string => build.compile(name, standInSource(lacks), ['-shared', '-fPIC', '-Wall', '-Werror']);

/** What C recorded, and what it is to do. */
export class StandInState {
  readonly #view: DataView;
  readonly #bytes: Uint8Array;
  /** The address of a string in the library. */
  readonly text: Address;

  constructor(path: string) {
    const library = openLibrary([path]);
    const buffer = viewMemory(library.symbol('stand_in') as Address, BYTE_LENGTH);
    this.text = library.symbol('stand_in_text') as Address;
    this.#view = new DataView(buffer);
    this.#bytes = new Uint8Array(buffer);
  }

  get calls(): number {
    return this.#view.getUint32(0, true);
  }

  get index(): number {
    return this.#view.getUint32(4, true);
  }

  get count(): number {
    return this.#view.getUint32(8, true);
  }

  set status(status: number) {
    this.#view.setUint32(12, status, true);
  }

  set writes(writes: boolean) {
    this.#view.setUint32(16, writes ? 1 : 0, true);
  }

  /** The bytes of a parameter, as C counts them. */
  width(parameter: number): number {
    return this.#view.getUint32(WIDTH + 4 * parameter, true);
  }

  /** What C received, widened to 64 bits as C widens it. */
  value(parameter: number): bigint {
    return this.#view.getBigUint64(VALUE + 8 * parameter, true);
  }

  /** The 64 bytes of a struct that C received by value. */
  passed(parameter: number): Uint8Array {
    return this.#bytes.slice(PASSED + SLOT * parameter, PASSED + SLOT * (parameter + 1));
  }

  /** What C is to write through a pointer. */
  setOut(parameter: number, bytes: Uint8Array): void {
    this.#bytes.set(bytes, OUT + SLOT * parameter);
  }

  clear(): void {
    this.#bytes.fill(0);
  }
}
