/** Results of the inspector: where links change tensors and by how much, and the cost of a version. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';
import { BINS, binArea, changesOf, span } from '../inspector/changes.js';
import { costOf } from '../inspector/calculator.js';
import { bytesSource, open, openSafetensors } from '../src/index.js';

const excerpt = new URL('../inspector/excerpt/', import.meta.url);
const WEIGHT = 'encoder.layer.0.attention.self.query.weight';

async function step(number) {
  const bytes = await readFile(new URL(`../../testdata/rl3e6_step${number}.safetensors`, import.meta.url));
  return openSafetensors(bytesSource(bytes));
}

/** Opens the link from version 0 to 1, which has two contexts. */
async function firstLink() {
  const commit = JSON.parse(await readFile(new URL('commits/00000000000000000001.json', excerpt), 'utf8'));
  return open(bytesSource(await readFile(new URL(`files/${commit.routes[0].files[0].digest}.dcf`, excerpt))));
}

/** Returns places and differences of two states, found by comparing them. */
async function compared(before, after) {
  const [old, now] = await Promise.all([before, after].map(async (state) => {
    const bytes = await state.readPiece(WEIGHT, 0);
    return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  }));
  const key = (u) => (u & 0x8000 ? -(u & 0x7fff) - 1 : u);
  const found = [];
  now.forEach((value, lane) => value !== old[lane] && found.push({ lane, step: key(value) - key(old[lane]) }));
  return found;
}

test('changes of a tensor are those that comparing the states finds', async () => {
  const [link, base, target] = [await firstLink(), await step(0), await step(1)];
  const changes = await changesOf(link, WEIGHT, base, { coded: 1173 });
  const found = await compared(base, target);
  assert.equal(changes.changed, found.length);
  assert.equal(changes.exact, true);
  const { grid, steps } = changes;
  const counts = new Uint32Array(grid.counts.length);
  for (const { lane } of found) {
    const [row, column] = [Math.floor(lane / 384), lane % 384];
    counts[Math.floor((row * grid.down) / 384) * grid.across + Math.floor((column * grid.across) / 384)] += 1;
  }
  assert.deepEqual(grid.counts, counts);
  for (const [bin, step] of [['+1', 1], ['−1', -1], ['+2', 2], ['−2', -2]]) {
    assert.equal(steps.get(bin) ?? 0, found.filter((one) => one.step === step).length, bin);
  }
  const far = found.filter((one) => one.step > 4 && one.step <= 8).length;
  assert.equal(steps.get('+5…8') ?? 0, far);
  assert.ok([...steps.keys()].every((bin) => BINS.includes(bin)));
  // Bins cover the tensor.
  let area = 0;
  for (let y = 0; y < grid.down; y++) for (let x = 0; x < grid.across; x++) area += binArea(grid, y, x);
  assert.equal(area, 384 * 384);
  assert.deepEqual(span(384, grid.down, 0)[0], 0);
});

test('without the base the places of several contexts are not known, the differences are', async () => {
  const link = await firstLink();
  const changes = await changesOf(link, WEIGHT, null);
  assert.equal(changes.grid, null);
  const known = await changesOf(link, WEIGHT, await step(0));
  assert.deepEqual(changes.steps, known.steps);
});

test('a set tensor has no differences, and is all new', async () => {
  const commit = JSON.parse(await readFile(new URL('commits/00000000000000000000.json', excerpt), 'utf8'));
  const link = await open(bytesSource(await readFile(new URL(`files/${commit.routes[0].files[0].digest}.dcf`, excerpt))));
  const changes = await changesOf(link, WEIGHT, null);
  assert.equal(changes.changed, 384 * 384);
  assert.equal(changes.steps, null);
});

test('bins of differences are ascending and have two sides', () => {
  assert.equal(BINS.length, 22);
  assert.deepEqual(BINS.slice(9, 13), ['−2', '−1', '+1', '+2']);
  assert.deepEqual([BINS[0], BINS[21]], ['< −512', '> +512']);
});

test('the calculator agrees with the table of docs/scaling.md', async () => {
  const text = await readFile(new URL('../../docs/scaling.md', import.meta.url), 'utf8');
  const rows = [...text.matchAll(/^\| (7B|70B|1T) \| \d+ GB \| ([\d.]+) GB \| 1 \| ([\d.]+) s \| ([\d.]+) s \| [\d.]+ s \| ([\d.]+) s \|$/gm)];
  assert.equal(rows.length, 3);
  const parameters = { '7B': 7e9, '70B': 70e9, '1T': 1e12 };
  for (const [, model, link, diff, upload, apply] of rows) {
    const cost = costOf({ parameters: parameters[model], bytesEach: 2, share: 0.01, line: 24.8e9, hosts: 1 });
    for (const [is, said, digits] of [[cost.link / 1e9, link, 2], [cost.diff, diff, 1], [cost.sendLink, upload, 2], [cost.apply, apply, 1]]) {
      assert.equal(is.toFixed(digits), said, `${model}: ${said}`);
    }
  }
});
