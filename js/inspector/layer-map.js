/** The share of changed elements by layer and kind of tensor, where names have layers: the shape of a training step. */
import { make } from './dom.js';
import { percent } from './words.js';

/** Number of kinds of tensors that are shown. */
const SHOWN_KINDS = 40;
/** A longer number in a name is an identifier, not a layer. */
const LAYER_DIGITS = 4;

/**
 * Rows of the table of tensors by kind and layer. Names such as `encoder.layers.11.fc1.weight` have a layer, here 11. Their
 * kind is the rest: `encoder.layers` and `decoder.layers` of one model have kinds of their own.
 * @param {any[]} rows
 * @returns {{ layers: number[], kinds: { name: string, byLayer: Map<number, any> }[] }} layers ascending, large kinds first
 */
export function byKindAndLayer(rows) {
  /** @type {Map<string, { prefix: string, suffix: string, byLayer: Map<number, any> }>} */
  const kinds = new Map();
  for (const row of rows) {
    const [, prefix, digits, suffix] = /^(.*?)\.(\d+)\.(.*)$/.exec(row.name) ?? [];
    if (prefix === undefined || row.operation === 'remove' || digits.length > LAYER_DIGITS) continue;
    const key = JSON.stringify([prefix, suffix]);
    const kind = kinds.get(key) ?? { prefix, suffix, byLayer: new Map() };
    kinds.set(key, kind);
    kind.byLayer.set(Number(digits), row);
  }
  const all = [...kinds.values()];
  const layers = [...new Set(all.flatMap(({ byLayer }) => [...byLayer.keys()]))].sort((a, b) => a - b);
  const onePrefix = new Set(all.map(({ prefix }) => prefix)).size === 1;
  const lanes = ({ byLayer }) => [...byLayer.values()].reduce((sum, row) => sum + row.lanes, 0);
  all.sort((a, b) => lanes(b) - lanes(a));
  return { layers, kinds: all.map(({ prefix, suffix, byLayer }) => ({ name: onePrefix ? suffix : `${prefix}.*.${suffix}`, byLayer })) };
}

/**
 * Makes the map.
 * @param {any[]} rows of the table of tensors
 * @param {(name: string) => void} choose called with a tensor's name
 * @returns {HTMLElement | null} null if there are not several layers
 */
export function layerMap(rows, choose) {
  const { layers, kinds } = byKindAndLayer(rows);
  if (layers.length < 2) return null;
  const shown = kinds.slice(0, SHOWN_KINDS);
  const shares = shown.flatMap(({ byLayer }) => [...byLayer.values()].map((row) => row.share ?? 0));
  const highest = Math.max(...shares, Number.MIN_VALUE);
  const head = make('tr', {}, make('th', { scope: 'col', text: 'Layer' }), ...layers.map((layer) => make('th', { scope: 'col', text: String(layer) })));
  const lines = shown.map(({ name, byLayer }) => make('tr', {}, make('th', { scope: 'row', text: name }),
    ...layers.map((layer) => cell(byLayer.get(layer), highest, choose))));
  const more = kinds.length > shown.length ? ` Of ${kinds.length} kinds, the ${shown.length} largest are shown.` : '';
  return make('div', {}, make('h4', { text: 'Changed, by layer and kind of tensor' }),
    make('p', { class: 'note', text: `The darkest cell has ${percent(highest)}. Press a cell to see its tensor.${more}` }),
    make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Changed by layer' },
      make('table', { class: 'layers' }, make('thead', {}, head), make('tbody', {}, ...lines))));
}

/** @param {any} row undefined if this layer has no such tensor @param {number} highest share @param {(name: string) => void} choose */
function cell(row, highest, choose) {
  if (row === undefined) return make('td', { class: 'none' });
  const text = `${row.name}: ${percent(row.share)}`;
  const button = make('button', { type: 'button', class: 'cell', title: text, 'aria-label': text, onclick: () => choose(row.name) });
  // The square root, so that small shares can be told from none.
  button.style.setProperty('--part', String(Math.sqrt((row.share ?? 0) / highest)));
  return make('td', {}, button);
}
