/** Opening a link and reading its content. */
import { DeltachainError } from './errors.js';
import { applyLinks } from './apply.js';
import { EMPTY_STATE_DIGEST } from './digests.js';
import { findRecords, readRecord } from './extension.js';
import { inspect } from './inspect.js';
import { LIMITS, PIECE_BYTES } from './limits.js';
import { HEADER_BYTES, parseHeader, parseIndex } from './link-index.js';
import { placesOf } from './parts.js';
import { Segment } from './segment.js';
import { SUMS_BIT, SUMS_KIND, parseSums, recordLength } from './sums.js';

/** @typedef {import('./sources.js').Source} Source */
/** @typedef {import('./link-index.js').Written} Written */
/** @typedef {import('./segment.js').Lanes} Lanes */
/** @typedef {import('./state.js').State} State */
/** @typedef {import('./work.js').WorkOptions} WorkOptions */

/** Number of bytes that are read ahead when segments are read one after another. */
const AHEAD_BYTES = 2 ** 20;

/**
 * The coded lanes of one piece. `lanes` has the number of each coded lane in its piece, ascending within each of the
 * contexts, which follow one another; null if these numbers depend on a base that was not given. `values` are new
 * lanes, or, if `relative`, differences modulo 2^W (SPEC section 8.3).
 * @typedef {object} Coded
 * @property {Written} tensor
 * @property {number} piece
 * @property {number} firstLane number of the piece's first lane in its tensor
 * @property {Uint32Array | null} lanes
 * @property {Lanes} values
 * @property {boolean} relative
 */

/**
 * Opens a link: steps 1 to 6 of SPEC section 10. Reads header and index, but no segment.
 * @param {Source} source
 * @param {{ limits?: Partial<import('./limits.js').Limits> }} [options] `limits`: by default `LIMITS`
 * @returns {Promise<Link>}
 * @throws {DeltachainError}
 */
export async function open(source, options = {}) {
  const limits = { ...LIMITS, ...options.limits };
  const start = await source.read(0, Math.min(HEADER_BYTES, source.length));
  const header = parseHeader(start, source.length, limits);
  const index = parseIndex(header, await source.read(HEADER_BYTES, header.indexStored), limits);
  return new Link(source, header, index);
}

/** A link that has been opened. */
export class Link {
  /** Bytes of segments that have been read ahead. */
  #ahead = /** @type {{ offset: number, bytes: Uint8Array }} */ ({ offset: 0, bytes: new Uint8Array() });
  /** End of the segment that was read last. */
  #end = 0;

  /**
   * @param {Source} source
   * @param {import('./link-index.js').Header} header
   * @param {import('./link-index.js').Index} index
   */
  constructor(source, header, index) {
    this.source = source;
    this.header = header;
    this.index = index;
  }

  /** True if no value is relative: the link can be decoded without its base (SPEC section 9.2). */
  get isDirect() {
    return this.index.segments.every((segment) => segment.values === 'absolute');
  }

  /** True if the base is the empty state. */
  get isSnapshot() {
    return this.header.base === EMPTY_STATE_DIGEST;
  }

  /**
   * Decodes a segment: steps 8.1 to 8.4 of SPEC section 10.
   * @param {number} number from 0
   */
  async segment(number) {
    const entry = this.index.segments[number];
    const dtypes = entry.parts.map((part) => /** @type {Written} */ (this.index.tensors[part.entry]).dtype);
    return new Segment(await this.#stored(entry.offset, entry.stored), entry, dtypes, number);
  }

  /** @param {number} offset @param {number} length */
  async #stored(offset, length) {
    const inside = (/** @type {{ offset: number, bytes: Uint8Array }} */ { offset: from, bytes }) =>
      offset >= from && offset + length <= from + bytes.length;
    if (!inside(this.#ahead)) {
      const { indexStored, segmentsLength } = this.header;
      const left = HEADER_BYTES + indexStored + segmentsLength - offset;
      const wanted = offset === this.#end ? Math.max(length, Math.min(AHEAD_BYTES, left)) : length;
      this.#ahead = { offset, bytes: await this.source.read(offset, wanted) };
    }
    this.#end = offset + length;
    const { offset: from, bytes } = this.#ahead;
    return bytes.subarray(offset - from, offset - from + length);
  }

  /** Reads the records of the extension area. Reads the whole area, whose length is `header.extensionLength`. */
  async extension() {
    const records = [];
    for (const found of await this.#records()) records.push(await readRecord(this.source, found));
    return records;
  }

  #records() {
    const { fileLength, extensionLength } = this.header;
    return findRecords(this.source, fileLength - extensionLength, fileLength);
  }

  /**
   * Reads the link's sums (SPEC section 24.3) of each piece of each tensor that it writes, by name; null if it has
   * none, or if they are invalid, which is not a fault of the link.
   * @returns {Promise<Map<string, import('./sums.js').PieceSums[]> | null>}
   */
  async sums() {
    if ((this.header.compatibleFeatures & SUMS_BIT) === 0) return null;
    const found = (await this.#records()).find(({ kind }) => kind === SUMS_KIND);
    if (found?.length !== recordLength(this.index)) return null;
    const { data, crcMatches } = await readRecord(this.source, found);
    return crcMatches ? parseSums(data, this.header, this.index) : null;
  }

  /**
   * Decodes every segment: step 8 of SPEC section 10 without a base. Returns if it finds no fault.
   * @param {WorkOptions} [options] progress in bytes of segments
   */
  async check({ progress, signal } = {}) {
    let done = 0;
    for (let number = 0; number < this.index.segments.length; number++) {
      signal?.throwIfAborted();
      await this.segment(number);
      progress?.((done += this.index.segments[number].stored), this.header.segmentsLength);
    }
  }

  /**
   * Applies the link to a base. Use the output only after this has returned.
   * @param {State} base
   * @param {import('./apply.js').StateWriter | null} [writer] null to only prove
   * @param {import('./apply.js').ApplyOptions} [options] progress in bytes of the result
   * @returns {Promise<import('./state.js').Table>} table of the result
   */
  apply(base, writer = null, options = {}) {
    return applyLinks([this], base, writer, options);
  }

  /**
   * Yields the coded lanes of one tensor, piece by piece.
   * @param {string} name
   * @param {State} [base] needed for the numbers of lanes where a segment has several contexts
   * @returns {AsyncGenerator<Coded>}
   */
  async *coded(name, base) {
    const tensor = this.index.tensors.find((entry) => entry.name === name);
    if (tensor === undefined || tensor.operation === 'remove') return;
    for (let piece = 0; piece < tensor.segments.length; piece++) {
      if (tensor.segments[piece] === 0) continue;
      yield this.#codedPiece(await this.segment(tensor.segments[piece] - 1), tensor, piece, base);
    }
  }

  /**
   * Yields the new values of all tensors, in the order of names, from a direct link: *patches* of SPEC section 10.
   * If it fails, discard the values that it has yielded.
   * @returns {AsyncGenerator<Coded & { lanes: Uint32Array }>}
   * @throws {DeltachainError} UNSUPPORTED, if values are relative; otherwise the failure of the first segment in the file
   */
  async *patches() {
    if (!this.isDirect) throw new DeltachainError('UNSUPPORTED', null, 'values are relative: a base is needed');
    // The last segment of each dtype and coding: R-IDX-19 makes them ascend.
    /** @type {Map<string, Segment>} */
    const last = new Map();
    for (const tensor of this.index.tensors) {
      if (tensor.operation === 'remove') continue;
      for (let piece = 0; piece < tensor.segments.length; piece++) {
        const number = tensor.segments[piece] - 1;
        if (number < 0) continue;
        const key = `${tensor.dtype.code} ${tensor.dtype.description} ${this.index.segments[number].sparse}`;
        let segment = last.get(key);
        if (segment?.number !== number) last.set(key, (segment = await this.#orFirstFailure(number)));
        const coded = await this.#codedPiece(segment, tensor, piece);
        yield { ...coded, lanes: /** @type {Uint32Array} */ (coded.lanes) };
      }
    }
  }

  /** Returns a segment, or throws the failure of the first faulty segment up to it. @param {number} number */
  async #orFirstFailure(number) {
    try {
      return await this.segment(number);
    } catch (error) {
      if (!(error instanceof DeltachainError) || error.class === 'IO') throw error;
      for (let before = 0; before < number; before++) await this.segment(before);
      throw error;
    }
  }

  /**
   * @param {Segment} segment
   * @param {Written} tensor
   * @param {number} piece
   * @param {State} [base]
   * @returns {Promise<Coded>}
   */
  async #codedPiece(segment, tensor, piece, base) {
    const part = tensor.parts[piece];
    const runs = Array.from({ length: segment.table.contexts }, (_, c) => segment.run(c, part));
    const values = join(runs.map(({ start, count }) => segment.values.subarray(start, start + count)));
    const firstLane = (piece * PIECE_BYTES) / tensor.dtype.laneBytes;
    const result = { tensor, piece, firstLane, values, relative: segment.relative };
    if (runs.length > 1) {
      if (base === undefined) return { ...result, lanes: null };
      const bytes = await base.readPiece(tensor.name, piece);
      return { ...result, lanes: join(placesOf(segment, part, bytes, tensor.dtype)) };
    }
    const [{ start, count }] = runs;
    const lanes = segment.ranks?.subarray(start, start + count) ?? Uint32Array.from({ length: count }, (_, i) => i);
    return { ...result, lanes };
  }

  /**
   * Returns the same as `deltachain inspect --json`, without the path. Decodes every segment.
   * @param {WorkOptions & { segments?: boolean }} [options] `segments`: also each segment as coded
   */
  inspect(options = {}) {
    return inspect(this, options);
  }
}

/** @template {Lanes} T @param {T[]} arrays of one kind @returns {T} */
function join(arrays) {
  if (arrays.length === 1) return arrays[0];
  const length = arrays.reduce((sum, array) => sum + array.length, 0);
  const all = new /** @type {any} */ (arrays[0].constructor)(length);
  let at = 0;
  for (const array of arrays) {
    all.set(array, at);
    at += array.length;
  }
  return all;
}
