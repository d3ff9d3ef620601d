/** Programs of a user's, as text: they are written beside an unpacked package and run there. */

/** Names that the entries are known to export. */
const names: Readonly<Record<string, readonly string[]>> = {
  cuffi: ['Context', 'CudaEvent', 'Device', 'DeviceBuffer', 'Stream'],
  'cuffi/ipc': [
    'connect',
    'exportIpc',
    'explain',
    'getIpcHandle',
    'openIpc',
    'openIpcBuffer',
    'openIpcEvent',
    'spawnPeer',
  ],
  'cuffi/ffi': ['cu'],
};

const program = (load: (specifier: string, as: string) => string): string => {
  const lines = Object.entries(names).flatMap(([specifier, exported], n) => [
    load(specifier, `m${n}`),
    ...exported.map(
      (name) => `if (!m${n}.${name}) throw new Error('${specifier} has no ${name}');`,
    ),
  ]);
  return `${lines.join('\n')}\nconsole.log('ok');\n`;
};

/** Prints `ok` where every entry has its names; an ES module. */
export const esm = program((specifier, as) => `import * as ${as} from '${specifier}';`);

/** The same in CommonJS. */
export const cjs = program((specifier, as) => `const ${as} = require('${specifier}');`);

/** Prints the exported functions and classes whose own name is not that of the export. */
export const wrongNames = `
const entries = await Promise.all([
${Object.keys(names)
  .map((specifier) => `  import('${specifier}'),`)
  .join('\n')}
]);
const wrong = entries.flatMap((entry) =>
  Object.entries(entry).filter(([name, value]) => typeof value === 'function' && value.name !== name),
);
console.log(wrong.map(([name, value]) => \`\${name}: \${value.name}\`).join(', '));
`;

/** Does not compile where an entry has no types, or types that say nothing. */
export const types = `
import { Context, CudaEvent, Device, DeviceBuffer, Stream } from 'cuffi';
import { cu } from 'cuffi/ffi';
import { getIpcHandle, openIpcBuffer, openIpcEvent } from 'cuffi/ipc';

export type Objects = [Context, CudaEvent, Device, DeviceBuffer, Stream];
export const functions: readonly ((...args: never[]) => unknown)[] = [
  getIpcHandle,
  openIpcBuffer,
  openIpcEvent,
];
export const status: number = cu.cuInit(0);

// @ts-expect-error
Device.nothing;
// @ts-expect-error
getIpcHandle.nothing;
// @ts-expect-error
cu.nothing;
`;

/** Prints the name of the error that the first driver call throws. */
export const bindings = `
import 'cuffi';
import { cu } from 'cuffi/ffi';
try {
  cu.cuInit(0);
} catch (error) {
  console.log(error.name);
}
`;

/**
 * Prints which scripts exist after `import 'cuffi'`, and after zod and the emulated driver were
 * used. V8 itself is asked: it knows ES modules and CommonJS alike, however they were loaded.
 */
export const loadedScripts = `
import { Session } from 'node:inspector';

function scripts() {
  const urls = [];
  const session = new Session();
  session.connect();
  session.on('Debugger.scriptParsed', ({ params }) => urls.push(params.url));
  session.post('Debugger.enable');
  session.disconnect();
  return urls;
}

await import('cuffi');
const atImport = scripts();
const { cu } = await import('cuffi/ffi');
cu.cuInit(0);
await import('zod');
console.log(JSON.stringify({ atImport, afterUse: scripts() }));
`;
