/**
 * Bundles the JavaScript of dist. What an import costs is measured by the bench case `startup.import`.
 *
 * - The bundler makes a file of the modules that the same entries reach. So every entry is made to
 *   reach whole layers: an import reads one file for each layer, and not a dozen.
 * - Modules of Node are not imported but taken from the process, which defines the same names: an
 *   import reads every property, and those of node:fs load Node's streams.
 * - Classes get the names that they have in the source. The bundler writes a class that refers to
 *   itself as `var Stream = class _Stream`, and users would see `_Stream` in logs and stacks. Its
 *   option `keepNames` would also wrap every closure in a call, and some closures are on hot paths.
 * - White space and syntax are minified, names are not, so that stacks can be read. Lines stay short,
 *   because Node prints the whole line of an error that nobody catches.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join, relative } from 'node:path';
import { build, transform } from 'esbuild';

const isModule = (path) => path.endsWith('.ts') && !/(\.d|\bindex)\.ts$/.test(path);

/** The modules of a folder that are not of one of the excluded folders. */
const layer = (folder, ...excluded) =>
  readdirSync(folder, { recursive: true })
    .map((name) => join(folder, name))
    .filter((path) => isModule(path) && !excluded.some((other) => path.startsWith(`${other}/`)))
    .sort();

const ffi = layer('ffi', 'ffi/emulator');
const core = layer('src', 'src/ipc', 'src/tensors', 'src/cli', 'src/python', 'src/protocol');
const ipc = layer('src/ipc', 'src/ipc/inspect');

/** The layers that each entry reaches. The last two entries are loaded by `import()`. */
const entries = {
  'ffi/index.ts': ffi,
  'ffi/emulator/index.ts': ffi,
  'src/index.ts': [...ffi, ...core],
  'src/ipc/index.ts': [...ffi, ...core, ...ipc],
  'src/tensors/index.ts': [...ffi, ...core],
  // It loads the commands after it has turned on the compile cache.
  'src/cli/main.ts': [],
  'src/cli/commands.ts': [...ffi, ...core, ...ipc],
  'src/cli/roundtrip-child.ts': [...ffi, ...core, ...ipc],
  'src/cli/bench-child.ts': [...ffi, ...core, ...ipc],
  'src/cli/doctor-child.ts': [...ffi, ...core, ...ipc],
  'src/ipc/inspect/inspect-server.ts': [...ffi, ...core, ...ipc],
  // Without them it would share the helpers of the bundler alone: in one more file, which all imports read.
  'src/cli/output.ts': [...ffi, ...core, ...ipc],
};

const layers = {
  name: 'layers',
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const reached = entries[relative('.', path)];
      if (!reached) return undefined;
      const imports = reached.map(
        (module) => `import ${JSON.stringify(join(process.cwd(), module))};`,
      );
      // In one line at the end: the lines of the source keep their numbers.
      return { contents: `${readFileSync(path, 'utf8')}${imports.join('')}`, loader: 'ts' };
    });
  },
};

const LONGEST_LINE = 120;

const options = {
  bundle: true,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  logLevel: 'warning',
};

await build({
  ...options,
  entryPoints: Object.keys(entries).slice(0, -2),
  splitting: true,
  packages: 'external',
  outbase: '.',
  outdir: 'dist',
  chunkNames: 'ffi/chunk-[hash]',
  sourcemap: true,
  sourcesContent: false,
  // The modules have no side effects: their imports above count for the layers only.
  logOverride: { 'ignored-bare-import': 'silent' },
  plugins: [layers],
});

// Beside the chunks, one of which loads it.
const { version: zodVersion } = JSON.parse(readFileSync('node_modules/zod/package.json', 'utf8'));
const zodLicense = readFileSync('node_modules/zod/LICENSE', 'utf8').trim();
await build({
  ...options,
  entryPoints: ['src/ipc/zod.ts'],
  outfile: 'dist/ffi/zod.js',
  banner: { js: `/*!\nParts of zod ${zodVersion} (https://zod.dev):\n\n${zodLicense}\n*/` },
});

for (const name of readdirSync('dist', { recursive: true })) {
  if (!name.endsWith('.js')) continue;
  const path = `dist/${name}`;
  const text = withRequireInBundle(withoutImportsOfNode(readFileSync(path, 'utf8')));
  await writeMinified(path, text);
}

/** Minifies a file, and its source map if it has one. */
async function writeMinified(path, text) {
  const map = `${path}.map`;
  const hasMap = existsSync(map);
  const [start, name] = ['//# sourceMappingURL=', `${basename(path)}.map`];
  const data = hasMap && `data:application/json;base64,${readFileSync(map, 'base64')}`;
  const { code, map: minified } = await transform(
    hasMap ? text.replace(`${start}${name}`, `${start}${data}`) : text,
    {
      loader: 'js',
      format: 'esm',
      platform: options.platform,
      target: options.target,
      minifyWhitespace: true,
      minifySyntax: true,
      lineLimit: LONGEST_LINE,
      legalComments: 'inline',
      sourcemap: hasMap && 'external',
      sourcesContent: false,
      sourcefile: path,
    },
  );
  if (hasMap) writeFileSync(map, minified);
  const named = withClassNames(code, path);
  writeFileSync(path, hasMap ? `${named}${start}${name}\n` : named);
}

/** Bundlers of programs follow `require` with a literal path, also in an ES module; Node never gets there. */
function withRequireInBundle(text) {
  return text.replaceAll(/\brequireInBundle\(/g, 'require(');
}

function withoutImportsOfNode(text) {
  return text.replaceAll(
    /^import (\{[^}]*\}|\w+) from ("node:[\w/]+");$/gm,
    (_, names, module) =>
      `const ${names.replaceAll(' as ', ': ')} = process.getBuiltinModule(${module});`,
  );
}

function withClassNames(text, path) {
  for (const [, outer, inner] of text.matchAll(/\b(\w+)=class _(\w+)\b/g)) {
    if (outer !== inner) throw new Error(`${path}: two classes are called ${inner}`);
    // All uses of the inner name are inside the class, where it and the outer name are the same. The space
    // keeps the columns, which the source map has.
    text = text.replaceAll(new RegExp(`\\b_${inner}\\b`, 'g'), `${inner} `);
  }
  return text;
}
