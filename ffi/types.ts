/**
 * C types as values that carry TypeScript types. The function table is written in them; the
 * calls' argument types, koffi's declarations and the proof against cuda.h all follow from it.
 */

declare const brand: unique symbol;
declare const carried: unique symbol;

/**
 * A driver handle or address as a number that cannot be mistaken for another kind. Values stay
 * below 2^53: the arena's readers refuse what is above.
 */
export type Handle<Name extends string> = number & { readonly [brand]: Name };

/** How koffi is told about a parameter: integers, and the one struct passed by value. */
export type FfiType = 'int32' | 'uint32' | 'int64' | 'uint64' | 'handle64';

/** A C type: its spelling in cuda.h, its width, and (in `T`) what TypeScript passes for it. */
export interface CType<T = unknown> {
  readonly c: string;
  readonly ffi: FfiType;
  readonly byteLength: number;
  readonly [carried]?: T;
}

/** The TypeScript arguments of a parameter list. */
export type Arguments<P extends readonly CType[]> = {
  -readonly [K in keyof P]: P[K] extends CType<infer T> ? T : never;
};

const type = <T>(c: string, ffi: FfiType, byteLength: number): CType<T> => ({ c, ffi, byteLength });
const handle = <const Name extends string>(name: Name): CType<Handle<Name>> =>
  type(name, 'uint64', 8);
const enumeration = (name: string): CType<number> => type(name, 'uint32', 4);

/** An address in host memory. */
export type Address = Handle<'address'>;

/** A parameter that points to where the driver writes (or reads) a value of type `t`. */
export const out = (t: CType): CType<Address> => type(`${t.c} *`, 'uint64', 8);

export const int = type<number>('int', 'int32', 4);
export const uint = type<number>('unsigned int', 'uint32', 4);
export const uint8 = type<number>('unsigned char', 'uint32', 1);
export const uint16 = type<number>('unsigned short', 'uint32', 2);
export const uint32 = type<number>('cuuint32_t', 'uint32', 4);
export const float = type<number>('float', 'uint32', 4);
export const size_t = type<number>('size_t', 'uint64', 8);
export const char = type<number>('char', 'uint32', 1);
/** `void *`: host memory that the driver writes. */
export const pointer = type<Address>('void *', 'uint64', 8);
/** `const void *`: host memory that the driver reads. */
export const constPointer = type<Address>('const void *', 'uint64', 8);
export const constString = type<Address>('const char *', 'uint64', 8);

export const CUdevice = type<CUdevice>('CUdevice', 'int32', 4);
/** A device ordinal as the driver counts them; not an address. */
export type CUdevice = Handle<'CUdevice'>;
export const CUcontext = handle('CUcontext');
export type CUcontext = Handle<'CUcontext'>;
export const CUstream = handle('CUstream');
export type CUstream = Handle<'CUstream'>;
export const CUevent = handle('CUevent');
export type CUevent = Handle<'CUevent'>;
export const CUdeviceptr = handle('CUdeviceptr');
/** An address in device memory. */
export type CUdeviceptr = Handle<'CUdeviceptr'>;

export const CUdevice_attribute = enumeration('CUdevice_attribute');
export const CUpointer_attribute = enumeration('CUpointer_attribute');
export const CUlimit = enumeration('CUlimit');
export const CUresultType = enumeration('CUresult');

/**
 * The 64 bytes of an IPC handle, passed by value. The property is koffi's name for the struct's
 * only member: a bare Uint8Array would be read as a struct without it and pass 64 zero bytes.
 */
export interface IpcHandleBytes {
  readonly reserved: Uint8Array;
}
export const CUipcMemHandle = type<IpcHandleBytes>('CUipcMemHandle', 'handle64', 64);
export const CUipcEventHandle = type<IpcHandleBytes>('CUipcEventHandle', 'handle64', 64);
export const CUuuid = type<Address>('CUuuid', 'uint64', 16);
