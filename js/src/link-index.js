/** Header and index of a link: SPEC sections 4 and 6, steps 1 to 6 of section 10. */
import { at, ensure } from './errors.js';
import { Cursor, compareStrings, hex } from './bytes.js';
import { crc32 } from './crc32.js';
import { EMPTY_STATE_DIGEST, digestOfPieces } from './digests.js';
import { BY_CODE, bitsOf, describedDtype, pieceCount, pieceLength } from './dtypes.js';
import { SEGMENT_BYTES, SEGMENT_PIECES } from './limits.js';
import { readStream } from './zstd.js';

/** @typedef {import('./limits.js').Limits} Limits */
/** @typedef {import('./dtypes.js').TensorInfo} TensorInfo */

export const HEADER_BYTES = 128;
const MAGIC = [0x89, 0x44, 0x43, 0x46, 0x0d, 0x0a, 0x1a, 0x0a];

/**
 * The header of a link (SPEC section 4.1). Lengths are in bytes.
 * @typedef {object} Header
 * @property {number} version
 * @property {number} compatibleFeatures
 * @property {string} base state digest of the base, 64 hexadecimal digits
 * @property {string} target state digest of the target
 * @property {number} indexStored
 * @property {number} indexRaw
 * @property {number} segmentsLength
 * @property {number} extensionLength
 * @property {number} fileLength
 * @property {number} indexCrc
 */

/** @typedef {'absolute' | 'relative planes' | 'relative small'} Values */

/**
 * A piece that a segment codes.
 * @typedef {object} Part
 * @property {number} entry place in `Index.tensors`
 * @property {number} piece
 * @property {number} lanes
 */

/**
 * A segment entry (SPEC section 6.1).
 * @typedef {object} SegmentEntry
 * @property {number} laneBytes
 * @property {boolean} sparse
 * @property {Values} values
 * @property {number} stored bytes in the file
 * @property {number} crc
 * @property {number} offset in the file
 * @property {Part[]} parts
 */

/**
 * A tensor that the link removes (SPEC section 6.2).
 * @typedef {{ operation: 'remove', name: string }} Removal
 */

/**
 * A tensor that the link sets or patches, as in the target. For each piece, `segments` has 0, or 1 + the number of its
 * segment, `parts` its place among the parts of that segment, and `pieces` its digest; `digest` is the tensor's.
 * @typedef {TensorInfo & WrittenOnly} Written
 * @typedef {{ operation: 'set' | 'patch', segments: Uint32Array, parts: Uint32Array, pieces: string[], digest: string }} WrittenOnly
 */

/** @typedef {Removal | Written} TensorEntry */

/**
 * @typedef {object} Index
 * @property {[string, string][]} metadata
 * @property {SegmentEntry[]} segments
 * @property {TensorEntry[]} tensors
 * @property {Uint8Array} raw its bytes, not compressed
 */

/**
 * Does steps 1 to 4.
 * @param {Uint8Array} bytes the first 128 of the file, or all that it has
 * @param {number} fileLength
 * @param {Limits} limits
 * @returns {Header}
 */
export function parseHeader(bytes, fileLength, limits) {
  const shown = bytes.subarray(0, 8);
  ensure(shown.every((byte, i) => byte === MAGIC[i]), 'R-HDR-01', 'not a link: wrong magic', { offset: 0 });
  ensure(bytes.length >= HEADER_BYTES, 'R-HDR-02', 'the file ends inside the header', { offset: bytes.length });
  const view = new DataView(bytes.buffer, bytes.byteOffset, HEADER_BYTES);
  const u32 = (/** @type {number} */ offset) => view.getUint32(offset, true);
  const u64 = (/** @type {number} */ offset) => view.getBigUint64(offset, true);
  const crc = crc32(bytes.subarray(0, 124));
  ensure(crc === u32(124), 'R-HDR-03', 'the header checksum does not match', { offset: 124 });
  ensure(u32(8) === 1, 'R-HDR-04', `version ${u32(8)} is not known`, { offset: 8 });
  ensure(u32(12) === 0, 'R-HDR-05', 'unknown incompatible features', { offset: 12 });
  ensure(u32(20) === 0, 'R-HDR-06', 'the reserved field is not 0', { offset: 20 });
  const [stored, raw, segments, extension] = [u64(88), u64(96), u64(104), u64(112)];
  ensure(stored <= raw, 'R-STR-01', 'the index takes more bytes stored than raw', { offset: 88 });
  const sum = 128n + stored + segments + extension;
  ensure(sum <= 2n ** 63n - 1n, 'R-HDR-08', 'the lengths add up to more than 2^63 - 1', { offset: 88 });
  ensure(raw <= limits.indexBytes, 'R-LIM-01', `an index of ${raw} bytes`, { offset: 96 });
  ensure(sum <= fileLength, 'R-HDR-09', `the file has ${fileLength} of ${sum} bytes`, { offset: fileLength });
  ensure(sum >= fileLength, 'R-HDR-10', `the file has ${fileLength} bytes instead of ${sum}`, { offset: Number(sum) });
  return {
    version: 1,
    compatibleFeatures: u32(16),
    base: hex(bytes.subarray(24, 56)),
    target: hex(bytes.subarray(56, 88)),
    indexStored: Number(stored),
    indexRaw: Number(raw),
    segmentsLength: Number(segments),
    extensionLength: Number(extension),
    fileLength,
    indexCrc: u32(120),
  };
}

/**
 * Does steps 5 and 6.
 * @param {Header} header
 * @param {Uint8Array} stored
 * @param {Limits} limits
 * @returns {Index}
 */
export function parseIndex(header, stored, limits) {
  ensure(crc32(stored) === header.indexCrc, 'R-IDX-01', 'the index checksum does not match', { offset: HEADER_BYTES });
  const raw = at({ offset: HEADER_BYTES }, () => readStream(stored, header.indexRaw));
  const cursor = new Cursor(raw);
  // An offset in the file is known only if the index is not compressed.
  const plain = stored.length === raw.length;
  try {
    return new IndexParser(cursor, header, limits).parse();
  } catch (error) {
    return at({ offset: plain ? HEADER_BYTES + cursor.at : HEADER_BYTES }, () => {
      throw error;
    });
  }
}

class IndexParser {
  /** @type {[string, string][]} */
  metadata = [];
  /** @type {(SegmentEntry & { coding: number, stored: number | bigint })[]} */
  segments = [];
  /** @type {TensorEntry[]} */
  tensors = [];
  /** Last segment of each dtype and coding byte (R-IDX-19). @type {Map<string, number>} */
  #last = new Map();

  /**
   * @param {Cursor} cursor
   * @param {Header} header
   * @param {Limits} limits
   */
  constructor(cursor, header, limits) {
    this.cursor = cursor;
    this.header = header;
    this.limits = limits;
  }

  /** @returns {Index} */
  parse() {
    this.#readMetadata();
    for (let left = this.#count(this.limits.segments, 'segments'); left > 0; left--) this.#readSegment();
    let before = null;
    for (let left = this.#count(this.limits.tensors, 'tensors'); left > 0; left--) {
      const entry = this.#readTensor(before);
      before = entry.name;
      this.tensors.push(entry);
    }
    this.#readDigests();
    this.#checkWhole();
    const { metadata, segments, tensors } = this;
    return { metadata, segments, tensors, raw: this.cursor.bytes };
  }

  /** @param {number} limit @param {string} what */
  #count(limit, what) {
    const value = this.cursor.varint();
    ensure(value <= limit, 'R-LIM-01', `${value} ${what}`);
    return Number(value);
  }

  #readMetadata() {
    let left = this.#count(this.limits.metadataEntries, 'metadata entries');
    let room = this.limits.metadataBytes;
    const text = () => {
      const length = this.#count(room, 'bytes of metadata');
      room -= length;
      return this.cursor.string(length);
    };
    for (let before = null; left > 0; left--) {
      const key = text();
      ensure(before === null || compareStrings(before, key) < 0, 'R-IDX-03', 'metadata keys are not ascending');
      before = key;
      this.metadata.push([key, text()]);
    }
  }

  #readSegment() {
    const coding = this.cursor.u8();
    const values = (coding >> 3) & 3;
    const sparse = (coding & 4) !== 0;
    const defined = coding < 32 && values !== 3 && (values !== 2 || sparse);
    ensure(defined, 'R-IDX-05', `coding ${coding} is not defined`);
    const names = /** @type {Values[]} */ (['absolute', 'relative planes', 'relative small']);
    const stored = /** @type {number} */ (this.cursor.varint());
    const crc = this.cursor.u32();
    const laneBytes = 1 << (coding & 3);
    this.segments.push({ coding, laneBytes, sparse, values: names[values], stored, crc, offset: 0, parts: [] });
  }

  /** @param {string | null} before @returns {TensorEntry} */
  #readTensor(before) {
    const { cursor } = this;
    const name = cursor.string(this.#count(this.limits.nameBytes, 'bytes of a name'));
    ensure(before === null || compareStrings(before, name) < 0, 'R-IDX-06', 'tensor names are not ascending', {
      tensor: name,
    });
    return at({ tensor: name }, () => {
      const operation = (/** @type {const} */ (['remove', 'set', 'patch']))[cursor.u8()];
      ensure(operation !== undefined, 'R-IDX-07', 'an operation that is not defined');
      if (operation === 'remove') return { operation, name };
      const dtype = this.#readDtype();
      /** @type {(number | bigint)[]} */
      const shape = [];
      for (let left = this.#count(this.limits.dimensions, 'dimensions'); left > 0; left--) shape.push(cursor.varint());
      const bits = bitsOf(dtype, shape);
      ensure(bits <= BigInt(this.limits.tensorBytes) * 8n, 'R-LIM-01', 'the tensor is too large');
      const whole = bits % BigInt(8 * dtype.laneBytes) === 0n;
      ensure(whole, 'R-IDX-09', 'its byte length is not whole, or not a multiple of the lane bytes');
      const byteLength = Number(bits / 8n);
      const { segments, parts } = this.#readSegmentNumbers(operation, dtype, byteLength);
      return { operation, name, dtype, shape, byteLength, segments, parts, pieces: [], digest: '' };
    });
  }

  #readDtype() {
    const { cursor } = this;
    const code = cursor.u8();
    if (code === 255) {
      const name = cursor.take(this.#count(this.limits.nameBytes, 'bytes of a name'));
      // The rules of strings come before the rules of the description.
      new Cursor(name).string(name.length);
      const dtype = describedDtype(name, cursor.varint(), cursor.u8(), cursor.u8(), cursor.u8());
      ensure(dtype !== null, 'R-IDX-20', 'the description of a dtype is invalid');
      return dtype;
    }
    const dtype = BY_CODE.get(code);
    ensure(dtype !== undefined, 'R-IDX-08', `dtype code ${code} is not defined`);
    return dtype;
  }

  /**
   * @param {'set' | 'patch'} operation
   * @param {import('./dtypes.js').Dtype} dtype
   * @param {number} byteLength
   */
  #readSegmentNumbers(operation, dtype, byteLength) {
    const count = pieceCount(byteLength);
    // Each piece takes at least one byte, so there are at most as many pieces as bytes, whatever the shape claims.
    const room = Math.min(count, this.cursor.left);
    const segments = new Uint32Array(room);
    const parts = new Uint32Array(room);
    for (let piece = 0; piece < count; piece++) {
      const number = this.cursor.varint();
      ensure(number <= this.segments.length, 'R-IDX-10', `segment ${number} of ${this.segments.length}`);
      segments[piece] = Number(number);
      if (number === 0) continue;
      const place = Number(number) - 1;
      const segment = this.segments[place];
      ensure(segment.laneBytes === dtype.laneBytes, 'R-IDX-11', 'its segment has lanes of another width');
      const zeros = operation === 'set' && segment.values !== 'absolute';
      ensure(!zeros, 'R-IDX-16', 'a set tensor is in a segment with relative values');
      const key = `${dtype.code} ${dtype.description} ${segment.coding}`;
      ensure((this.#last.get(key) ?? 0) <= place, 'R-IDX-19', 'its piece is in an earlier segment than the one before');
      this.#last.set(key, place);
      const lanes = pieceLength(byteLength, piece) / dtype.laneBytes;
      parts[piece] = segment.parts.length;
      segment.parts.push({ entry: this.tensors.length, piece, lanes });
    }
    return { segments, parts };
  }

  #readDigests() {
    for (const entry of this.tensors) {
      if (entry.operation === 'remove') continue;
      at({ tensor: entry.name }, () => {
        const count = Math.max(1, entry.segments.length);
        for (let i = 0; i < count; i++) entry.pieces.push(hex(this.cursor.take(32)));
      });
      entry.digest = digestOfPieces(entry.pieces);
    }
    ensure(this.cursor.atEnd, 'R-IDX-02', 'bytes follow the index');
  }

  #checkWhole() {
    const { header, limits } = this;
    let sum = 0n;
    this.segments.forEach((entry, segment) => {
      const { stored, laneBytes, parts } = entry;
      ensure(parts.length > 0, 'R-IDX-12', `no piece names segment ${segment}`, { segment });
      const lanes = parts.reduce((all, part) => all + part.lanes, 0);
      const fits = parts.length <= SEGMENT_PIECES && lanes * laneBytes <= SEGMENT_BYTES;
      ensure(fits, 'R-LIM-02', `segment ${segment} has too many pieces, or bytes of pieces`, { segment });
      const most = 512 + 94 * parts.length + (laneBytes + 8) * lanes;
      ensure(stored <= most, 'R-LIM-06', `segment ${segment} takes ${stored} bytes for ${lanes} lanes`, { segment });
      entry.offset = HEADER_BYTES + header.indexStored + Number(sum);
      sum += BigInt(stored);
    });
    const same = sum === BigInt(header.segmentsLength);
    ensure(same, 'R-IDX-14', `the segments take ${sum} bytes, the header says ${header.segmentsLength}`);
    for (const entry of this.tensors) {
      const legal = header.base !== EMPTY_STATE_DIGEST || entry.operation === 'set';
      ensure(legal, 'R-IDX-17', 'a link from the empty state only sets', { tensor: entry.name });
    }
    const moves = this.tensors.length > 0 || header.base === header.target;
    ensure(moves, 'R-IDX-18', 'no tensor is listed, but base and target differ');
    // Each piece has a digest in the index, so these sums are exact.
    let [set, coded] = [0, 0];
    for (const entry of this.tensors) if (entry.operation === 'set') set += entry.byteLength;
    for (const { parts, laneBytes } of this.segments) for (const part of parts) coded += part.lanes * laneBytes;
    const { setBytes, codedBytes } = limits;
    ensure(setBytes === null || set <= setBytes, 'R-LIM-04', `the link sets ${set} bytes, ${setBytes} are allowed`);
    ensure(codedBytes === null || coded <= codedBytes, 'R-LIM-08', `${coded} coded bytes, ${codedBytes} are allowed`);
  }
}
