/** Results of the inspector: where links change tensors and by how much, and the cost of a version. */
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import test from 'node:test';
import { ChainData } from '../inspector/chain-data.js';
import { BIN_COUNT, binOf, changesOf, labelOf, lanesOfBin, span } from '../inspector/changes.js';
import { assumptions, costOf } from '../inspector/calculator.js';
import { chainIn, entriesOf } from '../inspector/dropped.js';
import { embeddedIn, linksIn } from '../inspector/embedded.js';
import { byKindAndLayer } from '../inspector/layer-map.js';
import { sortedRows } from '../inspector/rows.js';
import { chainVerdict, verdict } from '../inspector/verdict.js';
import { percent, seconds } from '../inspector/words.js';
import { blake3Hex, bytesSource, filesStore, open, openSafetensors } from '../src/index.js';
import { checkTrust } from '../src/signatures.js';
import { note, testKey } from './signing.mjs';

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

/** Changed and all lanes of the bins of a map. */
const binsOf = (grid) => Array.from(grid.counts, (changed, i) =>
  ({ changed, lanes: lanesOfBin(grid, Math.floor(i / grid.across), i % grid.across) }));

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
  for (const step of [1, -1, 2, -2]) {
    assert.equal(steps[binOf(step)], found.filter((one) => one.step === step).length, `${step}`);
  }
  const far = found.filter((one) => one.step > 4 && one.step <= 8).length;
  assert.equal(steps[binOf(5)], far);
  assert.equal(steps.reduce((a, b) => a + b), found.length);
  // Bins cover the tensor.
  assert.equal(binsOf(grid).reduce((sum, { lanes }) => sum + lanes, 0), 384 * 384);
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
  const labels = Array.from({ length: BIN_COUNT }, (_, bin) => labelOf(bin));
  assert.deepEqual(labels.slice(8, 14), ['−3…4', '−2', '−1', '+1', '+2', '+3…4']);
  assert.deepEqual([labels[0], labels[1], labels[20], labels[21]], ['< −512', '−257…512', '+257…512', '> +512']);
  const steps = [-1e9, -513, -512, -5, -4, -2, -1, 1, 2, 3, 4, 5, 8, 9, 512, 513];
  assert.deepEqual(steps.map((step) => labelOf(binOf(step))), ['< −512', '< −512', '−257…512', '−5…8', '−3…4', '−2', '−1',
    '+1', '+2', '+3…4', '+3…4', '+5…8', '+5…8', '+9…16', '+257…512', '> +512']);
});

test('the calculator agrees with the table of docs/scaling.md', async () => {
  const text = await readFile(new URL('../../docs/scaling.md', import.meta.url), 'utf8');
  const rows = [...text.matchAll(/^\| (7B|70B|1T) \| \d+ GB \| ([\d.]+) GB \| 1 \| ([\d.]+) s \| ([\d.]+) s \| [\d.]+ s \| ([\d.]+) s \|$/gm)];
  assert.equal(rows.length, 3);
  const parameters = { '7B': 7e9, '70B': 70e9, '1T': 1e12 };
  for (const [, model, link, diff, , apply] of rows) {
    const cost = costOf({ parameters: parameters[model], bytesEach: 2, share: 0.01, line: 24.8e9, hosts: 1 });
    assert.equal(cost.diff.toFixed(1), diff, model);
    assert.equal(cost.apply.toFixed(1), apply, model);
    // Its program computes with one size of a link. It is one of those that were measured.
    const [least, most] = cost.linkRange;
    assert.ok(least <= link * 1e9 && link * 1e9 <= most, `${model}: ${link} GB`);
  }
});

/** Rows of BF16 in the tables of docs/comparison.md: learning rate and steps of the decoder, shares from 0 to 1. */
async function measuredLinks() {
  const text = await readFile(new URL('../../docs/comparison.md', import.meta.url), 'utf8');
  const decoder = [...text.matchAll(/^\| (1e-[56]) \| (\d|1 to 4 in one link) \| ([\d.]+) % \| ([\d,]+) B \| ([\d.]+) % \|$/gm)];
  return decoder.map(([, rate, step, changed, , link]) => ({ rate, step, changed: changed / 100, link: link / 100 }));
}

test('the calculator agrees with the links that docs/comparison.md measured', async () => {
  const rows = await measuredLinks();
  assert.equal(rows.length, 10);
  const shareOf = ({ changed }) => {
    const { model, link, linkRange: [least, most] } = costOf({ parameters: 134.5e6, bytesEach: 2, share: changed, line: 1e9, hosts: 1 });
    return { least: least / model, typical: link / model, most: most / model };
  };
  // The range has all of them, and its ends and middle are those of steps 2 to 4.
  const toTypical = (row) => row.link / shareOf(row).typical;
  for (const row of rows) {
    const { least, most } = shareOf(row);
    assert.ok(0.99 * least <= row.link && row.link <= 1.01 * most, `${row.rate}, step ${row.step}: ${row.link}`);
  }
  const fitted = rows.filter(({ step }) => ['2', '3', '4'].includes(step));
  assert.equal(fitted.length, 6);
  const ratios = fitted.map(toTypical);
  const mean = Math.exp(ratios.reduce((sum, ratio) => sum + Math.log(ratio), 0) / ratios.length);
  assert.ok(Math.abs(mean - 1) < 0.01, `typical links are ${mean} times as large`);
  const { least, typical, most } = shareOf(fitted[0]);
  assert.equal(Math.min(...ratios).toFixed(2), (least / typical).toFixed(2));
  assert.equal(Math.max(...ratios).toFixed(2), (most / typical).toFixed(2));
});

test('the calculator names how much changed in the links that it is fitted to', async () => {
  const rows = (await measuredLinks()).filter(({ step }) => ['2', '3', '4'].includes(step));
  const [slow, fast] = ['1e-6', '1e-5'].map((rate) => {
    const shares = rows.filter((row) => row.rate === rate).map(({ changed }) => 100 * changed);
    return [Math.min(...shares).toFixed(2), Math.max(...shares).toFixed(2)].join(' to ');
  });
  assert.ok(assumptions().includes(`${slow} % of the elements change in a step at a learning rate of 1e-6, and ${fast} % at 1e-5`), assumptions());
  assert.match(assumptions(), /A link then takes 0\.48 % of a model of which 1 % changes \(0\.37 % to 0\.56 %\)/);
  // The page says the same of all links: "0.4 to 0.6 % of a model of which 1 % changes".
  const text = await readFile(new URL('../../docs/comparison.md', import.meta.url), 'utf8');
  assert.match(text, /a link has 0\.4 to 0\.6 % of a model of which 1 % changes/);
});

const versionDigits = (version) => String(version).padStart(20, '0');
const routesName = (version, generation) => `routes/${versionDigits(version)}-${String(generation).padStart(10, '0')}.json`;

/** The files of the excerpt's chain, as `filesStore` wants them. @returns {Promise<[string, Blob][]>} */
async function excerptFiles() {
  const files = [];
  for (const folder of ['', 'commits/', 'files/']) {
    for (const entry of await readdir(new URL(folder, excerpt), { withFileTypes: true })) {
      if (entry.isFile()) files.push([folder + entry.name, new Blob([await readFile(new URL(folder + entry.name, excerpt))])]);
    }
  }
  return files;
}

const commitOf = (version) => readFile(new URL(`commits/${versionDigits(version)}.json`, excerpt));

/** A routes document of a version, as name and bytes; `changes` replaces members. @returns {Promise<[string, Blob]>} */
async function routesDocument(version, generation, routes, changes = {}) {
  const document = { deltachain: 1, version, generation, commit: blake3Hex(await commitOf(version)), routes, metadata: {}, ...changes };
  return [routesName(version, generation), new Blob([JSON.stringify(document)])];
}

const routeFrom = (from, size) => ({ from, files: [{ digest: 'ab'.repeat(32), size }] });

/** The excerpt's chain with more files, all of it loaded. @param {...[string, Blob]} more */
async function chainWith(...more) {
  const data = new ChainData(filesStore([...(await excerptFiles()), ...more]));
  await data.open();
  await data.load(0, data.head);
  return data;
}

test('a version without routes has no main route, and the chain is shown all the same', async () => {
  const data = await chainWith(await routesDocument(1, 1, []));
  assert.deepEqual(data.versions.get(1).routes, []);
  assert.deepEqual(data.known.map((version) => data.mainRoute(version)?.from), [null, undefined, 1, 2]);
  assert.equal(data.mainRoute(data.versions.get(1)), null);
});

test('the main route is the smallest from the nearest version, a snapshot only if there is no other', async () => {
  const main = async (...routes) => data.mainRoute({ ...data.versions.get(3), routes: routes.map((route) => ({ ...route, bytes: BigInt(route.files[0].size) })) });
  const data = await chainWith();
  assert.equal((await main(routeFrom(null, 5), routeFrom(0, 9), routeFrom(1, 7), routeFrom(1, 8))).bytes, 7n);
  assert.equal((await main(routeFrom(null, 5))).from, null);
  // No reader uses a route whose files are not one for each shard: R-CHN-07.
  const two = { ...routeFrom(2, 1), files: [...routeFrom(2, 1).files, ...routeFrom(2, 1).files] };
  assert.equal((await main(routeFrom(1, 7), two)).from, 1);
});

test('the routes on show are those that the planner uses', async () => {
  const own = JSON.parse(String(await commitOf(1))).routes;
  const usable = await routesDocument(1, 2, [...own, routeFrom(0, 1_000_000)]);
  const unusable = [
    await routesDocument(1, 3, [routeFrom(0, 3)], { commit: 'cd'.repeat(32) }),
    await routesDocument(1, 4, [routeFrom(0, 4)], { generation: 5 }),
    await routesDocument(1, 6, [routeFrom(0, 6)], { version: 2 }),
    [routesName(1, 7), new Blob(['{}'])],
  ];
  const sizes = (data) => data.versions.get(1).routes.map(({ bytes }) => Number(bytes));
  const before = sizes(await chainWith());
  const data = await chainWith(usable, ...unusable);
  assert.deepEqual(sizes(data), [...before, 1_000_000]);
  assert.deepEqual((await data.plan(1, 0, null)).path.map(({ bytes }) => Number(bytes)), before);
  // A reader that finds no usable one uses the routes of the commit.
  assert.deepEqual(sizes(await chainWith(...unusable)), before);
  // Their texts can be read, nevertheless.
  assert.deepEqual(data.versions.get(1).documents.map(({ name }) => name),
    [`commits/${versionDigits(1)}.json`, ...[7, 6, 4, 3, 2].map((generation) => routesName(1, generation))]);
});

test('a search for signers that is overtaken by a later one changes nothing', async () => {
  const alice = testKey('alice', 1);
  const chain = await readFile(new URL('chain.json', excerpt));
  const [name, bytes] = note([alice], chain, 2, await commitOf(2));
  const data = await chainWith([name, new Blob([bytes])]);
  const { keys } = checkTrust({ keys: [alice.text] });
  const [slow, fast] = await Promise.all([data.findSigners(keys), data.findSigners([])]);
  data.setSigners([], fast);
  const names = (of) => data.known.map(({ version }) => data.signersOf(version, of)?.map((key) => key.name) ?? null);
  assert.deepEqual(names([]), [[], [], [], []]);
  // Not known, rather than "nobody".
  assert.deepEqual(names(keys), [null, null, null, null]);
  data.setSigners(keys, slow);
  assert.deepEqual(names(keys), [[], [], ['alice'], []]);
  // Equal keys that were given later can have another quorum.
  assert.deepEqual(names([...keys]), [null, null, null, null]);
});

test('what building a base takes is the files of its path and all states on it', async () => {
  const data = await chainWith();
  const files = data.known.map(({ routes }) => Number(routes[0].bytes));
  const lengths = (await (await data.chain.link(data.versions.get(0).routes[0].files[0].digest)).inspect()).tensors;
  const whole = lengths.reduce((sum, row) => sum + 2 * row.lanes, 0);
  assert.equal(await data.bytesToBuild(0, 0, Infinity), files[0] + whole);
  assert.equal(await data.bytesToBuild(2, 0, Infinity), files[0] + files[1] + files[2] + 3 * whole);
  // More than is allowed is not counted to its end.
  assert.equal(await data.bytesToBuild(2, 0, whole), files[0] + files[1] + files[2] + whole);
});

test('building a base ends when it is stopped', async () => {
  const files = await excerptFiles();
  const inner = filesStore(files);
  const stop = new AbortController();
  // The first link stops it: no other may be opened.
  const links = [];
  const data = new ChainData({
    ...inner,
    async open(name) {
      if (name.startsWith('files/')) {
        links.push(name);
        stop.abort();
      }
      return inner.open(name);
    },
  });
  await data.open();
  await assert.rejects(data.buildShard(2, 0, stop.signal), { name: 'AbortError' });
  assert.equal(links.length, 1);
});

test('the calculator states the constants that it uses, which are those of docs/scaling.md', async () => {
  const text = await readFile(new URL('../../docs/scaling.md', import.meta.url), 'utf8');
  const [, diff, apply] = /output of `simulate cost ([\d.]+) ([\d.]+)`/.exec(text);
  assert.ok(assumptions().includes(`: ${diff} GB/s per core to make a link and ${apply} GB/s to apply it`), assumptions());
  // No other text of the page states them.
  const page = await readFile(new URL('../inspector/page.html', import.meta.url), 'utf8');
  assert.doesNotMatch(page, /GB\/s/);
});

/** A row of the table of tensors, as `inspect` shows it. */
const row = (name, dtype, lanes, coded, more = {}) =>
  ({ name, dtype, lanes, coded, share: coded / lanes, operation: 'patch', byteLength: 4 * lanes, shape: [lanes], ...more });

test('tensors of one layer and kind, but of several parts of a model, are in the layer map each', () => {
  const names = ['encoder.layers.0.fc1', 'encoder.layers.1.fc1', 'decoder.layers.0.fc1', 'decoder.layers.1.fc1', 'head.0123456.fc1', 'norm'];
  const { layers, kinds } = byKindAndLayer(names.map((name) => row(name, 'BF16', 10, 1)));
  assert.deepEqual(layers, [0, 1]);
  assert.deepEqual(kinds.map(({ name, byLayer }) => [name, [...byLayer.values()].map((one) => one.name)]), [
    ['encoder.layers.*.fc1', names.slice(0, 2)], ['decoder.layers.*.fc1', names.slice(2, 4)],
  ]);
  // What all have in common is left out.
  assert.deepEqual(byKindAndLayer([row('layers.0.a', 'BF16', 1, 1), row('layers.1.b', 'BF16', 2, 1)]).kinds.map(({ name }) => name), ['b', 'a']);
});

test('F32 beside narrow dtypes are scales, beside wide ones they are not', () => {
  const notes = (dtype) => {
    const tensors = [row('a', 'F32', 100, 95), row('b', dtype, 100, 95)];
    return verdict({ snapshot: false, bytes: 100, direct: false, total: { lanes: 200, coded: 190 }, tensors }).notes.join('\n');
  };
  for (const dtype of ['F4', 'F6_E2M3', 'F8_E4M3', 'U8', 'I8']) assert.match(notes(dtype), /F32: .*scales of quantised weights/, dtype);
  for (const dtype of ['F64', 'U64', 'I16', 'BF16', 'F16']) assert.match(notes(dtype), /F32: .*units in the last place/, dtype);
  assert.match(notes('F64'), /F64: .*units in the last place/);
});

test('a snapshot that is larger than its tensors says how much', () => {
  const note = (byteLength) =>
    verdict({ snapshot: true, bytes: 500, tensors: [{ name: 'x', operation: 'set', byteLength, shape: [byteLength], lanes: byteLength }] }).notes[0];
  assert.equal(note(8), '1 tensor in 500 bytes, 63 times their plain size.');
  assert.equal(note(1000), '1 tensor in 500 bytes, 50.0 % of their plain size.');
  assert.equal(note(0), '1 tensor in 500 bytes.');
});

test('rows are sorted by size of their shapes, unknown values last', () => {
  const rows = [[9], [100], [2, 30], null, [100n]].map((shape, i) => ({ name: String(i), shape }));
  const names = (down) => sortedRows(rows, { key: 'shape', down }).map(({ name }) => name).join('');
  assert.equal(names(false), '02143');
  assert.equal(names(true), '14203');
});

test('percentages above 100 are not "> 99.9 %"', () => {
  assert.deepEqual([0, 0.00001, 0.5, 0.9995, 1, 62.5, null].map(percent), ['0 %', '< 0.01 %', '50.0 %', '> 99.9 %', '100 %', '6,250 %', '']);
});

test('seconds are told apart up to ten minutes', () => {
  assert.deepEqual([99, 100, 149, 599, 600, 7200].map(seconds), ['99.0 s', '1 min 40 s', '2 min 29 s', '9 min 59 s', '10 min', '2.00 h']);
});

test('where lanes are not elements, the map of a tensor that changes everywhere is full everywhere', async () => {
  const dtype = (bits, laneBytes = 1) => ({ name: 'X', bits, laneBytes, signMagnitude: false });
  const cases = [
    [dtype(4), [4, 8]], [dtype(4), [300, 500]], [dtype(4), [4, 7]], [dtype(4), [1, 64]], [dtype(4), [64, 1]],
    [dtype(6), [4, 8]], [dtype(1), [16, 4]], [dtype(16), [5, 3]], [dtype(24), [5, 8]],
  ];
  for (const [own, shape] of cases) {
    const count = (shape[0] * shape[1] * own.bits) / (8 * own.laneBytes);
    const tensor = { name: 'w', operation: 'patch', shape, dtype: own };
    const lanes = Uint32Array.from({ length: count }, (_, i) => i);
    const piece = { tensor, piece: 0, firstLane: 0, lanes, values: new Uint8Array(count).fill(1), relative: true };
    const link = { index: { tensors: [tensor] }, async *coded() { yield piece; } };
    const { changed, grid } = await changesOf(link, 'w', null, { coded: count });
    assert.equal(changed, count);
    for (const bin of binsOf(grid)) assert.ok(bin.lanes > 0 && bin.changed === bin.lanes, `${own.bits} bits, ${shape}`);
    assert.equal(binsOf(grid).reduce((sum, { lanes: some }) => sum + some, 0), count);
  }
});

/** What the browser hands over for a dropped folder: entries, without handles. */
function droppedFolder(entries) {
  const root = folderEntry('folder', entries);
  return { items: [{ kind: 'file', webkitGetAsEntry: () => root, getAsFile: () => null }] };
}

const fileEntry = (name, error) => ({ isFile: true, name, file: (resolve, reject) => (error ? reject(error) : resolve({ name })) });

function folderEntry(name, entries) {
  const createReader = () => {
    const batches = [entries, []];
    return { readEntries: (resolve) => resolve(batches.shift()) };
  };
  return { isFile: false, isDirectory: true, name, createReader };
}

test('what the browser refuses in a dropped folder is not confused with too many files', async () => {
  const paths = (await entriesOf(droppedFolder([fileEntry('a'), folderEntry('b', [fileEntry('c')])]))).map(([path]) => path);
  assert.deepEqual(paths, ['folder/a', 'folder/b/c']);
  const many = Array.from({ length: 200_001 }, (_, i) => fileEntry(String(i)));
  await assert.rejects(entriesOf(droppedFolder(many)), { message: 'more than 200000 files were dropped' });
  const cause = new Error('NotReadable');
  await assert.rejects(entriesOf(droppedFolder([fileEntry('a', cause)])), (error) => /Choose a folder/.test(error.message) && error.cause === cause);
});

test('of several chains in a dropped folder, the one in the fewest folders is opened', () => {
  const named = (...paths) => chainIn(paths.map((path) => [path, null]))?.name ?? null;
  assert.equal(named('models/the-long-name-of-my-run/chain.json', 'models/a/b/c/chain.json'), 'models/the-long-name-of-my-run');
  assert.equal(named('models/a/b/c/chain.json', 'models/the-long-name-of-my-run/chain.json'), 'models/the-long-name-of-my-run');
  assert.equal(named('runs/one/chain.json', 'chain.json', 'runs/two/chain.json'), 'chain');
  assert.equal(named('runs/one/commits/0.json'), null);
  assert.deepEqual(chainIn([['runs/one/chain.json', 1], ['runs/one/files/a.dcf', 2], ['runs/x', 3]]).files, [['chain.json', 1], ['files/a.dcf', 2]]);
});

/** Elements of a page, as `document.querySelectorAll('script.data')` finds them. @param {string} html */
const dataElements = (html) => [...html.matchAll(/<script type="text\/plain" class="data" data-name="([^"]*)"(?: data-chain="([^"]*)")?>([^<]*)<\/script>/g)]
  .map(([, name, chain, textContent]) => ({ dataset: { name, chain }, textContent }));

/** An element of a page that `inspect --html` writes. @param {string} name @param {Uint8Array} bytes */
const dataElement = (name, bytes, more = '') =>
  `<script type="text/plain" class="data" data-name="${name}"${more}>${Buffer.from(bytes).toString('base64')}</script>\n`;

test('the built page has the excerpt of a chain inside, with its links', async () => {
  const elements = dataElements(await readFile(new URL('../inspector/index.html', import.meta.url), 'utf8'));
  const { name, link, chain, isExcerpt } = embeddedIn(elements);
  assert.deepEqual([link, isExcerpt], [null, true]);
  assert.match(name, /^An excerpt of a real chain/);
  const data = new ChainData(filesStore(chain));
  await data.open();
  await data.load(0, data.head);
  assert.equal(data.known.length, 4);
  const hasLink = linksIn(chain);
  assert.ok(data.known.every(({ routes }) => routes.every(({ files }) => hasLink(files[0].digest))));
  // The text of the elements is dropped.
  assert.ok(elements.every(({ textContent }) => textContent === ''));
});

test('a link inside a page', async () => {
  const { name, link, chain, isExcerpt } = embeddedIn(dataElements(dataElement('step 1.dcf', Buffer.from('four'))));
  assert.deepEqual([name, link.name, chain, isExcerpt], ['step 1.dcf', 'step 1.dcf', null, false]);
  assert.equal(await link.text(), 'four');
  assert.equal(embeddedIn([]), null);
});

test('a chain inside a page may have its documents only', async () => {
  const alice = testKey('alice', 1);
  const signature = note([alice], await readFile(new URL('chain.json', excerpt)), 2, await commitOf(2));
  const documents = [...(await excerptFiles()), await routesDocument(3, 1, [routeFrom(2, 5)]), [signature[0], new Blob([signature[1]])]]
    .filter(([name]) => !name.startsWith('files/'));
  const html = await Promise.all(documents.map(async ([name, blob]) =>
    dataElement(name, new Uint8Array(await blob.arrayBuffer()), name === 'chain.json' ? ' data-chain="s3://models/run7"' : '')));
  const { name, chain, isExcerpt } = embeddedIn(dataElements(html.join('')));
  assert.deepEqual([name, isExcerpt], ['s3://models/run7', false]);
  const data = new ChainData(filesStore(chain));
  await data.open();
  await data.load(0, data.head);
  assert.deepEqual([data.head, data.known.length], [3, 4]);
  assert.deepEqual(data.versions.get(3).routes.map(({ bytes }) => bytes), [5n]);
  assert.equal(data.versions.get(2).notes.length, 1);
  assert.equal((await data.plan(3, null, null)).path.length, 4);
  // Nothing that it names can be opened.
  const hasLink = linksIn(chain);
  assert.ok(data.known.every(({ routes }) => routes.every(({ files }) => !hasLink(files[0].digest))));
});

test('the verdict on a chain says what the newest version takes', () => {
  const step = (version, bytes) => ({ version, from: version - 1, bytes });
  const snapshot = { version: 0, from: null, bytes: 200_000 };
  assert.deepEqual(chainVerdict([snapshot, step(1, 3000), step(2, 1000), step(3, 2000)]), {
    headline: 'The newest version is 3: 2.00 kB to get there from version 2.',
    notes: ['3 steps on show take 1.00 kB to 3.00 kB, half of them at most 2.00 kB.', 'A whole model, the snapshot of version 0, takes 200 kB.'],
  });
  assert.deepEqual(chainVerdict([snapshot]), {
    headline: 'The newest version is 0: a snapshot of 200 kB.', notes: ['A whole model, the snapshot of version 0, takes 200 kB.'],
  });
  assert.deepEqual(chainVerdict([{ version: 7, from: null, bytes: null }]), { headline: 'The newest version is 7: no route leads to it.', notes: [] });
});
