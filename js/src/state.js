/** States: what a link is applied to (SPEC section 2), and safetensors files as states. */
import { usage } from './errors.js';
import { utf8 } from './bytes.js';
import { EMPTY_STATE_DIGEST, DIGEST_OF_NOTHING, blake3Hex, digestOfPieces, stateDigest } from './digests.js';
import { BY_NAME, bitsOf, pieceCount, pieceLength } from './dtypes.js';
import { PIECE_BYTES } from './limits.js';

/** @typedef {import('./dtypes.js').TensorInfo} TensorInfo */
/** @typedef {import('./sources.js').Source} Source */
/** @typedef {import('./work.js').WorkOptions} WorkOptions */

/**
 * A tensor of a table, with its digests.
 * @typedef {TensorInfo & { digest: string, pieces: string[] }} TableEntry
 * @typedef {Map<string, TableEntry>} Table
 */

/**
 * A state, whose tensors are read piece by piece (SPEC section 2.3).
 * @typedef {object} State
 * @property {(options?: WorkOptions) => Promise<Table>} table with digests of all data; they are computed once
 * @property {(name: string, piece: number) => Promise<Uint8Array>} readPiece bytes that the caller may change, at a
 *   multiple of 8 in their buffer
 */

const HEADER_MOST = 100_000_000;

/** @returns {State} */
export function emptyState() {
  return {
    table: async () => new Map(),
    readPiece: async (name) => {
      throw usage(`the empty state has no tensor ${name}`);
    },
  };
}

/**
 * Makes a state from tensors and a function that reads their pieces.
 * @param {Map<string, TensorInfo>} infos
 * @param {(name: string, piece: number) => Promise<Uint8Array>} readPiece
 * @returns {State}
 */
export function stateOf(infos, readPiece) {
  /** @type {Promise<Table> | undefined} */
  let known;
  return {
    readPiece,
    table(options = {}) {
      known ??= hashAll(infos, readPiece, options).catch((error) => {
        known = undefined;
        throw error;
      });
      return known;
    },
  };
}

/**
 * @param {Map<string, TensorInfo>} infos
 * @param {(name: string, piece: number) => Promise<Uint8Array>} readPiece
 * @param {WorkOptions} options
 */
async function hashAll(infos, readPiece, { progress, signal }) {
  /** @type {Table} */
  const table = new Map();
  const total = [...infos.values()].reduce((sum, info) => sum + info.byteLength, 0);
  let done = 0;
  for (const info of infos.values()) {
    const pieces = [];
    for (let piece = 0; piece < pieceCount(info.byteLength); piece++) {
      signal?.throwIfAborted();
      pieces.push(blake3Hex(await readPiece(info.name, piece)));
      progress?.((done += pieceLength(info.byteLength, piece)), total);
    }
    if (pieces.length === 0) pieces.push(DIGEST_OF_NOTHING);
    table.set(info.name, { ...info, pieces, digest: digestOfPieces(pieces) });
  }
  return table;
}

/** @param {Table} table */
export function digestOfTable(table) {
  return table.size === 0 ? EMPTY_STATE_DIGEST : stateDigest(table.values());
}

/**
 * Opens a safetensors file as a state. Its data are read when needed.
 * @param {Source} source
 * @returns {Promise<State & { infos: Map<string, TensorInfo>, metadata: Record<string, string> | null }>} with the
 *   file's `__metadata__`
 */
export async function openSafetensors(source) {
  if (source.length < 8) throw usage('not a safetensors file: too short');
  const start = await source.read(0, 8);
  const length = Number(new DataView(start.buffer, start.byteOffset, 8).getBigUint64(0, true));
  if (length > HEADER_MOST || length + 8 > source.length) throw usage('not a safetensors file: wrong header length');
  const { infos, offsets, metadata } = parseHeader(utf8(await source.read(8, length)), source.length - 8 - length);
  const state = stateOf(infos, async (name, piece) => {
    const info = infos.get(name);
    if (info === undefined) throw usage(`no tensor ${name}`);
    const from = 8 + length + (offsets.get(name) ?? 0) + piece * PIECE_BYTES;
    // The caller may change the bytes, so it gets a copy.
    return (await source.read(from, pieceLength(info.byteLength, piece))).slice();
  });
  return { ...state, infos, metadata };
}

/** @param {string} text @param {number} dataLength */
function parseHeader(text, dataLength) {
  /** @type {Record<string, any>} */
  let header;
  try {
    // Dimensions can be too large for JSON numbers: as strings they stay exact.
    header = JSON.parse(text.replace(/("(?:[^"\\]|\\.)*")|\b(\d{16,})\b/gs, (_, own, digits) => own ?? `"${digits}"`));
  } catch {
    throw usage('not a safetensors file: its header is not JSON');
  }
  /** @type {Map<string, TensorInfo>} */
  const infos = new Map();
  /** @type {Map<string, number>} */
  const offsets = new Map();
  /** @type {Record<string, string> | null} */
  let metadata = null;
  const spans = [];
  for (const [name, value] of Object.entries(header)) {
    if (name === '__metadata__') {
      metadata = value === null ? null : metadataOf(value);
      continue;
    }
    const dtype = BY_NAME.get(value?.dtype);
    const [begin, end] = Array.isArray(value?.data_offsets) ? value.data_offsets : [NaN, NaN];
    const shape = Array.isArray(value?.shape) ? value.shape.map(dimension) : null;
    if (dtype === undefined || shape === null || !Number.isSafeInteger(begin) || !Number.isSafeInteger(end)) {
      throw usage(`safetensors: tensor ${name} has an unknown or missing dtype, shape or offsets`);
    }
    if (bitsOf(dtype, shape) !== 8n * BigInt(end - begin)) throw usage(`safetensors: tensor ${name} has another length`);
    infos.set(name, { name, dtype, shape, byteLength: end - begin });
    offsets.set(name, begin);
    spans.push([begin, end]);
  }
  spans.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let at = 0;
  for (const [begin, end] of spans) {
    if (begin !== at) throw usage('safetensors: the data have holes or overlap');
    at = end;
  }
  if (at !== dataLength) throw usage('safetensors: the data do not fill the file');
  return { infos, offsets, metadata };
}

/** @param {unknown} value @returns {Record<string, string>} */
function metadataOf(value) {
  const strings = typeof value === 'object' && value !== null && !Array.isArray(value)
    && Object.values(value).every((text) => typeof text === 'string');
  if (!strings) throw usage('safetensors: __metadata__ is not an object of strings');
  return /** @type {Record<string, string>} */ (value);
}

/** @param {unknown} value */
function dimension(value) {
  const exact = typeof value === 'string' && /^\d+$/.test(value) ? BigInt(value) : value;
  if (typeof exact === 'bigint' ? exact >= 2n ** 64n : !Number.isSafeInteger(exact) || Number(exact) < 0) {
    throw usage('safetensors: a dimension is not an integer of 64 bits');
  }
  return /** @type {number | bigint} */ (exact);
}

/**
 * Returns the first bytes of a safetensors file with these tensors; their data follow in the order of `infos`.
 * @param {Iterable<TensorInfo>} infos
 * @param {Record<string, string> | null} [metadata] `__metadata__` of the file
 */
export function safetensorsHeader(infos, metadata = null) {
  const parts = metadata === null ? [] : [`"__metadata__":${JSON.stringify(metadata)}`];
  let at = 0;
  for (const { name, dtype, shape, byteLength } of infos) {
    if (dtype.code === 255 || name === '__metadata__') throw usage(`safetensors cannot hold tensor ${name}`);
    // Overflow before a zero: safetensors libraries multiply in 64 bits.
    let elements = 1n;
    for (const one of shape) if ((elements *= BigInt(one)) >= 2n ** 64n) throw usage(`safetensors: shape of ${name}`);
    const end = at + byteLength;
    parts.push(`${JSON.stringify(name)}:{"dtype":"${dtype.name}","shape":[${shape}],"data_offsets":[${at},${end}]}`);
    at = end;
  }
  const json = `{${parts.join(',')}}`;
  const text = new TextEncoder().encode(json + ' '.repeat((8 - (new TextEncoder().encode(json).length % 8)) % 8));
  const bytes = new Uint8Array(8 + text.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  return bytes;
}
