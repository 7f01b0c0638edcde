/** What the user does while the page still reads: requests are held until the test lets them go. */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { blake3Hex } from '../../src/index.js';
import { note, testKey } from '../signing.mjs';
import { PAGE, asked, file, models, openPage, scratch, serve, skip, tool } from './browser.mjs';

const commitName = (version) => `commits/${String(version).padStart(20, '0')}.json`;

/**
 * Holds the requests for which `held` is true, until `release` is called. `first` resolves when there is one.
 * @param {import('playwright-core').Page} page
 * @param {(request: import('playwright-core').Request) => boolean} held
 */
async function hold(page, held) {
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  let came;
  const first = new Promise((resolve) => { came = resolve; });
  await page.route(/^http:/, async (route) => {
    if (held(route.request())) {
      came();
      await released;
    }
    await route.continue();
  });
  return { first, release };
}

/** Opens a copy of the excerpt's chain over HTTP, once its newest link is shown. */
async function chainPage(t) {
  const folder = join(scratch(t), 'chain');
  cpSync(file('js/inspector/excerpt'), folder, { recursive: true });
  const { url } = await serve(t, folder);
  const { page, problems } = await openPage(t, { allowed: [url] });
  return { folder, url, page, problems };
}

/** Waits until the page has answered so often that what was to come is done. */
async function settled(page) {
  for (let i = 0; i < 5; i++) await page.evaluate(() => new Promise((resolve) => { requestAnimationFrame(() => resolve(null)); }));
}

test('keys that are given while a chain loads count, not those before them', { skip }, async (t) => {
  const { folder, url, page, problems } = await chainPage(t);
  const [alice, bob] = [testKey('alice', 1), testKey('bob', 2)];
  const [name, bytes] = note([bob], readFileSync(join(folder, 'chain.json')), 2, readFileSync(join(folder, commitName(2))));
  mkdirSync(join(folder, 'signatures'));
  writeFileSync(join(folder, name.slice(0, -64) + bob.hash), bytes);
  await page.goto(PAGE);
  await page.locator('#tiles .tile').first().waitFor();
  await page.click('#signatures-summary');
  await page.fill('#keys', alice.text);
  const notes = await hold(page, (request) => request.url().includes(alice.hash));
  await page.fill('#address', url);
  await page.click('#open-address button');
  await notes.first;
  // The form is hidden while a chain loads, but a file of keys can be dropped or chosen.
  const keys = join(folder, 'keys');
  writeFileSync(keys, bob.text);
  await page.setInputFiles('#files', keys);
  await page.waitForFunction((text) => document.querySelector('#keys').value === text, bob.text);
  notes.release();
  await page.locator('#chain-name', { hasText: url }).waitFor();
  await page.locator('#signatures-summary', { hasText: '1 of 4 versions signed' }).waitFor();
  assert.deepEqual(await page.locator('#versions tbody tr').evaluateAll((lines) => lines.map((line) => line.cells[5].textContent)),
    ['not signed', 'signed by bob', 'not signed', 'not signed']);
  assert.deepEqual(problems, []);
});

test('Stop ends the building of a base, which can be built again', { skip }, async (t) => {
  const { url, page, problems } = await chainPage(t);
  await page.goto(`${PAGE}#chain=${encodeURIComponent(url)}`);
  await page.locator('#tiles .tile').first().waitFor();
  const files = await hold(page, (request) => request.url().includes('/files/'));
  await page.click('#build-base');
  await files.first;
  await page.click('#stop');
  await page.locator('#result', { hasText: 'Building the base: stopped.' }).waitFor();
  assert.equal(await page.locator('#working').isHidden(), true);
  files.release();
  await settled(page);
  assert.match(await page.locator('#base-says').innerText(), /^none yet/);
  await page.click('#build-base');
  await page.locator('#base-says', { hasText: 'built from the chain' }).waitFor();
  assert.deepEqual(problems, []);
});

test('a button that is pressed while the segments are read waits for them, and Stop is not the end', { skip }, async (t) => {
  const folder = scratch(t);
  const [model] = models(folder, { 'layers.0.big': [512, 1024], 'layers.1.small': [64, 64] });
  tool('snapshot', model, '-o', join(folder, 'step.dcf'));
  const { url } = await serve(t, folder);
  const { page, problems } = await openPage(t, { allowed: [url] });
  const rest = await hold(page, (request) => !(request.headers().range ?? '').startsWith('bytes=0-'));
  await page.goto(`${PAGE}#link=${encodeURIComponent(`${url}/step.dcf`)}`);
  await rest.first;
  // The tensor that the user chooses meanwhile is not replaced by the one with the most changes.
  await page.locator('#rows button', { hasText: 'small' }).click();
  await page.click('#check');
  rest.release();
  await page.getByText('Every segment decodes').waitFor();
  assert.equal(await page.locator('#tiles .tile').count(), 4);
  assert.equal(await page.locator('#status').innerText(), '');
  assert.equal(await page.locator('#tensor-name').innerText(), 'layers.1.small');

  const { page: second, problems: more } = await openPage(t, { allowed: [url] });
  const stopped = await hold(second, (request) => !(request.headers().range ?? '').startsWith('bytes=0-'));
  await second.goto(`${PAGE}#link=${encodeURIComponent(`${url}/step.dcf`)}`);
  await stopped.first;
  await second.click('#stop');
  const read = second.getByRole('button', { name: 'Read all segments' });
  await read.waitFor();
  assert.equal(await second.locator('#status').innerText(), '');
  stopped.release();
  await read.click();
  await second.locator('#tiles .tile').first().waitFor();
  await second.locator('#tensor-name', { hasText: 'layers.0.big' }).waitFor();
  assert.deepEqual([...problems, ...more], []);
});

test('a step whose file is missing does not keep the others from being counted', { skip }, async (t) => {
  const folder = join(scratch(t), 'chain');
  cpSync(file('js/inspector/excerpt'), folder, { recursive: true });
  rmSync(join(folder, 'files', `${asked('show', folder, '--version', '1').routes[0].files[0].digest}.dcf`));
  const { page, problems } = await openPage(t);
  await page.goto(PAGE);
  await page.locator('#tiles .tile').first().waitFor();
  await page.setInputFiles('#folder', folder);
  await page.locator('#status.error', { hasText: 'Version 1 could not be counted' }).waitFor();
  const shares = await page.locator('#versions tbody tr').evaluateAll((lines) => lines.map((line) => line.cells[2].textContent));
  assert.deepEqual(shares.map((share) => share !== ''), [true, true, false, false]);
  assert.deepEqual(problems, []);
});

/** Writes a chain of so many versions, of which only the documents exist. */
function documentsOf(folder, versions) {
  mkdirSync(join(folder, 'commits'), { recursive: true });
  const chain = '{"deltachain":1,"chain":"00112233445566778899aabbccddeeff","metadata":{}}';
  writeFileSync(join(folder, 'chain.json'), chain);
  let parent = blake3Hex(Buffer.from(chain));
  const digest = 'ab'.repeat(32);
  for (let version = 0; version < versions; version++) {
    const routes = [{ from: version === 0 ? null : version - 1, files: [{ digest, size: 131 }] }];
    const commit = JSON.stringify({ deltachain: 1, version, parent, state: digest, shards: [digest], routes, assets: [], metadata: {} });
    writeFileSync(join(folder, commitName(version)), commit);
    parent = blake3Hex(Buffer.from(commit));
  }
}

test('earlier versions that come after another link was opened are dropped', { skip }, async (t) => {
  const folder = scratch(t);
  documentsOf(join(folder, 'chain'), 34);
  const link = join(folder, 'step 1.dcf');
  tool('diff', file('testdata/rl3e6_step0.safetensors'), file('testdata/rl3e6_step1.safetensors'), '-o', link);
  const { url } = await serve(t, join(folder, 'chain'));
  const { page, problems } = await openPage(t, { allowed: [url] });
  await page.goto(`${PAGE}#chain=${encodeURIComponent(url)}`);
  await page.locator('#versions tbody tr').nth(31).waitFor();
  // There are no links: the first that is opened is missing, and so are those that are counted.
  await page.locator('#status.error', { hasText: 'missing' }).waitFor();
  const early = await hold(page, (request) => request.url().endsWith(commitName(0)));
  await page.click('#earlier');
  await early.first;
  await page.setInputFiles('#files', link);
  await page.locator('#tiles .tile').first().waitFor();
  const answered = page.waitForResponse((response) => response.url().endsWith(commitName(0)));
  early.release();
  await answered;
  await settled(page);
  assert.equal(await page.locator('#status').innerText(), '');
  assert.equal(await page.locator('#chain').isHidden(), true);
  assert.deepEqual(problems, []);
});

test('a plan that comes late does not replace the one that was asked for later', { skip }, async (t) => {
  const { url, page, problems } = await chainPage(t);
  await page.goto(`${PAGE}#chain=${encodeURIComponent(url)}`);
  await page.locator('#plan p', { hasText: '4 routes' }).waitFor();
  const oldest = await hold(page, (request) => request.url().endsWith(commitName(0)));
  await page.selectOption('#holds', '0');
  await oldest.first;
  await page.selectOption('#holds', '2');
  await page.locator('#plan p', { hasText: '1 route,' }).waitFor();
  const answered = page.waitForResponse((response) => response.url().endsWith(commitName(0)));
  oldest.release();
  await answered;
  await settled(page);
  assert.match(await page.locator('#plan > p').innerText(), /^1 route,/);
  assert.deepEqual(problems, []);
});
