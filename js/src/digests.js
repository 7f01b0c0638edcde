/**
 * Digests of SPEC section 3. hash-wasm computes BLAKE3 of data. @noble/hashes, which is slower and has the
 * key-derivation mode, computes the state digest, whose preimage is short.
 */
import { blake3 } from '@noble/hashes/blake3.js';
import { createBLAKE3 } from 'hash-wasm';
import { compareStrings, hex, unhex } from './bytes.js';

/** @typedef {import('./dtypes.js').TensorInfo} TensorInfo */

const CONTEXT = new TextEncoder().encode('deltachain 2026-11-21 state digest v1');
const hasher = await createBLAKE3();

/** @param {Uint8Array} bytes @returns {string} 64 hexadecimal digits */
export function blake3Hex(bytes) {
  hasher.init();
  hasher.update(bytes);
  return hasher.digest('hex');
}

/** Unused hashers: each takes a WebAssembly memory, and the number of these is limited. @type {typeof hasher[]} */
const free = [];

/** BLAKE3 of bytes that arrive one after another. */
export class Hasher {
  #own = Promise.resolve(free.pop() ?? createBLAKE3()).then((own) => own.init());

  /** @param {Uint8Array} bytes */
  async update(bytes) {
    (await this.#own).update(bytes);
  }

  /** Returns the digest; the hasher cannot be used afterwards. */
  async hex() {
    const own = await this.#own;
    const digest = own.digest('hex');
    free.push(own);
    return digest;
  }
}

/** Computes the tensor digest from the digests of the pieces. @param {string[]} pieces */
export function digestOfPieces(pieces) {
  return pieces.length === 1 ? pieces[0] : blake3Hex(unhex(pieces.join('')));
}

/** Digest of no bytes, and of each tensor without elements. */
export const DIGEST_OF_NOTHING = blake3Hex(new Uint8Array());

/**
 * @param {Iterable<TensorInfo & { digest: string }>} table the tensors of a state, in any order
 * @returns {string}
 */
export function stateDigest(table) {
  const tensors = [...table].sort((a, b) => compareStrings(a.name, b.name));
  const hash = blake3.create({ context: CONTEXT });
  hash.update(u64(tensors.length));
  for (const { name, dtype, shape, byteLength, digest } of tensors) {
    const bytes = new TextEncoder().encode(name);
    hash.update(u64(bytes.length)).update(bytes).update(Uint8Array.of(dtype.code));
    if (dtype.code === 255) hash.update(dtype.description);
    hash.update(u64(shape.length));
    for (const dimension of shape) hash.update(u64(dimension));
    hash.update(u64(byteLength)).update(unhex(digest));
  }
  return hex(hash.digest());
}

/** @param {number | bigint} value */
function u64(value) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

export const EMPTY_STATE_DIGEST = stateDigest([]);
