/** A chain: its versions and routes, sizes and sparsity over time, the path of a late joiner, raw documents. */
import { at, copyButton, copyable, make, refusal, say, table } from './dom.js';
import { ChainData } from './chain-data.js';
import { arcs, columns } from './charts.js';
import { showLink } from './link-view.js';
import { showTrust, showsSigners, signersOfVersion, startTrust, trusted, trustedKeys } from './trust.js';
import { counted, grouped, percent, size } from './words.js';

/** Number of versions that are read at first, and with each press of "earlier". */
const VERSIONS = 32;
/** Maximum size of a link that is read without a request of the user, to count changes, in bytes. */
const UNASKED = 2 ** 22;

/** @type {ChainData | null} */
let current = null;
let opened = 0;
let first = 0;
/** Shares of changed elements by version. @type {Map<number, { coded: number, lanes: number }>} */
let shares = new Map();
let selected = { version: -1, shard: 0, from: /** @type {number | null} */ (null) };
let remember = (_) => {};
/** True if a base may be built without a request of the user. */
let local = false;

/**
 * @param {string} name
 * @param {import('../src/store.js').Store} store
 * @param {{ remote: boolean, wish?: Record<string, string> }} options
 */
export async function showChain(name, store, { remote, wish = {} }) {
  const mine = ++opened;
  at('chain').hidden = true;
  say(`Reading ${name} …`);
  try {
    const data = new ChainData(store);
    await data.open();
    const start = Math.max(0, data.head - VERSIONS + 1);
    await data.load(start, data.head);
    await data.findSigners(trustedKeys());
    if (mine !== opened) return;
    [current, first, shares, local] = [data, start, new Map(), !remote];
    at('chain-name').textContent = name;
    at('intro').hidden = true;
    at('unlisted').hidden = store.list !== undefined;
    at('chain').hidden = false;
    say('');
    showAll();
    const version = wish.version === undefined ? data.head : Number(wish.version);
    await openVersion(version, { ...wish, quiet: true });
    await countWithoutAsking(mine);
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

function showAll() {
  const { known, head, chainDigest } = current;
  const bytes = known.reduce((sum, version) => sum + Number(current.mainRoute(version).bytes), 0);
  at('chain-facts').replaceChildren(...[
    ['Newest version', String(head)],
    ['Shards', grouped(current.versions.get(head).commit.shards.length)],
    ['Shown', `${counted(known.length, 'version')}, ${size(bytes)}`],
    ['Digest of chain.json', copyable(chainDigest, 'the digest of chain.json')],
  ].flatMap(([term, fact]) => [make('dt', { text: term }), make('dd', {}, fact)]));
  at('earlier').hidden = first === 0;
  showVersions();
  showSignatures();
  showAssets();
  showCharts();
  showJoiner();
  showDocuments();
}

/** Shows the files beside the weights of the newest version; their names may have folders. */
function showAssets() {
  const { assets } = current.versions.get(current.head).commit;
  const rows = assets.map(({ name, size: bytes, digest }) => [name, size(bytes), copyable(digest.slice(0, 12), 'the beginning of the digest')]);
  at('assets').replaceChildren(assets.length === 0 ? '' : make('details', {},
    make('summary', { text: `${counted(assets.length, 'asset')} of version ${current.head}` }),
    table(['Name', 'Bytes', 'Digest'], rows, 'Assets')));
}

function showSignatures() {
  const data = current;
  showTrust(data, () => data === current).catch((error) => say(refusal(error), true));
}

function showVersions() {
  const signers = showsSigners(current);
  const rows = current.known.reverse().map((version) => {
    const routes = version.routes.map((route) => make('span', { class: 'routes' },
      ...route.files.map((file, shard) => make('button', {
        type: 'button', class: 'link',
        text: `${route.from === null ? 'snapshot' : `from ${route.from}`}${route.files.length > 1 ? ` · shard ${shard}` : ''}`
          + `${route.from !== null && route.direct ? ' · direct' : ''} · ${size(file.size)}`,
        onclick: () => openRoute(version.version, route, shard, { scroll: true }),
      }))));
    const share = shares.get(version.version);
    const notes = version.commit.metadata.filter(([key]) => !key.startsWith('deltachain.')).map(([key, value]) => `${key}=${value}`).join(' ');
    return [
      String(version.version),
      make('span', {}, ...routes),
      share === undefined ? '' : percent(share.lanes === 0 ? 0 : share.coded / share.lanes),
      notes.length > 80 ? `${notes.slice(0, 80)} …` : notes,
      copyable(version.commit.state.slice(0, 12), 'the beginning of the state digest'),
      ...(signers ? [signersOfVersion(version)] : []),
    ];
  });
  at('versions').replaceChildren(table(
    ['Version', 'Routes: press one to open its link', 'Changed', 'Notes', 'State', ...(signers ? ['Signatures'] : [])], rows, 'Versions'));
}

function showCharts() {
  const items = current.known.map((version) => {
    const route = current.mainRoute(version);
    return {
      label: String(version.version), value: Number(route.bytes), shown: size(route.bytes),
      mark: version.version === selected.version, press: () => openVersion(version.version, { scroll: true }),
      snapshot: route.from === null,
    };
  });
  // A snapshot would make all other columns invisible.
  const steps = items.filter((item) => !item.snapshot);
  const snapshots = items.filter((item) => item.snapshot).map((item) => `version ${item.label} (${item.shown})`).join(', ');
  const drawn = make('section', {}, make('h4', { text: 'Bytes of each step' }),
    columns(steps, { title: 'Bytes of the link to each version; the table of versions has the numbers' }),
    snapshots === '' ? null : make('p', { class: 'note', text: `Not drawn, as they hold whole models: ${snapshots}.` }));
  const counted = current.known.filter((version) => shares.has(version.version) && current.mainRoute(version).from !== null);
  const share = ({ version }) => shares.get(version).coded / Math.max(1, shares.get(version).lanes);
  const box = make('section', {}, make('h4', { text: 'Changed elements of each step' }));
  if (counted.length > 0) {
    box.append(columns(counted.map((version) => ({
      label: String(version.version), value: share(version), shown: percent(share(version)),
      mark: version.version === selected.version, press: () => openVersion(version.version, { scroll: true }),
    })), { title: 'Share of changed elements by version; the table of versions has the numbers' }),
    make('p', { class: 'note', text: 'Of the tensors that the link touches.' }));
  }
  const left = uncounted();
  if (left.length > 0) {
    box.append(make('button', { type: 'button', text: `Count them (reads ${size(bytesOf(left))})`,
      onclick: () => count(opened).catch((error) => say(refusal(error), true)) }));
  }
  at('chain-charts').replaceChildren(drawn, box);
}

const uncounted = () => current.known.filter((version) => !shares.has(version.version) && current.mainRoute(version).from !== null);
const bytesOf = (versions) => versions.reduce((sum, version) => sum + Number(current.mainRoute(version).bytes), 0);

async function countWithoutAsking(mine) {
  if (bytesOf(uncounted()) <= UNASKED) await count(mine);
}

async function count(mine) {
  const data = current;
  for (const version of uncounted()) {
    const found = await data.countChanged(data.mainRoute(version));
    if (mine !== opened) return;
    shares.set(version.version, found);
  }
  showVersions();
  showCharts();
}

/** @param {number} version @param {Record<string, any>} wish */
async function openVersion(version, wish) {
  const own = current.versions.get(version);
  if (own === undefined) {
    say(`Version ${version} is not among those on show.`, true);
    return;
  }
  const route = (wish.from === undefined ? undefined : own.routes.find((one) => String(one.from) === wish.from)) ?? current.mainRoute(own);
  const shard = Number(wish.shard ?? 0);
  await openRoute(version, route, route.files[shard] === undefined ? 0 : shard, wish);
}

async function openRoute(version, route, shard, wish) {
  const data = current;
  const file = route.files[shard];
  selected = { version, shard, from: route.from };
  if (!wish.quiet) remember({ version: String(version), from: String(route.from), shard: String(shard), tensor: undefined, search: undefined });
  showCharts();
  const prepareBase = route.from === null ? null : async () => {
    const built = await data.chain.replay({ version: route.from, shards: [shard] });
    return built.shards.get(shard).state;
  };
  const start = route.from === null ? 'nothing' : `version ${route.from}`;
  const shards = route.files.length > 1 ? `, shard ${shard}` : '';
  await showLink(`${start} to version ${version}${shards}`, async () => {
    const source = await data.store.open(`files/${file.digest}.dcf`);
    if (source === null) throw new Error(`the file ${file.digest} is missing`);
    return source;
  }, { remote: !local, wish, prepareBase, buildNow: local });
  if (wish.scroll) at('link').scrollIntoView({ block: 'start', behavior: 'smooth' });
}

function showJoiner() {
  const { known, head } = current;
  const choose = (id, values, value) => at(id).replaceChildren(...values.map((one) =>
    make('option', { value: String(one), text: one === null ? 'nothing' : `version ${one}`, selected: one === value })));
  const numbers = known.map(({ version }) => version);
  choose('holds', [null, ...numbers], null);
  choose('wants', [...numbers].reverse(), head);
  void plan();
}

async function plan() {
  const data = current;
  const held = at('holds').value === 'null' ? null : Number(at('holds').value);
  const wanted = Number(at('wants').value);
  const box = at('plan');
  try {
    const { path, bytes, from } = await data.plan(wanted, held, trusted());
    if (data !== current) return;
    const chosen = new Set(path.map((step) => `${step.from} ${step.version}`));
    const known = data.known;
    const routes = known.flatMap(({ version, routes: own }) =>
      own.map((route) => ({ from: route.from, to: version, chosen: chosen.has(`${route.from} ${version}`) })));
    const says = path.length === 0 ? 'Nothing to read: that version is held.'
      : `${counted(path.length, 'route')}, ${size(bytes)}${held !== null && from === null ? ': a snapshot is cheaper than what is held' : ''}.`;
    box.replaceChildren(arcs(known.map(({ version }) => version), routes, 'Routes between versions; the path is the strong line, and in the table'),
      make('p', { text: says }));
    if (path.length > 0) {
      box.append(make('details', {}, make('summary', { text: 'The path, step by step' }), table(['From', 'To', 'Files', 'Bytes'], path.map((step) =>
        [step.from === null ? 'nothing' : String(step.from), String(step.version), grouped(step.files.length), grouped(step.bytes)]), 'The path')));
    }
  } catch (error) {
    if (data === current) box.replaceChildren(make('p', { class: 'error', text: refusal(error) }));
  }
}

function showDocuments() {
  const documents = [{ name: 'chain.json', text: current.chainText }, ...current.known.reverse().flatMap((version) => version.documents)];
  at('document').replaceChildren(...documents.map(({ name }) => make('option', { value: name, text: name })));
  const show = () => {
    const { text } = documents.find(({ name }) => name === at('document').value);
    at('document-text').replaceChildren(make('pre', { tabindex: 0 }, make('code', { text })), copyButton(() => text, 'Copy', 'the document'));
  };
  at('document').onchange = show;
  show();
}

async function loadEarlier() {
  const mine = opened;
  const start = Math.max(0, first - VERSIONS);
  try {
    await current.load(start, first);
    await current.findSigners(trustedKeys());
    if (mine !== opened) return;
    first = start;
    showAll();
    await countWithoutAsking(mine);
  } catch (error) {
    say(refusal(error), true);
  }
}

/** @param {(wish: Record<string, string | undefined>) => void} changed called with the parts of the page's address */
export function startChainView(changed) {
  remember = changed;
  at('holds').addEventListener('change', plan);
  at('wants').addEventListener('change', plan);
  at('earlier').addEventListener('click', loadEarlier);
  startTrust(async () => {
    const [data, keys] = [current, trustedKeys()];
    if (data === null) return;
    try {
      await data.findSigners(keys);
    } catch (error) {
      say(refusal(error), true);
    }
    if (data !== current || keys !== trustedKeys()) return;
    showVersions();
    showSignatures();
    void plan();
  });
}

export function closeChain() {
  opened += 1;
  current = null;
  at('chain').hidden = true;
}
