/** One tensor: where it changes, and by how much. */
import { byId, make, refusal, table } from './dom.js';
import { BIN_COUNT, BINS_PER_SIDE, binOf, changesOf, labelOf, topRows } from './changes.js';
import { columns, heatMap } from './charts.js';
import { laneWord } from './rows.js';
import { grouped, percent, rangeText, shapeText } from './words.js';

let running = new AbortController();

/** Hides the tensor and stops reading it. */
export function closeTensor() {
  running.abort();
  byId('tensor').hidden = true;
}

/**
 * Shows a tensor of the open link.
 * @param {import('../src/link.js').Link} link
 * @param {any} row of the table
 * @param {import('../src/state.js').State | null} base
 */
export async function showTensor(link, row, base) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId('tensor').hidden = false;
  byId('tensor-name').textContent = row.name;
  const box = byId('tensor-box');
  if (row.operation === 'remove') {
    box.replaceChildren(make('p', { text: 'The link removes this tensor.' }));
    return;
  }
  box.replaceChildren(make('p', { class: 'note', text: 'Reading …' }));
  try {
    const changes = await changesOf(link, row.name, base, { signal, coded: row.coded });
    if (!signal.aborted) box.replaceChildren(...tensorParts(changes, row));
  } catch (error) {
    if (!signal.aborted) box.replaceChildren(make('p', { class: 'error', text: refusal(error) }));
  }
}

/** @param {import('./changes.js').Changes} changes @param {any} row */
function tensorParts(changes, row) {
  const facts = [row.operation, row.dtype, shapeText(row.shape)].filter(Boolean).join(' · ');
  const share = row.lanes === 0 ? 0 : changes.changed / row.lanes;
  const verb = changes.exact ? 'changed' : 'coded';
  const parts = [make('p', { text: `${facts} · ${grouped(changes.changed)} of ${grouped(row.lanes)} ${verb} (${percent(share)})` })];
  if (laneWord([row]) === 'lanes') {
    parts.push(make('p', { class: 'note', text: `Lanes are counted: ${row.dtype} is stored in lanes that are not single elements.` }));
  }
  return [...parts, make('div', { class: 'two' }, mapSection(changes, row), histogramSection(changes, row))];
}

/** @param {import('./changes.js').Changes} changes @param {any} row */
function mapSection({ grid, changed }, row) {
  const box = make('section', {}, make('h4', { text: 'Where it changes' }));
  if (grid === null) {
    box.append(make('p', { class: 'note', text: 'The map needs the base, the checkpoint before this step: the link numbers its positions '
      + 'within groups of small, middle and large values of the base.' }),
    make('button', { type: 'button', class: 'small', text: 'Choose the base', onclick: () => byId('base-files').click() }));
    return box;
  }
  if (changed === 0) {
    box.append(make('p', { class: 'note', text: 'Nowhere: every element keeps its value.' }));
    return box;
  }
  box.append(heatMap(grid, row.name));
  if (grid.rows > 1) {
    const rows = topRows(grid, 5).map(({ from, to, changed: count, share }) => [rangeText(from, to), grouped(count), percent(share)]);
    box.append(make('details', {}, make('summary', { text: 'Rows that change most' }),
      table(['Rows', 'Changed', 'Share'], rows, 'Rows that change most')));
  }
  return box;
}

/** @param {import('./changes.js').Changes} changes @param {any} row */
function histogramSection({ steps, changed }, row) {
  const box = make('section', {}, make('h4', { text: 'By how many steps of its number format' }));
  if (row.operation === 'set') {
    box.append(make('p', { class: 'note', text: 'The link stores this tensor as a whole: there is nothing to compare it with.' }));
    return box;
  }
  if (steps === null) {
    box.append(make('p', { class: 'note', text: 'The link holds new values, not differences. Choose the base to compare them.' }));
    return box;
  }
  const shown = shownBins(steps);
  if (shown.length === 0) return box;
  const items = shown.map((bin) => ({ label: labelOf(bin), value: steps[bin], shown: percent(steps[bin] / changed) }));
  box.append(columns(items, { title: `Histogram of differences of ${row.name}; its numbers are in the table`, height: 220 }));
  const unit = laneWord([row]);
  // A lane with several elements, or with the two numbers of C64, has no next value.
  if (unit === 'elements' && row.dtype !== 'C64') {
    const next = steps[binOf(1)] + steps[binOf(-1)];
    box.append(make('p', { class: 'note', text: `${percent(next / changed)} move to the next value that ${row.dtype} has.` }));
  }
  box.append(make('details', {}, make('summary', { text: 'Numbers' }),
    table(['Steps', unit === 'elements' ? 'Elements' : 'Lanes', 'Share'], items.filter((item) => item.value > 0)
      .map((item) => [item.label, grouped(item.value), item.shown]), 'Histogram of differences')));
  return box;
}

/** Returns the bins with all differences, as many below 0 as above, so that 0 is in the middle. @param {Float64Array} steps */
function shownBins(steps) {
  const first = steps.findIndex((count) => count > 0);
  if (first < 0) return [];
  const last = steps.findLastIndex((count) => count > 0);
  const reach = Math.max(BINS_PER_SIDE - first, last - BINS_PER_SIDE + 1);
  return Array.from({ length: BIN_COUNT }, (_, bin) => bin).slice(BINS_PER_SIDE - reach, BINS_PER_SIDE + reach);
}
