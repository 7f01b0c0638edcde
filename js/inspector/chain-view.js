/** A chain: its versions and routes, sizes and sparsity over time, the path of a late joiner, raw documents. */
import { byId, copyButton, copyable, make, refusal, say, table } from './dom.js';
import { ChainData } from './chain-data.js';
import { arcs, columns } from './charts.js';
import { showLink } from './link-view.js';
import { showTrust, showsSigners, signersCell, startTrust, trusted, trustedKeys } from './trust.js';
import { chainVerdict } from './verdict.js';
import { counted, grouped, percent, size } from './words.js';

/** @typedef {import('./chain-data.js').Version} Version */
/** @typedef {import('../src/documents.js').Route} Route */

/** Number of versions that are read at first, and with each press of "Earlier versions". */
const VERSIONS = 32;
/** Changes are counted without asking if this reads no more than so many bytes. */
const COUNT_UNASKED = 2 ** 22;
/** A base is built without asking if this reads and writes no more than so many bytes. */
const BUILD_UNASKED = 2 ** 26;

/** The open chain. @type {ChainData | null} */
let current = null;
/** Number of chains opened so far: a slow one does not replace a later one. */
let opened = 0;
/** The first version on show. */
let first = 0;
/** Changed and all lanes by version. @type {Map<number, { coded: number, lanes: number }>} */
let shares = new Map();
/** The version whose link is shown. */
let selectedVersion = -1;
/** Number of plans asked for so far: a slow one does not replace a later one. */
let plans = 0;
/** Writes keys into the page's address. */
let remember = (_) => {};
/** True if the chain is local: then small bases may be built at once. */
let local = false;
/** Tells whether the page can open a link of the chain: one written by `inspect --html` may have none. */
let hasLink = (_digest) => true;

/**
 * Opens a chain and shows it.
 * @param {string} name
 * @param {import('../src/store.js').Store} store
 * @param {{ remote: boolean, intro?: boolean, wish?: Record<string, string>, hasLink?: (digest: string) => boolean }} options
 *   `intro`: with the introduction to the excerpt; `wish`: what the page's address asks for; `hasLink`: false for links
 *   that cannot be opened, by default none
 */
export async function showChain(name, store, { remote, intro = false, wish = {}, hasLink: openable = () => true }) {
  const mine = ++opened;
  byId('chain').hidden = true;
  say(`Reading ${name} …`);
  try {
    const data = new ChainData(store);
    await data.open();
    const start = Math.max(0, data.head - VERSIONS + 1);
    await data.load(start, data.head);
    await updateSigners(data);
    if (mine !== opened) return;
    current = data;
    first = start;
    shares = new Map();
    selectedVersion = -1;
    local = !remote;
    hasLink = openable;
    byId('chain-name').textContent = name;
    byId('intro').hidden = !intro;
    byId('unlisted').hidden = store.list !== undefined;
    byId('chain').hidden = false;
    say('');
    showAll();
    const version = wish.version === undefined ? data.head : Number(wish.version);
    await openVersion(version, { ...wish, quiet: true });
    await countWithoutAsking(mine);
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

/** Finds the signers of a chain's versions, again if the user changes the keys meanwhile. @param {ChainData} data */
async function updateSigners(data) {
  for (;;) {
    const keys = trustedKeys();
    const signers = await data.findSigners(keys);
    if (keys !== trustedKeys()) continue;
    data.setSigners(keys, signers);
    return;
  }
}

/** True if the page can open all links of a route. @param {Route} route */
const isOpenable = (route) => route.files.every(({ digest }) => hasLink(digest));

/** True if the page can open each link of the versions on show. */
const hasAllLinks = () => current.known.every(({ routes }) => routes.every(isOpenable));

/** True if the version's main route can be opened. @param {Version} version */
function hasMainLink(version) {
  const route = current.mainRoute(version);
  return route !== null && isOpenable(route);
}

function showAll() {
  showFacts();
  showChainVerdict();
  byId('unlinked').hidden = hasAllLinks();
  byId('earlier').hidden = first === 0;
  showVersions();
  showSignatures();
  showAssets();
  showCharts();
  showJoiner();
  showDocuments();
}

function showFacts() {
  const { known, head, chainDigest } = current;
  byId('chain-facts').replaceChildren(...[
    ['Newest version', String(head)],
    ['Shards', grouped(current.versions.get(head).commit.shards.length)],
    ['Shown', `${counted(known.length, 'version')}, ${size(bytesOf(known))}`],
    ['Digest of chain.json', copyable(chainDigest, 'the digest of chain.json')],
  ].flatMap(([term, fact]) => [make('dt', { text: term }), make('dd', {}, fact)]));
}

function showChainVerdict() {
  const versions = current.known.map((version) => {
    const route = current.mainRoute(version);
    return { version: version.version, from: route?.from ?? null, bytes: route === null ? null : Number(route.bytes) };
  });
  const { headline, notes } = chainVerdict(versions);
  byId('chain-verdict').replaceChildren(make('p', { class: 'headline', text: headline }),
    ...notes.map((text) => make('p', { text })));
}

/** Bytes of the main routes of versions. @param {Version[]} versions */
const bytesOf = (versions) => versions.reduce((sum, version) => sum + Number(current.mainRoute(version)?.bytes ?? 0), 0);

/** Shows the files beside the weights of the newest version; their names may have folders. */
function showAssets() {
  const { assets } = current.versions.get(current.head).commit;
  const rows = assets.map((asset) => [asset.name, size(asset.size), copyable(asset.digest.slice(0, 12), 'the beginning of the digest')]);
  byId('assets').replaceChildren(assets.length === 0 ? '' : make('details', {},
    make('summary', { text: `${counted(assets.length, 'asset')} of version ${current.head}` }),
    table(['Name', 'Bytes', 'Digest'], rows, 'Assets')));
}

function showSignatures() {
  const data = current;
  showTrust(data, () => data === current).catch((error) => say(refusal(error), true));
}

function showVersions() {
  const signers = showsSigners(current);
  // Links say how much changed; without any there is no such column.
  const countable = steps().length === 0 || steps().some(hasMainLink);
  const rows = current.known.reverse().map((version) => {
    const share = shares.get(version.version);
    return [
      String(version.version),
      routesCell(version),
      ...(countable ? [share === undefined ? '' : percent(share.lanes === 0 ? 0 : share.coded / share.lanes)] : []),
      notesText(version),
      copyable(version.commit.state.slice(0, 12), 'the beginning of the state digest'),
      ...(signers ? [signersCell(current, version)] : []),
    ];
  });
  const routes = current.known.some((version) => version.routes.some(isOpenable)) ? 'Routes: press one to open its link' : 'Routes';
  byId('versions').replaceChildren(table(
    ['Version', routes, ...(countable ? ['Changed'] : []), 'Notes', 'State', ...(signers ? ['Signatures'] : [])], rows, 'Versions'));
}

/** Makes a button for each file of each route that can be opened, and a text for each other one. @param {Version} version */
function routesCell({ version, routes }) {
  if (routes.length === 0) return make('span', { class: 'note', text: 'none: this version has been pruned' });
  return make('span', {}, ...routes.map((route) => make('span', { class: 'routes' },
    ...route.files.map((file, shard) => fileCell(version, route, shard, fileText(route, file, shard))))));
}

/** @param {number} version @param {Route} route @param {number} shard @param {string} text */
function fileCell(version, route, shard, text) {
  if (!hasLink(route.files[shard].digest)) return make('span', { text });
  const onclick = () => openRoute(version, route, shard, { scroll: true });
  return make('button', { type: 'button', class: 'link', text, onclick });
}

/** @param {Route} route @param {{ size: number }} file @param {number} shard */
function fileText(route, file, shard) {
  const parts = [route.from === null ? 'snapshot' : `from ${route.from}`];
  if (route.files.length > 1) parts.push(`shard ${shard}`);
  // Routes from nothing are direct anyway.
  if (route.from !== null && route.direct) parts.push('direct');
  parts.push(size(file.size));
  return parts.join(' · ');
}

/** Returns the commit's metadata but what the format defines. @param {Version} version */
function notesText({ commit }) {
  const notes = commit.metadata.filter(([key]) => !key.startsWith('deltachain.')).map(([key, value]) => `${key}=${value}`).join(' ');
  return notes.length > 80 ? `${notes.slice(0, 80)} …` : notes;
}

function showCharts() {
  byId('chain-charts').replaceChildren(bytesChart(), changesChart());
}

/** Versions whose main route is no snapshot. */
const steps = () => current.known.filter((version) => (current.mainRoute(version)?.from ?? null) !== null);

/** Makes a column of a version, which opens its link if the page has it. @param {Version} record @param {number} value @param {string} shown */
function columnOf(record, value, shown) {
  const { version } = record;
  const press = hasMainLink(record) ? () => openVersion(version, { scroll: true }) : undefined;
  return { label: String(version), value, shown, mark: version === selectedVersion, press };
}

function bytesChart() {
  const items = steps().map((version) => {
    const { bytes } = current.mainRoute(version);
    return columnOf(version, Number(bytes), size(bytes));
  });
  // A snapshot would make all other columns invisible.
  const snapshots = current.known.filter((version) => current.mainRoute(version)?.from === null)
    .map((version) => `version ${version.version} (${size(current.mainRoute(version).bytes)})`).join(', ');
  return make('section', {}, make('h4', { text: 'Bytes of each step' }),
    columns(items, { title: 'Bytes of the link to each version; the table of versions has the numbers' }),
    snapshots === '' ? null : make('p', { class: 'note', text: `Not drawn, because they hold whole models: ${snapshots}.` }));
}

function changesChart() {
  const box = make('section', {}, make('h4', { text: 'Changed share of each step' }));
  if (!steps().some(hasMainLink)) {
    box.append(make('p', { class: 'note', text: 'How much changed is in the links, which this page does not have.' }));
    return box;
  }
  const items = steps().filter(({ version }) => shares.has(version)).map((version) => {
    const { coded, lanes } = shares.get(version.version);
    const share = coded / Math.max(1, lanes);
    return columnOf(version, share, percent(share));
  });
  if (items.length > 0) {
    box.append(columns(items, { title: 'Share of changed elements by version; the table of versions has the numbers' }),
      make('p', { class: 'note', text: 'Of the tensors that the link touches.' }));
  }
  const left = uncounted();
  if (left.length > 0) {
    box.append(make('button', { type: 'button', text: `Count them (reads ${size(bytesOf(left))})`,
      onclick: () => count(opened).catch((error) => say(refusal(error), true)) }));
  }
  return box;
}

const uncounted = () => steps().filter((version) => hasMainLink(version) && !shares.has(version.version));

/** @param {number} mine value of `opened` for this chain */
async function countWithoutAsking(mine) {
  if (mine === opened && bytesOf(uncounted()) <= COUNT_UNASKED) await count(mine);
}

/** Counts the changes of each step. A step that cannot be read does not stop the others. @param {number} mine */
async function count(mine) {
  const data = current;
  let failure = null;
  for (const version of uncounted()) {
    let found = null;
    try {
      found = await data.countChanged(data.mainRoute(version));
    } catch (error) {
      failure ??= `Version ${version.version} could not be counted: ${refusal(error)}`;
    }
    if (mine !== opened) return;
    if (found !== null) shares.set(version.version, found);
  }
  showVersions();
  showCharts();
  if (failure !== null) say(failure, true);
}

/** Opens the link of a version that the wish names, or that of its main route. @param {number} version @param {Record<string, any>} wish */
async function openVersion(version, wish) {
  const record = current.versions.get(version);
  if (record === undefined) {
    say(`Version ${version} is not loaded: press "Earlier versions".`, true);
    return;
  }
  const wished = wish.from === undefined ? undefined : record.routes.find((route) => String(route.from) === wish.from);
  const route = wished ?? current.mainRoute(record);
  if (route === null) {
    say(`No route leads to version ${version}.`, true);
    return;
  }
  // A page without links says so above the versions.
  if (!isOpenable(route)) return;
  const shard = Number(wish.shard ?? 0);
  await openRoute(version, route, route.files[shard] === undefined ? 0 : shard, wish);
}

/** Opens one file of a route. @param {number} version @param {Route} route @param {number} shard @param {Record<string, any>} wish */
async function openRoute(version, route, shard, wish) {
  const data = current;
  selectedVersion = version;
  if (!wish.quiet) remember({ version: String(version), from: String(route.from), shard: String(shard), tensor: undefined, search: undefined });
  showCharts();
  const { digest } = route.files[shard];
  const source = async () => {
    const file = await data.store.open(`files/${digest}.dcf`);
    if (file === null) throw new Error(`the file ${digest} is missing`);
    return file;
  };
  await showLink(linkName(version, route, shard), source, { remote: !local, wish, baseBuilder: baseBuilder(data, route, shard) });
  if (wish.scroll) byId('link').scrollIntoView({ block: 'start', behavior: 'smooth' });
}

/** @param {number} version @param {Route} route @param {number} shard */
function linkName(version, route, shard) {
  const start = route.from === null ? 'nothing' : `version ${route.from}`;
  return `${start} to version ${version}${route.files.length > 1 ? `, shard ${shard}` : ''}`;
}

/**
 * Says how the base of a route is built; null if it has none.
 * @param {ChainData} data
 * @param {Route} route
 * @param {number} shard
 * @returns {import('./link-view.js').BaseBuilder | null}
 */
function baseBuilder(data, { from }, shard) {
  if (from === null || !hasAllLinks()) return null;
  const atOnce = local;
  return {
    isSmall: async () => atOnce && (await data.bytesToBuild(from, shard, BUILD_UNASKED)) <= BUILD_UNASKED,
    build: (signal) => data.buildShard(from, shard, signal),
  };
}

function showJoiner() {
  const { known, head } = current;
  const fill = (id, values, selected) => byId(id).replaceChildren(...values.map((version) =>
    make('option', { value: String(version), text: version === null ? 'nothing' : `version ${version}`, selected: version === selected })));
  const numbers = known.map(({ version }) => version);
  fill('holds', [null, ...numbers], null);
  fill('wants', [...numbers].reverse(), head);
  void plan();
}

/** Shows the cheapest path between the versions that are chosen. */
async function plan() {
  const data = current;
  const mine = ++plans;
  const held = byId('holds').value === 'null' ? null : Number(byId('holds').value);
  const wanted = Number(byId('wants').value);
  let shown;
  try {
    shown = planParts(data, held, await data.plan(wanted, held, trusted()));
  } catch (error) {
    shown = [make('p', { class: 'error', text: refusal(error) })];
  }
  if (data === current && mine === plans) byId('plan').replaceChildren(...shown);
}

/** Makes the drawing, the sentence and the table of a plan. @param {ChainData} data @param {number | null} held @param {import('../src/chain.js').Plan} plan */
function planParts({ known }, held, { path, bytes, from }) {
  const chosen = new Set(path.map((step) => `${step.from} ${step.version}`));
  const routes = known.flatMap((version) =>
    version.routes.map((route) => ({ from: route.from, to: version.version, chosen: chosen.has(`${route.from} ${version.version}`) })));
  const drawing = arcs(known.map(({ version }) => version), routes, 'Routes between versions; the path is the strong line, and in the table');
  if (path.length === 0) return [drawing, make('p', { text: 'Nothing to read: that version is held.' })];
  const cheaper = held !== null && from === null ? ': a snapshot is cheaper than the way from the held version' : '';
  const rows = path.map((step) =>
    [step.from === null ? 'nothing' : String(step.from), String(step.version), grouped(step.files.length), grouped(step.bytes)]);
  return [
    drawing,
    make('p', { text: `${counted(path.length, 'route')}, ${size(bytes)}${cheaper}.` }),
    make('details', {}, make('summary', { text: 'The path, step by step' }), table(['From', 'To', 'Files', 'Bytes'], rows, 'The path')),
  ];
}

function showDocuments() {
  const documents = [{ name: 'chain.json', text: current.chainText }, ...current.known.reverse().flatMap((version) => version.documents)];
  byId('document').replaceChildren(...documents.map(({ name }) => make('option', { value: name, text: name })));
  const show = () => {
    const { text } = documents.find(({ name }) => name === byId('document').value);
    byId('document-text').replaceChildren(make('pre', { tabindex: 0 }, make('code', { text })), copyButton(() => text, 'Copy', 'the document'));
  };
  byId('document').onchange = show;
  show();
}

async function loadEarlier() {
  const data = current;
  const mine = opened;
  const start = Math.max(0, first - VERSIONS);
  try {
    await data.load(start, first);
    await updateSigners(data);
    if (mine !== opened) return;
    first = start;
    showAll();
    await countWithoutAsking(mine);
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

/** Shows what the keys in the form have signed. */
async function keysChanged() {
  const data = current;
  const keys = trustedKeys();
  if (data === null) return;
  try {
    const signers = await data.findSigners(keys);
    // A later change of the form starts a search of its own.
    if (keys === trustedKeys()) data.setSigners(keys, signers);
  } catch (error) {
    if (data === current) say(refusal(error), true);
  }
  if (data !== current || keys !== trustedKeys()) return;
  showVersions();
  showSignatures();
  void plan();
}

/** Listens to the card. @param {(wish: Record<string, string | undefined>) => void} writeAddress writes keys into the page's address */
export function startChainView(writeAddress) {
  remember = writeAddress;
  byId('holds').addEventListener('change', plan);
  byId('wants').addEventListener('change', plan);
  byId('earlier').addEventListener('click', loadEarlier);
  startTrust(keysChanged);
}

/** Hides the chain card and drops the chain. */
export function closeChain() {
  opened += 1;
  current = null;
  byId('chain').hidden = true;
}
