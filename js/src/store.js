/** Stores: the places of a chain's objects (SPEC section 17.1). A directory of Node is in `node.js`. */
import { blobSource, openHttp } from './sources.js';

/** @typedef {import('./sources.js').Source} Source */

/**
 * A map from object names to bytes.
 * @typedef {object} Store
 * @property {(name: string) => Promise<(Source & { close?(): Promise<void> }) | null>} open null if the object does not
 *   exist
 * @property {(folder: string) => Promise<string[]>} [list] names in `commits`, `routes` or `signatures`, without the
 *   folder; missing in a store that cannot list; then only the routes of commits and the own notes of keys are known
 */

/**
 * Makes a store from a server, with an address such as `https://example.org/chain`. It cannot list.
 * @param {string | URL} url
 * @param {import('./sources.js').HttpOptions} [options]
 * @returns {Store}
 */
export function httpStore(url, options) {
  const base = new URL(url, globalThis.location?.href);
  if (!base.pathname.endsWith('/')) base.pathname += '/';
  return {
    open(name) {
      const address = new URL(base);
      address.pathname += name;
      return openHttp(address, options);
    },
  };
}

/**
 * Makes a store from files that a user dropped or chose.
 * @param {Iterable<[string, Blob]>} files path within the chain, such as `commits/00000000000000000000.json`, and bytes
 * @returns {Store}
 */
export function filesStore(files) {
  const byName = new Map(files);
  return {
    async open(name) {
      const blob = byName.get(name);
      return blob === undefined ? null : blobSource(blob);
    },
    async list(folder) {
      const start = `${folder}/`;
      return [...byName.keys()].filter((name) => name.startsWith(start)).map((name) => name.slice(start.length));
    },
  };
}
