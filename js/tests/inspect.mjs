/**
 * Compares `link.inspect()` with `deltachain inspect --json` and `deltachain-conformance segments`, on every valid link
 * of the conformance vectors: `node tests/inspect.mjs TOOL RUNNER`. Exit status: 0 if the results are equal for each,
 * else 1.
 */
import { execFileSync } from 'node:child_process';
import { readFile, readdir } from 'node:fs/promises';
import { bytesSource, open } from '../src/index.js';

const [tool, runner] = process.argv.slice(2);
const folder = new URL('../../conformance/vectors/links/valid/', import.meta.url);
const names = (await readdir(folder)).filter((name) => name.endsWith('.dcf'));
let failed = 0;
for (const name of names) {
  const path = new URL(name, folder).pathname;
  const asked = (program, ...parameters) => JSON.parse(execFileSync(program, [...parameters, path], { encoding: 'utf8', maxBuffer: 2 ** 30 }));
  const said = { ...asked(tool, 'inspect', '--json'), segment_details: asked(runner, 'segments') };
  const own = await (await open(bytesSource(await readFile(path)))).inspect({ segments: true });
  const { link: _, ...expected } = normal(said);
  // Values that JSON numbers cannot hold exactly become numbers here, too.
  const same = JSON.stringify(expected) === JSON.stringify(normal(own));
  if (!same) {
    failed += 1;
    console.log(`${name}\n  tool   ${JSON.stringify(expected).slice(0, 800)}\n  reader ${JSON.stringify(normal(own)).slice(0, 800)}`);
  }
}
console.log(`inspect: ${names.length - failed} of ${names.length} links as the tool shows them`);
process.exitCode = failed > 0 ? 1 : 0;

/** Sorts members, and turns bigints into numbers. @param {any} value @returns {any} */
function normal(value) {
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(normal);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, normal(value[key])]));
}
