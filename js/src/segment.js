/**
 * Decoding a segment: SPEC sections 7 and 8, step 8 of section 10 without the checks that need the base. Lanes are
 * ordered by context, then part, then lane, as in the file.
 */
import { at, broken, ensure } from './errors.js';
import { Cursor } from './bytes.js';
import { crc32 } from './crc32.js';
import { readStream } from './zstd.js';

/** @typedef {import('./link-index.js').SegmentEntry} SegmentEntry */
/** @typedef {import('./dtypes.js').Dtype} Dtype */
/** @typedef {Uint8Array | Uint16Array | Uint32Array} NarrowLanes */
/** @typedef {NarrowLanes | BigUint64Array} Lanes */

const BITMAP = 32;

/**
 * The table of a segment (SPEC section 7.1). `thresholds` and `counts` have an item for each part.
 * @typedef {object} Table
 * @property {number} contexts
 * @property {number[]} positions parameter of each context; empty for dense positions
 * @property {number[]} widths bits of a symbol of each context; empty unless values are relative small
 * @property {number[][]} thresholds
 * @property {number[][]} counts
 */

/**
 * @typedef {object} StreamLengths
 * @property {string} name
 * @property {number} raw
 * @property {number} stored
 */

/** @param {number} laneBytes @param {number} count @returns {Lanes} */
function newLanes(laneBytes, count) {
  if (laneBytes === 8) return new BigUint64Array(count);
  return laneBytes === 4 ? new Uint32Array(count) : laneBytes === 2 ? new Uint16Array(count) : new Uint8Array(count);
}

/**
 * Returns the lanes of the bytes of a piece, which begin at a multiple of the lane bytes.
 * @param {Uint8Array} bytes
 * @param {number} w
 */
export function lanesOf(bytes, w) {
  const { buffer, byteOffset: offset, length } = bytes;
  if (w === 8) return new BigUint64Array(buffer, offset, length / 8);
  if (w === 4) return new Uint32Array(buffer, offset, length / 4);
  return w === 2 ? new Uint16Array(buffer, offset, length / 2) : bytes;
}

/** A segment whose own content is valid. */
export class Segment {
  /** @type {StreamLengths[]} */
  streams = [];
  /** @type {Table} */
  table = { contexts: 0, positions: [], widths: [], thresholds: [], counts: [] };
  /** Ranks of the coded lanes; null for dense positions, where every member is coded. @type {Uint32Array | null} */
  ranks = null;
  /** New lanes, or differences modulo 2^W if values are relative. @type {Lanes} */
  values;
  /** The run of context `c` and part `p` begins at `starts[c * parts + p]`; it ends where the next one begins. */
  starts;

  /**
   * @param {Uint8Array} bytes as stored
   * @param {SegmentEntry} entry
   * @param {Dtype[]} dtypes of each part
   * @param {number} number of the segment, for errors
   */
  constructor(bytes, entry, dtypes, number) {
    this.entry = entry;
    this.dtypes = dtypes;
    this.number = number;
    this.values = new Uint8Array();
    this.starts = new Uint32Array();
    const matches = crc32(bytes) === entry.crc;
    const place = { segment: number, offset: entry.offset };
    at(place, () => {
      ensure(matches, 'R-SEG-01', 'the checksum of the segment does not match');
      this.#decode(bytes);
    });
  }

  /** Approximate number of bytes that the segment takes. */
  get memory() {
    return this.values.byteLength + (this.ranks?.byteLength ?? 0) + 200 * this.entry.parts.length;
  }

  get relative() {
    return this.entry.values !== 'absolute';
  }

  /** Returns the number of coded lanes of a part. @param {number} part */
  codedLanes(part) {
    let sum = 0;
    for (let c = 0; c < this.table.contexts; c++) sum += this.run(c, part).count;
    return sum;
  }

  /**
   * Returns where a part's run of a context begins and ends in `ranks` and `values`.
   * @param {number} context
   * @param {number} part
   */
  run(context, part) {
    const place = context * this.entry.parts.length + part;
    return { start: this.starts[place], count: this.starts[place + 1] - this.starts[place] };
  }

  /** @param {Uint8Array} bytes */
  #decode(bytes) {
    const { sparse, values, laneBytes, parts } = this.entry;
    const names = ['table'];
    if (sparse) names.push('bitmap', 'gap low', 'gap high', 'gap escape');
    if (values === 'relative small') names.push('sign', 'magnitude', 'magnitude escape');
    else for (let j = 0; j < laneBytes; j++) names.push(`plane ${j}`);

    const cursor = new Cursor(bytes);
    let sum = 0;
    for (const name of names) {
      const raw = cursor.varint();
      const stored = cursor.varint();
      ensure(stored <= raw, 'R-STR-01', `stream ${name} takes more bytes stored than raw`);
      this.streams.push({ name, raw: Number(raw), stored: Number(stored) });
      sum += Number(stored);
    }
    ensure(cursor.at + sum === bytes.length, 'R-SEG-02', 'directory and streams do not fill the segment');
    let next = 0;
    /** Returns the next stream, after its raw length has been checked. @param {(raw: number) => void} check */
    const take = (check) => {
      const { raw, stored } = this.streams[next++];
      check(raw);
      return readStream(cursor.take(stored), raw);
    };
    /** Returns a stream whose raw length the coding determines. @param {number} required */
    const exact = (required) =>
      take((raw) => {
        const { name } = this.streams[next - 1];
        ensure(raw === required, 'R-STR-04', `stream ${name} has ${raw} bytes instead of ${required}`);
      });
    /** Returns the values of an escape stream. @param {number} count @param {number} each */
    const escapes = (count, each) => {
      const stream = take((raw) => ensure(raw <= each * count, 'R-LIM-03', `${raw} bytes for ${count} escapes`));
      return readEscapes(stream, count);
    };

    const most = 33 + 94 * parts.length;
    this.#readTable(take((raw) => ensure(raw <= most, 'R-LIM-03', `a table of ${raw} bytes`)));
    const coded = sparse ? this.#readPositions(exact, escapes) : this.table.counts;
    if (!sparse) this.#setStarts(coded);
    if (values === 'relative small') this.#readSmall(exact, escapes);
    else this.#readPlanes(exact);
  }

  /** @param {number[][]} coded of each part and context */
  #setStarts(coded) {
    const parts = coded.length;
    this.starts = new Uint32Array(this.table.contexts * parts + 1);
    let sum = 0;
    for (let c = 0, place = 0; c < this.table.contexts; c++) {
      for (let p = 0; p < parts; p++) {
        sum += coded[p][c];
        this.starts[++place] = sum;
      }
    }
  }

  /** Returns the number of coded lanes of a context, in all parts. @param {number} context */
  #ofContext(context) {
    const parts = this.entry.parts.length;
    const start = this.starts[context * parts];
    return { start, count: this.starts[(context + 1) * parts] - start };
  }

  /** @param {Uint8Array} bytes */
  #readTable(bytes) {
    const { sparse, values, parts } = this.entry;
    const cursor = new Cursor(bytes);
    const { table } = this;
    const k = cursor.u8();
    ensure(k >= 1 && k <= 16, 'R-SEG-03', `${k} contexts`);
    ensure(k === 1 || values !== 'absolute', 'R-SEG-04', 'absolute values with several contexts');
    table.contexts = k;
    for (let c = 0; sparse && c < k; c++) {
      const parameter = cursor.u8();
      ensure(parameter <= 23 || parameter === BITMAP, 'R-SEG-05', `position parameter ${parameter}`);
      table.positions.push(parameter);
    }
    for (let c = 0; values === 'relative small' && c < k; c++) {
      const width = cursor.u8();
      ensure([1, 2, 4, 8].includes(width), 'R-SEG-06', `symbols of ${width} bits`);
      table.widths.push(width);
    }
    const all = !sparse || table.positions.every((parameter) => parameter === BITMAP);
    parts.forEach(({ lanes }, part) => {
      const highest = 2 ** this.dtypes[part].exponentBits;
      const thresholds = [];
      for (let c = 1, sum = 0; c < k; c++) {
        sum += Number(cursor.varint());
        ensure(sum <= highest, 'R-SEG-07', `threshold ${sum}`);
        thresholds.push(sum);
      }
      const counts = [];
      let sum = 0;
      for (let c = 0; c < k; c++) {
        counts.push(Number(cursor.varint()));
        sum += counts[c];
      }
      ensure(all ? sum === lanes : sum <= lanes, 'R-SEG-08', `counts of ${sum} for ${lanes} lanes`);
      table.thresholds.push(thresholds);
      table.counts.push(counts);
    });
    ensure(cursor.atEnd, 'R-SEG-09', 'bytes follow the table');
  }

  /**
   * Reads bitmaps and gaps of all contexts; fills `starts` and `ranks`. Returns how many lanes of each context each
   * part codes.
   * @param {(required: number) => Uint8Array} exact
   * @param {(count: number, each: number) => (number | bigint)[]} escapes
   */
  #readPositions(exact, escapes) {
    const { parts } = this.entry;
    const { contexts: k, positions, counts } = this.table;
    const sumOf = (/** @type {number} */ c) => counts.reduce((all, own) => all + own[c], 0);
    const sums = Array.from({ length: k }, (_, c) => sumOf(c));
    const bytesOf = (/** @type {(c: number) => number} */ size) => sums.reduce((all, _, c) => all + size(c), 0);
    const isBitmap = (/** @type {number} */ c) => positions[c] === BITMAP;

    const bitmap = exact(bytesOf((c) => (isBitmap(c) ? Math.ceil(sums[c] / 8) : 0)));
    const coded = counts.map((own) => own.slice());
    for (let c = 0, byte = 0; c < k; c++) {
      if (!isBitmap(c)) continue;
      let bit = 8 * byte;
      for (let p = 0; p < parts.length; p++) {
        coded[p][c] = countOnes(bitmap, bit, counts[p][c]);
        bit += counts[p][c];
      }
      byte = checkPadding(bitmap, bit);
    }
    this.#setStarts(coded);

    const low = exact(bytesOf((c) => (isBitmap(c) ? 0 : Math.ceil((sums[c] * positions[c]) / 8))));
    for (let c = 0, byte = 0; c < k; c++) {
      if (!isBitmap(c)) byte = checkPadding(low, 8 * byte + sums[c] * positions[c]);
    }
    const high = exact(bytesOf((c) => (isBitmap(c) ? 0 : sums[c])));
    let escaped = 0;
    for (const byte of high) if (byte === 255) escaped++;
    const beyond = escapes(escaped, 4);

    const ranks = new Uint32Array(this.starts[this.starts.length - 1]);
    let [bitmapByte, lowByte, highAt, escape] = [0, 0, 0, 0];
    for (let c = 0, place = 0; c < k; c++) {
      const shift = positions[c];
      const scale = 2 ** shift;
      let bit = 8 * (isBitmap(c) ? bitmapByte : lowByte);
      for (let p = 0; p < parts.length; p++, place++) {
        let i = this.starts[place];
        const end = this.starts[place + 1];
        if (isBitmap(c)) {
          const members = counts[p][c];
          for (let rank = 0; rank < members; rank++, bit++) {
            if ((bitmap[bit >>> 3] >>> (bit & 7)) & 1) ranks[i++] = rank;
          }
          continue;
        }
        const { lanes } = parts[p];
        for (let rank = -1; i < end; i++, bit += shift) {
          let h = high[highAt++];
          if (h === 255) h += Number(beyond[escape++]);
          rank += 1 + h * scale + bitsAt(low, bit, shift);
          // The message is made only if needed: this runs for every coded lane.
          if (rank >= lanes) throw broken('R-POS-01', `rank ${rank} in a part of ${lanes} lanes`);
          ranks[i] = rank;
        }
      }
      if (isBitmap(c)) bitmapByte = Math.ceil(bit / 8);
      else lowByte = Math.ceil(bit / 8);
    }
    this.ranks = ranks;
    return coded;
  }

  /** @param {(required: number) => Uint8Array} exact */
  #readPlanes(exact) {
    const { laneBytes, parts, sparse } = this.entry;
    const total = this.starts[this.starts.length - 1];
    const values = newLanes(laneBytes, total);
    for (let j = 0; j < laneBytes; j++) {
      const plane = exact(total);
      // Lanes are little-endian, like all machines that run this code.
      const bytes = new Uint8Array(values.buffer);
      for (let i = 0, place = j; i < total; i++, place += laneBytes) bytes[place] = plane[i];
    }
    this.values = values;
    if (!this.relative) {
      for (let p = 0; p < parts.length; p++) {
        if (!this.dtypes[p].signMagnitude) continue;
        const { start, count } = this.run(0, p);
        rotateBack(values, start, start + count, 8 * laneBytes);
      }
      return;
    }
    if (values instanceof BigUint64Array) {
      for (let i = 0; i < total; i++) {
        const z = values[i];
        ensure(!sparse || z !== 0n, 'R-VAL-01', 'a difference of 0');
        values[i] = z & 1n ? ~(z >> 1n) : z >> 1n;
      }
    } else {
      for (let i = 0; i < total; i++) {
        const z = values[i];
        if (sparse && z === 0) throw broken('R-VAL-01', 'a difference of 0');
        values[i] = (z >>> 1) ^ -(z & 1);
      }
    }
  }

  /**
   * @param {(required: number) => Uint8Array} exact
   * @param {(count: number, each: number) => (number | bigint)[]} escapes
   */
  #readSmall(exact, escapes) {
    const { contexts: k, widths } = this.table;
    const bits = 8 * this.entry.laneBytes;
    const runs = Array.from({ length: k }, (_, c) => this.#ofContext(c));
    /** Returns a packed stream, and the beginning of each context's run. @param {(c: number) => number} width */
    const packed = (width) => {
      const begins = [];
      let bytes = 0;
      for (let c = 0; c < k; c++) {
        begins.push(8 * bytes);
        bytes += Math.ceil((runs[c].count * width(c)) / 8);
      }
      const stream = exact(bytes);
      for (let c = 0; c < k; c++) checkPadding(stream, begins[c] + runs[c].count * width(c));
      return { stream, begins };
    };
    const sign = packed(() => 1);
    const magnitude = packed((c) => widths[c]);
    let escaped = 0;
    for (let c = 0; c < k; c++) {
      const top = 2 ** widths[c] - 1;
      for (let i = 0, bit = magnitude.begins[c]; i < runs[c].count; i++, bit += widths[c]) {
        if (bitsAt(magnitude.stream, bit, widths[c]) === top) escaped++;
      }
    }
    const beyond = escapes(escaped, Math.ceil((bits - 1) / 7));
    const values = newLanes(this.entry.laneBytes, this.starts[this.starts.length - 1]);
    const wide = values instanceof BigUint64Array ? values : null;
    const narrow = /** @type {NarrowLanes} */ (values);
    let escape = 0;
    for (let c = 0; c < k; c++) {
      const width = widths[c];
      const top = 2 ** width - 1;
      for (let i = 0, bit = magnitude.begins[c]; i < runs[c].count; i++, bit += width) {
        const signBit = sign.begins[c] + i;
        const negative = (sign.stream[signBit >>> 3] >>> (signBit & 7)) & 1;
        const symbol = bitsAt(magnitude.stream, bit, width);
        const place = runs[c].start + i;
        if (wide !== null) {
          const m = BigInt(symbol) + (symbol === top ? BigInt(beyond[escape++]) : 0n);
          ensure(m < 2n ** 63n - (negative ? 0n : 1n), 'R-VAL-02', `a difference of ${m + 1n}`);
          wide[place] = BigInt.asUintN(64, negative ? -m - 1n : m + 1n);
        } else {
          const m = symbol + (symbol === top ? Number(beyond[escape++]) : 0);
          const most = 2 ** (bits - 1) - (negative ? 0 : 1);
          if (m >= most) throw broken('R-VAL-02', `a difference of ${m + 1}`);
          narrow[place] = negative ? -m - 1 : m + 1;
        }
      }
    }
    this.values = values;
  }
}

/** @param {Uint8Array} stream @param {number} count @returns {(number | bigint)[]} */
function readEscapes(stream, count) {
  const cursor = new Cursor(stream);
  const values = [];
  while (!cursor.atEnd) values.push(cursor.varint());
  ensure(values.length === count, 'R-STR-06', `${values.length} escapes instead of ${count}`);
  return values;
}

/**
 * Checks that the bits up to the next byte boundary are 0; returns the number of that byte.
 * @param {Uint8Array} bytes
 * @param {number} bit
 */
function checkPadding(bytes, bit) {
  const used = bit % 8;
  const end = Math.ceil(bit / 8);
  ensure(used === 0 || bytes[end - 1] >> used === 0, 'R-STR-05', 'padding bits are not 0');
  return end;
}

/**
 * Returns `width` bits, at most 23, from bit `bit` on.
 * @param {Uint8Array} bytes
 * @param {number} bit
 * @param {number} width
 */
function bitsAt(bytes, bit, width) {
  if (width === 0) return 0;
  const byte = bit >>> 3;
  const from = bit & 7;
  let word = bytes[byte];
  // Nothing after the end is read, which would be slow.
  for (let have = 8, next = byte + 1; have < from + width; have += 8, next++) word |= bytes[next] << have;
  return (word >>> from) & ((1 << width) - 1);
}

/** @param {Uint8Array} bytes @param {number} bit @param {number} count */
function countOnes(bytes, bit, count) {
  let ones = 0;
  for (let end = bit + count; bit < end; bit++) ones += (bytes[bit >>> 3] >>> (bit & 7)) & 1;
  return ones;
}

/**
 * Undoes the rotation of section 8.2.
 * @param {Lanes} values
 * @param {number} start
 * @param {number} end
 * @param {number} bits
 */
function rotateBack(values, start, end, bits) {
  if (values instanceof BigUint64Array) {
    for (let i = start; i < end; i++) values[i] = (values[i] >> 1n) | (values[i] << 63n);
    return;
  }
  const top = bits - 1;
  for (let i = start; i < end; i++) values[i] = (values[i] >>> 1) | (values[i] << top);
}
