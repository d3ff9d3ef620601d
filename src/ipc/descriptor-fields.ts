/** The fields of each kind of descriptor in their order: what checksum and binary form go by. */

/** How a field is written in binary. */
export type FieldType =
  | 'access'
  | 'device'
  | 'event?'
  | 'handle'
  | 'handle?'
  | 'id'
  | 'layout?'
  | 'sizes'
  | 'uint32'
  | 'uint53'
  | 'uuid';

export type Field = readonly [name: string, type: FieldType];

/** Who exported it. */
const exporter = [
  ['device', 'device'],
  ['machine', 'uuid'],
  ['pid', 'uint32'],
  ['startTime', 'uint53'],
  ['pidNamespace', 'uint53'],
] as const;

/** Which part of what. */
const range = [
  ['baseByteLength', 'uint53'],
  ['byteOffset', 'uint53'],
  ['byteLength', 'uint53'],
  ['access', 'access'],
  ['bufferId', 'uint53'],
  ['generation', 'uint53'],
  ['layout', 'layout?'],
  ['readyEvent', 'event?'],
] as const;

/** All but kind, version and checksum. */
export const descriptorFields = {
  legacy: [...exporter, ['handle', 'handle'], ...range],
  pool: [...exporter, ['pool', 'id'], ['handle', 'handle?'], ...range],
  virtual: [...exporter, ['memory', 'id'], ['firstPiece', 'uint32'], ['pieces', 'sizes'], ...range],
  event: [...exporter, ['handle', 'handle']],
} as const satisfies Record<string, readonly Field[]>;

/** The kinds of descriptor; a kind's place here is its number in binary. */
export const descriptorKinds = Object.keys(
  descriptorFields,
) as readonly (keyof typeof descriptorFields)[];
