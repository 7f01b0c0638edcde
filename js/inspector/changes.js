/** Where a link changes a tensor, and by how much: the data of the heat map and the histogram. */
import { lanesOf } from '../src/segment.js';

/**
 * Minimum and maximum number of bins of the heat map, down and across; fewer where little changes, so that each bin has
 * some changes.
 */
const FEWEST = 32;
const MOST = 160;
/** Maximum number of bins of a tensor that has one row. */
const MOST_OF_ROW = 400;

/**
 * A map of a tensor, its last dimension across and all others down.
 * @typedef {object} Grid
 * @property {number} rows
 * @property {number} columns
 * @property {number} down bins
 * @property {number} across bins
 * @property {Uint32Array} counts changed elements of each bin, row by row
 */

/**
 * @typedef {object} Changes
 * @property {Grid | null} grid null if the places depend on a missing base
 * @property {Map<string, number> | null} steps number of lanes by distance, in steps of the number format; null if only
 *   the base shows it. Keys are those of `BINS`
 * @property {number} changed number of lanes that differ from the base, or of coded lanes if that is not known
 * @property {boolean} exact whether `changed` leaves out lanes that are coded but do not change
 */

/** @param {import('../src/link-index.js').Written} tensor @param {number} coded @returns {Grid} */
function emptyGrid({ shape }, coded) {
  const sizes = shape.map(Number);
  const columns = sizes.length === 0 ? 1 : sizes[sizes.length - 1];
  const rows = sizes.slice(0, -1).reduce((all, one) => all * one, 1);
  const most = Math.max(FEWEST, Math.min(MOST, Math.ceil(Math.sqrt(2 * coded))));
  const down = Math.min(rows, most);
  const across = Math.min(columns, rows === 1 ? MOST_OF_ROW : most);
  return { rows, columns, down, across, counts: new Uint32Array(down * across) };
}

/**
 * @param {import('../src/link.js').Link} link
 * @param {string} name
 * @param {import('../src/state.js').State | null} base
 * @param {{ signal?: AbortSignal, coded?: number | null }} [options] `coded`: about how many lanes are coded
 * @returns {Promise<Changes>}
 */
export async function changesOf(link, name, base, { signal, coded: about } = {}) {
  const tensor = link.index.tensors.find((entry) => entry.name === name);
  const patch = tensor.operation === 'patch';
  const own = patch ? base : null;
  /** @type {Changes} */
  const result = { grid: emptyGrid(tensor, about ?? MOST ** 2), steps: new Map(), changed: 0, exact: true };
  for await (const coded of link.coded(name, own ?? undefined)) {
    signal?.throwIfAborted();
    const old = own === null || coded.relative ? null : lanesOf(await own.readPiece(name, coded.piece), tensor.dtype.laneBytes);
    count(result, coded, old, patch);
  }
  return result;
}

/** @param {Changes} result @param {import('../src/link.js').Coded} coded @param {any} old @param {boolean} patch */
function count(result, coded, old, patch) {
  const { tensor, firstLane, lanes, values, relative } = coded;
  const { dtype } = tensor;
  const known = relative || old !== null;
  if (lanes === null) result.grid = null;
  if (!known) {
    result.steps = null;
    if (patch) result.exact = false;
  }
  const { grid, steps } = result;
  const elementsPerLane = (8 * dtype.laneBytes) / dtype.bits;
  for (let i = 0; i < values.length; i++) {
    const lane = lanes === null ? 0 : lanes[i];
    if (known) {
      const step = relative ? signed(values[i], dtype) : difference(values[i], old[lane], dtype);
      if (step === 0) continue;
      const bin = binOf(step);
      steps?.set(bin, (steps.get(bin) ?? 0) + 1);
    }
    result.changed += 1;
    if (grid === null) continue;
    const element = Math.floor((firstLane + lane) * elementsPerLane);
    const row = Math.floor(element / grid.columns);
    const column = element % grid.columns;
    const y = Math.floor((row * grid.down) / grid.rows);
    grid.counts[y * grid.across + Math.floor((column * grid.across) / grid.columns)] += 1;
  }
}

/** Returns a lane as a signed number of its width. */
function signed(value, { laneBytes }) {
  if (laneBytes === 8) return Number(BigInt.asIntN(64, value));
  const unused = 32 - 8 * laneBytes;
  return (value << unused) >> unused;
}

/** Returns how many values of the format lie between two: SPEC section 8.3. */
function difference(value, old, dtype) {
  if (dtype.laneBytes === 8) {
    const key = (u) => (dtype.signMagnitude && u >> 63n ? u ^ (2n ** 63n - 1n) : u);
    return Number(BigInt.asIntN(64, key(value) - key(old)));
  }
  const bits = 8 * dtype.laneBytes;
  const key = (u) => (dtype.signMagnitude && (u >>> (bits - 1)) & 1 ? u ^ (2 ** (bits - 1) - 1) : u);
  return signed(key(value) - key(old), dtype);
}

/** Exponent of the last bin, which has all larger steps. */
const FARTHEST = 10;

/** Names of the bins, from far below to far above. */
export const BINS = Array.from({ length: FARTHEST + 1 }, (_, i) => i).flatMap((i) => [nameOf(-1, i), nameOf(1, i)])
  .sort((a, b) => placeOf(a) - placeOf(b));

/** Returns the bin of a step. Bins are powers of two: 1, 2, 3 to 4, 5 to 8, and so on. */
function binOf(step) {
  const far = Math.abs(step);
  return nameOf(Math.sign(step), far === 1 ? 0 : Math.min(FARTHEST, Math.ceil(Math.log2(far))));
}

function nameOf(sign, power) {
  const mark = sign < 0 ? '−' : '+';
  if (power < 2) return `${mark}${power + 1}`;
  if (power === FARTHEST) return `${sign < 0 ? '<' : '>'} ${mark}${2 ** (power - 1)}`;
  return `${mark}${2 ** (power - 1) + 1}…${2 ** power}`;
}

function placeOf(name) {
  const [far] = /\d+/.exec(name);
  const past = /[<>]/.test(name) ? 1 : 0;
  return (name.includes('−') ? -1 : 1) * (Number(far) + past);
}

/** Returns the number of elements of a bin. @param {Grid} grid @param {number} y @param {number} x */
export function binArea(grid, y, x) {
  const [top, bottom] = span(grid.rows, grid.down, y);
  const [left, right] = span(grid.columns, grid.across, x);
  return (bottom - top) * (right - left);
}

/** Returns the first row or column of a bin, and the one after its last. */
export function span(count, bins, i) {
  return [Math.ceil((i * count) / bins), Math.ceil(((i + 1) * count) / bins)];
}

/** Returns the rows that change most. @param {Grid} grid @param {number} most */
export function topRows(grid, most) {
  const rows = Array.from({ length: grid.down }, (_, y) => {
    let changed = 0;
    let area = 0;
    for (let x = 0; x < grid.across; x++) {
      changed += grid.counts[y * grid.across + x];
      area += binArea(grid, y, x);
    }
    const [from, to] = span(grid.rows, grid.down, y);
    return { from, to, changed, share: area === 0 ? 0 : changed / area };
  });
  return rows.sort((a, b) => b.share - a.share || a.from - b.from).slice(0, most);
}
