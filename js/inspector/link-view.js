/** A link: facts about it, its changes to each tensor, its segments; check, verify, apply. */
import { emptyState, open } from '../src/index.js';
import { ensure } from '../src/errors.js';
import { digestOfTable } from '../src/state.js';
import { byId, copyButton, copyable, make, refusal, say, table } from './dom.js';
import { baseOf, fileWriter, layoutOf, save } from './base.js';
import { columns } from './charts.js';
import { layerMap } from './layer-map.js';
import { dropWork, newestTask, startReading, startTask, stopWork } from './long-work.js';
import { laneWord } from './rows.js';
import { drawTable, resetTable, startTable } from './tensor-table.js';
import { closeTensor, showTensor } from './tensor-view.js';
import { verdict } from './verdict.js';
import { counted, grouped, percent, size, times } from './words.js';

/** The segments of a remote file are read without asking if they have no more than so many bytes. */
const READ_UNASKED = 2 ** 24;
/** Size of an extension area up to which its records are shown, in bytes. */
const EXTENSION_BYTES = 2 ** 24;
/** Number of rows of the table of segments, and about how many columns of its chart. */
const SEGMENT_ROWS = 500;
const SEGMENT_COLUMNS = 60;
/** Characters of a metadata value that are shown as they are; a longer value is folded. */
const VALUE_CHARACTERS = 300;

/**
 * How the base of a link is built from its chain.
 * @typedef {object} BaseBuilder
 * @property {() => Promise<boolean>} isSmall true if the base may be built without asking
 * @property {(signal: AbortSignal) => Promise<import('../src/state.js').State>} build
 */

/**
 * The open link. `tensor` is the name of the tensor on show, if any; `chosen` is true if the user opened or closed one, and
 * then the page does not open another.
 * @typedef {object} OpenLink
 * @property {string} name
 * @property {import('../src/link.js').Link} link
 * @property {any[]} rows
 * @property {any} base
 * @property {string} baseName
 * @property {BaseBuilder | null} baseBuilder
 * @property {string | null} tensor
 * @property {boolean} chosen
 */

/** @type {OpenLink | null} */
let current = null;
/** Number of links opened so far: a slow one does not replace a later one. */
let opened = 0;
/** Element to focus when the tensor is closed. */
let focusAfterTensor = null;
/** Writes keys into the page's address: tensor, search, order. */
let remember = (_) => {};

/**
 * Opens a link and shows it.
 * @param {string} name
 * @param {() => Promise<import('../src/sources.js').Source>} source
 * @param {{ remote?: boolean, wish?: Record<string, string>, baseBuilder?: BaseBuilder | null, baseFiles?: File[] }} [options]
 *   `wish` is what the page's address asks for
 */
export async function showLink(name, source, { remote = false, wish = {}, baseBuilder = null, baseFiles = [] } = {}) {
  const mine = ++opened;
  dropWork();
  closeTensor();
  byId('link').hidden = true;
  say(`Reading ${name} …`);
  try {
    const link = await open(await source());
    if (mine !== opened) return;
    const shown = { name, link, rows: link.index.tensors.map(rowOf), base: null, baseName: '', baseBuilder, tensor: null, chosen: false };
    if (link.isSnapshot) Object.assign(shown, { base: emptyState(), baseName: 'nothing: the empty state' });
    current = shown;
    resetCard(wish);
    showFacts();
    showBase();
    drawTable(shown.rows);
    say('');
    byId('link').hidden = false;
    if (baseFiles.length > 0) await setBaseFiles(baseFiles);
    else if (baseBuilder !== null) await buildSmallBase(shown);
    if (mine !== opened) return;
    if (remote && link.header.segmentsLength > READ_UNASKED) offerReading();
    else await readSegments();
    if (mine === opened) showFirstTensor(wish.tensor);
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

/** Empties the card of the link before, and sets search and order. @param {Record<string, string>} wish */
function resetCard(wish) {
  for (const id of ['verdict', 'tiles', 'layers', 'segments']) byId(id).replaceChildren();
  result('');
  resetTable(wish);
}

/**
 * Opens the tensor that the address names, or else the busiest, unless the user has chosen or closed one meanwhile.
 * @param {string | undefined} wished an empty name says that the tensor was closed
 */
function showFirstTensor(wished) {
  if (current.chosen || wished === '') return;
  const name = wished ?? busiest();
  if (name !== null) selectTensor(name);
}

const lengthOf = (rows) => rows.reduce((sum, row) => sum + row.byteLength, 0);

/** Makes a row of the table of tensors before any segment is read: what the segments say is null. */
function rowOf(entry) {
  const { name, operation } = entry;
  const unread = { coded: null, share: null, bytes: null, bits_per_coded: null };
  if (operation === 'remove') return { name, operation, dtype: null, shape: null, lanes: 0, byteLength: 0, ...unread };
  const { dtype, shape, byteLength } = entry;
  return { name, operation, dtype: dtype.name, shape, lanes: byteLength / dtype.laneBytes, byteLength, ...unread };
}

/** Returns the name of the tensor with the most bytes of changes; null if none has any, or none was read. */
function busiest() {
  const changed = current.rows.filter((row) => row.coded > 0);
  return changed.reduce((best, row) => (best === null || row.bytes > best.bytes ? row : best), null)?.name ?? null;
}

function showFacts() {
  const { link, name, rows } = current;
  const { header, index } = link;
  byId('link-name').textContent = name;
  const facts = [
    ['Base', make('span', {}, copyable(header.base, 'the digest of the base'), link.isSnapshot ? ' the empty state' : '')],
    ['Target', copyable(header.target, 'the digest of the target')],
    ['Bytes', `${grouped(header.fileLength)} = header 128 + index ${grouped(header.indexStored)} + `
      + `${counted(index.segments.length, 'segment')} ${grouped(header.segmentsLength)}`
      + (header.extensionLength > 0 ? ` + extension area ${grouped(header.extensionLength)}` : '')],
    ['Tensors', `${grouped(rows.length)} listed; others stay as they are`],
    ['Profile', link.isDirect ? 'direct: no value is relative' : 'compact: relative values'],
    ...describedDtypes(index.tensors).map((text) => ['Described dtype', text]),
    ...index.metadata.map(([key, value]) => [key, value.length > VALUE_CHARACTERS ? longText(value) : value]),
  ];
  byId('facts').replaceChildren(...facts.flatMap(([term, fact]) => [make('dt', { text: term }), make('dd', {}, fact)]));
  if (header.extensionLength > 0) {
    showExtension(link).catch((error) => {
      if (current?.link === link) say(refusal(error), true);
    });
  }
}

/** Returns a line for each dtype that the link describes itself. @param {import('../src/link-index.js').TensorEntry[]} tensors */
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

/** Adds the records of the extension area to the facts. */
async function showExtension(link) {
  const lines = await extensionLines(link);
  if (current?.link !== link) return;
  byId('facts').append(make('dt', { text: 'Extension area' }),
    make('dd', {}, ...lines.map((text) => make('div', { text }))));
}

async function extensionLines(link) {
  if (link.header.extensionLength > EXTENSION_BYTES) return ['too long to show'];
  const records = await link.extension();
  if (records.length === 0) return ['no records'];
  return records.map(({ kind, data, crcMatches }) =>
    `record of kind ${kind}: ${counted(data.length, 'byte')}, ${crcMatches ? 'CRC right' : 'CRC mismatch: ignored'}`);
}

function longText(text) {
  return make('details', {}, make('summary', { text: `${text.slice(0, 120)} …` }), make('code', { text }));
}

/** Offers to read the segments, where this was not done at once or was stopped. */
function offerReading() {
  const { header } = current.link;
  const button = make('button', { type: 'button', text: `Read all segments (${size(header.segmentsLength)})` });
  button.addEventListener('click', () => {
    button.disabled = true;
    readOnDemand().catch((error) => say(refusal(error), true));
  });
  byId('verdict').replaceChildren(make('p', {}, 'What each tensor takes is in the segments. ', button));
}

async function readOnDemand() {
  const shown = current;
  try {
    await readSegments();
  } catch (error) {
    if (shown === current) throw error;
  }
  if (shown === current) showFirstTensor(undefined);
}

/** Reads all segments once, and shows the facts that need this. If the user stops it, it can be started again. */
async function readSegments() {
  const shown = current;
  let found;
  try {
    found = await startReading('Reading', (options) => shown.link.inspect({ ...options, segments: true }));
  } catch (error) {
    if (error?.name !== 'AbortError') throw error;
    if (shown === current) offerReading();
    return;
  }
  if (shown !== current) return;
  const lengths = new Map(shown.rows.map((row) => [row.name, row.byteLength]));
  shown.rows = found.tensors.map((row) => ({ ...row, byteLength: lengths.get(row.name) ?? 0 }));
  showVerdict(found);
  showTiles(found);
  byId('layers').replaceChildren(layerMap(shown.rows, chooseTensor) ?? '');
  showSegments(found.segment_details);
  drawTable(shown.rows);
}

function showVerdict(found) {
  const { headline, notes } = verdict({ ...found, tensors: current.rows });
  byId('verdict').replaceChildren(make('p', { class: 'headline', text: headline }),
    ...notes.map((text) => make('p', { text })));
}

function showTiles(found) {
  const { lanes, coded } = found.total;
  const plain = lengthOf(current.rows);
  const written = current.rows.filter((row) => row.operation !== 'remove');
  const tiles = [
    [found.snapshot ? 'all new' : percent(lanes === 0 ? 0 : coded / lanes), `of ${laneWord(written)} coded`],
    [size(found.bytes), 'this file'],
    [size(plain), 'the same tensors, whole'],
    [plain === 0 ? '–' : `${times(plain / found.bytes)} ×`, 'smaller'],
  ];
  byId('tiles').replaceChildren(...tiles.map(([value, text]) =>
    make('div', { class: 'tile' }, make('strong', { text: value }), make('span', { text }))));
}

/** @param {any[]} details */
function showSegments(details) {
  if (details.length === 0) return;
  // A column for each segment, or for each run of segments if there are many.
  const step = Math.ceil(details.length / SEGMENT_COLUMNS);
  const items = [];
  for (let i = 0; i < details.length; i += step) {
    const bytes = details.slice(i, i + step).reduce((sum, segment) => sum + segment.bytes, 0);
    items.push({ label: String(i), value: bytes, shown: size(bytes) });
  }
  const rows = details.slice(0, SEGMENT_ROWS).map((segment, i) => [String(i), grouped(segment.offset), grouped(segment.bytes),
    segment.positions, segment.values, grouped(segment.parts.length), String(segment.contexts.length),
    segment.streams.map((stream) => `${stream.name} ${grouped(stream.stored)}`).join(', ')]);
  const heads = ['Segment', 'Offset', 'Bytes', 'Positions', 'Values', 'Parts', 'Contexts', 'Streams (bytes)'];
  byId('segments').replaceChildren(make('details', {}, make('summary', { text: `${counted(details.length, 'segment')}: how it is coded` }),
    details.length > 1 ? columns(items, { title: 'Bytes of each segment; the table has the numbers', height: 120 }) : null,
    table(heads, rows, 'Segments'),
    details.length > SEGMENT_ROWS ? make('p', { class: 'note', text: `The first ${SEGMENT_ROWS} of ${grouped(details.length)}.` }) : null));
}

/** Shows a tensor. @param {string} name */
function selectTensor(name) {
  const row = current?.rows.find((one) => one.name === name);
  if (row === undefined) return;
  current.tensor = name;
  void showTensor(current.link, row, current.base);
}

/** Shows the tensor that the user chose, and goes there. @param {string} name */
function chooseTensor(name) {
  current.chosen = true;
  selectTensor(name);
  remember({ tensor: name });
  focusAfterTensor = document.activeElement;
  byId('tensor').scrollIntoView({ block: 'start' });
  byId('tensor-name').focus({ preventScroll: true });
}

/** Closes the tensor as the user wants. An empty name in the address keeps it closed. */
function dismissTensor() {
  closeTensor();
  current.chosen = true;
  current.tensor = null;
  remember({ tensor: '' });
  if (focusAfterTensor?.isConnected) focusAfterTensor.focus();
}

function showBase() {
  const { base, baseName, baseBuilder, link } = current;
  byId('base-says').textContent = base === null ? 'none yet: choose its files, or drop them anywhere on this page' : baseName;
  byId('verify').disabled = base === null;
  byId('apply').disabled = base === null;
  byId('build-base').hidden = base !== null || baseBuilder === null;
  byId('base-files').closest('label').hidden = link.isSnapshot;
}

/** Uses the base in dropped or chosen files. @param {File[]} files */
export async function setBaseFiles(files) {
  if (current === null) {
    say('This is a base. Open the link first, then drop its base.', true);
    return;
  }
  const names = files.map((file) => file.name).join(', ');
  await task('Reading the base', async (shown, options) => {
    await useBase(shown, await baseOf(files), `${names}: its digest is right`, options);
    return '';
  });
}

/** Builds the base at once if that may be done without asking. @param {OpenLink} shown */
async function buildSmallBase(shown) {
  const before = newestTask();
  // If the size of the work cannot be found out, the button that builds the base says why.
  const isSmall = await shown.baseBuilder.isSmall().catch(() => false);
  // The user may have chosen files of the base meanwhile.
  if (isSmall && shown === current && newestTask() === before) await buildBase();
}

async function buildBase() {
  await task('Building the base', async (shown, options) => {
    await useBase(shown, await shown.baseBuilder.build(options.signal), 'built from the chain; every digest on the way is right', options);
    return '';
  });
}

/**
 * Uses a base, if it is that of the link: a map made with another one would be wrong, and would not look wrong.
 * @param {OpenLink} shown
 * @param {import('../src/state.js').State} base
 * @param {string} baseName
 * @param {import('../src/work.js').WorkOptions} options
 */
async function useBase(shown, base, baseName, options) {
  const digest = digestOfTable(await base.table(options));
  ensure(digest === shown.link.header.base, 'R-APP-01', `the link belongs to ${shown.link.header.base}, this base is ${digest}`);
  options.signal?.throwIfAborted();
  if (current !== shown) return;
  Object.assign(shown, { base, baseName });
  showBase();
  if (shown.tensor !== null) selectTensor(shown.tensor);
}

/**
 * Runs the work of a button, and shows its result below the buttons.
 * @param {string} label
 * @param {(shown: OpenLink, options: import('../src/work.js').WorkOptions) => Promise<string>} job
 */
async function task(label, job) {
  const shown = current;
  result('');
  const done = startTask(label, (options) => job(shown, options));
  const signal = newestTask();
  try {
    const text = await done;
    if (shown === current) result(text);
  } catch (error) {
    if (shown !== current || signal !== newestTask()) return;
    const stopped = error?.name === 'AbortError';
    result(stopped ? `${label}: stopped.` : refusal(error), !stopped);
  }
}

function result(text, bad = false) {
  byId('result').textContent = text;
  byId('result').className = bad ? 'error' : 'good';
}

const check = () => task('Checking', async ({ link }, options) => {
  await link.check(options);
  return 'Every segment decodes. Whether the result is right needs the base.';
});

const verify = () => task('Verifying', async ({ link, base }, options) => {
  const tensors = await link.apply(base, null, options);
  return `Verified: the link belongs to this base, and gives exactly the target that it promises (${counted(tensors.size, 'tensor')}).`;
});

const apply = () => task('Applying', async ({ link, base, name }, options) => {
  const writer = fileWriter(link, base);
  await link.apply(base, writer, options);
  options.signal.throwIfAborted();
  const file = writer.file();
  save(file, `${name.replace(/\.dcf$/, '').replace(/[^\w.-]+/g, '-')}.safetensors`);
  const files = layoutOf(link)?.files.length ?? 1;
  const spread = files > 1 ? ` The model has ${files} files; its tensors are in one here.` : '';
  return `Applied, verified and saved: ${size(file.size)}.${spread}`;
});

/** Listens to the card. @param {(wish: Record<string, string>) => void} writeAddress writes keys into the page's address */
export function startLinkView(writeAddress) {
  remember = writeAddress;
  startTable(chooseTensor, writeAddress);
  byId('check').addEventListener('click', check);
  byId('verify').addEventListener('click', verify);
  byId('apply').addEventListener('click', apply);
  byId('build-base').addEventListener('click', buildBase);
  byId('stop').addEventListener('click', stopWork);
  byId('base-files').addEventListener('change', () => {
    const files = [...byId('base-files').files];
    byId('base-files').value = '';
    void setBaseFiles(files);
  });
  byId('tensor-close').addEventListener('click', dismissTensor);
  byId('permalink').append(copyButton(() => location.href, 'Copy the address of this view'));
}

/** Hides the link card and cancels its work. */
export function closeLink() {
  opened += 1;
  dropWork();
  closeTensor();
  current = null;
  byId('link').hidden = true;
}
