/** Compares the reader's constants and single functions with the tables that the conformance kit takes from SPEC.md. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';
import { Cursor, unhex } from '../src/bytes.js';
import { crc32 } from '../src/crc32.js';
import { directRoutes } from '../src/documents.js';
import { BY_CODE, BY_NAME, describedDtype } from '../src/dtypes.js';
import { broken } from '../src/errors.js';
import { EMPTY_STATE_DIGEST, FORMAT_LIMITS, LIMITS, stateDigest } from '../src/index.js';
import { PIECE_BYTES, SEGMENT_BYTES, SEGMENT_PIECES } from '../src/limits.js';
import { HEADER_BYTES } from '../src/link-index.js';
import { folderOf, isPathName, isPlainName } from '../src/names.js';
import { minus, plus, sumsOfBytes, sumsOfLanes } from '../src/sums.js';
import { checkTrust, isLowOrder, noteText, ownNote, parseKey, parseNote, parseTrustedKey, signersOf } from '../src/signatures.js';

const read = async (/** @type {string} */ name) =>
  JSON.parse(await readFile(new URL(`../../conformance/${name}.json`, import.meta.url), 'utf8'));
const constants = await read('constants');
const { tables } = await read('functions');

test('dtypes', () => {
  const own = [...BY_CODE.values()].map(({ code, name, bits, laneBytes, signMagnitude, exponentBits }) => (
    { code, name, bits, lane_bytes: laneBytes, sign_magnitude: signMagnitude, exponent_bits: exponentBits }));
  assert.deepEqual(own, constants.dtypes);
  const { bits, lane_bytes: lanes, exponent_bits: exponent } = constants.described;
  const name = new TextEncoder().encode('X');
  const legal = (/** @type {[number, number, number, number]} */ ...rest) => describedDtype(name, ...rest) !== null;
  assert.deepEqual([bits[0] - 1, ...bits, bits[1] + 1].map((one) => legal(one, 1, 0, 0)), [false, true, true, false]);
  assert.deepEqual(Array.from({ length: 256 }, (_, i) => i).filter((one) => legal(8, one, 0, 0)), lanes);
  assert.deepEqual([legal(8, 8, 1, exponent), legal(8, 8, 1, exponent + 1)], [true, false]);
});

test('limits and sizes', () => {
  const NAMES = {
    'index raw length': 'indexBytes', 'metadata entries': 'metadataEntries', dimensions: 'dimensions',
    'metadata, bytes of keys and values together': 'metadataBytes', 'name, bytes': 'nameBytes',
    'tensor entries': 'tensors', segments: 'segments', 'tensor, bytes': 'tensorBytes', 'asset, bytes': 'assetBytes',
    'document of a chain, bytes': 'documentBytes', 'assets of a commit': 'assets',
  };
  const own = Object.entries(NAMES).map(([quantity, name]) => [quantity, LIMITS[name], FORMAT_LIMITS[name]]);
  own.push(['segment, bytes of its pieces', SEGMENT_BYTES, SEGMENT_BYTES]);
  own.push(['segment, number of its pieces', SEGMENT_PIECES, SEGMENT_PIECES]);
  const table = constants.limits.map(({ quantity, least, most }) => [quantity, least, most]);
  assert.deepEqual(own.sort(), table.sort());
  assert.deepEqual([PIECE_BYTES, HEADER_BYTES], [constants.piece_bytes, constants.header_bytes]);
  assert.equal(EMPTY_STATE_DIGEST, constants.empty_state);
});

test('each rule that a reader checks has its class and section', () => {
  const table = constants.rules.filter((rule) => /^[A-Z]/.test(rule.class));
  const own = table.map(({ id, steps }) => ({ id, class: broken(id, '').class, section: broken(id, '').section, steps }));
  assert.deepEqual(own, table);
});

/** @param {any} dtype name, or description */
function dtypeOf(dtype) {
  if (typeof dtype === 'string') return BY_NAME.get(dtype);
  const { name, bits, lane_bytes: lanes, sign_magnitude: sign, exponent_bits: exponent } = dtype;
  return describedDtype(new TextEncoder().encode(name), bits, lanes, Number(sign), exponent);
}

test('varints, checksums, names, state digests, marks of direct routes', () => {
  for (const { bytes, value, rule } of tables.varint.rows) {
    const cursor = new Cursor(unhex(bytes));
    if (value === undefined) assert.throws(() => cursor.varint(), { rule }, bytes);
    else assert.equal(String(cursor.varint()), value, bytes);
  }
  for (const { bytes, crc } of tables.crc32.rows) {
    assert.equal(crc32(unhex(bytes)).toString(16).padStart(8, '0'), crc, bytes);
  }
  for (const { name, plain, path, folder } of tables.names.rows) {
    assert.deepEqual([isPlainName(name), isPathName(name)], [plain, path], name);
    if (path) assert.equal(folderOf(name), folder);
  }
  for (const { routes, value, numbers } of tables.direct.rows) {
    assert.deepEqual([...directRoutes(value, routes)], numbers ?? [], value);
  }
  for (const { tensors, digest } of tables.state_digests.rows) {
    const table = tensors.map((one) => ({ ...one, dtype: dtypeOf(one.dtype), shape: one.shape.map(BigInt), byteLength: one.bytes }));
    assert.equal(stateDigest(table), digest);
  }
});

test('keys, and for whom a note counts', () => {
  for (const { key, name, id, public: bytes, legal = true } of tables.verifier_keys.rows) {
    if (!legal) assert.throws(() => parseKey(key), { class: 'USAGE' }, key);
    else {
      const { hash, ...own } = parseKey(key);
      assert.deepEqual([own, hash.slice(0, 8)], [{ name, id, bytes: unhex(bytes) }, id]);
    }
  }
  for (const { key, public: bytes, low_order: low } of tables.low_order.rows) {
    assert.equal(isLowOrder(unhex(bytes)), low, bytes);
    if (low) assert.throws(() => parseKey(key), { class: 'USAGE' }, key);
    else assert.deepEqual(parseKey(key).bytes, unhex(bytes));
  }
  for (const { text, chains, legal = true } of tables.trusted_keys.rows) {
    if (legal) assert.deepEqual(parseTrustedKey(text).chains, chains);
    else assert.throws(() => parseTrustedKey(text), { class: 'USAGE' }, text);
  }
  for (const { key, version, commit, name } of tables.own_notes.rows) {
    assert.equal(ownNote(version, commit, parseKey(key)), name);
  }
  for (const { keys, quorum, legal } of tables.trust.rows) {
    if (legal) assert.equal(checkTrust({ keys, quorum }).keys.length, keys.length);
    else assert.throws(() => checkTrust({ keys, quorum }), { class: 'USAGE' }, String([keys, quorum]));
  }
  for (const { chain, version, commit, text } of tables.note_texts.rows) assert.equal(noteText(chain, version, commit), text);
  const signers = (/** @type {Uint8Array} */ bytes, /** @type {string} */ text, /** @type {string[]} */ keys) => {
    const [note, own] = [parseNote(bytes, text), keys.map((key) => parseKey(key))];
    return note === null ? [] : signersOf([note], own).map((key) => own.indexOf(key));
  };
  for (const { key, text, line, valid } of tables.signature_lines.rows) {
    assert.deepEqual(signers(new TextEncoder().encode(`${text}\n${line}\n`), text, [key]), valid ? [0] : [], line);
  }
  for (const { chain, version, commit, keys, note, counts } of tables.notes.rows) {
    assert.deepEqual(signers(unhex(note), noteText(chain, version, commit), keys), counts, note);
  }
});

test('sums', () => {
  for (const { bytes, place, sums } of tables.sums.rows) {
    const data = unhex(bytes);
    assert.deepEqual(sumsOfLanes(Uint32Array.from(data, (_, i) => place + i), data), sums);
    if (place % 2 === 0) assert.deepEqual(sumsOfBytes(data, place), sums);
  }
  for (const { bytes: length, multiply, add, modulus, sums } of tables.piece_sums.rows) {
    const data = Uint8Array.from({ length }, (_, i) => (i * multiply + add) % modulus);
    assert.deepEqual(sumsOfBytes(data), sums);
    // At an odd place in the buffer, and as lanes of each width.
    assert.deepEqual(sumsOfBytes(Uint8Array.from({ length: length + 1 }, (_, i) => data[i - 1] ?? 0).subarray(1)), sums);
    for (const Lanes of [Uint8Array, Uint16Array, Uint32Array, BigUint64Array]) {
      const each = Lanes.BYTES_PER_ELEMENT;
      if (length % each !== 0) continue;
      const lanes = new Lanes(data.buffer);
      assert.deepEqual(sumsOfLanes(Uint32Array.from({ length: lanes.length }, (_, i) => i), lanes), sums);
    }
  }
  for (const { one, other, more } of tables.sums_added.rows) {
    assert.deepEqual([plus(one, other), minus(more, other)], [more, one]);
  }
});
