/**
 * Choosing a path through a chain: steps 1 to 4 of SPEC section 19, and the additions of trust (SPEC section 23.3).
 * Reads no file. The search goes backwards from the wanted version, as in the pseudo-code of section 19.1.
 */
import { DeltachainError, broken, ensure } from './errors.js';
import { blake3Hex } from './digests.js';
import { parseDocument } from './documents.js';
import { LIMITS } from './limits.js';
import { versionDigits } from './names.js';
import { Notes, keysOf } from './signatures.js';

/** @typedef {import('./documents.js').Commit} Commit */
/** @typedef {import('./documents.js').Route} Route */
/** @typedef {import('./signatures.js').CheckedTrust} CheckedTrust */
/** @typedef {import('./signatures.js').Key} Key */
/** @typedef {import('./signatures.js').Seen} Seen */
/** @typedef {import('./store.js').Store} Store */

/**
 * A reader's record of its held version: digests of the bytes of its commit and of `chain.json`.
 * @typedef {{ version: number, commit: string, chain: string }} HeldRecord
 */

/**
 * A route on a path. `version` is the version that it leads to; `id` is unique among the routes of all documents.
 * @typedef {Route & { version: number, id: string }} Step
 */

/** @typedef {{ commit: Commit, digest: string }} CheckedCommit */

/** @param {number} version */
export const commitName = (version) => `commits/${versionDigits(version)}.json`;

/**
 * A path from `at` (null: nothing) to the wanted version: the bytes of its files, the bytes of routes that are not
 * known to be direct, and the place of each route in its document.
 * @typedef {{ bytes: bigint, relative: bigint, at: number | null, steps: Step[], places: number[] }} Way
 */

/** Finds paths to one version, and remembers failures. */
export class Planner {
  /** @type {Map<number, Promise<CheckedCommit>>} */
  #commits = new Map();
  /** @type {Map<number, Step[]>} */
  #routes = new Map();
  /** Generations of the routes documents of each version, highest first. @type {Map<number, number[]> | null} */
  #generations = null;
  /** True if a file, or a routes document that was listed, is missing: a prune may have run meanwhile. */
  #missing = false;
  /** Routes that failed. @type {Set<string>} */
  #unusable = new Set();
  /** Lowest version at which a path from nothing may begin. */
  #floor = 0;
  /** Lowest version from which on all commits fit one another. */
  #fits = Infinity;
  /** The failure that is reported if there is no path. @type {DeltachainError | null} */
  first = null;
  /** The held version, from which a path can begin. @type {HeldRecord | null} */
  held = null;
  wanted = 0;
  /** With trust: the highest version above the head that has a commit, which is not signed. @type {number | null} */
  unsigned = null;
  chainDigest = '';

  /**
   * @param {Store} store
   * @param {Partial<import('./limits.js').Limits>} limits
   * @param {boolean} direct whether the cheapest direct path is wanted
   * @param {CheckedTrust | null} trust
   */
  constructor(store, limits, direct, trust) {
    this.store = store;
    this.limits = { ...LIMITS, ...limits };
    this.direct = direct;
    this.trust = trust;
  }

  /**
   * Does steps 1 to 3 for the wanted version, and from the held one to it. Failures are final.
   * @param {number | null} version null for the head
   * @param {HeldRecord | null} held
   * @param {string | null} accept digest of a commit that may be a rollback
   */
  async begin(version, held, accept) {
    const chain = await this.#read('chain.json');
    ensure(chain !== null, 'R-CHN-01', 'there is no chain.json');
    parseDocument('chain', chain, this.limits);
    this.chainDigest = blake3Hex(chain);
    const { trust } = this;
    const keys = keysOf(trust?.keys ?? [], this.chainDigest);
    ensure(trust === null || keys.length >= trust.quorum, 'R-SIG-05', 'too few keys are trusted for this chain');
    const same = () => {
      ensure(held === null || held.chain === this.chainDigest, 'R-CHN-13', 'this chain is not the held one');
    };
    const seen = trust?.seen ?? null;
    const seenLater = seen !== null && (held === null || held.version < seen.version);
    let known = [held, seenLater ? seen : null].filter((one) => one !== null);
    // A step to the held commit is no rollback. Only the caller knows whether that commit was held before.
    const mayStep = known.length > 0 && accept !== null && accept !== held?.commit;
    if (held !== null && !mayStep) same();
    // If a rollback is allowed, the held commit may be missing while older ones exist.
    const newest = Math.max(0, ...known.map((one) => one.version));
    const found = async () => (await this.#findHead(newest)) ?? (mayStep ? await this.#findHead(0) : null);
    const versions = async () => (version !== null ? [version] : this.#downwards(found, mayStep ? 0 : newest));
    const signed = trust === null ? null : await this.#findSigned(await versions(), version === null, keys, trust.quorum);
    const head = version ?? (trust === null ? await found() : (signed?.version ?? null));
    const backwards = () => {
      const forward = version !== null || known.every((one) => (head ?? -1) >= one.version);
      ensure(forward, 'R-CHN-14', 'the head is below the version that is held or was seen');
    };
    if (!mayStep) backwards();
    ensure(trust === null || signed !== null, 'R-SIG-01', 'no version is signed by the trusted keys');
    ensure(head !== null, 'R-CHN-03', 'the chain has no commit');
    this.wanted = head;
    const bytes = signed?.bytes ?? (await this.#read(commitName(head)));
    ensure(bytes !== null, 'R-CHN-03', `there is no commit ${head}`);
    this.#keep(head, this.#checkCommit(head, bytes));
    let holds = held;
    if (mayStep) {
      const { digest } = await this.commit(head);
      if (digest === accept) {
        [holds, known] = [null, []];
      } else {
        same();
        backwards();
      }
    }
    if (known.length === 0) await this.commit(head);
    else await this.#checkBetween(known, head);
    if (head === 0) this.#checkParent(await this.commit(0), this.chainDigest);
    this.held = holds !== null && holds.version <= head ? holds : null;
    const accepted = mayStep && known.length === 0;
    const { digest: commit } = await this.commit(head);
    if ((version === null || accepted) && commit !== seen?.commit) await trust?.record({ version: head, commit });
  }

  /**
   * Finds the commit of the first signed version; null if there is none. Its bytes are the ones whose signatures were
   * verified: a second read may return others.
   * @param {Iterable<number>} versions
   * @param {boolean} any true if the version need not be signed
   * @param {Key[]} keys that are trusted for this chain
   * @param {number} quorum
   */
  async #findSigned(versions, any, keys, quorum) {
    const notes = new Notes(this.store, this.chainDigest);
    let top = null;
    for (const version of versions) {
      top ??= version;
      const isTop = version === top;
      // The list is read after the commits, before which notes are stored.
      if (!isTop && this.store.list !== undefined && !(await notes.have(version))) continue;
      const bytes = await this.#read(commitName(version));
      ensure(bytes !== null || any, 'R-CHN-03', `there is no commit ${version}`);
      if (bytes === null || bytes.length > this.limits.documentBytes) continue;
      if ((await notes.signers(version, blake3Hex(bytes), keys, quorum)).length < quorum) continue;
      this.unsigned = isTop ? null : top;
      return { version, bytes };
    }
    ensure(any, 'R-SIG-01', `version ${top} is not signed by the trusted keys`);
    return null;
  }

  /**
   * Checks the commits from the lowest to the highest of the known and wanted versions.
   * @param {Seen[]} known
   * @param {number} wanted
   */
  async #checkBetween(known, wanted) {
    const versions = [...known.map((one) => one.version), wanted];
    const [low, high] = [Math.min(...versions), Math.max(...versions)];
    let before = null;
    for (let version = low; version <= high; version++) {
      const own = await this.commit(version);
      const right = known.every((one) => one.version !== version || one.commit === own.digest);
      ensure(right, 'R-CHN-05', `commit ${version} is not the one that is held or was seen`);
      if (before !== null) this.#checkParent(own, before.digest);
      if (version === 0) this.#checkParent(own, this.chainDigest);
      before = own;
    }
  }

  /** @param {CheckedCommit} own @param {string} digest */
  #checkParent({ commit }, digest) {
    ensure(commit.parent === digest, 'R-CHN-04', `the parent of commit ${commit.version} is another one`);
  }

  /** Returns the commit of a version, checked by itself. @param {number} version @returns {Promise<CheckedCommit>} */
  commit(version) {
    return this.#commits.get(version) ?? this.#keep(version, this.#readCommit(version));
  }

  /** @param {number} version @param {Promise<CheckedCommit>} commit which may fail before it is awaited */
  #keep(version, commit) {
    commit.catch(() => {});
    this.#commits.set(version, commit);
    return commit;
  }

  /** @param {number} version */
  async #readCommit(version) {
    const bytes = await this.#read(commitName(version));
    ensure(bytes !== null, 'R-CHN-03', `there is no commit ${version}`);
    return this.#checkCommit(version, bytes);
  }

  /** @param {number} version @param {Uint8Array} bytes */
  async #checkCommit(version, bytes) {
    const commit = parseDocument('commit', bytes, this.limits);
    ensure(commit.version === version, 'R-CHN-02', `commit ${version} says that it is ${commit.version}`);
    return { commit, digest: blake3Hex(bytes) };
  }

  /** Lists the versions that have a commit, in any order. */
  async #listCommits() {
    const names = ((await this.store.list?.('commits')) ?? []).map((name) => /^(\d{20})\.json$/.exec(name)?.[1]);
    return names.map(Number).filter((version) => Number.isSafeInteger(version));
  }

  /**
   * Returns the versions that have a commit, as far as known, highest first.
   * @param {() => Promise<number | null>} find finds the highest, if the store cannot list
   * @param {number} least
   */
  async #downwards(find, least) {
    if (this.store.list !== undefined) {
      return (await this.#listCommits()).filter((version) => version >= least).sort((a, b) => b - a);
    }
    const head = (await find()) ?? -1;
    return (function* () {
      for (let version = head; version >= least; version--) yield version;
    })();
  }

  /** Finds the newest version; null if there is none. @param {number} known a version that existed once, or 0 */
  async #findHead(known) {
    if (this.store.list !== undefined) {
      const versions = await this.#listCommits();
      return versions.length === 0 ? null : versions.reduce((a, b) => Math.max(a, b));
    }
    const exists = async (/** @type {number} */ version) => (await this.store.open(commitName(version))) !== null;
    let low = known;
    if (!(await exists(low))) return null;
    let step = 1;
    while (await exists(low + step)) {
      low += step;
      step *= 2;
    }
    for (; step >= 1; step = Math.floor(step / 2)) if (await exists(low + step)) low += step;
    return low;
  }

  /** Returns the routes of a version that are in force. @param {number} version @returns {Promise<Step[]>} */
  async #routesOf(version) {
    const known = this.#routes.get(version);
    if (known !== undefined) return known;
    const own = await this.commit(version);
    let [routes, document] = [own.commit.routes, 0];
    for (const generation of (await this.#listGenerations()).get(version) ?? []) {
      const usable = await this.#remember(() => this.#readRoutes(version, generation, own.digest));
      if (usable === undefined || usable === null) continue;
      [routes, document] = [usable, generation];
      break;
    }
    const steps = routes.map((route, i) => ({ ...route, version, id: `${version} ${document} ${i}` }));
    this.#routes.set(version, steps);
    return steps;
  }

  async #listGenerations() {
    this.#generations ??= await this.#listRoutes();
    return this.#generations;
  }

  async #listRoutes() {
    /** @type {Map<number, number[]>} */
    const found = new Map();
    for (const name of (await this.store.list?.('routes')) ?? []) {
      const parts = /^(\d{20})-(\d{10})\.json$/.exec(name);
      if (parts === null || Number(parts[2]) === 0) continue;
      const version = Number(parts[1]);
      found.set(version, [...(found.get(version) ?? []), Number(parts[2])]);
    }
    for (const list of found.values()) list.sort((a, b) => b - a);
    return found;
  }

  /** True if step 4 must start over: something is missing, and other routes documents exist now. */
  async #beginsAnew() {
    if (!this.#missing) return false;
    const names = (/** @type {Map<number, number[]> | null} */ of) => [...(of ?? [])].map(String).sort().join();
    const now = await this.#listRoutes();
    if (names(now) === names(this.#generations)) return false;
    this.#generations = now;
    this.#routes.clear();
    this.#unusable.clear();
    [this.#missing, this.#floor, this.#fits, this.first] = [false, 0, Infinity, null];
    return true;
  }

  /** @param {string} name */
  #read(name) {
    return readDocument(this.store, name, this.limits);
  }

  /**
   * Reads a routes document; null if it does not exist any more.
   * @param {number} version
   * @param {number} generation
   * @param {string} commit
   */
  async #readRoutes(version, generation, commit) {
    const bytes = await this.#read(routesName(version, generation));
    if (bytes === null) {
      this.#missing = true;
      return null;
    }
    const document = parseDocument('routes', bytes, this.limits);
    const named = document.version === version && document.generation === generation;
    ensure(named, 'R-CHN-02', `routes document ${version}-${generation} has another name`);
    ensure(document.commit === commit, 'R-CHN-06', `routes document ${version}-${generation} is of another commit`);
    return document.routes;
  }

  /**
   * Returns the result of work; undefined if it fails, which is remembered. Errors that are not failures of the chain
   * are thrown.
   * @template T
   * @param {() => T | Promise<T>} work
   * @returns {Promise<T | undefined>}
   */
  async #remember(work) {
    try {
      return await work();
    } catch (error) {
      this.note(error);
      return undefined;
    }
  }

  /** Remembers a failure of steps 3 to 5. @param {unknown} error */
  note(error) {
    if (!(error instanceof DeltachainError) || error.class === 'IO' || error.class === 'USAGE') throw error;
    this.first ??= error;
    this.#missing ||= error.rule === 'R-CHN-09';
  }

  /** Rules out a route. @param {Step} step @param {unknown} error */
  failRoute(step, error) {
    this.note(error);
    this.#unusable.add(step.id);
  }

  /** Rules out all paths from the held version. @param {unknown} error */
  failHeld(error) {
    this.note(error);
    this.held = null;
  }

  /** Does step 4: returns the cheapest remaining path. @returns {Promise<Step[]>} */
  async path() {
    for (;;) {
      const way = await this.#cheapest();
      if (way === 'again' || (way === null && (await this.#beginsAnew()))) continue;
      if (way === null) throw this.first ?? broken('R-CHN-08', `no path leads to version ${this.wanted}`);
      const begin = way.steps[0];
      if (way.at !== null || (await this.#checkBelow(begin.version))) return way.steps;
    }
  }

  /**
   * Checks the commits from the wanted one down to the beginning of a path. If one has a fault, raises the floor and
   * returns false.
   * @param {number} begin
   */
  async #checkBelow(begin) {
    const top = Math.min(this.#fits, this.wanted);
    for (let version = top; version >= begin; version--) {
      const own = await this.#remember(() => this.commit(version));
      if (own === undefined) {
        this.#floor = version + 1;
        return false;
      }
      if (version < this.wanted) {
        const above = await this.commit(version + 1);
        const fits = await this.#remember(() => (this.#checkParent(above, own.digest), true));
        if (fits === undefined) {
          this.#floor = version + 1;
          return false;
        }
      }
      this.#fits = version;
    }
    if (begin > 0) return true;
    const { chainDigest } = this;
    const own = await this.commit(0);
    const fits = await this.#remember(() => (this.#checkParent(own, chainDigest), true));
    if (fits === undefined) this.#floor = 1;
    return fits !== undefined;
  }

  /** @returns {Promise<Way | null | 'again'>} */
  async #cheapest() {
    /** @type {Way[]} */
    const ways = [{ bytes: 0n, relative: 0n, at: this.wanted, steps: [], places: [] }];
    const taken = new Set();
    while (ways.length > 0) {
      let best = 0;
      for (let i = 1; i < ways.length; i++) if (compareWays(ways[i], ways[best], this.direct) < 0) best = i;
      const [way] = ways.splice(best, 1);
      const { at } = way;
      if (at === null || at === this.held?.version) return way;
      if (taken.has(at)) continue;
      taken.add(at);
      const own = await this.#remember(() => this.commit(at));
      if (own === undefined) {
        this.#floor = Math.max(this.#floor, at + 1);
        return 'again';
      }
      const routes = await this.#routesOf(at);
      for (const [place, step] of routes.entries()) {
        if (this.#unusable.has(step.id) || !(await this.#usable(step, own.commit))) continue;
        ways.push({
          bytes: way.bytes + step.bytes,
          relative: way.relative + (step.direct ? 0n : step.bytes),
          at: step.from,
          steps: [step, ...way.steps],
          places: [place, ...way.places],
        });
      }
    }
    return null;
  }

  /** @param {Step} step @param {Commit} commit of the version that it leads to */
  async #usable(step, commit) {
    const { from, version, files } = step;
    if (from === null ? version < this.#floor : from < this.#floor && from !== this.held?.version) return false;
    const origin = from === null ? null : await this.#remember(() => this.commit(from));
    if (origin === undefined) {
      this.#floor = Math.max(this.#floor, Number(from) + 1);
      return false;
    }
    const counts = [commit.shards.length, ...(origin === null ? [] : [origin.commit.shards.length])];
    if (counts.every((count) => count === files.length)) return true;
    const message = `a route from ${from} to ${version} has ${files.length} files for ${counts.join(' and ')} shards`;
    this.failRoute(step, broken('R-CHN-07', message));
    return false;
  }
}

/**
 * The orders of section 19: "the cheapest path", "the cheapest direct path".
 * @param {Way} a
 * @param {Way} b
 * @param {boolean} direct
 */
function compareWays(a, b, direct) {
  if (direct && a.relative !== b.relative) return a.relative < b.relative ? -1 : 1;
  if (a.bytes !== b.bytes) return a.bytes < b.bytes ? -1 : 1;
  if (a.steps.length !== b.steps.length) return a.steps.length - b.steps.length;
  for (let i = 0; i < a.steps.length; i++) {
    if (a.steps[i].version !== b.steps[i].version) return a.steps[i].version - b.steps[i].version;
  }
  for (let i = 0; i < a.places.length; i++) if (a.places[i] !== b.places[i]) return a.places[i] - b.places[i];
  return 0;
}

/** @param {number} version @param {number} generation */
export function routesName(version, generation) {
  return `routes/${versionDigits(version)}-${String(generation).padStart(10, '0')}.json`;
}

/**
 * Reads the bytes of a document, at most one more than allowed; null if it does not exist.
 * @param {Store} store
 * @param {string} name
 * @param {import('./limits.js').Limits} limits
 */
export async function readDocument(store, name, { documentBytes }) {
  const source = await store.open(name);
  if (source === null) return null;
  try {
    return await source.read(0, Math.min(source.length, documentBytes + 1));
  } finally {
    await source.close?.();
  }
}
