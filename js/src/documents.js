/** Documents of a chain: SPEC section 18. */
import { array, integer, nullable, object, readCanonical, string, strings } from './canonical.js';
import { compareStrings } from './bytes.js';
import { ensure } from './errors.js';
import { LIMITS } from './limits.js';
import { isOfLayouts, isPathName, withoutCase } from './names.js';

/**
 * A route: one file per shard, from a version (null: from nothing). `bytes` is the exact sum of their sizes. `direct`
 * is true if all values of its files are known to be absolute, because the metadata say so (`deltachain.direct`) or
 * because the route is from nothing.
 * @typedef {{ from: number | null, files: { digest: string, size: number }[], bytes: bigint, direct: boolean }} Route
 * @typedef {{ name: string, digest: string, size: number }} Asset
 * @typedef {{ kind: 'chain', chain: string, metadata: [string, string][] }} ChainDocument
 * @typedef {object} Commit
 * @property {'commit'} kind
 * @property {number} version
 * @property {string} parent
 * @property {string} state
 * @property {string[]} shards
 * @property {Route[]} routes
 * @property {Asset[]} assets
 * @property {[string, string][]} metadata
 */
/**
 * @typedef {object} RoutesDocument
 * @property {'routes'} kind
 * @property {number} version
 * @property {number} generation
 * @property {string} commit
 * @property {Route[]} routes
 * @property {[string, string][]} metadata
 */

const digest = string(/^[0-9a-f]{64}$/);
const route = object({
  from: nullable(integer()),
  files: array(object({ digest, size: integer(1) }), 1),
});
const asset = object({ name: string(), digest, size: integer() });
const DIRECT = 'deltachain.direct';
const FORMS = {
  chain: object({ deltachain: integer(), chain: string(/^[0-9a-f]{32}$/), metadata: strings }),
  commit: object({
    deltachain: integer(),
    version: integer(),
    parent: digest,
    state: digest,
    shards: array(digest, 1),
    routes: array(route, 1),
    assets: array(asset),
    metadata: strings,
  }),
  routes: object({
    deltachain: integer(),
    version: integer(),
    generation: integer(1, 9999999999),
    commit: digest,
    routes: array(route),
    metadata: strings,
  }),
};

/**
 * Reads a document and checks it.
 * @template {'chain' | 'commit' | 'routes'} K
 * @param {K} kind
 * @param {Uint8Array} bytes
 * @param {Partial<import('./limits.js').Limits>} [limits] by default `LIMITS`
 * @returns {K extends 'chain' ? ChainDocument : K extends 'commit' ? Commit : RoutesDocument}
 */
export function parseDocument(kind, bytes, limits = {}) {
  const { documentBytes, assets, assetBytes } = { ...LIMITS, ...limits };
  ensure(bytes.length <= documentBytes, 'R-LIM-05', `a document of ${bytes.length} bytes`);
  const start = String.fromCharCode(...bytes.subarray(0, 40));
  const version = /^\{"deltachain":(0|[1-9][0-9]{0,15}),/.exec(start)?.[1];
  const begins = version !== undefined && Number(version) <= Number.MAX_SAFE_INTEGER;
  ensure(begins, 'R-DOC-01', 'a document begins with `{"deltachain":`, an integer and a comma');
  ensure(version === '1', 'R-DOC-02', `documents of version ${version} are not known`);
  const value = readCanonical(textOf(bytes), FORMS[kind]);
  ensure(value !== undefined, 'R-DOC-03', `the bytes are not the canonical form of a ${kind} document`);
  const document = plain(kind, value);
  if (document.kind !== 'chain') checkRoutes(document.version, document.routes);
  if (document.kind === 'commit') {
    const { routes, shards, state } = document;
    const whole = routes.every((own) => own.files.length === shards.length);
    ensure(whole, 'R-DOC-05', 'a route does not have one file per shard');
    ensure(shards.length > 1 || shards[0] === state, 'R-DOC-06', 'the only shard has another digest than the state');
  }
  const known = document.metadata.every(([key]) => !key.startsWith('deltachain!'));
  ensure(known, 'R-DOC-07', 'the metadata has a required key that this reader does not know');
  if (document.kind === 'commit') {
    checkAssets(document.assets);
    ensure(document.assets.length <= assets, 'R-LIM-07', `a commit with ${document.assets.length} assets`);
    ensure(document.assets.every(({ size }) => size <= assetBytes), 'R-LIM-07', 'an asset is too large');
  }
  return /** @type {any} */ (document);
}

/** @param {Uint8Array} bytes */
function textOf(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    // No document is empty, so this is not in legal form.
    return '';
  }
}

/**
 * Converts maps to objects.
 * @param {'chain' | 'commit' | 'routes'} kind
 * @param {Map<string, any>} value
 * @returns {ChainDocument | Commit | RoutesDocument}
 */
function plain(kind, value) {
  /** @type {any} */
  const document = { kind, ...Object.fromEntries(value), metadata: [...value.get('metadata')] };
  if (value.has('assets')) document.assets = value.get('assets').map(Object.fromEntries);
  if (value.has('routes')) {
    const direct = directRoutes(value.get('metadata').get(DIRECT) ?? '', value.get('routes').length);
    document.routes = value.get('routes').map((/** @type {Map<string, any>} */ route, /** @type {number} */ i) =>
      plainRoute(route, direct.has(i)));
  }
  return document;
}

/** @param {Map<string, any>} value @param {boolean} marked @returns {Route} */
function plainRoute(value, marked) {
  const from = value.get('from');
  const files = value.get('files').map(Object.fromEntries);
  const bytes = files.reduce((/** @type {bigint} */ sum, /** @type {any} */ file) => sum + BigInt(file.size), 0n);
  return { from, files, bytes, direct: marked || from === null };
}

/**
 * Returns the numbers of the marked routes; none, if the mark is invalid.
 * @param {string} mark
 * @param {number} count of routes
 */
export function directRoutes(mark, count) {
  const words = mark.split(' ');
  const numbers = words.map(Number);
  const ascending = numbers.every((number, i) => number < count && (i === 0 || numbers[i - 1] < number));
  return new Set(ascending && words.every((word) => /^(0|[1-9][0-9]*)$/.test(word)) ? numbers : []);
}

/** @param {number} version @param {Route[]} routes */
function checkRoutes(version, routes) {
  routes.forEach((route, i) => {
    ensure(route.from === null || route.from < version, 'R-DOC-04', 'a route comes from its own version or a later one');
    ensure(i === 0 || compareRoutes(routes[i - 1], route) < 0, 'R-DOC-04', 'the routes are not strictly ascending');
  });
}

/** Compares routes; 0 for equal ones. @param {Route} a @param {Route} b */
export function compareRoutes(a, b) {
  const [x, y] = [a.from ?? -1, b.from ?? -1];
  if (x !== y) return x - y;
  if (a.bytes !== b.bytes) return a.bytes < b.bytes ? -1 : 1;
  const digests = (/** @type {Route} */ route) => route.files.map((file) => file.digest).join('');
  return compareStrings(digests(a), digests(b));
}

/** @param {Asset[]} assets */
function checkAssets(assets) {
  const seen = new Set();
  assets.forEach(({ name }, i) => {
    const ascending = i === 0 || compareStrings(assets[i - 1].name, name) < 0;
    const lower = withoutCase(name);
    ensure(ascending && !seen.has(lower), 'R-DOC-08', 'assets are not ascending, or differ in case alone');
    seen.add(lower);
    const legal = isPathName(name) && !isOfLayouts(name) && !lower.startsWith('deltachain.');
    ensure(legal, 'R-DOC-08', 'the name of an asset is not legal');
  });
  for (const name of seen) {
    for (let at = name.indexOf('/'); at >= 0; at = name.indexOf('/', at + 1)) {
      ensure(!seen.has(name.slice(0, at)), 'R-DOC-08', 'an asset lies in another');
    }
  }
}
