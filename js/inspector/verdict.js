/** What a link or a chain is, in plain words, and why it is as large as it is: from the result of `inspect`, or from routes. */
import { laneWord } from './rows.js';
import { counted, grouped, percent, shapeText, size, times } from './words.js';

/** Share of changed elements from which a link is called dense. */
const DENSE = 0.2;

/** True for dtypes of at most 8 bits, such as F8_E4M3, U8 and I4: those of quantised weights. @param {string} dtype */
const isNarrow = (dtype) => /^[FIU][1-8](?![0-9])/.test(dtype);

/**
 * Returns the headline about a link, and notes on it.
 * @param {import('../src/inspect.js').Inspection} found
 * @returns {{ headline: string, notes: string[] }}
 */
export function verdict(found) {
  const written = found.tensors.filter((row) => row.operation !== 'remove');
  if (found.snapshot) {
    return {
      headline: 'A snapshot: it holds a whole model and needs no base.',
      notes: [`${counted(written.length, 'tensor')} in ${size(found.bytes)}${comparedWithPlain(found, written)}.`],
    };
  }
  if (found.tensors.length === 0) return { headline: 'Nothing changes: base and target are equal.', notes: [] };
  const { lanes, coded } = found.total;
  const share = lanes === 0 ? 0 : coded / lanes;
  const patched = written.filter((row) => row.operation === 'patch');
  const notes = [...moved(found.tensors), ...dense(patched)];
  if (found.direct && patched.length > 0) {
    notes.push('All values are absolute (profile direct): larger than relative ones, but an engine can use them without '
      + 'reading the base.');
  }
  const plain = `${size(found.bytes)} instead of ${size(plainBytes(written))} for the tensors that it touches`;
  if (share < DENSE) {
    return { headline: `Sparse: ${percent(share)} of the ${laneWord(written)} change. ${plain}.`, notes };
  }
  if (notes.length === 0) {
    notes.push('Nothing in the file says why. Usual reasons: the base is not the step right before, or the training '
      + 'stage or learning rate is one that moves most weights.');
  }
  return { headline: `Dense: ${percent(share)} of the ${laneWord(written)} are coded. ${plain}.`, notes };
}

/**
 * Returns the headline about a chain, and notes on it.
 * @param {{ version: number, from: number | null, bytes: number | null }[]} versions ascending, each with the route that
 *   stands for it; `bytes` is null if there is none, `from` is null for a snapshot
 * @returns {{ headline: string, notes: string[] }}
 */
export function chainVerdict(versions) {
  const newest = versions[versions.length - 1];
  const steps = versions.filter(({ from }) => from !== null).map(({ bytes }) => bytes).sort((a, b) => a - b);
  const snapshots = versions.filter(({ from, bytes }) => from === null && bytes !== null);
  const notes = [];
  if (steps.length > 1) {
    const median = steps[Math.floor(steps.length / 2)];
    notes.push(`${grouped(steps.length)} steps on show take ${size(steps[0])} to ${size(steps[steps.length - 1])}, half of them at most ${size(median)}.`);
  }
  if (snapshots.length > 0) {
    const { version, bytes } = snapshots[snapshots.length - 1];
    notes.push(`A whole model, the snapshot of version ${version}, takes ${size(bytes)}.`);
  }
  return { headline: `The newest version is ${newest.version}: ${routeText(newest)}.`, notes };
}

function routeText({ from, bytes }) {
  if (bytes === null) return 'no route leads to it';
  return from === null ? `a snapshot of ${size(bytes)}` : `${size(bytes)} to get there from version ${from}`;
}

/** Bytes of the tensors, uncompressed. */
function plainBytes(rows) {
  return rows.reduce((sum, row) => sum + row.byteLength, 0);
}

function comparedWithPlain(found, rows) {
  const plain = plainBytes(rows);
  if (plain === 0) return '';
  const ratio = found.bytes / plain;
  return ratio > 1 ? `, ${times(ratio)} times their plain size` : `, ${percent(ratio)} of their plain size`;
}

/** Notes on tensors that are removed and set: renamed, or of another form. */
function moved(rows) {
  const removed = rows.filter((row) => row.operation === 'remove');
  const set = rows.filter((row) => row.operation === 'set');
  if (set.length === 0 && removed.length === 0) return [];
  if (set.length > 0 && set.length === removed.length) {
    return [`${counted(set.length, 'tensor')} removed and as many set anew: this looks like tensors that were renamed (such as `
      + `${removed[0].name} to ${set[0].name}). What gets a new name is stored as a whole.`];
  }
  const notes = [];
  if (removed.length > 0) notes.push(`${counted(removed.length, 'tensor')} removed, such as ${removed[0].name}.`);
  if (set.length > 0) {
    notes.push(`${counted(set.length, 'tensor')} stored as a whole, such as ${set[0].name} (${set[0].dtype}, `
      + `${shapeText(set[0].shape)}): new ones, or of another dtype or size than in the base.`);
  }
  return notes;
}

/** Notes on dtypes whose patched tensors change nearly everywhere, and why. */
function dense(rows) {
  const byDtype = new Map();
  for (const row of rows) byDtype.set(row.dtype, [...(byDtype.get(row.dtype) ?? []), row]);
  const notes = [];
  for (const [dtype, some] of byDtype) {
    const lanes = some.reduce((sum, row) => sum + row.lanes, 0);
    const coded = some.reduce((sum, row) => sum + row.coded, 0);
    if (lanes === 0 || coded / lanes < DENSE) continue;
    notes.push(`${dtype}: ${percent(coded / lanes)} changed. ${reason(dtype, rows)}`);
  }
  return notes;
}

function reason(dtype, rows) {
  const narrow = rows.some((row) => isNarrow(row.dtype));
  if (dtype === 'F32' && narrow) {
    return 'These look like the scales of quantised weights. They follow the largest weight of their block, so '
      + 'nearly all of them move in every step; they are few.';
  }
  if (dtype === 'F32' || dtype === 'F64') {
    return 'A step of the optimizer moves nearly every weight of this precision, most by a few units in the last place. '
      + 'The rounded weights that engines load (BF16, FP8) change far less: publish those.';
  }
  if (isNarrow(dtype)) {
    return 'Quantised weights that change this much were usually quantised anew, with other scales or another '
      + 'calibration.';
  }
  if (/^(I|U|BOOL)/.test(dtype)) return 'Integers seldom change like this by training: are they indices or counters?';
  return 'A single step of fine-tuning or reinforcement learning leaves most rounded weights as they were. Is the base '
    + 'the step right before?';
}
