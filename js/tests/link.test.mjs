/** Links: results of the worked files of SPEC section 16, errors with their place, states, streams. */
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import test from 'node:test';
import { decompress } from 'fzstd';
import {
  DeltachainError, applyLinks, blobSource, bytesSource, emptyState, memoryWriter, open, openSafetensors, stateDigest,
} from '../src/index.js';
import { readStream } from '../src/zstd.js';
import { crc32 } from '../src/crc32.js';
import { findRecords } from '../src/extension.js';
import { worked } from './worked.mjs';

const vectors = new URL('../../conformance/vectors/', import.meta.url);

/** Makes a state of one BF16 tensor. @param {number[]} lanes @param {string} [name] */
function bf16(lanes, name = 't') {
  const header = JSON.stringify({ [name]: { dtype: 'BF16', shape: [lanes.length], data_offsets: [0, 2 * lanes.length] } });
  const bytes = new Uint8Array(8 + header.length + 2 * lanes.length);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, BigInt(header.length), true);
  bytes.set(new TextEncoder().encode(header), 8);
  lanes.forEach((lane, i) => view.setUint16(8 + header.length + 2 * i, lane, true));
  return openSafetensors(bytesSource(bytes));
}

const BASE = [0x0000, 0x0100, 0x0001, 0x0101, 0x0002, 0x0102, 0x0003, 0x0103];
const TARGET = [0x0001, 0x0100, 0x0001, 0x0102, 0x8000, 0x0102, 0x0003, 0x0101];

test('contexts and relative values of section 16.2', async () => {
  const link = await open(blobSource(new Blob([worked('contexts')])));
  const writer = memoryWriter();
  const table = await link.apply(await bf16(BASE), writer);
  const bytes = await writer.state().readPiece('t', 0);
  assert.deepEqual([...new Uint16Array(bytes.buffer)], TARGET);
  assert.equal(stateDigest(table.values()), link.header.target);
  const [row] = (await link.inspect()).tensors;
  assert.deepEqual([row.coded, row.lanes, row.contexts, row.codings], [4, 8, 2, ['sparse relative']]);
  const coded = [];
  for await (const piece of link.coded('t', await bf16(BASE))) coded.push([...(piece.lanes ?? [])]);
  assert.deepEqual(coded, [[0, 4, 3, 7]], 'lanes of context 0, then those of context 1');
});

test('a second time is refused, and the base stays as it was', async () => {
  const link = await open(bytesSource(worked('contexts')));
  const base = await bf16(TARGET);
  await assert.rejects(link.apply(base, memoryWriter()), { class: 'WRONG_BASE', rule: 'R-APP-01', section: '9' });
  assert.deepEqual([...new Uint16Array((await base.readPiece('t', 0)).buffer)], TARGET);
});

test('an error names class, rule, section, offset and segment', async () => {
  const bytes = worked('contexts');
  bytes[0xcf] ^= 1;
  const link = await open(bytesSource(bytes));
  const place = { class: 'CORRUPT', rule: 'R-SEG-01', section: '7', offset: 0xb0, segment: 0 };
  await assert.rejects(link.check(), place);
  bytes[0xcf] ^= 1;
  bytes[0x8b] = 3;
  await assert.rejects(open(bytesSource(bytes)), { class: 'CORRUPT', rule: 'R-IDX-01', offset: 128 });
});

test('patches need absolute values', async () => {
  const link = await open(bytesSource(worked('contexts')));
  assert.equal(link.isDirect, false);
  await assert.rejects(link.patches().next(), { class: 'UNSUPPORTED', rule: null });
});

test('records of an extension area', async () => {
  const magic = [0x89, 0x44, 0x43, 0x58, 0x0d, 0x0a, 0x1a, 0x0a];
  const record = (/** @type {number} */ kind, /** @type {number} */ crc, length = 9) => {
    const bytes = new Uint8Array(16 + 9);
    const view = new DataView(bytes.buffer);
    view.setUint32(0, kind, true);
    view.setUint32(4, crc, true);
    view.setBigUint64(8, BigInt(length), true);
    bytes.set(new TextEncoder().encode('123456789'), 16);
    return bytes;
  };
  const area = (/** @type {Uint8Array[]} */ ...records) => Uint8Array.from([...magic, ...records.flatMap((one) => [...one])]);
  const [right, other] = [record(1, 0xcbf43926), record(2, 0xcbf43927)];
  const found = (/** @type {Uint8Array} */ bytes) => findRecords(bytesSource(bytes), 0, bytes.length);
  const records = (await found(area(right, other))).map(({ kind, offset, length }) => [kind, offset, length]);
  assert.deepEqual(records, [[1, 24, 9], [2, 49, 9]]);
  assert.deepEqual(await found(area()), []);
  for (const wrong of [area(other, right), area(right, right), area(record(1, 0, 10)), area(right).subarray(0, -1), area(right).subarray(8)]) {
    assert.deepEqual(await found(wrong), []);
  }
  const bytes = Uint8Array.from([...worked('smallest'), ...area(right, other)]);
  bytes[112] = area(right, other).length;
  new DataView(bytes.buffer).setUint32(124, crc32(bytes.subarray(0, 124)), true);
  const link = await open(bytesSource(bytes));
  const read = (await link.extension()).map(({ kind, data, crcMatches }) => [kind, data.length, crcMatches]);
  assert.deepEqual(read, [[1, 9, true], [2, 9, false]]);
});

test('an apply that is ended says so', async () => {
  const link = await open(bytesSource(worked('contexts')));
  const signal = AbortSignal.abort(new Error('enough'));
  await assert.rejects(link.apply(await bf16(BASE), memoryWriter(), { signal }), /enough/);
});

test('links must fit one another', async () => {
  const link = await open(bytesSource(worked('contexts')));
  await assert.rejects(applyLinks([link, link], await bf16(BASE), null), { rule: 'R-APP-06' });
});

test('the smallest file makes the empty state', async () => {
  const link = await open(bytesSource(worked('smallest')));
  assert.equal((await link.apply(emptyState())).size, 0);
  assert.equal(link.isSnapshot, true);
});

test('files cut short and bytes changed are refused, never anything else', async () => {
  const whole = worked('escapes');
  for (let length = 0; length < whole.length; length++) {
    await assert.rejects(open(bytesSource(whole.subarray(0, length))), { class: 'TRUNCATED' });
  }
  for (let at = 0; at < whole.length; at++) {
    const bytes = whole.slice();
    bytes[at] ^= 0x10;
    const check = open(bytesSource(bytes)).then((link) => link.check());
    // Every byte is under a checksum.
    await assert.rejects(check, DeltachainError, `byte ${at}`);
  }
});

test('zstd frames: fzstd as a second opinion, and damaged frames', async () => {
  const folder = new URL('links/valid/', vectors);
  let frames = 0;
  let seed = 1;
  const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0);
  for (const name of await readdir(folder)) {
    if (!name.endsWith('.dcf')) continue;
    const file = new Uint8Array(await readFile(new URL(name, folder)));
    const { header } = await open(bytesSource(file));
    if (header.indexStored === header.indexRaw || header.indexRaw > 2 ** 20) continue;
    const stored = file.subarray(128, 128 + header.indexStored);
    assert.deepEqual(readStream(stored, header.indexRaw), decompress(stored), name);
    frames += 1;
    for (let round = 0; round < 20; round++) {
      const damaged = stored.slice();
      damaged[random() % damaged.length] ^= 1 << random() % 8;
      try {
        assert.equal(readStream(damaged, header.indexRaw).length, header.indexRaw);
      } catch (error) {
        assert.ok(error instanceof DeltachainError, `${name}: ${error}`);
      }
    }
  }
  assert.ok(frames >= 3, `only ${frames} compressed indexes`);
});
