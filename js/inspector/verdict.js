/** Describes a link in plain words, and the reasons for its size, from the result of `inspect` alone. */
import { counted, percent, shapeText, size } from './words.js';

/** Share of changes above which most readers would call a delta dense. */
const DENSE = 0.2;
const NARROW = /^(F4|F6|F8|U8|I8)/;

/**
 * @param {import('../src/inspect.js').Inspection} found
 * @returns {{ headline: string, notes: string[] }}
 */
export function verdict(found) {
  const written = found.tensors.filter((row) => row.operation !== 'remove');
  if (found.snapshot) {
    return {
      headline: 'A snapshot: it holds a whole model and needs no base.',
      notes: [`${counted(written.length, 'tensor')} in ${size(found.bytes)}, ${ratio(found, written)} of their plain size.`],
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
    return { headline: `Sparse: ${percent(share)} of the elements change. ${plain}.`, notes };
  }
  if (notes.length === 0) {
    notes.push('Nothing in the file says why. Usual reasons: the base is not the step right before, or the training '
      + 'stage or learning rate is one that moves most weights.');
  }
  return { headline: `Dense: ${percent(share)} of the elements are coded. ${plain}.`, notes };
}

/** Returns the total bytes of the tensors. */
function plainBytes(rows) {
  return rows.reduce((sum, row) => sum + row.byteLength, 0);
}

function ratio(found, rows) {
  const plain = plainBytes(rows);
  return plain === 0 ? 'more' : percent(found.bytes / plain);
}

/** Describes tensors that are removed and added: renamed ones, or ones with another shape. */
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

/** Explains why patched tensors change nearly everywhere, by dtype. */
function dense(rows) {
  const byDtype = new Map();
  for (const row of rows) byDtype.set(row.dtype, [...(byDtype.get(row.dtype) ?? []), row]);
  const notes = [];
  for (const [dtype, own] of byDtype) {
    const lanes = own.reduce((sum, row) => sum + row.lanes, 0);
    const coded = own.reduce((sum, row) => sum + row.coded, 0);
    if (lanes === 0 || coded / lanes < DENSE) continue;
    notes.push(`${dtype}: ${percent(coded / lanes)} changed. ${reason(dtype, rows)}`);
  }
  return notes;
}

function reason(dtype, rows) {
  const narrow = rows.some((row) => NARROW.test(row.dtype));
  if (dtype === 'F32' && narrow) {
    return 'These look like the scales of quantised weights. They follow the largest weight of their block, so '
      + 'nearly all of them move in every step; they are few.';
  }
  if (dtype === 'F32' || dtype === 'F64') {
    return 'A step of the optimizer moves nearly every weight of this precision, most by a few units in the last place. '
      + 'The rounded weights that engines load (BF16, FP8) change far less: publish those.';
  }
  if (NARROW.test(dtype)) {
    return 'Quantised weights that change this much were usually quantised anew, with other scales or another '
      + 'calibration.';
  }
  if (/^(I|U|BOOL)/.test(dtype)) return 'Integers seldom change like this by training: are they indices or counters?';
  return 'A single step of fine-tuning or reinforcement learning leaves most rounded weights as they were. Is the base '
    + 'the step right before?';
}
