/** The testee declares all abilities of the reader, and leaves no files behind after a refusal. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'node:test';

const testee = fileURLToPath(new URL('../testee.mjs', import.meta.url));
const vector = (/** @type {string} */ name) => fileURLToPath(new URL(`../../conformance/vectors/${name}`, import.meta.url));

/** @param {object[]} requests @returns {any[]} */
function ask(requests) {
  const input = requests.map((request) => `${JSON.stringify(request)}\n`).join('');
  const { stdout } = spawnSync(process.execPath, [testee], { input, encoding: 'utf8' });
  return stdout.trim().split('\n').map((line) => JSON.parse(line));
}

test('all operations but encode', () => {
  const [hello] = ask([{ operation: 'hello', protocol: 2 }]);
  assert.deepEqual(hello.operations, ['check', 'apply', 'patches', 'sums', 'in-place', 'document', 'plan', 'replay']);
  assert.deepEqual(hello.without, []);
});

test('after a refusal there is no output', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'deltachain js '));
  t.after(() => rm(folder, { recursive: true }));
  const apply = { operation: 'apply', links: [vector('links/valid/one-lane.dcf')], set_bytes: null };
  const output = join(folder, 'ä.safetensors');
  const [wrong, right] = ask([
    { ...apply, case: 'wrong', base: null, output },
    { ...apply, case: 'right', base: vector('states/one-u8.safetensors'), output: `${output}.2` },
  ]);
  assert.deepEqual([wrong.class, wrong.rule], ['WRONG_BASE', 'R-APP-01']);
  assert.equal(right.result, 'valid');
  assert.deepEqual(await readdir(folder), ['ä.safetensors.2']);
});
