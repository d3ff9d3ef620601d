/**
 * Byte layouts of the driver's structs, as data: the offset and width of each field. Nested fields
 * have dotted names.
 */

type Fields = Readonly<Record<string, readonly [offset: number, byteLength: number]>>;

/** A struct: its size, and its fields by name. */
export interface Layout<F extends Fields = Fields> {
  readonly byteLength: number;
  readonly fields: F;
}

const struct = <const F extends Fields>(byteLength: number, fields: F): Layout<F> => ({
  byteLength,
  fields,
});

const src3D = {
  srcXInBytes: [0, 8],
  srcY: [8, 8],
  srcZ: [16, 8],
  srcLOD: [24, 8],
  srcMemoryType: [32, 4],
  srcHost: [40, 8],
  srcDevice: [48, 8],
  srcArray: [56, 8],
  srcPitch: [72, 8],
  srcHeight: [80, 8],
} as const;

const dst3D = {
  dstXInBytes: [88, 8],
  dstY: [96, 8],
  dstZ: [104, 8],
  dstLOD: [112, 8],
  dstMemoryType: [120, 4],
  dstHost: [128, 8],
  dstDevice: [136, 8],
  dstArray: [144, 8],
  dstPitch: [160, 8],
  dstHeight: [168, 8],
} as const;

const extents3D = {
  WidthInBytes: [176, 8],
  Height: [184, 8],
  Depth: [192, 8],
} as const;

export const structs = {
  CUmemLocation: struct(8, { type: [0, 4], id: [4, 4] }),
  // 88 bytes in every version: maxSize (12.2) and usage (12.6) were reserved before.
  CUmemPoolProps: struct(88, {
    allocType: [0, 4],
    handleTypes: [4, 4],
    'location.type': [8, 4],
    'location.id': [12, 4],
    win32SecurityAttributes: [16, 8],
    maxSize: [24, 8],
    usage: [32, 2],
    reserved: [34, 54],
  }),
  CUmemAccessDesc: struct(12, { 'location.type': [0, 4], 'location.id': [4, 4], flags: [8, 4] }),
  CUmemAllocationProp: struct(32, {
    type: [0, 4],
    requestedHandleTypes: [4, 4],
    'location.type': [8, 4],
    'location.id': [12, 4],
    win32HandleMetaData: [16, 8],
    'allocFlags.compressionType': [24, 1],
    'allocFlags.gpuDirectRDMACapable': [25, 1],
    'allocFlags.usage': [26, 2],
    'allocFlags.reserved': [28, 4],
  }),
  CUmemPoolPtrExportData: struct(64, { reserved: [0, 64] }),
  CUlaunchConfig: struct(56, {
    gridDimX: [0, 4],
    gridDimY: [4, 4],
    gridDimZ: [8, 4],
    blockDimX: [12, 4],
    blockDimY: [16, 4],
    blockDimZ: [20, 4],
    sharedMemBytes: [24, 4],
    hStream: [32, 8],
    attrs: [40, 8],
    numAttrs: [48, 4],
  }),
  // `value` is a union: other 32-bit values have the offset of clusterDim.x.
  CUlaunchAttribute: struct(72, {
    id: [0, 4],
    pad: [4, 4],
    'value.clusterDim.x': [8, 4],
    'value.clusterDim.y': [12, 4],
    'value.clusterDim.z': [16, 4],
  }),
  CUDA_KERNEL_NODE_PARAMS_v2: struct(72, {
    func: [0, 8],
    gridDimX: [8, 4],
    gridDimY: [12, 4],
    gridDimZ: [16, 4],
    blockDimX: [20, 4],
    blockDimY: [24, 4],
    blockDimZ: [28, 4],
    sharedMemBytes: [32, 4],
    kernelParams: [40, 8],
    extra: [48, 8],
    kern: [56, 8],
    ctx: [64, 8],
  }),
  CUDA_MEMCPY2D: struct(128, {
    srcXInBytes: [0, 8],
    srcY: [8, 8],
    srcMemoryType: [16, 4],
    srcHost: [24, 8],
    srcDevice: [32, 8],
    srcArray: [40, 8],
    srcPitch: [48, 8],
    dstXInBytes: [56, 8],
    dstY: [64, 8],
    dstMemoryType: [72, 4],
    dstHost: [80, 8],
    dstDevice: [88, 8],
    dstArray: [96, 8],
    dstPitch: [104, 8],
    WidthInBytes: [112, 8],
    Height: [120, 8],
  }),
  CUDA_MEMCPY3D: struct(200, {
    ...src3D,
    reserved0: [64, 8],
    ...dst3D,
    reserved1: [152, 8],
    ...extents3D,
  }),
  CUDA_MEMCPY3D_PEER: struct(200, {
    ...src3D,
    srcContext: [64, 8],
    ...dst3D,
    dstContext: [152, 8],
    ...extents3D,
  }),
} as const;

/** The name of a struct, as cuda.h spells it. */
export type StructName = keyof typeof structs;

/** The fields of a struct by name. Missing fields, and fields wider than 8 bytes, are zero. */
export type StructValues<S extends StructName> = {
  readonly [F in keyof (typeof structs)[S]['fields']]?: number | bigint;
};

/** Writes all bytes of a struct at an offset of a view. */
export function encodeStruct<S extends StructName>(
  name: S,
  values: StructValues<S>,
  view: DataView,
  offset = 0,
): void {
  const { byteLength, fields }: Layout = structs[name];
  for (let at = 0; at < byteLength; at += 4) view.setUint32(offset + at, 0, true);
  for (const [field, value] of Object.entries(values) as [string, number | bigint | undefined][]) {
    const place = fields[field];
    if (!place || value === undefined) continue;
    const at = offset + place[0];
    if (place[1] === 8) view.setBigUint64(at, BigInt.asUintN(64, BigInt(value)), true);
    else if (place[1] === 4) view.setInt32(at, Number(value), true);
    else if (place[1] === 2) view.setInt16(at, Number(value), true);
    else view.setInt8(at, Number(value));
  }
}

/**
 * The fields of a struct as numbers; 32-bit fields are signed, fields wider than 8 bytes are 0. A
 * 64-bit field above 2^53 loses bits: callers check for safe integers.
 */
export function decodeStruct<S extends StructName>(
  name: S,
  bytes: Uint8Array,
): { readonly [F in keyof (typeof structs)[S]['fields']]: number } {
  const { fields }: Layout = structs[name];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const entries = Object.entries(fields).map(([field, [at, byteLength]]) => {
    if (byteLength === 8) return [field, Number(view.getBigUint64(at, true))];
    if (byteLength === 4) return [field, view.getInt32(at, true)];
    if (byteLength === 2) return [field, view.getUint16(at, true)];
    return [field, byteLength === 1 ? view.getUint8(at) : 0];
  });
  return Object.fromEntries(entries) as {
    readonly [F in keyof (typeof structs)[S]['fields']]: number;
  };
}
