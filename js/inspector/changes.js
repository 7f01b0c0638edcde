/** Where a link changes a tensor, and by how much: the numbers of the heat map and the histogram. */
import { lanesOf } from '../src/segment.js';
import { elementsOf } from './rows.js';

/** Fewest and most bins of the heat map, down and across: where little changes there are fewer, so that a bin has some changes. */
const FEWEST_BINS = 32;
const MOST_BINS = 160;
/** Most bins of a tensor that is one row. */
const MOST_BINS_OF_ROW = 400;

/**
 * A map of a tensor, its last dimension across and all others down. Lanes are counted: those of most dtypes are its
 * elements, but several elements of F4 share a lane. A lane is in the bin where its first element is.
 * @typedef {object} Grid
 * @property {number} rows
 * @property {number} columns
 * @property {number} down number of bins
 * @property {number} across number of bins
 * @property {number} laneBits
 * @property {number} elementBits
 * @property {Uint32Array} counts changed lanes of each bin, row by row
 */

/**
 * @typedef {object} Changes
 * @property {Grid | null} grid null if the places depend on a base that was not given
 * @property {Float64Array | null} steps number of lanes in each bin of differences; null if only the base can tell
 * @property {number} changed lanes that differ from the base, or if this is not known, lanes that are coded
 * @property {boolean} exact true if `changed` counts only lanes whose value differs from the base; false if it counts all
 *   coded lanes
 */

/** @param {import('../src/link-index.js').Written} tensor @param {number} expected number of changed lanes, roughly @returns {Grid} */
function emptyGrid({ shape, dtype }, expected) {
  const columns = shape.length === 0 ? 1 : Number(shape[shape.length - 1]);
  const rows = elementsOf(shape.slice(0, -1));
  const laneBits = 8 * dtype.laneBytes;
  // A bin has at least so many elements, in one row or in several, that a lane begins in it.
  const elementsPerLane = Math.ceil(laneBits / dtype.bits);
  const mostLanes = Math.max(1, Math.floor((rows * columns) / elementsPerLane));
  const lanesAcross = Math.max(1, Math.floor(columns / elementsPerLane));
  const most = Math.max(FEWEST_BINS, Math.min(MOST_BINS, Math.ceil(Math.sqrt(2 * expected))));
  const down = Math.min(rows, mostLanes, most);
  const across = Math.min(columns, lanesAcross, rows === 1 ? MOST_BINS_OF_ROW : most);
  return { rows, columns, down, across, laneBits, elementBits: dtype.bits, counts: new Uint32Array(down * across) };
}

/**
 * Counts the changes of a tensor.
 * @param {import('../src/link.js').Link} link
 * @param {string} name
 * @param {import('../src/state.js').State | null} base
 * @param {{ signal?: AbortSignal, coded?: number | null }} [options] `coded`: number of lanes that are coded, roughly; null
 *   if it is not known
 * @returns {Promise<Changes>}
 */
export async function changesOf(link, name, base, { signal, coded: expected } = {}) {
  const tensor = link.index.tensors.find((entry) => entry.name === name);
  const isPatch = tensor.operation === 'patch';
  const usedBase = isPatch ? base : null;
  /** @type {Changes} */
  const result = { grid: emptyGrid(tensor, expected ?? Infinity), steps: new Float64Array(BIN_COUNT), changed: 0, exact: true };
  for await (const piece of link.coded(name, usedBase ?? undefined)) {
    signal?.throwIfAborted();
    const needsOld = usedBase !== null && !piece.relative;
    const old = needsOld ? lanesOf(await usedBase.readPiece(name, piece.piece), tensor.dtype.laneBytes) : null;
    const differenceKnown = piece.relative || old !== null;
    if (piece.lanes === null) result.grid = null;
    if (!differenceKnown) {
      result.steps = null;
      if (isPatch) result.exact = false;
    }
    addPiece(result, piece, old, differenceKnown);
  }
  return result;
}

/** @param {Changes} result @param {import('../src/link.js').Coded} piece @param {any} old lanes of the base @param {boolean} differenceKnown */
function addPiece(result, piece, old, differenceKnown) {
  const { tensor: { dtype }, firstLane, lanes, values, relative } = piece;
  const { grid, steps } = result;
  for (let i = 0; i < values.length; i++) {
    const lane = lanes === null ? 0 : lanes[i];
    if (differenceKnown) {
      const step = relative ? signed(values[i], dtype) : difference(values[i], old[lane], dtype);
      if (step === 0) continue;
      if (steps !== null) steps[binOf(step)] += 1;
    }
    result.changed += 1;
    if (grid !== null) addToGrid(grid, firstLane + lane);
  }
}

/** @param {Grid} grid @param {number} lane of the tensor */
function addToGrid(grid, lane) {
  const element = Math.floor((lane * grid.laneBits) / grid.elementBits);
  const row = Math.floor(element / grid.columns);
  const column = element % grid.columns;
  const y = Math.floor((row * grid.down) / grid.rows);
  const x = Math.floor((column * grid.across) / grid.columns);
  grid.counts[y * grid.across + x] += 1;
}

/** Returns a lane as a signed number of its width. */
function signed(value, { laneBytes }) {
  if (laneBytes === 8) return Number(BigInt.asIntN(64, value));
  const unused = 32 - 8 * laneBytes;
  return (value << unused) >> unused;
}

/** Number of steps of the format from one value to another: SPEC section 8.3. */
function difference(value, old, dtype) {
  if (dtype.laneBytes === 8) {
    const key = (u) => (dtype.signMagnitude && u >> 63n ? u ^ (2n ** 63n - 1n) : u);
    return Number(BigInt.asIntN(64, key(value) - key(old)));
  }
  const bits = 8 * dtype.laneBytes;
  const key = (u) => (dtype.signMagnitude && (u >>> (bits - 1)) & 1 ? u ^ (2 ** (bits - 1) - 1) : u);
  return signed(key(value) - key(old), dtype);
}

/** Exponent of the last bin on each side: it has all differences of more than 2 ** (LAST_EXPONENT - 1) steps. */
const LAST_EXPONENT = 10;
/** Number of bins on each side. */
export const BINS_PER_SIDE = LAST_EXPONENT + 1;
/** Number of bins of differences: first those below 0, from far to near, then those above, from near to far. */
export const BIN_COUNT = 2 * BINS_PER_SIDE;

/** Returns the bin of a difference. Bins end at powers of two: 1, 2, 3 to 4, 5 to 8, and so on. @param {number} step not 0 */
export function binOf(step) {
  const exponent = Math.min(LAST_EXPONENT, Math.ceil(Math.log2(Math.abs(step))));
  return step > 0 ? BINS_PER_SIDE + exponent : BINS_PER_SIDE - 1 - exponent;
}

/** Returns the label of a bin, such as "+3…4", with the sign U+2212 for differences below 0. @param {number} bin */
export function labelOf(bin) {
  const isAbove = bin >= BINS_PER_SIDE;
  const exponent = isAbove ? bin - BINS_PER_SIDE : BINS_PER_SIDE - 1 - bin;
  const sign = isAbove ? '+' : '\u2212';
  if (exponent < 2) return `${sign}${exponent + 1}`;
  const below = 2 ** (exponent - 1);
  if (exponent === LAST_EXPONENT) return `${isAbove ? '>' : '<'} ${sign}${below}`;
  return `${sign}${below + 1}…${2 * below}`;
}

/** Number of lanes of a bin of the map. @param {Grid} grid @param {number} y @param {number} x */
export function lanesOfBin(grid, y, x) {
  const [top, bottom] = span(grid.rows, grid.down, y);
  const [left, right] = span(grid.columns, grid.across, x);
  if (grid.laneBits === grid.elementBits) return (bottom - top) * (right - left);
  // Number of lanes that begin before an element.
  const before = (element) => Math.ceil((element * grid.elementBits) / grid.laneBits);
  let lanes = 0;
  for (let row = top; row < bottom; row++) lanes += before(row * grid.columns + right) - before(row * grid.columns + left);
  return lanes;
}

/** First row or column of a bin, and the one after its last. @param {number} count of rows or columns @param {number} bins @param {number} i */
export function span(count, bins, i) {
  return [Math.ceil((i * count) / bins), Math.ceil(((i + 1) * count) / bins)];
}

/** Returns the rows of bins that change most. @param {Grid} grid @param {number} most number of them */
export function topRows(grid, most) {
  const rows = Array.from({ length: grid.down }, (_, y) => {
    let changed = 0;
    let lanes = 0;
    for (let x = 0; x < grid.across; x++) {
      changed += grid.counts[y * grid.across + x];
      lanes += lanesOfBin(grid, y, x);
    }
    const [from, to] = span(grid.rows, grid.down, y);
    return { from, to, changed, share: lanes === 0 ? 0 : changed / lanes };
  });
  return rows.sort((a, b) => b.share - a.share || a.from - b.from).slice(0, most);
}
