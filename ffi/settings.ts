/**
 * The settings of cuffi: environment variables, each with what it may be. All of cuffi reads them here, so
 * that none ignores a value that it does not understand.
 */

/** What a setting may be. */
interface Setting<T> {
  /** In words, for the message of an error. */
  readonly expected: string;
  /** Returns the value, or undefined for other text. */
  read(text: string): T | undefined;
}

const flag: Setting<boolean> = {
  expected: '1 or 0',
  read: (text) => (text === '1' ? true : text === '0' ? false : undefined),
};

const number = (expected: string, isValid: (value: number) => boolean): Setting<number> => ({
  expected,
  read(text) {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    return isValid(value) ? value : undefined;
  },
});

/** A path. Opening it reports what is wrong with it. */
const path: Setting<string> = { expected: 'a path', read: (text) => text };

const settings = {
  CUFFI_TRACE: flag,
  CUFFI_INSPECT: flag,
  CUFFI_NVRTC: path,
  CUFFI_PYTHON: path,
  CUFFI_CACHE: {
    expected: 'off, or the path of a folder: ./NAME for one in the working directory',
    read: (text) =>
      text === '0' || text === 'off' ? 'off' : text.includes('/') ? text : undefined,
  } as Setting<string>,
  CUFFI_DEALLOCS_COUNT: number(
    'an integer of at least 0',
    (value) => Number.isInteger(value) && value >= 0,
  ),
  CUFFI_DEALLOCS_RATIO: number('a number from 0 to 1', (value) => value >= 0 && value <= 1),
  CUFFI_POOL_SHARE_LIMIT: number('a number of at least 0', (value) => value >= 0),
};

type Settings = typeof settings;
type Value<Name extends keyof Settings> = Settings[Name] extends Setting<infer T> ? T : never;

/**
 * Returns a setting, or undefined if it is unset or empty.
 *
 * @throws RangeError for a value that it does not understand
 */
export function readSetting<Name extends keyof Settings>(
  name: Name,
  env: NodeJS.ProcessEnv = process.env,
): Value<Name> | undefined {
  const text = env[name];
  if (text === undefined || text === '') return undefined;
  const { expected, read } = settings[name] as Setting<Value<Name>>;
  const value = read(text);
  if (value === undefined) throw invalidSetting(name, expected, text);
  return value;
}

/** The error for a setting with a wrong value. */
export const invalidSetting = (name: string, expected: string, text: string): RangeError =>
  new RangeError(`${name} must be ${expected}, not ${JSON.stringify(text)}`);

/**
 * Refuses settings that no part of cuffi understands, also those that are read late or never. The first
 * driver call and every function that makes a connection call it.
 *
 * @throws RangeError
 */
export function checkSettings(): void {
  for (const name of Object.keys(settings)) readSetting(name as keyof Settings);
}

/** Whether `CUFFI_TRACE` is on. Read once, at the import; {@link checkSettings} refuses other values. */
export const isTracing: boolean = process.env['CUFFI_TRACE'] === '1';
