/**
 * What cuffi uses of zod. The build makes one small file of this module and these parts of zod: the
 * package as a whole takes 0.1 s to load, mostly for error messages in sixty languages.
 */
export {
  array,
  boolean,
  discriminatedUnion,
  enum,
  type infer,
  instanceof,
  int,
  literal,
  number,
  object,
  partialRecord,
  prettifyError,
  record,
  strictObject,
  string,
  type ZodType,
  // biome-ignore lint/correctness/noUndeclaredDependencies: the build includes it
} from 'zod';
