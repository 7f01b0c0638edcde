/** Applying a part of a segment to its piece: SPEC sections 7.1, 8.3 and 8.4, step 8.5 of section 10. */
import { at, ensure } from './errors.js';
import { lanesOf } from './segment.js';

/** @typedef {import('./segment.js').Segment} Segment */
/** @typedef {import('./segment.js').Lanes} Lanes */
/** @typedef {import('./segment.js').NarrowLanes} NarrowLanes */
/** @typedef {import('./dtypes.js').Dtype} Dtype */

const BITMAP = 32;
const WIDE_SIGN = 2n ** 63n;

/**
 * Changes the bytes of a piece, which hold the tensor's old values and begin at a multiple of the lane bytes.
 * @param {Segment} segment
 * @param {number} part
 * @param {Uint8Array} bytes
 */
export function applyPart(segment, part, bytes) {
  const dtype = segment.dtypes[part];
  const lanes = lanesOf(bytes, dtype.laneBytes);
  const places = segment.table.contexts === 1 ? null : placesOf(segment, part, bytes, dtype);
  for (let c = 0; c < segment.table.contexts; c++) {
    const { start, count } = segment.run(c, part);
    const values = segment.values.subarray(start, start + count);
    // With one context, the rank of a lane is its number.
    const list = places === null ? (segment.ranks?.subarray(start, start + count) ?? null) : places[c];
    moveLanes(lanes, values, list, segment.relative, dtype);
  }
}

/**
 * Replaces lanes by new ones, or moves them by differences modulo 2^W.
 * @param {Lanes} lanes
 * @param {Lanes} values
 * @param {Uint32Array | null} list lane of each value; null for all
 * @param {boolean} relative
 * @param {Dtype} dtype
 */
export function moveLanes(lanes, values, list, relative, dtype) {
  if (!relative) replace(lanes, values, list);
  else if (lanes instanceof BigUint64Array) moveWide(lanes, /** @type {BigUint64Array} */ (values), list, dtype);
  else moveNarrow(/** @type {NarrowLanes} */ (lanes), /** @type {NarrowLanes} */ (values), list, dtype);
}

/** @param {Lanes} lanes @param {Lanes} values @param {Uint32Array | null} list lane of each value; null for all */
function replace(lanes, values, list) {
  if (list === null) lanes.set(/** @type {any} */ (values));
  else for (let i = 0; i < list.length; i++) lanes[list[i]] = values[i];
}

/** @param {NarrowLanes} lanes @param {NarrowLanes} values @param {Uint32Array | null} list @param {Dtype} dtype */
function moveNarrow(lanes, values, list, dtype) {
  const bits = 8 * dtype.laneBytes;
  const sign = dtype.signMagnitude ? 1 << (bits - 1) : 0;
  const flip = 2 ** (bits - 1) - 1;
  for (let i = 0; i < values.length; i++) {
    const lane = list === null ? i : list[i];
    const old = lanes[lane];
    const sum = ((old & sign ? old ^ flip : old) + values[i]) | 0;
    lanes[lane] = sum & sign ? sum ^ flip : sum;
  }
}

/**
 * @param {BigUint64Array} lanes
 * @param {BigUint64Array} values
 * @param {Uint32Array | null} list
 * @param {Dtype} dtype
 */
function moveWide(lanes, values, list, dtype) {
  const key = (/** @type {bigint} */ u) => (dtype.signMagnitude && u & WIDE_SIGN ? u ^ (WIDE_SIGN - 1n) : u);
  for (let i = 0; i < values.length; i++) {
    const lane = list === null ? i : list[i];
    lanes[lane] = key(BigInt.asUintN(64, key(lanes[lane]) + values[i]));
  }
}

/**
 * Finds the lanes that each context of a part codes, by the current values of the lanes. Checks R-POS-01 and R-POS-02
 * against the members.
 * @param {Segment} segment
 * @param {number} part
 * @param {Uint8Array} bytes
 * @param {Dtype} dtype
 */
export function placesOf(segment, part, bytes, dtype) {
  const { table, ranks } = segment;
  const runs = Array.from({ length: table.contexts }, (_, c) => segment.run(c, part));
  const lists = runs.map(({ count }) => new Uint32Array(count));
  const lookup = contextOfExponent(dtype, table.thresholds[part]);
  const members = new Int32Array(16);
  if (ranks === null) {
    placeAll(bytes, dtype, lookup, lists, members);
  } else {
    const own = runs.map(({ start, count }) => ranks.subarray(start, start + count));
    placeRanks(bytes, dtype, lookup, lists, members, own);
  }
  runs.forEach(({ start, count }, c) => {
    checkMembers(segment, part, c, members[c], ranks === null || count === 0 ? -1 : ranks[start + count - 1]);
  });
  return lists;
}

/** @param {Dtype} dtype @param {number[]} thresholds */
function contextOfExponent({ exponentBits }, thresholds) {
  const lookup = new Uint8Array(2 ** exponentBits);
  for (let e = 0; e < lookup.length; e++) lookup[e] = thresholds.filter((threshold) => threshold <= e).length;
  return lookup;
}

/**
 * Returns the places of the exponent fields of lanes: the words that hold them, the step from one to the next, and the
 * shift.
 * @param {Uint8Array} bytes
 * @param {Dtype} dtype
 */
function exponents(bytes, { laneBytes, exponentBits }) {
  // In a lane of 8 bytes the field is in the upper half.
  const words = /** @type {NarrowLanes} */ (lanesOf(bytes, Math.min(laneBytes, 4)));
  const step = laneBytes === 8 ? 2 : 1;
  return { words, step, shift: Math.min(8 * laneBytes, 32) - 1 - exponentBits };
}

/**
 * Lists all lanes of each context, up to the length of its list, and counts the members.
 * @param {Uint8Array} bytes
 * @param {Dtype} dtype
 * @param {Uint8Array} lookup
 * @param {Uint32Array[]} lists
 * @param {Int32Array} members
 */
function placeAll(bytes, dtype, lookup, lists, members) {
  const { words, step, shift } = exponents(bytes, dtype);
  const mask = lookup.length - 1;
  for (let word = step - 1, lane = 0; word < words.length; word += step, lane++) {
    const c = lookup[(words[word] >>> shift) & mask];
    lists[c][members[c]++] = lane;
  }
}

/**
 * Lists the lanes of each context that have the given ranks, and counts the members.
 * @param {Uint8Array} bytes
 * @param {Dtype} dtype
 * @param {Uint8Array} lookup
 * @param {Uint32Array[]} lists
 * @param {Int32Array} members
 * @param {Uint32Array[]} ranks
 */
function placeRanks(bytes, dtype, lookup, lists, members, ranks) {
  // Ranks are below 2^24, and signed numbers are faster.
  const NONE = -1;
  const { words, step, shift } = exponents(bytes, dtype);
  const mask = lookup.length - 1;
  const done = new Int32Array(16);
  const wanted = new Int32Array(16).fill(NONE);
  ranks.forEach((own, c) => own.length > 0 && (wanted[c] = own[0]));
  for (let word = step - 1, lane = 0; word < words.length; word += step, lane++) {
    const c = lookup[(words[word] >>> shift) & mask];
    const rank = members[c];
    members[c] = rank + 1;
    if (rank !== wanted[c]) continue;
    const place = done[c]++;
    lists[c][place] = lane;
    wanted[c] = place + 1 < ranks[c].length ? ranks[c][place + 1] : NONE;
  }
}

/**
 * @param {Segment} segment
 * @param {number} part
 * @param {number} context
 * @param {number} members
 * @param {number} lastRank -1 if there is none
 */
function checkMembers(segment, part, context, members, lastRank) {
  const { table, entry } = segment;
  at({ offset: entry.offset, segment: segment.number }, () => {
    if (entry.sparse && table.positions[context] !== BITMAP) {
      ensure(lastRank < members, 'R-POS-01', `rank ${lastRank} in a context of ${members} members`);
    } else {
      const count = table.counts[part][context];
      ensure(count === members, 'R-POS-02', `a count of ${count} for a context of ${members} members`);
    }
  });
}
