/** Sources and stores over HTTP, from the test's own server on 127.0.0.1. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { readFile, readdir } from 'node:fs/promises';
import test from 'node:test';
import { httpSource, httpStore, open, openChain } from '../src/index.js';
import { crc32 } from '../src/crc32.js';
import { workedDocument } from './worked.mjs';

const vectors = new URL('../../conformance/vectors/', import.meta.url);

/**
 * Starts a file server that counts requests. A file has bytes and a length: the rest of it is zeros.
 * @param {import('node:test').TestContext} t
 * @param {Record<string, { bytes: Uint8Array, length?: number, etag?: string, ranges?: boolean }>} files
 */
async function serve(t, files) {
  const log = [];
  const server = createServer((request, response) => {
    const file = files[request.url ?? ''];
    log.push(`${request.url} ${request.headers.range ?? 'whole'}`);
    if (file === undefined) return response.writeHead(404).end();
    const length = file.length ?? file.bytes.length;
    if (file.ranges === false) return response.writeHead(200).end(file.bytes);
    const condition = request.headers['if-match'];
    if (condition !== undefined && condition !== file.etag) return response.writeHead(412).end();
    const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
    const end = Math.min(Number(to) + 1, length);
    const part = Buffer.alloc(end - Number(from));
    part.set(file.bytes.subarray(Number(from), end));
    const headers = { 'content-range': `bytes ${from}-${end - 1}/${length}`, ...(file.etag ? { etag: file.etag } : {}) };
    return response.writeHead(206, headers).end(part);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(null)));
  t.after(() => server.close());
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
  return { url: `http://127.0.0.1:${port}`, log };
}

/** Makes a link whose extension area makes it long. @param {number} extension */
async function longLink(extension) {
  const bytes = new Uint8Array(await readFile(new URL('links/valid/one-lane.dcf', vectors)));
  const view = new DataView(bytes.buffer);
  view.setBigUint64(112, BigInt(extension), true);
  view.setUint32(124, crc32(bytes.subarray(0, 124)), true);
  return { bytes, length: bytes.length + extension };
}

test('a link of 10 GB is opened by one request', async (t) => {
  const file = { ...(await longLink(1e10)), etag: '"a"' };
  const { url, log } = await serve(t, { '/long.dcf': file });
  const link = await open(await httpSource(`${url}/long.dcf`));
  assert.equal(link.header.fileLength, file.length);
  assert.equal(link.index.tensors.length, 1);
  assert.deepEqual(log, ['/long.dcf bytes=0-262143']);
});

/** Makes a link whose index is not compressed, with metadata of this length. @param {number} length */
async function longIndex(length) {
  const { bytes } = await longLink(0);
  const view = new DataView(bytes.buffer);
  const [stored, raw] = [88, 96].map((offset) => Number(view.getBigUint64(offset, true)));
  assert.equal(stored, raw);
  assert.equal(bytes[128], 0, 'no metadata yet');
  const varint = (value) => (value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))]);
  const metadata = Buffer.concat([Buffer.from([1, 1, 0x6b, ...varint(length)]), Buffer.alloc(length, 'x')]);
  const index = Buffer.concat([metadata, bytes.subarray(129, 128 + stored)]);
  const whole = Buffer.concat([bytes.subarray(0, 128), index, bytes.subarray(128 + stored)]);
  const header = new DataView(whole.buffer, whole.byteOffset, 128);
  for (const offset of [88, 96]) header.setBigUint64(offset, BigInt(index.length), true);
  header.setUint32(120, crc32(index), true);
  header.setUint32(124, crc32(whole.subarray(0, 124)), true);
  return whole;
}

test('a link whose index is longer than the first request is opened by two', async (t) => {
  const bytes = await longIndex(500_000);
  const { url, log } = await serve(t, { '/link.dcf': { bytes, etag: '"a"' } });
  const link = await open(await httpSource(`${url}/link.dcf`));
  assert.equal(link.index.metadata[0][1].length, 500_000);
  const end = 128 + link.header.indexStored;
  assert.deepEqual(log, ['/link.dcf bytes=0-262143', `/link.dcf bytes=262144-${end - 1}`]);
  await link.check();
});

test('a file that changes while it is read is an error', async (t) => {
  const file = { ...(await longLink(1e6)), etag: '"a"' };
  const { url } = await serve(t, { '/link.dcf': file });
  const source = await httpSource(`${url}/link.dcf`);
  assert.equal((await source.read(500_000, 10)).length, 10);
  file.etag = '"b"';
  await assert.rejects(source.read(600_000, 10), { class: 'IO' });
});

test('a server without ranges, and a file that is not there', async (t) => {
  const { bytes } = await longLink(0);
  const { url } = await serve(t, { '/plain.dcf': { bytes, ranges: false } });
  const link = await open(await httpSource(`${url}/plain.dcf`));
  await link.check();
  await assert.rejects(httpSource(`${url}/other.dcf`), { class: 'IO' });
});

test('a chain that cannot be listed is followed by its names', async (t) => {
  const text = workedDocument('chain');
  const commit = workedDocument('commit');
  const { url } = await serve(t, {
    '/my%20chain/chain.json': { bytes: text },
    '/my%20chain/commits/00000000000000000000.json': { bytes: commit },
  });
  const chain = openChain(httpStore(`${url}/my chain`));
  assert.equal(await chain.head(), 0);
  const plan = await chain.plan();
  assert.deepEqual([plan.version, plan.path.length, plan.bytes], [0, 1, 131n]);
  await assert.rejects(chain.replay(), { class: 'CHAIN', rule: 'R-CHN-09' });
});

test('only node.js uses what Node alone has', async () => {
  const folder = new URL('../src/', import.meta.url);
  for (const name of await readdir(folder)) {
    const text = await readFile(new URL(name, folder), 'utf8');
    if (name !== 'node.js') assert.doesNotMatch(text, /from 'node:|\b(process|Buffer|require)\b[.(]/, name);
  }
});
