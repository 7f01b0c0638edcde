/** One tensor: the places and the sizes of its changes. */
import { at, make, refusal, table } from './dom.js';
import { BINS, changesOf, topRows } from './changes.js';
import { columns, heatMap } from './charts.js';
import { grouped, percent, shapeText } from './words.js';

let running = new AbortController();

export function closeTensor() {
  running.abort();
  at('tensor').hidden = true;
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
  at('tensor').hidden = false;
  at('tensor-name').textContent = row.name;
  const box = at('tensor-box');
  const facts = [row.operation, row.dtype, shapeText(row.shape)].filter(Boolean).join(' · ');
  if (row.operation === 'remove') {
    box.replaceChildren(make('p', { text: 'The link removes this tensor.' }));
    return;
  }
  box.replaceChildren(make('p', { class: 'note', text: 'Reading …' }));
  try {
    const changes = await changesOf(link, row.name, base, { signal, coded: row.coded });
    if (signal.aborted) return;
    const share = row.lanes === 0 ? 0 : changes.changed / row.lanes;
    const says = changes.exact ? 'changed' : 'coded';
    box.replaceChildren(
      make('p', { text: `${facts} · ${grouped(changes.changed)} of ${grouped(row.lanes)} ${says} (${percent(share)})` }),
      make('div', { class: 'two' }, where(changes, row), far(changes, row)));
  } catch (error) {
    if (!signal.aborted) box.replaceChildren(make('p', { class: 'error', text: refusal(error) }));
  }
}

function where({ grid, changed }, row) {
  const box = make('section', {}, make('h4', { text: 'Where it changes' }));
  if (grid === null) {
    box.append(make('p', { class: 'note', text: 'The link says which of the lanes with small, middle or large values change, and these '
      + 'are known from the base alone. Give the base to see the map.' }));
    return box;
  }
  if (changed === 0) {
    box.append(make('p', { class: 'note', text: 'Nowhere: every element keeps its value.' }));
    return box;
  }
  box.append(heatMap(grid, row.name));
  const rows = topRows(grid, 5).map(({ from, to, changed: count, share }) =>
    [to - from === 1 ? grouped(from) : `${grouped(from)} to ${grouped(to - 1)}`, grouped(count), percent(share)]);
  if (grid.rows > 1) {
    box.append(make('details', {}, make('summary', { text: 'Rows that change most' }),
      table(['Rows', 'Changed', 'Share'], rows, 'Rows that change most')));
  }
  return box;
}

function far({ steps, changed }, row) {
  const box = make('section', {}, make('h4', { text: 'By how many steps of its number format' }));
  if (row.operation === 'set') {
    box.append(make('p', { class: 'note', text: 'The link stores this tensor as a whole: there is nothing to compare it with.' }));
    return box;
  }
  if (steps === null) {
    box.append(make('p', { class: 'note', text: 'The link holds new values, not differences. Give the base to compare them.' }));
    return box;
  }
  const found = BINS.map((bin) => steps.get(bin) ?? 0);
  const first = found.findIndex((count) => count > 0);
  if (first < 0) return box;
  // As many bins above as below, so that 0 is in the middle.
  const last = found.findLastIndex((count) => count > 0);
  const reach = Math.max(BINS.length / 2 - first, last - BINS.length / 2 + 1);
  const shown = BINS.slice(BINS.length / 2 - reach, BINS.length / 2 + reach);
  const items = shown.map((bin) => ({ label: bin, value: steps.get(bin) ?? 0, shown: percent((steps.get(bin) ?? 0) / changed) }));
  const one = (steps.get('+1') ?? 0) + (steps.get('−1') ?? 0);
  box.append(
    columns(items, { title: `Histogram of differences of ${row.name}; its numbers are in the table`, height: 220 }),
    make('p', { class: 'note', text: `${percent(one / changed)} move to the next value that ${row.dtype} has.` }),
    make('details', {}, make('summary', { text: 'Numbers' }),
      table(['Steps', 'Elements', 'Share'], items.filter((item) => item.value > 0)
        .map((item) => [item.label, grouped(item.value), item.shown]), 'Histogram of differences')));
  return box;
}
