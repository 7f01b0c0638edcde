/**
 * Makes the page one HTML file with an inline module, because modules in files of their own do not load from `file://`.
 *
 *     node inspector/build.mjs OUT [LINK]
 *
 * With LINK the page opens on it; without, it waits for a file.
 */
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { basename } from 'node:path';
import { build } from 'esbuild';

const [out, link] = process.argv.slice(2);
if (out === undefined) throw new Error('usage: node inspector/build.mjs OUT [LINK]');
const here = (name) => new URL(name, import.meta.url).pathname;
const bundle = await build({ entryPoints: [here('page.js')], bundle: true, format: 'esm', minify: true, write: false });
const script = bundle.outputFiles[0].text.replaceAll('</script', '<\\/script');
const escape = (text) => text.replace(/[&"<]/g, (c) => `&#${c.charCodeAt(0)};`);
const parts = {
  HASH: `sha256-${createHash('sha256').update(script).digest('base64')}`,
  STYLE: await readFile(here('page.css'), 'utf8'),
  NAME: link === undefined ? '' : escape(basename(link)),
  LINK: link === undefined ? '' : (await readFile(link)).toString('base64'),
  SCRIPT: script,
};
const page = await readFile(here('page.html'), 'utf8');
await writeFile(out, page.replace(/@([A-Z]+)@/g, (_, key) => parts[key]));
