/**
 * Gives the classes in dist the names that they have in the source. The bundler writes a class that
 * refers to itself as `var Stream = class _Stream`, and users would see `_Stream` in logs and stacks. Its
 * option `keepNames` would also wrap every closure in a call, and some closures are on hot paths.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';

for (const name of readdirSync('dist', { recursive: true })) {
  if (!name.endsWith('.js')) continue;
  const path = `dist/${name}`;
  let text = readFileSync(path, 'utf8');
  for (const [, outer, inner] of text.matchAll(/\bvar (\w+) = class _(\w+)\b/g)) {
    if (outer !== inner) throw new Error(`${path}: two classes are called ${inner}`);
    // All uses of the inner name are inside the class, where it and the outer name are the same.
    text = text.replaceAll(new RegExp(`\\b_${inner}\\b`, 'g'), inner);
  }
  writeFileSync(path, text);
}
