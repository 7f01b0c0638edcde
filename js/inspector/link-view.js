/** A link: facts about it, its changes to each tensor, its segments; check, verify, apply. */
import { emptyState, open } from '../src/index.js';
import { ensure } from '../src/errors.js';
import { digestOfTable } from '../src/state.js';
import { at, copyButton, copyable, make, refusal, say, table } from './dom.js';
import { baseOf, fileWriter, layoutOf, save } from './base.js';
import { columns } from './charts.js';
import { layerMap } from './layer-map.js';
import { closeTensor, showTensor } from './tensor-view.js';
import { verdict } from './verdict.js';
import { counted, grouped, percent, shapeText, size, times } from './words.js';

/** Maximum bytes of a remote file's segments that are read without a request of the user. */
const UNASKED = 2 ** 24;
/** Maximum bytes of a tensor whose base is built from a chain without a request of the user. */
const SMALL = 2 ** 26;
/** Maximum bytes of an extension area that is read. */
const AREA = 2 ** 24;
/** Number of rows that are drawn at first, and with each press of "more". */
const ROWS = 200;
const COLUMNS = [['name', 'Tensor'], ['share', 'Share'], ['coded', 'Coded'], ['lanes', 'Lanes'], ['bytes', 'Bytes'],
  ['bits_per_coded', 'Bits each'], ['operation', 'Operation'], ['dtype', 'Dtype'], ['shape', 'Shape']];
const NUMBERS = new Set(['share', 'coded', 'lanes', 'bytes', 'bits_per_coded']);

/**
 * The link that is shown.
 * @type {null | {
 *   name: string, link: import('../src/link.js').Link, rows: any[], read: boolean,
 *   base: any, baseName: string, prepareBase: (() => Promise<any>) | null,
 * }}
 */
let current = null;
/** Number of opened links, so that a slow link does not replace a later one. */
let opened = 0;
let order = { key: 'bytes', down: true };
let drawn = ROWS;
let work = new AbortController();
/** The element that had the focus when a tensor was chosen, and that gets it back. */
let chosenBy = null;
/** Called with the parts of the page's address: tensor, search, order. */
let remember = (_) => {};

/**
 * Opens a link and shows it.
 * @param {string} name
 * @param {() => Promise<import('../src/sources.js').Source>} source
 * @param {{ remote?: boolean, wish?: Record<string, string>, prepareBase?: (() => Promise<any>) | null, buildNow?:
 *   boolean, baseFiles?: File[] }} [options] `prepareBase` builds the base from a chain, and `buildNow` does so at
 *   once, if it is small; `wish` has the choices in the page's address
 */
export async function showLink(name, source, { remote = false, wish = {}, prepareBase = null, buildNow = false, baseFiles = [] } = {}) {
  const mine = ++opened;
  work.abort();
  closeTensor();
  at('link').hidden = true;
  say(`Reading ${name} …`);
  try {
    const link = await open(await source());
    if (mine !== opened) return;
    current = { name, link, rows: link.index.tensors.map(rowOf), read: false, base: null, baseName: '', prepareBase };
    if (link.isSnapshot) Object.assign(current, { base: emptyState(), baseName: 'nothing: the empty state' });
    if (wish.sort) order = { key: wish.sort.replace('-up', ''), down: !wish.sort.endsWith('-up') };
    at('search').value = wish.search ?? '';
    showFacts();
    say('');
    at('link').hidden = false;
    if (baseFiles.length > 0) await takeBase(baseFiles);
    if (buildNow && prepareBase !== null && lengthOf(current.rows) <= SMALL) await buildBase();
    if (mine !== opened) return;
    if (remote && link.header.segmentsLength > UNASKED) offerReading();
    else await readSegments(mine);
    if (mine !== opened || wish.tensor === '') return;
    selectTensor(wish.tensor ?? busiest(), false);
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

const lengthOf = (rows) => rows.reduce((sum, row) => sum + row.byteLength, 0);

/** Makes a row of the table before any segment was read. */
function rowOf(entry) {
  const { name, operation } = entry;
  const none = { coded: null, share: null, bytes: null, bits_per_coded: null, contexts: null, codings: [] };
  if (operation === 'remove') return { name, operation, dtype: null, shape: null, lanes: 0, byteLength: 0, ...none };
  const { dtype, shape, byteLength } = entry;
  return { name, operation, dtype: dtype.name, shape, lanes: byteLength / dtype.laneBytes, byteLength, ...none };
}

/** Returns the tensor with the most bytes of changes. */
function busiest() {
  const able = current.rows.filter((row) => row.coded > 0);
  return able.reduce((best, row) => (best === null || row.bytes > best.bytes ? row : best), null)?.name ?? '';
}

function showFacts() {
  const { link, name, rows } = current;
  const { header, index } = link;
  at('link-name').textContent = name;
  const facts = [
    ['Base', make('span', {}, copyable(header.base, 'the digest of the base'), link.isSnapshot ? ' the empty state' : '')],
    ['Target', copyable(header.target, 'the digest of the target')],
    ['Bytes', `${grouped(header.fileLength)} = header 128 + index ${grouped(header.indexStored)} + `
      + `${counted(index.segments.length, 'segment')} ${grouped(header.segmentsLength)}`
      + (header.extensionLength > 0 ? ` + extension area ${grouped(header.extensionLength)}` : '')],
    ['Tensors', `${grouped(rows.length)} listed; others stay as they are`],
    ['Profile', link.isDirect ? 'direct: no value is relative' : 'compact: relative values'],
    ...describedDtypes(index.tensors).map((text) => ['Described dtype', text]),
    ...index.metadata.map(([key, value]) => [key, value.length > 300 ? longText(value) : value]),
  ];
  at('facts').replaceChildren(...facts.flatMap(([term, fact]) => [make('dt', { text: term }), make('dd', {}, fact)]));
  at('verdict').replaceChildren();
  at('tiles').replaceChildren();
  at('layers').replaceChildren();
  at('segments').replaceChildren();
  result('');
  showBase();
  drawTable();
  if (header.extensionLength > 0) showExtension(link).catch((error) => say(refusal(error), true));
}

/**
 * Describes the link's dtypes that are in no table.
 * @param {import('../src/link-index.js').TensorEntry[]} tensors
 */
function describedDtypes(tensors) {
  const found = new Set();
  for (const entry of tensors) {
    if (entry.operation === 'remove' || entry.dtype.code !== 255) continue;
    const { name, bits, laneBytes, signMagnitude, exponentBits } = entry.dtype;
    const sign = signMagnitude ? `sign and magnitude, ${counted(exponentBits, 'exponent bit')}` : 'no sign of its own';
    found.add(`${name}: ${counted(bits, 'bit')} an element, lanes of ${counted(laneBytes, 'byte')}, ${sign}`);
  }
  return [...found];
}

/** Shows the records of the extension area. */
async function showExtension(link) {
  const { extensionLength } = link.header;
  const records = extensionLength <= AREA ? await link.extension() : null;
  if (current?.link !== link) return;
  const lines = records === null ? ['too long to look into'] : records.length === 0 ? ['no records'] : records.map(
    ({ kind, data, crcMatches }) => `record of kind ${kind}: ${counted(data.length, 'byte')}, ${crcMatches ? 'CRC right' : 'CRC wrong: it counts as not there'}`);
  at('facts').append(make('dt', { text: 'Extension area' }),
    make('dd', {}, ...lines.map((text) => make('div', { text }))));
}

function longText(text) {
  return make('details', {}, make('summary', { text: `${text.slice(0, 120)} …` }), make('code', { text }));
}

function offerReading() {
  const { header } = current.link;
  at('verdict').replaceChildren(make('p', {}, 'What each tensor takes is in the segments. ',
    make('button', { type: 'button', text: `Read all segments (${size(header.segmentsLength)})`,
      onclick: () => readSegments(opened).then(() => selectTensor(busiest(), false), (error) => say(refusal(error), true)) })));
}

/** Reads all segments once, and shows the facts that need them. */
async function readSegments(mine) {
  const shown = current;
  const found = await withProgress('Reading', (options) => shown.link.inspect({ ...options, segments: true }));
  if (mine !== opened) return;
  const lengths = new Map(shown.rows.map((row) => [row.name, row.byteLength]));
  shown.rows = found.tensors.map((row) => ({ ...row, byteLength: lengths.get(row.name) ?? 0 }));
  shown.read = true;
  const { headline, notes } = verdict({ ...found, tensors: shown.rows });
  at('verdict').replaceChildren(make('p', { class: 'headline', text: headline }),
    ...notes.map((text) => make('p', { text })));
  showTiles(found);
  at('layers').replaceChildren(layerMap(shown.rows, (name) => selectTensor(name, true)) ?? '');
  showSegments(found.segment_details);
  drawTable();
}

function showTiles(found) {
  const { lanes, coded } = found.total;
  const plain = lengthOf(current.rows);
  const tiles = [
    [found.snapshot ? 'all new' : percent(lanes === 0 ? 0 : coded / lanes), 'of elements coded'],
    [size(found.bytes), 'this file'],
    [size(plain), 'the same tensors, whole'],
    [plain === 0 ? '–' : `${times(plain / found.bytes)} ×`, 'smaller'],
  ];
  at('tiles').replaceChildren(...tiles.map(([value, text]) =>
    make('div', { class: 'tile' }, make('strong', { text: value }), make('span', { text }))));
}

/** @param {any[]} details */
function showSegments(details) {
  if (details.length === 0) return;
  // A column for each segment, or for each run of several, if there are many.
  const step = Math.ceil(details.length / 60);
  const items = [];
  for (let i = 0; i < details.length; i += step) {
    const own = details.slice(i, i + step);
    const bytes = own.reduce((sum, segment) => sum + segment.bytes, 0);
    items.push({ label: String(i), value: bytes, shown: size(bytes) });
  }
  const rows = details.slice(0, 500).map((segment, i) => [String(i), grouped(segment.offset), grouped(segment.bytes),
    segment.positions, segment.values, grouped(segment.parts.length), String(segment.contexts.length),
    segment.streams.map((stream) => `${stream.name} ${grouped(stream.stored)}`).join(', ')]);
  const heads = ['Segment', 'Offset', 'Bytes', 'Positions', 'Values', 'Parts', 'Contexts', 'Streams (bytes)'];
  at('segments').replaceChildren(make('details', {}, make('summary', { text: `${counted(details.length, 'segment')}: how it is coded` }),
    details.length > 1 ? columns(items, { title: 'Bytes of each segment; the table has the numbers', height: 120 }) : null,
    table(heads, rows, 'Segments'),
    details.length > 500 ? make('p', { class: 'note', text: `The first 500 of ${grouped(details.length)}.` }) : null));
}

function sorted(rows) {
  const { key, down } = order;
  const value = (row) => (key === 'shape' ? shapeText(row.shape) : row[key]);
  const by = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === y) return 0;
    // Unknown values come last in any order.
    if (x === null || y === null) return x === null ? 1 : -1;
    return (x < y ? -1 : 1) * (down ? -1 : 1);
  };
  return [...rows].sort(by);
}

function drawTable() {
  if (current === null) return;
  const wanted = at('search').value.toLowerCase();
  const found = sorted(current.rows.filter((row) => row.name.toLowerCase().includes(wanted)));
  // The length of a bar is relative to the other rows.
  const highest = (key) => current.rows.reduce((most, row) => Math.max(most, row[key] ?? 0), Number.MIN_VALUE);
  const most = { bytes: highest('bytes'), share: highest('share') };
  at('rows').replaceChildren(...found.slice(0, drawn).map((row) => make('tr', {}, ...COLUMNS.map(([key]) => cell(row, key, most)))));
  at('count').textContent = wanted === '' ? counted(found.length, 'tensor') : `${grouped(found.length)} of ${counted(current.rows.length, 'tensor')}`;
  at('more').hidden = found.length <= drawn;
  for (const head of at('columns').children) {
    head.ariaSort = head.dataset.key !== order.key ? 'none' : order.down ? 'descending' : 'ascending';
  }
}

function cell(row, key, most) {
  if (key === 'name') {
    return make('td', { 'data-key': key, class: 'name' }, make('button', { type: 'button', class: 'plain', text: row.name, onclick: () => selectTensor(row.name, true) }));
  }
  const value = row[key];
  if (key === 'shape') return make('td', { 'data-key': key, text: shapeText(value) });
  if (!NUMBERS.has(key)) return make('td', { 'data-key': key, text: value ?? '' });
  const text = value === null ? '' : key === 'share' ? percent(value) : key === 'bits_per_coded' ? value.toFixed(1) : grouped(value);
  if (key !== 'share' && key !== 'bytes') return make('td', { 'data-key': key, class: 'number', text });
  const bar = make('span', { class: 'bar' });
  bar.style.setProperty('--part', String((value ?? 0) / most[key]));
  return make('td', { 'data-key': key, class: 'number barred', text }, bar);
}

/** @param {string} name @param {boolean} scroll whether to scroll there, because the user chose it */
function selectTensor(name, scroll) {
  const row = current?.rows.find((one) => one.name === name);
  if (row === undefined) return;
  void showTensor(current.link, row, current.base);
  if (!scroll) return;
  remember({ tensor: name });
  chosenBy = document.activeElement;
  at('tensor').scrollIntoView({ block: 'start' });
  at('tensor-name').focus({ preventScroll: true });
}

function showBase() {
  const { base, baseName, prepareBase, link } = current;
  at('base-says').textContent = base === null ? 'none yet: choose its files, or drop them anywhere on this page' : baseName;
  at('verify').disabled = base === null;
  at('apply').disabled = base === null;
  at('build-base').hidden = base !== null || prepareBase === null;
  at('base-files').closest('label').hidden = link.isSnapshot;
}

/** Sets the base to files that were dropped or chosen. @param {File[]} files */
export async function takeBase(files) {
  if (current === null) {
    say('This is a base. Open the link first, then drop its base.', true);
    return;
  }
  const shown = current;
  await task('Reading the base', async (options) => {
    const base = await baseOf(files);
    // A map made with another base would be wrong, without a sign of it.
    const digest = digestOfTable(await base.table(options));
    ensure(digest === shown.link.header.base, 'R-APP-01', `the link belongs to ${shown.link.header.base}, this base is ${digest}`);
    if (current === shown) useBase(base, `${files.map((file) => file.name).join(', ')}: its digest is right`);
    return '';
  });
}

function useBase(base, baseName) {
  Object.assign(current, { base, baseName });
  showBase();
  if (!at('tensor').hidden) selectTensor(at('tensor-name').textContent, false);
}

async function buildBase() {
  const shown = current;
  await task('Building the base', async () => {
    const base = await shown.prepareBase();
    if (current === shown) useBase(base, 'built from the chain; every digest on the way is right');
    return '';
  });
}

/** Runs long work with the progress bar and a button that ends it. */
async function withProgress(label, job) {
  work.abort();
  const own = new AbortController();
  work = own;
  const bar = at('progress');
  at('working').hidden = false;
  at('working-label').textContent = label;
  bar.removeAttribute('value');
  const progress = (done, total) => { bar.value = total === 0 ? 1 : done / total; };
  try {
    return await job({ progress, signal: own.signal });
  } finally {
    if (work === own) at('working').hidden = true;
  }
}

/** Runs work that a button started, and shows its result below the buttons. */
async function task(label, job) {
  const shown = current;
  result('');
  try {
    const text = await withProgress(label, job);
    if (shown === current) result(text);
  } catch (error) {
    const ended = error?.name === 'AbortError';
    if (shown === current) result(ended ? `${label}: ended.` : refusal(error), !ended);
  }
}

function result(text, bad = false) {
  at('result').textContent = text;
  at('result').className = bad ? 'error' : 'good';
}

const check = () => task('Checking', async (options) => {
  await current.link.check(options);
  return 'Every segment decodes. Whether the result is right needs the base.';
});

const verify = () => task('Verifying', async (options) => {
  const table = await current.link.apply(current.base, null, options);
  return `Verified: the link belongs to this base, and gives exactly the target that it promises (${counted(table.size, 'tensor')}).`;
});

const apply = () => task('Applying', async (options) => {
  const { link, base, name } = current;
  const writer = fileWriter(link, base);
  await link.apply(base, writer, options);
  const file = writer.file();
  save(file, `${name.replace(/\.dcf$/, '').replace(/[^\w.-]+/g, '-')}.safetensors`);
  const files = layoutOf(link)?.files.length ?? 1;
  const spread = files > 1 ? ` The model has ${files} files; its tensors are in one here.` : '';
  return `Applied, verified and saved: ${size(file.size)}.${spread}`;
});

/** @param {(wish: Record<string, string>) => void} changed called with the parts of the page's address */
export function startLinkView(changed) {
  remember = changed;
  for (const [key, title] of COLUMNS) {
    const button = make('button', { type: 'button', class: 'plain', text: title });
    button.onclick = () => {
      order = { key, down: order.key === key ? !order.down : NUMBERS.has(key) };
      remember({ sort: `${key}${order.down ? '' : '-up'}` });
      drawTable();
    };
    const head = make('th', { scope: 'col', class: NUMBERS.has(key) ? 'number' : '' }, button);
    head.dataset.key = key;
    at('columns').append(head);
  }
  at('search').addEventListener('input', () => {
    drawn = ROWS;
    remember({ search: at('search').value });
    drawTable();
  });
  at('more').addEventListener('click', () => { drawn += 5 * ROWS; drawTable(); });
  at('check').addEventListener('click', check);
  at('verify').addEventListener('click', verify);
  at('apply').addEventListener('click', apply);
  at('build-base').addEventListener('click', buildBase);
  at('stop').addEventListener('click', () => work.abort());
  at('base-files').addEventListener('change', () => {
    const files = [...at('base-files').files];
    at('base-files').value = '';
    void takeBase(files);
  });
  at('tensor-close').addEventListener('click', () => {
    closeTensor();
    remember({ tensor: '' });
    if (chosenBy?.isConnected) chosenBy.focus();
  });
  at('permalink').append(copyButton(() => location.href, 'Copy the address of this view'));
}

/** Closes the shown link, when something else is opened. */
export function closeLink() {
  opened += 1;
  work.abort();
  closeTensor();
  current = null;
  at('link').hidden = true;
}
