/** The share of changed elements by layer and kind of tensor, where names have layers: the shape of a training step. */
import { make } from './dom.js';
import { percent } from './words.js';

/** Maximum number of kinds of tensors in the map. */
const KINDS = 40;

/**
 * @param {any[]} rows of the table of tensors
 * @param {(name: string) => void} choose called with a tensor's name
 * @returns {HTMLElement | null} null if there are not several layers
 */
export function layerMap(rows, choose) {
  /** @type {Map<string, Map<number, any>>} */
  const kinds = new Map();
  const layers = new Set();
  for (const row of rows) {
    const parts = /^(.*?)\.(\d+)\.(.*)$/.exec(row.name);
    if (parts === null || row.operation === 'remove' || parts[2].length > 4) continue;
    const layer = Number(parts[2]);
    const kind = parts[3];
    layers.add(layer);
    kinds.set(kind, (kinds.get(kind) ?? new Map()).set(layer, row));
  }
  if (layers.size < 2) return null;
  const across = [...layers].sort((a, b) => a - b);
  const weight = (own) => [...own.values()].reduce((sum, row) => sum + row.lanes, 0);
  const down = [...kinds].sort((a, b) => weight(b[1]) - weight(a[1])).slice(0, KINDS);
  const most = Math.max(...down.flatMap(([, own]) => [...own.values()].map((row) => row.share ?? 0)), Number.MIN_VALUE);
  const head = make('tr', {}, make('th', { scope: 'col', text: 'Layer' }), ...across.map((layer) => make('th', { scope: 'col', text: String(layer) })));
  const lines = down.map(([kind, own]) => make('tr', {}, make('th', { scope: 'row', text: kind }), ...across.map((layer) => {
    const row = own.get(layer);
    if (row === undefined) return make('td', { class: 'none' });
    const cell = make('button', { type: 'button', class: 'cell', title: `${row.name}: ${percent(row.share)}`,
      'aria-label': `${row.name}: ${percent(row.share)}`, onclick: () => choose(row.name) });
    cell.style.setProperty('--part', String(Math.sqrt((row.share ?? 0) / most)));
    return make('td', {}, cell);
  })));
  return make('div', {}, make('h4', { text: 'Changed, by layer and kind of tensor' }),
    make('p', { class: 'note', text: `The darkest cell has ${percent(most)}. Press a cell to see its tensor.` }),
    make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Changed by layer' },
      make('table', { class: 'layers' }, make('thead', {}, head), make('tbody', {}, ...lines))));
}
