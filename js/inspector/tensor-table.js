/** The table of the tensors of the open link: sorted, searched, and drawn as far as the user wants. */
import { byId, make } from './dom.js';
import { sortedRows } from './rows.js';
import { counted, grouped, percent, shapeText } from './words.js';

/** Number of rows that are drawn at first; "More rows" draws five times as many more. */
const ROWS = 200;
/** Key and title of each column. */
const COLUMNS = [['name', 'Tensor'], ['share', 'Share'], ['coded', 'Coded'], ['lanes', 'Lanes'], ['bytes', 'Bytes'],
  ['bits_per_coded', 'Bits each'], ['operation', 'Operation'], ['dtype', 'Dtype'], ['shape', 'Shape']];
const NUMBERS = new Set(['share', 'coded', 'lanes', 'bytes', 'bits_per_coded']);

/** Rows of the open link. @type {any[]} */
let rows = [];
let order = { key: 'bytes', down: true };
/** Number of rows that are drawn. */
let drawn = ROWS;
/** Shows the tensor of this name. */
let choose = (_) => {};

/** Prepares for another link. @param {Record<string, string>} wish `search` and `sort` of the page's address */
export function resetTable({ search = '', sort }) {
  drawn = ROWS;
  byId('search').value = search;
  if (sort) order = { key: sort.replace('-up', ''), down: !sort.endsWith('-up') };
}

/** Draws the table of these rows. @param {any[]} [newRows] the rows before, if not given */
export function drawTable(newRows = rows) {
  rows = newRows;
  const wanted = byId('search').value.toLowerCase();
  const found = sortedRows(rows.filter((row) => row.name.toLowerCase().includes(wanted)), order);
  // The length of a bar is relative to the other rows.
  const highest = (key) => rows.reduce((most, row) => Math.max(most, row[key] ?? 0), Number.MIN_VALUE);
  const most = { bytes: highest('bytes'), share: highest('share') };
  byId('rows').replaceChildren(...found.slice(0, drawn).map((row) => make('tr', {}, ...COLUMNS.map(([key]) => cell(row, key, most)))));
  byId('count').textContent = wanted === '' ? counted(found.length, 'tensor') : `${grouped(found.length)} of ${counted(rows.length, 'tensor')}`;
  byId('more').hidden = found.length <= drawn;
  for (const head of byId('columns').children) {
    if (head.dataset.key !== order.key) head.ariaSort = 'none';
    else head.ariaSort = order.down ? 'descending' : 'ascending';
  }
}

/** @param {any} row @param {string} key of a column @param {{ bytes: number, share: number }} most of all rows */
function cell(row, key, most) {
  if (key === 'name') {
    const button = make('button', { type: 'button', class: 'plain', text: row.name, onclick: () => choose(row.name) });
    return make('td', { 'data-key': key, class: 'name' }, button);
  }
  const text = cellText(row[key], key);
  if (!NUMBERS.has(key)) return make('td', { 'data-key': key, text });
  if (key !== 'share' && key !== 'bytes') return make('td', { 'data-key': key, class: 'number', text });
  const bar = make('span', { class: 'bar' });
  bar.style.setProperty('--part', String((row[key] ?? 0) / most[key]));
  return make('td', { 'data-key': key, class: 'number barred', text }, bar);
}

/** @param {any} value null if it is not known, or a removed tensor has none @param {string} key */
function cellText(value, key) {
  if (value === null) return '';
  if (key === 'shape') return shapeText(value);
  if (!NUMBERS.has(key)) return value;
  if (key === 'share') return percent(value);
  return key === 'bits_per_coded' ? value.toFixed(1) : grouped(value);
}

/**
 * Makes the heads of the columns, and listens to the table.
 * @param {(name: string) => void} chooseTensor called with the name of the tensor that the user chooses
 * @param {(wish: Record<string, string>) => void} remember writes keys into the page's address
 */
export function startTable(chooseTensor, remember) {
  choose = chooseTensor;
  for (const [key, title] of COLUMNS) {
    const button = make('button', { type: 'button', class: 'plain', text: title });
    button.addEventListener('click', () => {
      order = { key, down: order.key === key ? !order.down : NUMBERS.has(key) };
      remember({ sort: `${key}${order.down ? '' : '-up'}` });
      drawTable();
    });
    const head = make('th', { scope: 'col', class: NUMBERS.has(key) ? 'number' : '' }, button);
    head.dataset.key = key;
    byId('columns').append(head);
  }
  byId('search').addEventListener('input', () => {
    drawn = ROWS;
    remember({ search: byId('search').value });
    drawTable();
  });
  byId('more').addEventListener('click', () => {
    drawn += 5 * ROWS;
    drawTable();
  });
}
