/**
 * Sums (SPEC section 24.2 and 24.3): two numbers for some bytes of a piece. They can be added.
 *
 * Products are exact in doubles: a unit times a number of `L` is below 2^47, and 32 of them plus the previous total are
 * below 2^53.
 */
import { blake3 } from '@noble/hashes/blake3.js';
import { hex, unhex } from './bytes.js';

/** @typedef {import('./link-index.js').Header} Header */
/** @typedef {import('./link-index.js').Index} Index */
/** @typedef {import('./segment.js').Lanes} Lanes */

/** Two numbers from 0 to 2^31 - 2. @typedef {readonly [number, number]} Sums */
/**
 * Sums of a piece in the target, and of its coded lanes there; null if it has no part.
 * @typedef {{ piece: Sums, coded: Sums | null }} PieceSums
 */

const P = 2 ** 31 - 1;
/** Units of a row. */
const UNITS = 2 ** 12;
/** Rows of a piece. */
const ROWS = 2 ** 11;
/** Number of products that are added before they are reduced. */
const FEW = 32;

/** The sums of no bytes. @type {Sums} */
export const NOTHING = [0, 0];

const ascii = (/** @type {string} */ text) => new TextEncoder().encode(text);

const [L0, L1, H0, H1] = tables();

function tables() {
  const wanted = 2 * (UNITS + ROWS);
  // A few more than needed, since some are left out.
  const context = ascii('deltachain 2026-11-25 sums v1');
  const output = blake3(new Uint8Array(), { context, dkLen: 4 * (wanted + 16) });
  const view = new DataView(output.buffer, output.byteOffset, output.length);
  const numbers = /** @type {number[]} */ ([]);
  for (let at = 0; numbers.length < wanted; at += 4) {
    const number = view.getUint32(at, true) & P;
    if (number !== 0 && number !== P) numbers.push(number);
  }
  return [0, UNITS, 2 * UNITS, 2 * UNITS + ROWS].map((begin, i) =>
    Float64Array.from(numbers.slice(begin, begin + (i < 2 ? UNITS : ROWS))));
}

/** Reduces a number below 2^53: the result is below 2^31 + 2^22, and equal mod p. @param {number} number */
function fold(number) {
  const high = Math.floor(number / 2 ** 31);
  return number - high * 2 ** 31 + high;
}

/** Returns a product mod p. @param {number} a below 2^32 @param {number} b below 2^31 */
function times(a, b) {
  const high = b >>> 16;
  return fold(fold(a * high) * 2 ** 16 + a * (b & 0xffff)) % P;
}

/** @param {Sums} a @param {Sums} b @returns {Sums} */
export const plus = (a, b) => [(a[0] + b[0]) % P, (a[1] + b[1]) % P];

/** @param {Sums} a @param {Sums} b @returns {Sums} */
export const minus = (a, b) => [(a[0] + P - b[0]) % P, (a[1] + P - b[1]) % P];

/** @param {Sums} a @param {Sums} b */
export const same = (a, b) => a[0] === b[0] && a[1] === b[1];

/**
 * Computes the sums of contiguous bytes.
 * @param {Uint8Array} bytes
 * @param {number} [place] place of the first byte in the piece; even
 * @returns {Sums}
 */
export function sumsOfBytes(bytes, place = 0) {
  const aligned = bytes.byteOffset % 2 === 0 ? bytes : bytes.slice();
  const units = new Uint16Array(aligned.buffer, aligned.byteOffset, aligned.length >>> 1);
  const first = place / 2;
  let [sum0, sum1] = NOTHING;
  for (let done = 0; done < units.length; ) {
    const row = Math.floor((first + done) / UNITS);
    const end = Math.min(units.length, (row + 1) * UNITS - first);
    let [row0, row1] = [0, 0];
    for (let column = (first + done) % UNITS; done < end; ) {
      const stop = Math.min(end, done + FEW);
      for (; done < stop; done++, column++) {
        const unit = units[done];
        row0 += unit * L0[column];
        row1 += unit * L1[column];
      }
      row0 = fold(row0);
      row1 = fold(row1);
    }
    sum0 = (sum0 + times(row0, H0[row])) % P;
    sum1 = (sum1 + times(row1, H1[row])) % P;
  }
  /** @type {Sums} */
  const sums = [sum0, sum1];
  return bytes.length % 2 === 0 ? sums : plus(sums, sumsOfUnits([first + units.length], [bytes[bytes.length - 1]]));
}

/**
 * Computes the sums of some lanes.
 * @param {ArrayLike<number>} lanes their numbers in the piece
 * @param {Lanes} values
 * @returns {Sums}
 */
export function sumsOfLanes(lanes, values) {
  const each = values.BYTES_PER_ELEMENT / 2;
  if (each === 1) return sumsOfUnits(lanes, /** @type {Uint16Array} */ (values));
  const units = new Float64Array(each < 1 ? lanes.length : lanes.length * each);
  if (each < 1) {
    const halves = Float64Array.from(lanes, (lane, i) => Number(values[i]) * (lane % 2 === 0 ? 1 : 256));
    for (let i = 0; i < units.length; i++) units[i] = lanes[i] >>> 1;
    return sumsOfUnits(units, halves);
  }
  for (let i = 0; i < units.length; i++) units[i] = lanes[(i / each) | 0] * each + (i % each);
  return sumsOfUnits(units, new Uint16Array(values.buffer, values.byteOffset, units.length));
}

/** @param {ArrayLike<number>} units numbers in the piece @param {ArrayLike<number>} values @returns {Sums} */
function sumsOfUnits(units, values) {
  let [sum0, sum1] = NOTHING;
  for (let done = 0; done < units.length; ) {
    const row = units[done] >>> 12;
    let [row0, row1] = [0, 0];
    const stop = Math.min(units.length, done + FEW);
    for (; done < stop && units[done] >>> 12 === row; done++) {
      const column = units[done] & (UNITS - 1);
      row0 += values[done] * L0[column];
      row1 += values[done] * L1[column];
    }
    sum0 = (sum0 + times(fold(row0), H0[row])) % P;
    sum1 = (sum1 + times(fold(row1), H1[row])) % P;
  }
  return [sum0, sum1];
}

/** Compatible feature and kind of the record. */
export const SUMS_BIT = 1;
export const SUMS_KIND = 1;
const BINDING_BYTES = 32;

/** Returns the length of the record of a link with this index. @param {Index} index */
export function recordLength({ tensors, segments }) {
  const pieces = tensors.reduce((sum, entry) => sum + (entry.operation === 'remove' ? 0 : entry.segments.length), 0);
  const parts = segments.reduce((sum, { parts: own }) => sum + own.length, 0);
  return BINDING_BYTES + 8 * (pieces + parts);
}

/**
 * Parses the sums in a record of the right length, by the names of tensors; null if they are not those of this link, or
 * invalid.
 * @param {Uint8Array} data
 * @param {Header} header
 * @param {Index} index
 * @returns {Map<string, PieceSums[]> | null}
 */
export function parseSums(data, header, index) {
  const binding = blake3.create({ context: ascii('deltachain 2026-11-25 sums of a link v1') });
  binding.update(unhex(header.base)).update(unhex(header.target)).update(index.raw);
  if (hex(binding.digest()) !== hex(data.subarray(0, BINDING_BYTES))) return null;
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  let at = BINDING_BYTES;
  let legal = true;
  /** @returns {Sums} */
  const next = () => {
    const [a, b] = [view.getUint32(at, true), view.getUint32(at + 4, true)];
    at += 8;
    legal &&= a < P && b < P;
    return [a, b];
  };
  /** @type {Map<string, PieceSums[]>} */
  const sums = new Map();
  for (const entry of index.tensors) {
    if (entry.operation === 'remove') continue;
    const pieces = Array.from(entry.segments, (segment) => ({ piece: next(), coded: segment > 0 ? next() : null }));
    sums.set(entry.name, pieces);
  }
  return legal ? sums : null;
}
