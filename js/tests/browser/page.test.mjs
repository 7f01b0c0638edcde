/** The page in a real browser, from `file://`: what it shows of a link is what `inspect` of the tool says. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const BROWSER = process.env.DELTACHAIN_BROWSER ?? '/usr/bin/chromium';
const TOOL = process.env.DELTACHAIN ?? '';
const missing = !existsSync(BROWSER) ? `no browser at ${BROWSER}` : !existsSync(TOOL) ? 'DELTACHAIN names no tool' : null;
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];
const file = (path) => new URL(`../../../${path}`, import.meta.url).pathname;

test('a link is shown, searched and checked; a damaged one is refused', { skip: missing !== null && `SKIPPED: ${missing}` }, async (t) => {
  const scratch = mkdtempSync(join(tmpdir(), 'deltachain-page-'));
  t.after(() => rmSync(scratch, { recursive: true, force: true }));
  const link = join(scratch, 'step1.dcf');
  const states = ['testdata/rl3e6_step0.safetensors', 'testdata/rl3e6_step1.safetensors'].map(file);
  execFileSync(TOOL, ['diff', '--quiet', ...states, '-o', link]);
  const said = JSON.parse(execFileSync(TOOL, ['inspect', '--json', link], { encoding: 'utf8' }));
  const html = join(scratch, 'page.html');
  execFileSync(process.execPath, [file('js/inspector/build.mjs'), html, link]);
  const browser = await chromium.launch({ executablePath: BROWSER, args: FLAGS });
  t.after(() => browser.close());
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  const problems = [];
  page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(String(error)));
  await page.goto(pathToFileURL(html).href);
  await page.locator('#link:not([hidden])').waitFor();

  const facts = await page.locator('#facts').innerText();
  for (const value of [said.target, said.base, said.bytes.toLocaleString('en')]) assert.ok(facts.includes(value), value);
  const shown = await page.locator('#rows tr').evaluateAll((lines) =>
    lines.map((line) => [line.cells[0].textContent, line.cells[5].textContent, line.cells[7].textContent]));
  const wanted = said.tensors.map((row) => [row.name, row.coded.toLocaleString('en'), row.bytes.toLocaleString('en')]);
  assert.deepEqual(shown.toSorted(), wanted.toSorted());

  await page.fill('#search', said.tensors[0].name);
  assert.equal(await page.locator('#rows tr').count(), said.tensors.filter((row) => row.name.includes(said.tensors[0].name)).length);
  await page.fill('#search', '');
  await page.click('#check');
  await page.getByText('Every segment decodes').waitFor();
  if (process.env.SCREENSHOTS) {
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      await page.screenshot({ path: join(process.env.SCREENSHOTS, `link-${width}.png`) });
    }
  }

  const bytes = readFileSync(link);
  bytes[bytes.length - 1] ^= 1;
  const damaged = join(scratch, 'damaged.dcf');
  writeFileSync(damaged, bytes);
  let code = 0;
  let refused;
  try {
    execFileSync(TOOL, ['inspect', '--json', damaged], { encoding: 'utf8', stdio: 'pipe' });
  } catch (error) {
    code = error.status;
    refused = JSON.parse(error.stdout).error;
  }
  assert.notEqual(code, 0);
  await page.setInputFiles('#file', damaged);
  await page.locator('#status.error').waitFor();
  const text = await page.locator('#status').innerText();
  for (const part of [refused.class, refused.rule, refused.section]) assert.ok(text.includes(part), `${part} in ${text}`);
  assert.equal(await page.locator('#link').isHidden(), true);
  assert.deepEqual(problems, []);
});
