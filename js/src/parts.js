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
 * Changes the bytes of a piece, which hold what the tensor starts from and lie at a multiple of the lane bytes.
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
    // With one context the rank of a lane is its number.
    const list = places === null ? (segment.ranks?.subarray(start, start + count) ?? null) : places[c];
    if (!segment.relative) replace(lanes, values, list);
    else if (lanes instanceof BigUint64Array) moveWide(lanes, /** @type {BigUint64Array} */ (values), list, dtype);
    else moveNarrow(lanes, /** @type {NarrowLanes} */ (values), list, dtype);
  }
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

/** @param {BigUint64Array} lanes @param {BigUint64Array} values @param {Uint32Array | null} list @param {Dtype} dtype */
function moveWide(lanes, values, list, dtype) {
  const key = (/** @type {bigint} */ u) => (dtype.signMagnitude && u & WIDE_SIGN ? u ^ (WIDE_SIGN - 1n) : u);
  for (let i = 0; i < values.length; i++) {
    const lane = list === null ? i : list[i];
    lanes[lane] = key(BigInt.asUintN(64, key(lanes[lane]) + values[i]));
  }
}

/**
 * The lanes that each context of a part codes, found by what the lanes hold now. Checks R-POS-01 and R-POS-02 against
 * the members.
 * @param {Segment} segment
 * @param {number} part
 * @param {Uint8Array} bytes
 * @param {Dtype} dtype
 */
export function placesOf(segment, part, bytes, dtype) {
  const { table, ranks } = segment;
  const contexts = contextsOf(bytes, dtype, table.thresholds[part]);
  const members = new Uint32Array(16);
  for (let i = 0; i < contexts.length; i++) members[contexts[i]]++;
  const lists = [];
  for (let c = 0; c < table.contexts; c++) {
    const { start, count } = segment.run(c, part);
    checkMembers(segment, part, c, members[c], ranks === null || count === 0 ? -1 : ranks[start + count - 1]);
    lists.push(new Uint32Array(count));
  }
  if (ranks === null) placeAll(contexts, lists);
  else placeRanks(contexts, lists, ranks, lists.map((_, c) => segment.run(c, part).start));
  return lists;
}

/** Context of each lane. @param {Uint8Array} bytes @param {Dtype} dtype @param {number[]} thresholds */
function contextsOf(bytes, dtype, thresholds) {
  const { laneBytes, exponentBits } = dtype;
  const byExponent = new Uint8Array(2 ** exponentBits);
  for (let e = 0; e < byExponent.length; e++) byExponent[e] = thresholds.filter((threshold) => threshold <= e).length;
  const contexts = new Uint8Array(bytes.length / laneBytes);
  // The exponent field of a lane of 8 bytes lies in its upper half.
  const words = /** @type {NarrowLanes} */ (lanesOf(bytes, Math.min(laneBytes, 4)));
  const step = laneBytes === 8 ? 2 : 1;
  const shift = Math.min(8 * laneBytes, 32) - 1 - exponentBits;
  const mask = byExponent.length - 1;
  for (let i = 0, word = step - 1; i < contexts.length; i++, word += step) {
    contexts[i] = byExponent[(words[word] >>> shift) & mask];
  }
  return contexts;
}

/** @param {Uint8Array} contexts @param {Uint32Array[]} lists */
function placeAll(contexts, lists) {
  const next = new Uint32Array(16);
  for (let lane = 0; lane < contexts.length; lane++) {
    const c = contexts[lane];
    lists[c][next[c]++] = lane;
  }
}

/** @param {Uint8Array} contexts @param {Uint32Array[]} lists @param {Uint32Array} ranks @param {number[]} starts */
function placeRanks(contexts, lists, ranks, starts) {
  const NONE = 2 ** 32 - 1;
  const seen = new Uint32Array(16);
  const done = new Uint32Array(16);
  const wanted = new Uint32Array(16).fill(NONE);
  for (let c = 0; c < lists.length; c++) if (lists[c].length > 0) wanted[c] = ranks[starts[c]];
  for (let lane = 0; lane < contexts.length; lane++) {
    const c = contexts[lane];
    if (seen[c]++ !== wanted[c]) continue;
    const place = done[c]++;
    lists[c][place] = lane;
    wanted[c] = place + 1 < lists[c].length ? ranks[starts[c] + place + 1] : NONE;
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
