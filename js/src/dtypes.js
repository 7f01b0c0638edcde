/** Dtypes and sizes of tensors: SPEC sections 2.1 to 2.3. */
import { product, varint } from './bytes.js';
import { PIECE_BYTES } from './limits.js';

/**
 * @typedef {object} Dtype
 * @property {number} code 255 if the file describes it
 * @property {string} name
 * @property {number} bits per element
 * @property {number} laneBytes 1, 2, 4 or 8
 * @property {boolean} signMagnitude
 * @property {number} exponentBits
 * @property {Uint8Array} description as in the file; empty unless the code is 255
 */

/**
 * @typedef {object} TensorInfo
 * @property {string} name
 * @property {Dtype} dtype
 * @property {(number | bigint)[]} shape
 * @property {number} byteLength
 */

/** Code, name, bits per element, lane bytes, exponent bits. @type {[number, string, number, number, number][]} */
const ROWS = [
  [1, 'BOOL', 8, 1, 0], [2, 'F4', 4, 1, 0], [3, 'F6_E2M3', 6, 1, 0], [4, 'F6_E3M2', 6, 1, 0], [5, 'U8', 8, 1, 0],
  [6, 'I8', 8, 1, 0], [7, 'F8_E5M2', 8, 1, 5], [8, 'F8_E4M3', 8, 1, 4], [9, 'F8_E8M0', 8, 1, 0],
  [10, 'F8_E4M3FNUZ', 8, 1, 4], [11, 'F8_E5M2FNUZ', 8, 1, 5], [12, 'I16', 16, 2, 0], [13, 'U16', 16, 2, 0],
  [14, 'F16', 16, 2, 5], [15, 'BF16', 16, 2, 8], [16, 'I32', 32, 4, 0], [17, 'U32', 32, 4, 0], [18, 'F32', 32, 4, 8],
  [19, 'C64', 64, 8, 0], [20, 'F64', 64, 8, 11], [21, 'I64', 64, 8, 0], [22, 'U64', 64, 8, 0],
];

/** Maximum bits of an element of a described dtype. */
export const ELEMENT_BITS = 65536;

/** @type {Map<number, Dtype>} */
export const BY_CODE = new Map();
/** @type {Map<string, Dtype>} */
export const BY_NAME = new Map();
for (const [code, name, bits, laneBytes, exponentBits] of ROWS) {
  const signMagnitude = exponentBits > 0;
  const dtype = { code, name, bits, laneBytes, signMagnitude, exponentBits, description: new Uint8Array() };
  BY_CODE.set(code, dtype);
  BY_NAME.set(name, dtype);
}

/**
 * Makes a described dtype; null if the description breaks section 2.1 (R-IDX-20).
 * @param {Uint8Array} name
 * @param {number | bigint} bits
 * @param {number} laneBytes
 * @param {number} sign
 * @param {number} exponentBits
 * @returns {Dtype | null}
 */
export function describedDtype(name, bits, laneBytes, sign, exponentBits) {
  const text = String.fromCharCode(...name.subarray(0, 33));
  const right =
    /^[A-Z][A-Z0-9_]{0,31}$/.test(text) && !BY_NAME.has(text) && bits >= 1 && bits <= ELEMENT_BITS &&
    [1, 2, 4, 8].includes(laneBytes) && sign <= 1 && (sign === 1 ? exponentBits <= 11 && exponentBits < 8 * laneBytes : exponentBits === 0);
  if (!right) return null;
  const description = Uint8Array.of(name.length, ...name, ...varint(Number(bits)), laneBytes, sign, exponentBits);
  return { code: 255, name: text, bits: Number(bits), laneBytes, signMagnitude: sign === 1, exponentBits, description };
}

/** @param {Dtype} a @param {Dtype} b */
export function sameDtype(a, b) {
  return a.code === b.code && String(a.description) === String(b.description);
}

/** Returns the exact number of bits of all elements. @param {Dtype} dtype @param {(number | bigint)[]} shape */
export function bitsOf(dtype, shape) {
  return product(shape) * BigInt(dtype.bits);
}

/** @param {number} byteLength */
export const pieceCount = (byteLength) => Math.ceil(byteLength / PIECE_BYTES);

/** Returns the number of bytes of a piece of a tensor. @param {number} byteLength @param {number} piece */
export const pieceLength = (byteLength, piece) => Math.min(PIECE_BYTES, byteLength - piece * PIECE_BYTES);
