/** What the chain's documents say, in the form that the view wants. */
import { blake3Hex, openChain, parseDocument } from '../src/index.js';
import { isDataFault } from '../src/errors.js';
import { commitName } from '../src/plan.js';
import { listGenerations, routesInForce } from '../src/routes.js';
import { Notes, keysOf } from '../src/signatures.js';

/** @typedef {import('../src/documents.js').Route} Route */
/** @typedef {import('../src/signatures.js').Key} Key */
/** @typedef {import('../src/signatures.js').TrustedKey} TrustedKey */

/** Requests at one time. */
const TOGETHER = 8;

/**
 * A version: its commit, the routes in force, and the documents with these.
 * @typedef {object} Version
 * @property {number} version
 * @property {import('../src/documents.js').Commit} commit
 * @property {string} digest of the commit's bytes
 * @property {Route[]} routes
 * @property {{ name: string, text: string }[]} documents the commit, and the routes documents that were read
 * @property {import('../src/signatures.js').Note[]} notes well-formed notes on the commit that a list shows, unverified; own
 *   notes of keys are not among them
 */

/** A chain, as far as it has been read. */
export class ChainData {
  /** @type {Map<number, Version>} */
  versions = new Map();
  head = 0;
  chainText = '';
  chainDigest = '';
  /** Generations of the routes documents of each version, the highest first. @type {Map<number, number[]>} */
  #generations = new Map();
  /** @type {Notes | null} */
  #notes = null;
  /** Keys that signed each version, of the keys of one search. @type {{ keys: TrustedKey[], byVersion: Map<number, Key[]> }} */
  #signers = { keys: [], byVersion: new Map() };

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
    this.#generations = await listGenerations(this.store);
  }

  /** Reads the versions from `first` to `last` that have not been read. Old ones may be missing. */
  async load(first, last) {
    const wanted = [];
    for (let version = last; version >= first; version--) if (!this.versions.has(version)) wanted.push(version);
    for (let i = 0; i < wanted.length; i += TOGETHER) {
      await Promise.all(wanted.slice(i, i + TOGETHER).map((version) => this.#read(version)));
    }
  }

  /** @param {number} version */
  async #read(version) {
    const documents = [];
    const read = async (name) => {
      const bytes = await this.chain.document(name);
      if (bytes !== null) documents.push({ name, text: new TextDecoder().decode(bytes) });
      return bytes;
    };
    const bytes = await read(commitName(version));
    if (bytes === null) return;
    const commit = parseDocument('commit', bytes);
    const digest = blake3Hex(bytes);
    const { routes } = await routesInForce(commit, digest, this.#generations.get(version) ?? [], {
      read, limits: this.chain.limits, failed: throwUnlessFault,
    });
    const notes = await this.#notes.on(version, digest);
    this.versions.set(version, { version, commit, digest, routes, documents, notes });
  }

  /**
   * Finds which of the keys have signed the versions that were read. It changes nothing: a search that a later one has
   * overtaken can be dropped.
   * @param {TrustedKey[]} keys
   * @returns {Promise<Map<number, Key[]>>} keys by version
   */
  async findSigners(keys) {
    const trusted = keysOf(keys, this.chainDigest);
    // The page lists all signers, not just as many as a reader needs.
    const enough = trusted.length;
    const found = new Map();
    for (const { version, digest } of this.known) found.set(version, await this.#notes.signers(version, digest, trusted, enough));
    return found;
  }

  /** Keeps the result of `findSigners`. @param {TrustedKey[]} keys @param {Map<number, Key[]>} byVersion */
  setSigners(keys, byVersion) {
    this.#signers = { keys, byVersion };
  }

  /**
   * Returns which of the keys have signed a version; null if this has not been found for these keys.
   * @param {number} version
   * @param {TrustedKey[]} keys the same array that `setSigners` had
   */
  signersOf(version, keys) {
    if (keys.length === 0) return [];
    return (this.#signers.keys === keys && this.#signers.byVersion.get(version)) || null;
  }

  /** The versions that were read, ascending. */
  get known() {
    return [...this.versions.values()].sort((a, b) => a.version - b.version);
  }

  /**
   * Returns the route that stands for a version: the smallest of those from the nearest version, and a snapshot only if
   * there is no other. Null if no route leads to the version.
   * @param {Version} version
   * @returns {Route | null}
   */
  mainRoute({ commit, routes }) {
    // No reader uses the others: R-CHN-07.
    const usable = routes.filter(({ files }) => files.length === commit.shards.length);
    // Routes ascend by version, nothing first, and then by bytes: R-DOC-04.
    const nearest = usable[usable.length - 1]?.from;
    return usable.find(({ from }) => from === nearest) ?? null;
  }

  /**
   * The cheapest path to `version` for a reader that holds `held`, or nothing.
   * @param {number} version
   * @param {number | null} held
   * @param {import('../src/signatures.js').Trust | null} trust
   */
  plan(version, held, trust) {
    const start = held === null ? undefined : this.versions.get(held);
    const record = start === undefined ? null : { version: start.version, commit: start.digest, chain: this.chainDigest };
    return this.chain.plan({ version, held: record, trust });
  }

  /** Counts the changed lanes, and all lanes, of the tensors that a route touches. @param {Route} route */
  async countChanged(route) {
    let coded = 0;
    let lanes = 0;
    for (const { digest } of route.files) {
      const { total } = await (await this.chain.link(digest)).inspect();
      coded += total.coded;
      lanes += total.lanes;
    }
    return { coded, lanes };
  }

  /**
   * Builds a shard of a version from nothing. Trust plays no part: the caller compares the state with the base of its link.
   * @param {number} version
   * @param {number} shard
   * @param {AbortSignal} [signal]
   * @returns {Promise<import('../src/state.js').State>}
   */
  async buildShard(version, shard, signal) {
    const built = await this.chain.replay({ version, shards: [shard], signal });
    return built.shards.get(shard).state;
  }

  /**
   * Returns the bytes that `buildShard` reads and writes: the files of the path, and after each of them the whole shard,
   * which a replay builds anew. Opens no more links once they are more than `most`.
   * @param {number} version
   * @param {number} shard
   * @param {number} most
   */
  async bytesToBuild(version, shard, most) {
    const { path } = await this.chain.plan({ version });
    /** @type {Map<string, number>} */
    const lengths = new Map();
    let bytes = path.reduce((sum, { files }) => sum + files[shard].size, 0);
    for (const { files } of path) {
      if (bytes > most) break;
      const { index } = await this.chain.link(files[shard].digest);
      for (const entry of index.tensors) {
        if (entry.operation === 'remove') lengths.delete(entry.name);
        else lengths.set(entry.name, entry.byteLength);
      }
      for (const length of lengths.values()) bytes += length;
    }
    return bytes;
  }
}

/** Throws what is no fault of a document: a reader passes over an unusable one. @param {unknown} error */
function throwUnlessFault(error) {
  if (!isDataFault(error)) throw error;
}
