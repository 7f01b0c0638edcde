/**
 * Links in place (SPEC section 24.6): memory that holds the base gets the new lanes, and only these lanes are read.
 * Everything is proven before anything is written.
 */
import { DeltachainError, ensure, usage } from './errors.js';
import { promisedTables } from './apply.js';
import { blake3Hex, digestOfPieces, DIGEST_OF_NOTHING } from './digests.js';
import { pieceCount, pieceLength } from './dtypes.js';
import { PIECE_BYTES } from './limits.js';
import { ONE_FILE } from './layout.js';
import { moveLanes } from './parts.js';
import { lanesOf } from './segment.js';
import { NOTHING, minus, plus, same, sumsOfBytes, sumsOfLanes } from './sums.js';

/** @typedef {import('./dtypes.js').TensorInfo} TensorInfo */
/** @typedef {import('./link.js').Link} Link */
/** @typedef {import('./link-index.js').TensorEntry} TensorEntry */
/** @typedef {import('./segment.js').Lanes} Lanes */
/** @typedef {import('./segment.js').Segment} Segment */
/** @typedef {import('./sums.js').PieceSums} PieceSums */
/** @typedef {import('./state.js').Table} Table */
/** @typedef {import('./sums.js').Sums} Sums */
/** @typedef {import('./work.js').WorkOptions} WorkOptions */

/**
 * Tensors by name: the bytes of each, little-endian, in any typed array that begins at a multiple of its lane.
 * @typedef {Map<string, ArrayBufferView>} Memory
 */

/**
 * Facts about the state in memory: its table, and for tensors by name the sums of their pieces.
 * @typedef {{ table: Table, sums: Map<string, Sums[]> }} Known
 */

/**
 * Hashes memory and computes the sums of the same bytes. Compare the table with that of the version: a link does so by
 * its base (R-APP-01).
 * @param {Memory} memory
 * @param {Iterable<TensorInfo>} tensors of the state
 * @param {WorkOptions} [options] progress in bytes
 * @returns {Promise<Known>}
 */
export async function hashMemory(memory, tensors, { progress, signal } = {}) {
  const infos = [...tensors];
  const total = infos.reduce((sum, info) => sum + info.byteLength, 0);
  /** @type {Known} */
  const known = { table: new Map(), sums: new Map() };
  let done = 0;
  for (const info of infos) {
    const [pieces, sums] = [/** @type {string[]} */ ([]), /** @type {Sums[]} */ ([])];
    for (let piece = 0; piece < pieceCount(info.byteLength); piece++) {
      signal?.throwIfAborted();
      const bytes = bytesOf(memory, info, piece);
      pieces.push(blake3Hex(bytes));
      sums.push(sumsOfBytes(bytes));
      progress?.((done += bytes.length), total);
    }
    if (pieces.length === 0) pieces.push(DIGEST_OF_NOTHING);
    known.table.set(info.name, { ...info, pieces, digest: digestOfPieces(pieces) });
    known.sums.set(info.name, sums);
  }
  return known;
}

/**
 * Compares all of the memory with its sums, and returns if nothing in it has changed by accident.
 * @param {Memory} memory
 * @param {Known} known
 * @param {WorkOptions} [options] progress in bytes
 * @throws {DeltachainError} R-SUM-04 with the tensor
 */
export async function checkMemory(memory, { table, sums }, { progress, signal } = {}) {
  const total = [...table.values()].reduce((sum, info) => sum + info.byteLength, 0);
  let done = 0;
  for (const info of table.values()) {
    for (let piece = 0; piece < pieceCount(info.byteLength); piece++) {
      signal?.throwIfAborted();
      const bytes = bytesOf(memory, info, piece);
      const right = sums.get(info.name)?.[piece];
      const matches = right !== undefined && same(sumsOfBytes(bytes), right);
      ensure(matches, 'R-SUM-04', `piece ${piece} does not have the sums of the version`, { tensor: info.name });
      progress?.((done += bytes.length), total);
    }
  }
}

/**
 * Applies links in place, one after another. If this fails, nothing has been written. All coded lanes are kept in
 * memory. Other threads must not write to the memory meanwhile. Pass only links whose files were hashed and are named
 * by a checked commit: sums protect against accidents, not against attackers (R-SUM-08).
 * @param {Link[]} links
 * @param {Memory} memory holds the base; gets the new lanes
 * @param {Known} known of the base
 * @param {{ layouts?: boolean, signal?: AbortSignal }} [options] `layouts`: check R-LAY-01; by default true
 * @returns {Promise<Known>} of the target
 * @throws {DeltachainError} UNSUPPORTED without a rule, if these links cannot be applied in place
 */
export async function takeInPlace(links, memory, known, { layouts = true, signal } = {}) {
  const tables = promisedTables(links, known.table, layouts ? ONE_FILE : null);
  /** @type {Segment[][]} */
  const decoded = [];
  for (const link of links) {
    const segments = [];
    for (let number = 0; number < link.index.segments.length; number++) {
      signal?.throwIfAborted();
      segments.push(await link.segment(number));
    }
    decoded.push(segments);
  }
  const sums = new Map(known.sums);
  const changes = /** @type {Map<string, Change>} */ (new Map());
  const steps = [];
  for (const [i, link] of links.entries()) {
    const own = await link.sums();
    if (own === null) throw cannot('a link has no sums');
    for (const entry of link.index.tensors) {
      const before = entry.operation === 'patch' ? sums.get(entry.name) : undefined;
      if (entry.operation !== 'patch') throw cannot(`tensor ${entry.name} is set or removed`);
      if (before === undefined) throw cannot(`the sums of tensor ${entry.name} are not known`);
      const after = /** @type {PieceSums[]} */ (own.get(entry.name));
      for (const [piece, number] of entry.segments.entries()) {
        const key = `${piece} ${entry.name}`;
        const change = changes.get(key) ?? new Change(bytesOf(memory, entry, piece), entry.dtype);
        changes.set(key, change);
        const coded = number === 0 ? null : local(decoded[i][number - 1], entry.parts[piece], entry.name);
        if (coded !== null) change.add(coded.lanes);
        steps.push({ tensor: entry.name, change, coded, before: before[piece], after: after[piece] });
      }
      sums.set(entry.name, after.map(({ piece }) => piece));
    }
  }
  // From here on there is no `await`, so no other code writes between the proof and the write (R-SUM-05).
  for (const change of changes.values()) change.gather();
  for (const { tensor, change, coded, before, after } of steps) {
    const [old, now] = coded === null ? [NOTHING, NOTHING] : change.make(coded);
    ensure(same(now, after.coded ?? NOTHING), 'R-SUM-03', 'the new lanes do not have the sums of the link', { tensor });
    ensure(same(plus(minus(before, old), now), after.piece), 'R-SUM-04', 'a piece does not have the sums of the link', { tensor });
  }
  for (const change of changes.values()) change.write();
  return { table: tables[tables.length - 1], sums };
}

/** All lanes of a piece that links code. */
class Change {
  /** Numbers of the lanes, ascending. */
  #numbers = new Uint32Array();
  #memory;
  #dtype;
  /** The values in memory, and then after the links so far. @type {Lanes} */
  #now;

  /** @param {Uint8Array} bytes of the piece in memory @param {import('./dtypes.js').Dtype} dtype */
  constructor(bytes, dtype) {
    this.#dtype = dtype;
    this.#memory = lanesOf(bytes, dtype.laneBytes);
    this.#now = this.#memory.subarray(0, 0);
  }

  /** @param {Uint32Array} lanes of one more link, ascending */
  add(lanes) {
    const own = this.#numbers;
    const all = new Uint32Array(own.length + lanes.length);
    let count = 0;
    for (let a = 0, b = 0; a < own.length || b < lanes.length; ) {
      const [left, right] = [own[a] ?? Infinity, lanes[b] ?? Infinity];
      all[count++] = Math.min(left, right);
      if (left <= right) a++;
      if (right <= left) b++;
    }
    this.#numbers = all.subarray(0, count);
  }

  /** Reads the lanes, after all have been added. */
  gather() {
    this.#now = pick(this.#memory, this.#numbers);
  }

  /**
   * Computes the new lanes of the next link. Returns the sums of its lanes before and after.
   * @param {{ lanes: Uint32Array, values: Lanes, relative: boolean }} coded
   */
  make({ lanes, values, relative }) {
    const places = new Uint32Array(lanes.length);
    for (let i = 0, place = 0; i < lanes.length; i++, place++) {
      while (this.#numbers[place] < lanes[i]) place++;
      places[i] = place;
    }
    const old = sumsOfLanes(lanes, pick(this.#now, places));
    moveLanes(this.#now, values, places, relative, this.#dtype);
    return [old, sumsOfLanes(lanes, pick(this.#now, places))];
  }

  write() {
    moveLanes(this.#memory, this.#now, this.#numbers, false, this.#dtype);
  }
}

/**
 * Returns the lanes and values that a local part codes (SPEC section 24.5).
 * @param {Segment} segment
 * @param {number} part
 * @param {string} tensor
 */
function local(segment, part, tensor) {
  const { table, relative, ranks, values } = segment;
  const isLocal = table.contexts === 1 && (!relative || segment.entry.sparse);
  if (!isLocal) throw cannot(`a part of tensor ${tensor} is not local`);
  const { start, count } = segment.run(0, part);
  const lanes = ranks?.subarray(start, start + count) ?? Uint32Array.from({ length: count }, (_, lane) => lane);
  return { lanes, values: values.subarray(start, start + count), relative };
}

/** @template {Lanes} T @param {T} lanes @param {Uint32Array} places @returns {T} */
function pick(lanes, places) {
  const picked = new /** @type {any} */ (lanes.constructor)(places.length);
  for (let i = 0; i < places.length; i++) picked[i] = lanes[places[i]];
  return picked;
}

/** @param {Memory} memory @param {TensorInfo} tensor @param {number} piece */
function bytesOf(memory, { name, byteLength }, piece) {
  const view = memory.get(name);
  if (view?.byteLength !== byteLength) throw usage(`the memory has no ${byteLength} bytes of tensor ${name}`);
  return new Uint8Array(view.buffer, view.byteOffset + piece * PIECE_BYTES, pieceLength(byteLength, piece));
}

/** @param {string} message */
function cannot(message) {
  return new DeltachainError('UNSUPPORTED', null, message);
}
