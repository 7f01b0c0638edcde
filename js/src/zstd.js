/**
 * Streams of SPEC section 5: this file checks the structure of a zstd frame; zstddec, which is libzstd as WebAssembly,
 * decompresses it.
 */
import { ZSTDDecoder } from 'zstddec';
import { broken, ensure } from './errors.js';

const WINDOW_MAX = 2 ** 25;
const decoder = new ZSTDDecoder();
await decoder.init();

/**
 * Returns the bytes of a stream.
 * @param {Uint8Array} stored
 * @param {number} raw length, which has passed the limits
 */
export function readStream(stored, raw) {
  if (stored.length === raw) return stored;
  const room = frameRoom(stored, raw);
  ensure(raw <= room, 'R-STR-02', `a frame that gives at most ${room} bytes should give ${raw}`);
  const bytes = decode(stored, raw);
  ensure(bytes.length === raw, 'R-STR-02', 'the zstd frame does not give its raw length');
  return bytes;
}

/** @param {Uint8Array} stored @param {number} raw */
function decode(stored, raw) {
  try {
    return decoder.decode(stored, raw);
  } catch (error) {
    // WebAssembly can trap, which says nothing about the frame, but counts as a refusal.
    throw broken('R-STR-02', `the zstd decoder failed: ${error}`);
  }
}

/**
 * Checks the structure of a frame; returns the maximum number of bytes in it.
 * @param {Uint8Array} f
 * @param {number} raw
 */
function frameRoom(f, raw) {
  /** @param {boolean} condition @param {string} message @returns {asserts condition} */
  const need = (condition, message) => ensure(condition, 'R-STR-02', `zstd frame: ${message}`);
  need(f.length >= 4 && f[0] === 0x28 && f[1] === 0xb5 && f[2] === 0x2f && f[3] === 0xfd, 'wrong magic');
  need(f.length > 4 && (f[4] & 3) === 0, 'no descriptor, or a dictionary');
  const d = f[4];
  const single = (d & 0x20) !== 0;
  const sizeBytes = [single ? 1 : 0, 2, 4, 8][d >> 6];
  let at = 5;
  need(f.length >= at + (single ? 0 : 1) + sizeBytes, 'the header ends early');
  let window = 0;
  if (!single) {
    const w = f[at++];
    window = 2 ** (10 + (w >> 3)) * ((8 + (w & 7)) / 8);
  }
  let content = 0n;
  for (let i = 0; i < sizeBytes; i++) content |= BigInt(f[at++]) << BigInt(8 * i);
  if (sizeBytes === 2) content += 256n;
  ensure(single ? content <= WINDOW_MAX : window <= WINDOW_MAX, 'R-STR-03', 'the zstd frame has too large a window');
  need((d & 8) === 0, 'the reserved bit is set');
  need(sizeBytes === 0 || content === BigInt(raw), 'another content size');
  if (single) window = Number(content);
  const blockMax = Math.min(window, 2 ** 17);
  let plain = 0;
  let compressed = 0;
  for (let last = false; !last; ) {
    need(f.length - at >= 3, 'a block header ends early');
    const b = f[at] | (f[at + 1] << 8) | (f[at + 2] << 16);
    at += 3;
    const type = (b >> 1) & 3;
    const size = b >> 3;
    need(type !== 3 && size <= blockMax, 'a reserved or too large block');
    const length = type === 1 ? 1 : size;
    need(f.length - at >= length, 'a block ends early');
    at += length;
    if (type === 2) compressed++;
    else plain += size;
    need(plain <= raw, 'its blocks give more than the raw length');
    last = (b & 1) === 1;
  }
  need(compressed > 0 || plain === raw, 'its blocks give another length');
  if (d & 4) {
    need(f.length - at >= 4, 'the checksum is missing');
    at += 4;
  }
  need(at === f.length, 'bytes follow');
  return plain + compressed * blockMax;
}
