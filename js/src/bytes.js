/** Primitives of SPEC section 1: a cursor over bytes, varints, strings, hexadecimal digits, order of names. */
import { ensure } from './errors.js';

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Reads fields one after another; a field that would end outside the bytes breaks R-INT-03. */
export class Cursor {
  /**
   * @param {Uint8Array} bytes
   * @param {number} [at]
   */
  constructor(bytes, at = 0) {
    this.bytes = bytes;
    this.at = at;
  }

  /** Number of bytes that are left. */
  get left() {
    return this.bytes.length - this.at;
  }

  get atEnd() {
    return this.at === this.bytes.length;
  }

  u8() {
    ensure(this.at < this.bytes.length, 'R-INT-03', 'a byte is missing');
    return this.bytes[this.at++];
  }

  u32() {
    const b = this.take(4);
    return (b[0] | (b[1] << 8) | (b[2] << 16) | (b[3] << 24)) >>> 0;
  }

  /** @param {number} length */
  take(length) {
    ensure(length <= this.bytes.length - this.at, 'R-INT-03', `${length} bytes do not fit into what is left`);
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  /**
   * Reads a varint exactly: as a number up to 2^53 - 1, and above as a bigint, which compares with numbers like a
   * number.
   * @returns {number | bigint}
   */
  varint() {
    const { bytes } = this;
    let value = 0;
    let scale = 1;
    for (let count = 0; count < 7; count++) {
      ensure(this.at < bytes.length, 'R-INT-03', 'a varint does not end');
      const byte = bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
      if (byte < 128) {
        ensure(byte !== 0 || count === 0, 'R-INT-01', 'a varint has more bytes than it needs');
        return value;
      }
    }
    let big = BigInt(value);
    for (let count = 7; ; count++) {
      ensure(this.at < bytes.length, 'R-INT-03', 'a varint does not end');
      const byte = bytes[this.at++];
      ensure(count < 9 || byte <= 1, 'R-INT-02', 'a varint exceeds 2^64 - 1');
      big += BigInt(byte & 127) << BigInt(7 * count);
      if (byte < 128) {
        ensure(byte !== 0, 'R-INT-01', 'a varint has more bytes than it needs');
        return big <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(big) : big;
      }
    }
  }

  /** Reads the bytes of a string whose length has been read. @param {number} length */
  string(length) {
    return utf8(this.take(length));
  }
}

/** Returns the bytes of a varint below 2^31. @param {number} value */
export function varint(value) {
  const bytes = [];
  for (; value >= 128; value >>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** @param {Uint8Array} bytes */
export function utf8(bytes) {
  try {
    return UTF8.decode(bytes);
  } catch {
    ensure(false, 'R-INT-04', 'a string is not UTF-8');
    throw new Error('unreachable');
  }
}

/** Returns the exact product of dimensions that are bytes or counts. @param {(number | bigint)[]} numbers */
export function product(numbers) {
  return numbers.reduce((/** @type {bigint} */ all, one) => all * BigInt(one), 1n);
}

/**
 * Order of strings by their UTF-8 bytes, which is that of code points.
 * @param {string} a
 * @param {string} b
 */
export function compareStrings(a, b) {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    // UTF-16 puts surrogates below U+E000, UTF-8 above.
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

/** @param {number} unit */
const rank = (unit) => (unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x10000 : unit);

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'));

/** @param {Uint8Array} bytes */
export function hex(bytes) {
  let text = '';
  for (const byte of bytes) text += HEX[byte];
  return text;
}

/** @param {string} text of hexadecimal digits, two each */
export function unhex(text) {
  return Uint8Array.from({ length: text.length / 2 }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16));
}
