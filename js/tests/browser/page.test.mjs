/** The page in a real browser, from `file://`: it shows the same as the tool. */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { costOf } from '../../inspector/calculator.js';
import { seconds, size } from '../../inspector/words.js';
import { blake3Hex } from '../../src/index.js';
import { note, testKey } from '../signing.mjs';
import { PAGE, asked, file, models, mostlyZeros, noise, openPage, picture, scratch, segmentsOf, serve, skip, tool } from './browser.mjs';

const grouped = (value) => value.toLocaleString('en');
const linkOf = (t) => {
  const link = join(scratch(t), 'step 1.dcf');
  tool('diff', file('testdata/rl3e6_step0.safetensors'), file('testdata/rl3e6_step1.safetensors'), '-o', link);
  return link;
};

/** Returns the table of tensors from the page. */
const shownRows = (page) => page.locator('#rows tr').evaluateAll((lines) => lines.map((line) =>
  Object.fromEntries([...line.cells].map((cell) => [cell.dataset.key, cell.textContent]))));

/** Compares the page with `inspect --json`. */
async function assertShows(page, said) {
  const facts = await page.locator('#facts').evaluate((list) => list.textContent);
  for (const value of [said.base, said.target, grouped(said.bytes), grouped(said.index_bytes), grouped(said.segments_bytes)]) {
    assert.ok(facts.includes(value), `${value} in ${facts}`);
  }
  const wanted = said.tensors.map((row) => ({
    name: row.name, operation: row.operation, dtype: row.dtype ?? '', shape: row.shape?.join(' × ') ?? '',
    lanes: grouped(row.lanes), coded: grouped(row.coded), bytes: grouped(row.bytes), bits_per_coded: row.bits_per_coded?.toFixed(1) ?? '',
  }));
  const rows = (await shownRows(page)).map(({ share, ...row }) => row);
  const order = (a, b) => (a.name < b.name ? -1 : 1);
  assert.deepEqual(rows.map((row) => ({ ...row })).sort(order), wanted.map((row) => ({ ...row })).sort(order));
}

/** Drops files or folders on the page, as a user does. */
async function drop(page, paths) {
  const session = await page.context().newCDPSession(page);
  const data = { items: [], files: paths, dragOperationsMask: 1 };
  for (const type of ['dragEnter', 'dragOver', 'drop']) await session.send('Input.dispatchDragEvent', { type, x: 300, y: 120, data });
  await session.detach();
}

/** Waits until a link of this name has been read. */
async function linkNamed(page, name) {
  await page.locator('#link:not([hidden]) #link-name', { hasText: name }).waitFor();
  await page.locator('#tiles .tile').first().waitFor();
}

test('it opens on the excerpt of a chain, without asking any server', { skip }, async (t) => {
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2 to version 3');
  await page.locator('canvas.heat').waitFor();
  assert.match(await page.locator('#verdict').innerText(), /^Sparse: 0\.86 % of the elements change/);
  assert.match(await page.locator('.privacy').innerText(), /Nothing is uploaded/);
  assert.equal(await page.locator('#intro').isVisible(), true);
  // Both charts have a column for each step, and the path is all that there is.
  await page.locator('#chain-charts .column').nth(5).waitFor();
  assert.equal(await page.locator('#chain-charts .column').count(), 6);
  assert.equal(await page.locator('#plan .route.chosen').count(), 4);
  const chain = file('js/inspector/excerpt');
  const digest = (await page.locator('#versions tbody tr').evaluateAll((rows) => rows.map((row) => row.cells[4].querySelector('code').textContent)))[0];
  assert.ok(asked('show', chain).state.startsWith(digest));
  // The heat map has several colours, and the rows that change most.
  const colours = await page.locator('canvas.heat').evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
  assert.ok(colours >= 3, `${colours} colours`);
  // A column opens its link.
  await page.locator('#chain-charts section').first().locator('.column').first().click();
  await linkNamed(page, 'version 0 to version 1');
  assert.match(page.url(), /version=1/);
  const route = asked('show', chain, '--version', '1').routes[0].files[0].digest;
  await assertShows(page, asked('inspect', join(chain, 'files', `${route}.dcf`)));
  await picture(page, 'excerpt-1280');
  assert.deepEqual(problems, []);
});

test('a dropped link is shown as the tool shows it', { skip }, async (t) => {
  const link = linkOf(t);
  const said = asked('inspect', link);
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  // Before the page listens for drops, the browser would open the file instead.
  await linkNamed(page, 'version 2');
  await drop(page, [link]);
  await linkNamed(page, 'step 1.dcf');
  assert.equal(await page.locator('#chain').isHidden(), true);
  await assertShows(page, said);
  const segments = await page.locator('#segments tbody tr').evaluateAll((lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent)));
  assert.deepEqual(segments.map((cells) => cells.slice(1, 3)), segmentsOf(link).map((one) => [grouped(one.offset), grouped(one.bytes)]));

  // Sorted by name, ascending; searched; both stay in the address.
  await page.locator('#columns button', { hasText: 'Tensor' }).click();
  const names = said.tensors.map((row) => row.name).sort();
  assert.deepEqual((await shownRows(page)).map((row) => row.name), names);
  await page.keyboard.press('/');
  await page.keyboard.type('bias');
  assert.deepEqual((await shownRows(page)).map((row) => row.name), names.filter((name) => name.includes('bias')));
  assert.match(page.url(), /sort=name-up/);
  assert.match(page.url(), /search=bias/);
  await page.fill('#search', '');

  // A tensor is chosen with the keyboard only. The base makes its map complete.
  const weight = 'encoder.layer.0.attention.self.query.weight';
  await page.locator('#rows button', { hasText: weight }).focus();
  await page.keyboard.press('Enter');
  await page.locator('#tensor', { hasText: weight }).waitFor();
  await page.setInputFiles('#base-files', file('testdata/rl3e6_step0.safetensors'));
  await page.locator('canvas.heat').waitFor();
  const coded = said.tensors.find((row) => row.name === weight).coded;
  await page.locator('#tensor', { hasText: `${grouped(coded)} of 147,456 changed` }).waitFor();
  const counts = await page.locator('#tensor details', { hasText: 'Steps' }).locator('tbody tr').evaluateAll((lines) =>
    lines.map((line) => Number(line.cells[1].textContent.replaceAll(',', ''))));
  assert.equal(counts.reduce((a, b) => a + b, 0), coded);
  assert.equal(new URLSearchParams(new URL(page.url()).hash.slice(1)).get('tensor'), weight);

  await page.click('#check');
  await page.getByText('Every segment decodes').waitFor();
  await page.click('#verify');
  await page.getByText('Verified: the link belongs to this base').waitFor();
  await picture(page, 'link-1280');
  await page.keyboard.press('Escape');
  assert.equal(await page.locator('#tensor').isHidden(), true);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), weight);
  assert.deepEqual(problems, []);
});

test('what is wrong with a file is said with class, rule and section', { skip }, async (t) => {
  const link = linkOf(t);
  const folder = scratch(t);
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  const whole = readFileSync(link);
  const flipped = Buffer.from(whole);
  flipped[flipped.length - 1] ^= 1;
  const damaged = { 'flipped.dcf': flipped, 'short.dcf': whole.subarray(0, whole.length - 5), 'other.dcf': Buffer.from('not a link at all') };
  for (const [name, bytes] of Object.entries(damaged)) {
    const path = join(folder, name);
    writeFileSync(path, bytes);
    const refused = asked('inspect', path);
    await page.setInputFiles('#files', path);
    await page.locator('#status.error', { hasText: refused.class }).waitFor();
    const text = await page.locator('#status').innerText();
    for (const part of [refused.class, refused.rule, refused.section ?? 'header', 'SPEC section']) assert.ok(text.includes(part), `${part} in ${text}`);
  }
  // A link that does not open leaves nothing of the previous one on the page.
  assert.equal(await page.locator('#link').isHidden(), true);
  await page.setInputFiles('#files', link);
  await linkNamed(page, 'step 1.dcf');
  await page.setInputFiles('#base-files', file('testdata/rl3e6_step2.safetensors'));
  await page.locator('#result.error', { hasText: 'WRONG_BASE' }).waitFor();
  assert.match(await page.locator('#result').innerText(), /R-APP-01.*section 9/);
  // Nothing is shown with the help of a wrong base.
  assert.equal(await page.locator('#verify').isDisabled(), true);
  assert.equal(await page.locator('canvas.heat').count(), 0);
  await picture(page, 'refused-1280');
  assert.deepEqual(problems, []);
});

test('why a delta is dense', { skip }, async (t) => {
  const folder = scratch(t);
  const renamed = join(folder, 'renamed.safetensors');
  const bytes = readFileSync(file('testdata/rl3e6_step0.safetensors'));
  // Names of equal length keep the header's length.
  writeFileSync(renamed, Buffer.from(bytes.toString('latin1').replaceAll('encoder.layer.0', 'decoder.layer.0'), 'latin1'));
  const cases = {
    'f32.dcf': [file('testdata/f32_step0.safetensors'), file('testdata/f32_step1.safetensors'), /^Dense.*F32: .*few units in the last place/s],
    'fp8.dcf': [file('testdata/fp8_step0.safetensors'), file('testdata/fp8_step1.safetensors'), /^Sparse.*F32: .*scales of quantised weights/s],
    'renamed.dcf': [file('testdata/rl3e6_step0.safetensors'), renamed, /^Dense.*5 tensors removed and as many set anew.*renamed/s],
  };
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  for (const [name, [base, target, expected]] of Object.entries(cases)) {
    const link = join(folder, name);
    tool('diff', base, target, '-o', link);
    await page.setInputFiles('#files', link);
    await linkNamed(page, name);
    assert.match(await page.locator('#verdict').innerText(), expected);
    await assertShows(page, asked('inspect', link));
  }
  assert.deepEqual(problems, []);
});

/** Returns the own note of a key on a version of a chain in a folder, as name and bytes. */
function ownNote(key, folder, version) {
  const commit = readFileSync(join(folder, `commits/${String(version).padStart(20, '0')}.json`));
  const [name, bytes] = note([key], readFileSync(join(folder, 'chain.json')), version, commit);
  return [name.slice(0, -64) + key.hash, bytes];
}

test('a chain over HTTP: versions, a late joiner, a link by ranges', { skip }, async (t) => {
  const folder = scratch(t);
  cpSync(file('js/inspector/excerpt'), join(folder, 'run 7'), { recursive: true });
  const { url, log } = await serve(t, folder);
  const { page, problems } = await openPage(t, { allowed: [url] });
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  await page.click('#signatures-summary');
  await page.fill('#keys', testKey('alice', 1).text);
  await page.fill('#address', `${url}/run 7`);
  await page.click('#open-address button');
  await page.locator('#chain-name', { hasText: url }).waitFor();
  await linkNamed(page, 'version 2 to version 3');
  // Own notes are found in a store that cannot list.
  await page.locator('#signed-head.error', { hasText: 'R-SIG-01' }).waitFor();
  await page.locator('#plan .error', { hasText: 'R-SIG-01' }).waitFor();
  assert.equal(await page.locator('#versions thead th').count(), 6);
  const [name, bytes] = ownNote(testKey('alice', 1), join(folder, 'run 7'), 2);
  mkdirSync(join(folder, 'run 7/signatures'));
  writeFileSync(join(folder, 'run 7', name), bytes);
  await page.fill('#quorum', '2');
  await page.fill('#quorum', '1');
  await page.locator('#signatures-summary', { hasText: '1 of 4 versions signed' }).waitFor();
  await page.locator('#signed-head', { hasText: 'The newest version that is signed is 2.' }).waitFor();
  await page.fill('#keys', '');
  await page.locator('#signatures-summary', { hasText: 'not listed' }).waitFor();
  const versions = asked('log', join(folder, 'run 7')).versions;
  const rows = await page.locator('#versions tbody tr').evaluateAll((lines) => lines.map((line) => [...line.cells].map((cell) => cell.innerText)));
  assert.deepEqual(rows.map((cells) => Number(cells[0])), versions.map((one) => one.version));
  // The path to version 3 for a reader that holds version 1.
  await page.selectOption('#holds', '1');
  await page.locator('#plan p', { hasText: '2 routes' }).waitFor();
  const path = await page.locator('#plan tbody tr').evaluateAll((lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent)));
  const sizes = versions.filter((one) => one.version > 1).map((one) => grouped(one.routes[0].files[0].size)).reverse();
  assert.deepEqual(path.map((cells) => cells[3]), sizes);
  // Raw documents, byte for byte.
  const commit = 'commits/00000000000000000002.json';
  await page.selectOption('#document', commit);
  assert.equal(await page.locator('#document-text code').textContent(), readFileSync(join(folder, 'run 7', commit), 'utf8'));
  // Opening another version reads only that link, by ranges.
  log.length = 0;
  await page.locator('#versions button', { hasText: 'from 0' }).click();
  await linkNamed(page, 'version 0 to version 1');
  const digest = asked('show', join(folder, 'run 7'), '--version', '1').routes[0].files[0].digest;
  assert.deepEqual(log, [`/run 7/files/${digest}.dcf bytes=0-262143`]);
  // The base is built when the user asks for it.
  assert.equal(await page.locator('#verify').isDisabled(), true);
  await page.click('#build-base');
  await page.locator('#base-says', { hasText: 'built from the chain' }).waitFor();
  await page.click('#verify');
  await page.getByText('Verified: the link').waitFor();
  await picture(page, 'chain-1280');

  // The address of this view opens it again, in another page.
  const { page: second, problems: more } = await openPage(t, { allowed: [url] });
  await second.goto(page.url());
  await linkNamed(second, 'version 0 to version 1');
  assert.deepEqual([...problems, ...more], []);

  // A server without CORS: here a closed port.
  await page.fill('#address', 'http://127.0.0.1:9/chain');
  await page.click('#open-address button');
  await page.locator('#status.error', { hasText: 'CORS' }).waitFor();
});

test('a page that inspect --html wrote, and its address', { skip }, async (t) => {
  const link = linkOf(t);
  const html = join(scratch(t), 'for you.html');
  tool('inspect', link, '--html', html);
  const said = asked('inspect', link);
  const { page, problems } = await openPage(t);
  const address = pathToFileURL(html).href;
  await page.goto(address);
  await linkNamed(page, 'step 1.dcf');
  assert.equal(await page.locator('#chain').isHidden(), true);
  await assertShows(page, said);
  await page.locator('#rows button').last().click();
  const chosen = await page.locator('#tensor-name').innerText();
  const { page: second, problems: more } = await openPage(t);
  await second.goto(page.url());
  await second.locator('#tensor-name', { hasText: chosen }).waitFor();
  assert.ok(page.url().startsWith(`${address}#`));
  assert.deepEqual([...problems, ...more], []);
});

/** An element with a file, as `inspect --html` writes it. */
const dataElement = (name, bytes, more = '') =>
  `<script type="text/plain" class="data" data-name="${name}"${more}>${bytes.toString('base64')}</script>\n`;

/** Writes a page with these elements inside, and returns its address. @param {import('node:test').TestContext} t @param {string} elements */
function pageWith(t, elements) {
  const html = join(scratch(t), 'for you.html');
  const [before, rest] = readFileSync(file('js/inspector/index.html'), 'utf8').split('<!--data-->');
  writeFileSync(html, `${before}<!--data-->\n${elements}<!--/data-->${rest.split('<!--/data-->')[1]}`);
  return pathToFileURL(html).href;
}

/** Returns the vertical order of elements, topmost first. */
const inOrder = async (page, ids) => {
  const tops = await Promise.all(ids.map(async (id) => ({ id, top: (await page.locator(`#${id}`).boundingBox()).y })));
  return tops.sort((a, b) => a.top - b.top).map(({ id }) => id);
};

test('a page that shows a result begins with it; the page that opens files begins with its form', { skip }, async (t) => {
  const { page, problems } = await openPage(t);
  await page.goto(pageWith(t, dataElement('step 1.dcf', readFileSync(linkOf(t)))));
  await linkNamed(page, 'step 1.dcf');
  const order = ['verdict', 'tiles', 'tensor', 'rows', 'actions', 'facts', 'open', 'calculator'];
  assert.deepEqual(await inOrder(page, [...order].sort()), order);
  assert.equal(await page.locator('#address').isVisible(), false);
  assert.equal(await page.locator('#c-result').isVisible(), false);
  const { y, height } = await page.locator('#tiles').boundingBox();
  assert.ok(y + height < 450, `the result ends at ${y + height}`);
  assert.equal(await page.title(), 'step 1.dcf - deltachain inspector');
  // It is sent without the pages of the repository.
  assert.equal(await page.locator('a.repository').count(), 0);
  await picture(page, 'result-1280');
  await page.click('#open summary');
  assert.equal(await page.locator('#address').isVisible(), true);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  assert.deepEqual(await inOrder(page, ['calculator', 'chain', 'link', 'open']), ['open', 'chain', 'link', 'calculator']);
  assert.equal(await page.locator('#address').isVisible(), true);
  assert.deepEqual(problems, []);
});

test('a page with the documents of a chain inside, but without its links', { skip }, async (t) => {
  const chain = file('js/inspector/excerpt');
  const commit = (version) => `commits/${String(version).padStart(20, '0')}.json`;
  const names = [commit(0), commit(1), commit(2), commit(3)];
  const elements = [dataElement('chain.json', readFileSync(join(chain, 'chain.json')), ' data-chain="run &quot;7&quot;"'),
    ...names.map((name) => dataElement(name, readFileSync(join(chain, name))))];
  const { page, problems } = await openPage(t);
  const address = pageWith(t, elements.join(''));
  await page.goto(address);
  await page.locator('#chain-name', { hasText: 'run "7"' }).waitFor();
  assert.match(await page.locator('#chain-verdict').innerText(), /^The newest version is 3: 2\.38 kB to get there from version 2\./);
  assert.deepEqual(await inOrder(page, ['chain-charts', 'chain-verdict', 'open', 'versions']), ['chain-verdict', 'chain-charts', 'versions', 'open']);
  assert.match(await page.locator('#unlinked').innerText(), /not its links/);
  assert.equal(await page.locator('#intro').isVisible(), false);
  // Nothing offers to open what is not there.
  assert.equal(await page.locator('#versions tbody tr').count(), 4);
  assert.equal(await page.locator('#versions button.link').count(), 0);
  assert.equal(await page.locator('#versions thead th').count(), 4);
  assert.equal(await page.locator('#chain-charts .column').count(), 3);
  assert.equal(await page.locator('#chain-charts .column.press').count(), 0);
  assert.match(await page.locator('#chain-charts').innerText(), /How much changed is in the links/);
  assert.equal(await page.locator('#link').isHidden(), true);
  assert.equal(await page.locator('#status').innerText(), '');
  assert.equal(await page.locator('#plan .route.chosen').count(), 4);
  await page.selectOption('#document', commit(2));
  assert.equal(await page.locator('#document-text code').textContent(), readFileSync(join(chain, commit(2)), 'utf8'));
  await picture(page, 'documents-1280');
  // The address of a version that another page wrote.
  await page.goto(`${address}#version=2`);
  await page.locator('#chain-name', { hasText: 'run "7"' }).waitFor();
  assert.equal(await page.locator('#status').innerText(), '');
  // With the folder of the chain all of it can be opened.
  await page.setInputFiles('#folder', chain);
  await linkNamed(page, 'version 2 to version 3');
  assert.equal(await page.locator('#unlinked').isHidden(), true);
  await page.locator('#base-says', { hasText: 'built from the chain' }).waitFor();
  assert.deepEqual(problems, []);
});

test('a page with a link inside goes back to it, without the chain that was opened meanwhile', { skip }, async (t) => {
  const address = pageWith(t, dataElement('step 1.dcf', readFileSync(linkOf(t))));
  const { page, problems } = await openPage(t);
  await page.goto(address);
  await linkNamed(page, 'step 1.dcf');
  await page.setInputFiles('#folder', file('js/inspector/excerpt'));
  await linkNamed(page, 'version 2 to version 3');
  assert.equal(await page.locator('#intro').isHidden(), true);
  await page.evaluate(() => { location.hash = 'sort=name-up'; });
  await linkNamed(page, 'step 1.dcf');
  assert.equal(await page.locator('#chain').isHidden(), true);
  assert.deepEqual(problems, []);
});

test('the table draws 200 rows of each link, more when the user wants them', { skip }, async (t) => {
  const folder = scratch(t);
  const [model] = models(folder, Object.fromEntries(Array.from({ length: 201 }, (_, i) => [`t${i}`, [64]])));
  for (const name of ['one.dcf', 'two.dcf']) tool('snapshot', model, '-o', join(folder, name));
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  await page.setInputFiles('#files', join(folder, 'one.dcf'));
  await linkNamed(page, 'one.dcf');
  assert.equal(await page.locator('#rows tr').count(), 200);
  await page.click('#more');
  assert.equal(await page.locator('#rows tr').count(), 201);
  await page.setInputFiles('#files', join(folder, 'two.dcf'));
  await linkNamed(page, 'two.dcf');
  assert.equal(await page.locator('#rows tr').count(), 200);
  assert.deepEqual(problems, []);
});

test('the folder of a chain, and one that is damaged', { skip }, async (t) => {
  const folder = join(scratch(t), 'chain');
  cpSync(file('js/inspector/excerpt'), folder, { recursive: true });
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  rmSync(join(folder, 'commits', '00000000000000000003.json'));
  await drop(page, [folder]);
  await linkNamed(page, 'version 1 to version 2');
  await page.locator('#base-says', { hasText: 'built from the chain' }).waitFor();
  const commit = join(folder, 'commits', '00000000000000000002.json');
  writeFileSync(commit, readFileSync(commit, 'utf8').replace('"version":2', '"version": 2'));
  await page.setInputFiles('#folder', folder);
  await page.locator('#status.error', { hasText: 'R-DOC-03' }).waitFor();
  assert.match(await page.locator('#status').innerText(), /section 18/);
  assert.deepEqual(problems, []);
});

test('a chain with a version that has been pruned', { skip }, async (t) => {
  const folder = join(scratch(t), 'chain');
  cpSync(file('js/inspector/excerpt'), folder, { recursive: true });
  mkdirSync(join(folder, 'routes'));
  const commit = blake3Hex(readFileSync(join(folder, 'commits', '00000000000000000001.json')));
  const routes = { deltachain: 1, version: 1, generation: 1, commit, routes: [], metadata: {} };
  writeFileSync(join(folder, 'routes', '00000000000000000001-0000000001.json'), JSON.stringify(routes));
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  await page.setInputFiles('#folder', folder);
  await linkNamed(page, 'version 2 to version 3');
  await page.locator('#chain-name', { hasText: 'chain' }).waitFor();
  const cells = await page.locator('#versions tbody tr').evaluateAll((lines) => lines.map((line) => line.cells[1].textContent));
  assert.match(cells[2], /none: this version has been pruned/);
  // Version 3 is built from 2, and 2 from 1, to which nothing leads.
  await page.locator('#plan .error', { hasText: 'R-CHN-08' }).waitFor();
  assert.match(await page.locator('#base-says').innerText(), /^none yet/);
  assert.equal(await page.locator('#status').innerText(), '');
  assert.deepEqual(problems, []);
});

test('a large base is not built without asking, even if the link touches little of it', { skip }, async (t) => {
  const folder = scratch(t);
  const chain = join(folder, 'chain');
  tool('init', chain);
  for (const value of [1, 2]) {
    const model = join(folder, `${value}.safetensors`);
    mostlyZeros(model, 70_000_000, value);
    tool('publish', chain, model);
  }
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  await page.setInputFiles('#folder', chain);
  await linkNamed(page, 'version 0 to version 1');
  assert.match(await page.locator('#base-says').innerText(), /^none yet/);
  await page.click('#build-base');
  await page.locator('#base-says', { hasText: 'built from the chain' }).waitFor();
  assert.deepEqual(problems, []);
});

test('who signed the versions of a chain, and whose signatures count', { skip }, async (t) => {
  const root = scratch(t);
  const folder = join(root, 'chain');
  cpSync(file('js/inspector/excerpt'), folder, { recursive: true });
  mkdirSync(join(folder, 'signatures'));
  const [alice, bob, mallory] = [testKey('alice', 1), testKey('bob.example/<i>', 2), testKey('mallory', 3)];
  const object = (name) => readFileSync(join(folder, name));
  const sign = (version, ...keys) => {
    const commit = object(`commits/${String(version).padStart(20, '0')}.json`);
    const [name, bytes] = note(keys, object('chain.json'), version, commit);
    writeFileSync(join(folder, name), bytes);
  };
  sign(1, alice);
  sign(2, alice);
  sign(2, bob);
  sign(3, mallory);
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  // The embedded chain has no signatures, and no column for them.
  assert.equal(await page.locator('#signatures-summary').innerText(), 'Signatures: none');
  assert.equal(await page.locator('#versions thead th').count(), 5);
  await page.setInputFiles('#folder', folder);
  await page.locator('#signatures-summary', { hasText: 'on 3 of 4 versions, unverified' }).waitFor();
  const shown = () => page.locator('#versions tbody tr').evaluateAll((lines) => lines.map((line) => line.cells[5].textContent));
  const claims = ({ name, id }) => `${name}+${id}`;
  assert.deepEqual(await shown(), [`unverified: ${claims(mallory)}`, `unverified: ${[alice, bob].map(claims).sort().join(', ')}`, `unverified: ${claims(alice)}`, '']);
  // Pasted keys.
  await page.click('#signatures-summary');
  await page.fill('#keys', `# who trains\n${alice.text}\n${bob.text}\n`);
  await page.locator('#signed-head', { hasText: 'The newest version that is signed is 2.' }).waitFor();
  assert.deepEqual(await shown(), [`not signedunverified: ${claims(mallory)}`, `signed by alice, ${bob.name}`, 'signed by alice', 'not signed']);
  assert.equal(await page.locator('#signatures-summary').innerText(), 'Signatures: 2 of 4 versions signed');
  // A reader with these keys does not accept version 3.
  await page.locator('#plan .error', { hasText: 'R-SIG-01' }).waitFor();
  await page.selectOption('#wants', '2');
  await page.locator('#plan p', { hasText: '3 routes' }).waitFor();
  await page.fill('#quorum', '2');
  await page.locator('#signatures-summary', { hasText: '1 of 4' }).waitFor();
  assert.equal((await shown())[2], 'not signedonly 1 of 2: alice');
  await picture(page, 'signed-1280');
  await page.fill('#quorum', '3');
  await page.locator('#keys-wrong', { hasText: 'quorum' }).waitFor();
  // Keys from a dropped file instead.
  const keys = join(root, 'trusted keys');
  writeFileSync(keys, `${mallory.text}\n`);
  await page.fill('#quorum', '1');
  await drop(page, [keys]);
  await page.locator('#signed-head', { hasText: 'The newest version, 3, is signed.' }).waitFor();
  assert.equal(await page.inputValue('#keys'), mallory.text);
  // Invalid keys mean no trust.
  await page.fill('#keys', mallory.text.replace(mallory.id, '00000000'));
  await page.locator('#keys-wrong', { hasText: 'USAGE' }).waitFor();
  await page.locator('#signatures-summary', { hasText: 'unverified' }).waitFor();
  assert.deepEqual(problems, []);
});

test('a model of 45 MB is verified, applied and saved within memory', { skip }, async (t) => {
  const folder = scratch(t);
  const [base, target] = models(folder, { 'layers.0.big': [4096, 4096], 'layers.1.wide': [2048, 2688], 'layers.2.bias': [4096] });
  const link = join(folder, 'step.dcf');
  tool('diff', base, target, '-o', link);
  const { browser, page, problems } = await openPage(t);
  await page.goto(PAGE);
  await linkNamed(page, 'version 2');
  const before = await memory(browser);
  await page.setInputFiles('#files', [link, base]);
  await linkNamed(page, 'step.dcf');
  await page.click('#verify');
  await page.getByText('Verified: the link belongs to this base').waitFor();
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#apply')]);
  assert.equal(download.suggestedFilename(), 'step.safetensors');
  assert.ok(readFileSync(await download.path()).equals(readFileSync(target)), 'the saved file is the target');
  const grown = (await memory(browser)) - before;
  // An apply holds a piece of 16 MiB and at most 64 MiB of segments; the base is read piece by piece.
  assert.ok(grown < 256e6, `${grown} bytes more`);
  t.diagnostic(`${Math.round(grown / 1e6)} MB more at most, for a model of 45 MB`);
  // The map by layer, since there are several layers.
  assert.equal(await page.locator('#layers .cell').count(), 3);
  await picture(page, 'model-1280');
  assert.deepEqual(problems, []);
});

test('a link of 45 MB over HTTP: its table by one request, all of it when the user wants that', { skip }, async (t) => {
  const folder = scratch(t);
  const model = join(folder, 'noise.safetensors');
  noise(model, 45_000_000);
  tool('snapshot', model, '-o', join(folder, 'big.dcf'));
  const { url, log } = await serve(t, folder);
  const { browser, page, problems } = await openPage(t, { allowed: [url] });
  const before = await memory(browser);
  await page.goto(`${PAGE}#link=${encodeURIComponent(`${url}/big.dcf`)}`);
  const read = page.getByRole('button', { name: 'Read all segments (45.0 MB)' });
  await read.waitFor();
  assert.deepEqual((await shownRows(page)).map((row) => [row.name, row.shape, row.coded]), [['noise', '45000 × 1000', '']]);
  assert.deepEqual(log, ['/big.dcf bytes=0-262143']);
  await read.click();
  await page.locator('#tiles .tile').first().waitFor();
  await assertShows(page, asked('inspect', join(folder, 'big.dcf')));
  await page.click('#verify');
  await page.getByText('Verified: the link belongs to this base').waitFor();
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#apply')]);
  assert.ok(readFileSync(await download.path()).equals(readFileSync(model)), 'the saved file is the model');
  const grown = (await memory(browser)) - before;
  // Everything is read three times, and memory that is not needed any more is not freed at once.
  assert.ok(grown < 640e6, `${grown} bytes more`);
  t.diagnostic(`${Math.round(grown / 1e6)} MB more at most, for a link of 45 MB`);
  assert.deepEqual(problems, []);
});

/** Returns the peak memory of a page's process, in bytes. */
async function memory(browser) {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  await session.detach();
  const peaks = processInfo.filter((one) => one.type === 'renderer').map(({ id }) =>
    1024 * Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, 'utf8'))[1]));
  return Math.max(...peaks);
}

test('the page shows what the calculator computes', { skip }, async (t) => {
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await page.locator('#c-result .headline').waitFor();
  const results = () => page.locator('#c-result tbody tr').evaluateAll((lines) => lines.map((line) => line.cells[1].textContent));
  const field = async (name) => Number(await page.locator(`#c-${name}`).inputValue());
  const [parameters, bytesEach, percent, line, hosts] =
    await Promise.all(['parameters', 'bytes', 'percent', 'line', 'hosts'].map(field));
  // inspector.test.mjs compares the numbers with docs/scaling.md.
  const cost = costOf({ parameters: parameters * 1e9, bytesEach, share: percent / 100, line: line * 1e9, hosts });
  const [bytes, oneHost, , diff, apply] = await results();
  assert.deepEqual([bytes, oneHost, diff, apply],
    [size(cost.link), seconds(cost.sendLink), seconds(cost.diff), seconds(cost.apply)]);
  await page.fill('#c-percent', '0');
  assert.match(await page.locator('#c-result').innerText(), /nothing to send/);
  await page.fill('#c-parameters', '-1');
  await page.locator('#c-result .error').waitFor();
  assert.deepEqual(problems, []);
});

test('on a phone and in the dark', { skip }, async (t) => {
  for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
    const { page, problems } = await openPage(t, { width: 390, colorScheme });
    await page.goto(PAGE);
    await linkNamed(page, 'version 2');
    await page.locator('canvas.heat').waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number)[0]);
    assert.ok(colorScheme === 'dark' ? back < 64 : back > 192, `${back}`);
    await picture(page, `excerpt-390-${colorScheme}`);
    assert.deepEqual(problems, []);
  }
});
