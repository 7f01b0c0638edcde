/** Shared parts of the browser tests: a browser, a file server, generated models, screenshots. */
import { execFileSync } from 'node:child_process';
import { createCipheriv } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join, normalize } from 'node:path';
import { after } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const BROWSER = process.env.DELTACHAIN_BROWSER ?? '/usr/bin/chromium';
const TOOL = process.env.DELTACHAIN ?? '';
const RUNNER = process.env.DELTACHAIN_CONFORMANCE ?? '';
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

/** The reason why these tests cannot run, in the form of node:test; false if they can. */
export const skip = !existsSync(BROWSER) ? `SKIPPED: no browser at ${BROWSER}`
  : !existsSync(TOOL) ? 'SKIPPED: DELTACHAIN does not name the tool'
  : !existsSync(RUNNER) ? 'SKIPPED: DELTACHAIN_CONFORMANCE does not name the runner' : false;

/** Returns the path of a file of this repository. @param {string} path */
export const file = (path) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
export const PAGE = pathToFileURL(file('js/inspector/index.html')).href;

/** Runs the tool. @param {...string} parameters */
export const tool = (...parameters) => execFileSync(TOOL, ['--quiet', ...parameters], { encoding: 'utf8', maxBuffer: 2 ** 28 });

/** Returns the tool's answer as JSON; if it refuses, its error. @param {...string} parameters */
export function asked(...parameters) {
  try {
    return JSON.parse(execFileSync(TOOL, ['--json', '--quiet', ...parameters], { encoding: 'utf8', stdio: 'pipe', maxBuffer: 2 ** 28 }));
  } catch (error) {
    return JSON.parse(error.stdout).error;
  }
}

/** Returns the segments of a link from the conformance runner. @param {string} link */
export const segmentsOf = (link) => JSON.parse(execFileSync(RUNNER, ['segments', link], { encoding: 'utf8', maxBuffer: 2 ** 28 }));

/** Makes a directory that is removed when the test ends. @param {import('node:test').TestContext} t */
export function scratch(t) {
  const folder = mkdtempSync(join(tmpdir(), 'deltachain page '));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** @type {import('playwright-core').Browser | null} */
let browser = null;
after(() => browser?.close());

/**
 * Chromium sometimes crashes as it starts on busy machines, so a second attempt is made: that is no fault of the page.
 */
async function launch() {
  const start = () => chromium.launch({ executablePath: BROWSER, args: FLAGS });
  return start().catch(start);
}

/**
 * Opens a page with storage of its own, in the browser that all tests share. Errors on its console fail the test, and
 * so does every request to a host that is not allowed.
 * @param {import('node:test').TestContext} t
 * @param {{ width?: number, colorScheme?: 'light' | 'dark', allowed?: string[] }} [options]
 */
export async function openPage(t, { width = 1280, colorScheme = 'light', allowed = [] } = {}) {
  browser ??= await launch();
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, acceptDownloads: true });
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  // Over HTTP the newest version is found by requests for missing ones, which the browser logs.
  const expected = (text) => allowed.length > 0 && text.includes('status of 404');
  page.on('console', (message) => message.type() === 'error' && !expected(message.text()) && problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('request', (request) => {
    const url = request.url();
    if (!/^(file|data|blob):/.test(url) && !allowed.some((start) => url.startsWith(start))) problems.push(`asked ${url}`);
  });
  return { browser, page, problems };
}

/** Saves a screenshot of the whole page, if SCREENSHOTS names a folder. @param {import('playwright-core').Page} page */
export async function picture(page, name) {
  const folder = process.env.SCREENSHOTS;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
}

/**
 * Starts a static server on 127.0.0.1, with ranges, ETags and CORS.
 * @param {import('node:test').TestContext} t
 * @param {string} folder
 * @returns {Promise<{ url: string, log: string[] }>}
 */
export async function serve(t, folder) {
  const log = [];
  const cors = { 'cache-control': 'no-store', 'access-control-allow-origin': '*', 'access-control-allow-headers': 'range, if-match',
    'access-control-expose-headers': 'content-range, etag' };
  const server = createServer(async (request, response) => {
    if (request.method === 'OPTIONS') return response.writeHead(204, cors).end();
    const path = normalize(decodeURIComponent(new URL(request.url, 'http://localhost').pathname));
    const bytes = await readFile(join(folder, path)).catch(() => null);
    log.push(`${path} ${request.headers.range ?? 'whole'}`);
    if (bytes === null) return response.writeHead(404, cors).end();
    const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
    if (from === undefined) return response.writeHead(200, cors).end(bytes);
    const end = Math.min(Number(to) + 1, bytes.length);
    const headers = { ...cors, 'content-range': `bytes ${from}-${end - 1}/${bytes.length}`, etag: '"one"' };
    return response.writeHead(206, headers).end(bytes.subarray(Number(from), end));
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', () => resolve(null)); });
  t.after(() => { server.closeAllConnections(); server.close(); });
  return { url: `http://127.0.0.1:${server.address().port}`, log };
}

/** Returns bytes that resemble BF16 weights: small normal numbers, equal for equal seeds. */
function weights(count, seed) {
  const values = new Uint16Array(count);
  let state = seed;
  for (let i = 0; i < count; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    // Sign, an exponent near that of 0.02, and a mantissa.
    values[i] = ((state >>> 31) << 15) | ((118 + ((state >>> 20) & 3)) << 7) | ((state >>> 8) & 127);
  }
  return values;
}

/** Returns a safetensors header with its length. @param {object} header */
function headerOf(header) {
  const json = JSON.stringify(header);
  const bytes = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(bytes.length));
  return [length, bytes];
}

/** Writes an incompressible safetensors file of this many bytes, in rows of 1000. @param {string} path */
export function noise(path, bytes) {
  const header = { noise: { dtype: 'U8', shape: [bytes / 1000, 1000], data_offsets: [0, bytes] } };
  // A stream cipher gives the same noise each time.
  const cipher = createCipheriv('aes-128-ctr', Buffer.alloc(16, 1), Buffer.alloc(16));
  writeFileSync(path, Buffer.concat([...headerOf(header), cipher.update(Buffer.alloc(bytes))]));
}

/**
 * Writes two models of BF16 as safetensors files; the second differs from the first in about 1 of 100 elements, by 1.
 * @param {string} folder
 * @param {Record<string, number[]>} shapes
 * @returns {[string, string]} their paths
 */
export function models(folder, shapes) {
  const header = {};
  const data = [];
  let at = 0;
  for (const [name, shape] of Object.entries(shapes).sort(([a], [b]) => (a < b ? -1 : 1))) {
    const values = weights(shape.reduce((all, one) => all * one, 1), data.length + 1);
    header[name] = { dtype: 'BF16', shape, data_offsets: [at, at + values.byteLength] };
    at += values.byteLength;
    data.push(values);
  }
  const paths = /** @type {[string, string]} */ (['base', 'target'].map((name) => join(folder, `${name}.safetensors`)));
  for (const [number, path] of paths.entries()) {
    if (number === 1) for (const values of data) for (let i = 7; i < values.length; i += 53 + ((i * 7919) % 97)) values[i] ^= 1;
    writeFileSync(path, Buffer.concat([...headerOf({ __metadata__: { format: 'pt' }, ...header }), ...data.map((values) => Buffer.from(values.buffer))]));
  }
  return paths;
}
