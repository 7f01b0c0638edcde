/** The content of the chain's documents, in the form that the view needs. */
import { blake3Hex, openChain, parseDocument, DeltachainError } from '../src/index.js';
import { commitName, routesName } from '../src/plan.js';
import { Notes, keysOf } from '../src/signatures.js';

/** Maximum number of simultaneous requests. */
const TOGETHER = 8;

/**
 * A version: its commit, the routes in force, and the documents with these.
 * @typedef {object} Version
 * @property {number} version
 * @property {import('../src/documents.js').Commit} commit
 * @property {string} digest of the commit's bytes
 * @property {import('../src/documents.js').Route[]} routes
 * @property {{ name: string, text: string }[]} documents
 * @property {import('../src/signatures.js').Note[]} notes well-formed notes on the commit that are listed and
 *   named by their digest
 * @property {import('../src/signatures.js').Key[]} signers keys, of those given last, that have signed it
 */

/** A chain, read as far as needed. */
export class ChainData {
  /** @type {Map<number, Version>} */
  versions = new Map();
  head = 0;
  chainText = '';
  chainDigest = '';
  /** @type {Map<number, number>} newest generation of routes documents, by version */
  #generations = new Map();
  /** @type {Notes | null} */
  #notes = null;

  /** @param {import('../src/store.js').Store} store */
  constructor(store) {
    this.store = store;
    this.chain = openChain(store);
  }

  /** Reads `chain.json` and finds the newest version. */
  async open() {
    this.head = await this.chain.head();
    const bytes = await this.chain.document('chain.json');
    this.chainText = new TextDecoder().decode(bytes);
    this.chainDigest = blake3Hex(bytes);
    this.#notes = new Notes(this.store, this.chainDigest);
    for (const name of (await this.store.list?.('routes')) ?? []) {
      const parts = /^(\d{20})-(\d{10})\.json$/.exec(name);
      if (parts === null) continue;
      const [version, generation] = [Number(parts[1]), Number(parts[2])];
      this.#generations.set(version, Math.max(generation, this.#generations.get(version) ?? 0));
    }
  }

  /** Reads the versions from `first` to `last` that are not known yet. Old versions may be missing. */
  async load(first, last) {
    const wanted = [];
    for (let version = last; version >= first; version--) if (!this.versions.has(version)) wanted.push(version);
    for (let i = 0; i < wanted.length; i += TOGETHER) {
      await Promise.all(wanted.slice(i, i + TOGETHER).map((version) => this.#read(version)));
    }
  }

  /** @param {number} version */
  async #read(version) {
    const name = commitName(version);
    const bytes = await this.chain.document(name);
    if (bytes === null) return;
    const commit = parseDocument('commit', bytes);
    const documents = [{ name, text: new TextDecoder().decode(bytes) }];
    let { routes } = commit;
    const generation = this.#generations.get(version);
    const own = generation === undefined ? null : await this.chain.document(routesName(version, generation));
    if (own !== null) {
      documents.push({ name: routesName(version, generation), text: new TextDecoder().decode(own) });
      try {
        ({ routes } = parseDocument('routes', own));
      } catch (error) {
        // A reader skips such a document, and uses the commit's routes.
        if (!(error instanceof DeltachainError)) throw error;
      }
    }
    const digest = blake3Hex(bytes);
    const notes = await this.#notes.on(version, digest);
    this.versions.set(version, { version, commit, digest, routes, documents, notes, signers: [] });
  }

  /** Finds which of the keys have signed the versions that were read. @param {import('../src/signatures.js').TrustedKey[]} keys */
  async findSigners(keys) {
    const own = keysOf(keys, this.chainDigest);
    for (const one of this.known) one.signers = await this.#notes.signers(one.version, one.digest, own, own.length);
  }

  /** The versions that were read, ascending. */
  get known() {
    return [...this.versions.values()].sort((a, b) => a.version - b.version);
  }

  /** Returns the route from the previous version, or else the shortest one. @param {Version} version */
  mainRoute({ version, routes }) {
    return routes.find((route) => route.from === version - 1) ?? routes[0];
  }

  /**
   * The cheapest path to `version` for a reader that holds `held`, or nothing.
   * @param {number} version
   * @param {number | null} held
   * @param {import('../src/signatures.js').Trust | null} trust
   */
  plan(version, held, trust) {
    const own = held === null ? undefined : this.versions.get(held);
    const record = own === undefined ? null : { version: own.version, commit: own.digest, chain: this.chainDigest };
    return this.chain.plan({ version, held: record, trust });
  }

  /**
   * Counts changed elements and all elements of the tensors that a route touches.
   * @param {import('../src/documents.js').Route} route
   */
  async countChanged(route) {
    let [coded, lanes] = [0, 0];
    for (const { digest } of route.files) {
      const { total } = await (await this.chain.link(digest)).inspect();
      coded += total.coded;
      lanes += total.lanes;
    }
    return { coded, lanes };
  }
}
