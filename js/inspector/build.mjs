/**
 * Makes the page one HTML file with an inline module, because modules in files of their own do not load from `file://`.
 *
 *     node inspector/build.mjs            writes inspector/index.html
 *     node inspector/build.mjs --check    fails if that file is out of date
 *
 * The files that the page opens first are between `<!--data-->` and `<!--/data-->`, as base64. Here they are the files
 * of the folder `excerpt`. `deltachain inspect --html` puts a link there instead.
 */
import { createHash } from 'node:crypto';
import { readFile, readdir, writeFile } from 'node:fs/promises';
import { join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const hashed = (text) => `sha256-${createHash('sha256').update(text).digest('base64')}`;

async function page() {
  const bundle = await build({
    entryPoints: [here('page.js')], bundle: true, format: 'esm', minify: true, write: false, legalComments: 'inline',
    // Makes a bundle that is the same on every machine.
    absWorkingDir: here('..'),
  });
  const script = bundle.outputFiles[0].text.replaceAll('</script', '<\\/script').replaceAll('<!--', '<\\!--');
  const style = await readFile(here('page.css'), 'utf8');
  const parts = {
    SCRIPTHASH: hashed(script), SCRIPT: script, STYLEHASH: hashed(style), STYLE: style, DATA: await data(here('excerpt')),
  };
  const template = await readFile(here('page.html'), 'utf8');
  return template.replace(/@([A-Z]+)@/g, (whole, key) => parts[key] ?? whole);
}

/** Returns the files of a folder as elements of the page, ordered by name. */
async function data(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath ?? entry.path, entry.name));
  const files = await Promise.all(paths.map(async (path) => [relative(folder, path).split(sep).join('/'), await readFile(path)]));
  return files.sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, bytes]) =>
    `\n<script type="text/plain" class="data" data-name="${name}">${bytes.toString('base64')}</script>`).join('') + '\n';
}

const out = here('index.html');
const made = await page();
if (process.argv.includes('--check')) {
  if ((await readFile(out, 'utf8').catch(() => '')) !== made) {
    console.error('inspector/index.html is out of date: run `npm run page`');
    process.exitCode = 1;
  }
} else {
  await writeFile(out, made);
}
