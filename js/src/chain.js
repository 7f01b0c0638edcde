/** Chains: SPEC section 19. `plan` reads only documents, `replay` builds a version. */
import { ensure } from './errors.js';
import { memoryWriter, applyLinks } from './apply.js';
import { Hasher } from './digests.js';
import { compareRoutes, parseDocument } from './documents.js';
import { LAYOUT, LayoutProof, valueOf } from './layout.js';
import { LIMITS } from './limits.js';
import { open } from './link.js';
import { Planner, commitName, readDocument } from './plan.js';
import { checkTrust } from './signatures.js';
import { digestOfTable, emptyState } from './state.js';

/** @typedef {import('./layout.js').Recorded} Recorded */
/** @typedef {import('./plan.js').HeldRecord} HeldRecord */
/** @typedef {import('./plan.js').Step} Step */
/** @typedef {import('./signatures.js').Trust} Trust */
/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Table} Table */
/** @typedef {import('./store.js').Store} Store */
/** @typedef {import('./apply.js').StateWriter} StateWriter */

/**
 * The held version of a reader, with the whole state of each shard; for readers that check layouts, also the recorded
 * layouts.
 * @typedef {HeldRecord & { shards: State[], layouts?: Recorded[] }} Held
 */

/** A shard on a path. @typedef {{ table: Table, state: State, proof: LayoutProof<Step> }} Followed */

/**
 * A path to a version; `from` is the held version, or null. `unsigned`, with trust, is the highest version above the
 * head that has a commit, but is not signed: a foreign one, or one that still lacks signatures. Null if there is none.
 * @typedef {{ version: number, from: number | null, path: Step[], bytes: bigint, unsigned: number | null }} Plan
 */

/**
 * @typedef {object} HeadOptions
 * @property {Trust | null} [trust] keys whose versions are accepted (SPEC section 23.3); by default signatures are not
 *   checked
 */

/**
 * @typedef {object} PlanOnly
 * @property {number | null} [version] by default the head
 * @property {HeldRecord | null} [held]
 * @property {string | null} [accept] digest of a commit that may be a rollback (SPEC section 19). Pass it only until
 *   that commit has been held
 * @property {boolean} [direct] the cheapest direct path (SPEC section 19), for callers that need new values without a
 *   base
 * @typedef {HeadOptions & PlanOnly} PlanOptions
 */

/**
 * @typedef {object} ReplayOnly
 * @property {number | null} [version] by default the head
 * @property {Held | null} [held]
 * @property {string | null} [accept] digest of a commit that may be a rollback (SPEC section 19). Pass it only until
 *   that commit has been held
 * @property {number[] | null} [shards] numbers of the selected shards; by default all
 * @property {string[] | null} [tensors] names of the selected tensors; by default all
 * @property {boolean} [assets] read the assets, too
 * @property {boolean} [layouts] check layouts, for callers that write files by them (SPEC section 25). Whole files are
 *   read then
 * @property {(shard: number) => StateWriter} [writer] returns the writer of a shard; by default one in memory. Called
 *   once for each shard, when everything except assets is proven
 * @property {AbortSignal} [signal]
 * @typedef {HeadOptions & ReplayOnly} ReplayOptions
 */

/**
 * A version that was built. A reader records `commit` and `chain` to hold it. `shards` has the table of each selected
 * shard, and its state unless a writer got it; if only some tensors of a shard are selected, the state has only these.
 * @typedef {object} Replayed
 * @property {number} version
 * @property {string} state digest, as the commit names it
 * @property {string} commit
 * @property {string} chain
 * @property {Map<number, { table: Table, state: State }>} shards
 * @property {Recorded[] | null} layouts of the selected shards, in order, to be recorded; null if layouts were not
 *   checked
 * @property {{ name: string, bytes: Uint8Array }[]} assets
 * @property {number | null} unsigned same as in a `Plan`
 */

/**
 * @param {Store} store
 * @param {{ limits?: Partial<import('./limits.js').Limits> }} [options] limits of its documents, assets and links; by
 *   default `LIMITS`
 * @returns {Chain}
 */
export function openChain(store, { limits = {} } = {}) {
  return new Chain(store, { ...LIMITS, ...limits });
}

/** A chain in a store. Nothing is remembered between calls. */
export class Chain {
  /** @param {Store} store @param {import('./limits.js').Limits} limits */
  constructor(store, limits) {
    this.store = store;
    this.limits = limits;
  }

  /** Finds the newest version; with trust, the newest signed one. @param {HeadOptions} [options] */
  async head({ trust = null } = {}) {
    return (await this.#planner({ trust })).wanted;
  }

  /** Reads the raw bytes of a document, such as `chain.json`; null if it does not exist. @param {string} name */
  document(name) {
    return readDocument(this.store, name, this.limits);
  }

  /** Reads the commit of a version, as a document by itself. @param {number} version */
  async commit(version) {
    const bytes = await this.document(commitName(version));
    ensure(bytes !== null, 'R-CHN-03', `there is no commit ${version}`);
    return parseDocument('commit', bytes, this.limits);
  }

  /** Opens a link of a route. @param {string} digest */
  async link(digest) {
    const source = await this.store.open(`files/${digest}.dcf`);
    ensure(source !== null, 'R-CHN-09', `the file ${digest} is missing`);
    return open(source, { limits: this.limits });
  }

  /** @param {PlanOptions} options */
  async #planner({ version = null, held = null, accept = null, direct = false, trust = null }) {
    const checked = trust === null ? null : checkTrust(trust);
    const planner = new Planner(this.store, this.limits, direct, checked);
    await planner.begin(version, held, accept);
    return planner;
  }

  /**
   * Finds the cheapest path, or the cheapest direct one: steps 1 to 4 of SPEC section 19.
   * @param {PlanOptions} [options]
   * @returns {Promise<Plan>}
   */
  async plan(options = {}) {
    const planner = await this.#planner(options);
    const path = await planner.path();
    const bytes = path.reduce((sum, step) => sum + step.bytes, 0n);
    const { wanted: version, unsigned } = planner;
    return { version, from: path.length === 0 ? version : path[0].from, path, bytes, unsigned };
  }

  /**
   * Builds a version: all steps of SPEC section 19. Use the output only after this has returned.
   * @param {ReplayOptions} [options]
   * @returns {Promise<Replayed>}
   */
  async replay(options = {}) {
    const planner = await this.#planner(options);
    const { commit, digest } = await planner.commit(planner.wanted);
    const taken = options.shards ?? commit.shards.map((_, shard) => shard);
    const lacks = taken.find((shard) => commit.shards[shard] === undefined);
    ensure(lacks === undefined, 'R-CHN-17', `version ${planner.wanted} has ${commit.shards.length} shards, not ${lacks}`);
    const held = planner.held === null ? null : (options.held ?? null);
    if (held !== null) await checkHeld(planner, held, taken);
    const built = await new Builder(this, planner, held, taken, options).build();
    if (taken.length === commit.shards.length) checkUnion(commit.state, [...built.values()]);
    const assets = options.assets ? await this.#assets(commit) : [];
    const proofs = [...built.values()].map(({ proof }) => ({ layout: proof.text(), proven: proof.proven }));
    const shards = new Map();
    for (const [shard, { table, state }] of built) {
      if (options.writer !== undefined) await copy(table, state, options.writer(shard), options);
      shards.set(shard, { table, state });
    }
    const { wanted: version, chainDigest: chain, unsigned } = planner;
    const layouts = options.layouts ? proofs : null;
    return { version, state: commit.state, commit: digest, chain, shards, layouts, assets, unsigned };
  }

  /** Does step 7. @param {import('./documents.js').Commit} commit */
  async #assets(commit) {
    const assets = [];
    for (const { name, digest, size } of commit.assets) {
      const source = await this.store.open(`assets/${digest}`);
      ensure(source !== null, 'R-CHN-15', `the asset ${name} is missing`);
      try {
        ensure(source.length === size, 'R-CHN-16', `the asset ${name} has ${source.length} bytes instead of ${size}`);
        const bytes = await source.read(0, size);
        ensure((await digestOf(source)) === digest, 'R-CHN-16', `the asset ${name} has another digest`);
        assets.push({ name, bytes });
      } finally {
        await source.close?.();
      }
    }
    return assets;
  }
}

/**
 * Checks that the held state is what was recorded; otherwise no path begins with it.
 * @param {Planner} planner
 * @param {Held} held
 * @param {number[]} taken numbers of shards
 */
async function checkHeld(planner, held, taken) {
  try {
    const { commit } = await planner.commit(held.version);
    const same = held.shards.length === commit.shards.length;
    ensure(same, 'R-APP-01', `${held.shards.length} shards are held instead of ${commit.shards.length}`);
    for (const shard of taken.filter((number) => number < held.shards.length)) {
      const digest = digestOfTable(await held.shards[shard].table());
      ensure(digest === commit.shards[shard], 'R-APP-01', `what is held of shard ${shard} is another state`);
    }
  } catch (error) {
    planner.failHeld(error);
  }
}

/** Does step 5, path after path until one leads to the version. */
class Builder {
  /**
   * @param {Chain} chain
   * @param {Planner} planner
   * @param {Held | null} held
   * @param {number[]} taken numbers of shards
   * @param {ReplayOptions} options
   */
  constructor({ store, limits }, planner, held, taken, options) {
    this.store = store;
    this.limits = limits;
    this.planner = planner;
    this.held = held;
    this.taken = taken;
    this.options = options;
    const names = options.tensors ? new Set(options.tensors) : null;
    /** @param {string} name */
    this.take = (name) => names === null || names.has(name);
    this.partial = names !== null;
    /** The step that fails if a path does; null: the held version. @type {Step | null} */
    this.atFault = null;
  }

  /** @returns {Promise<Map<number, Followed>>} */
  async build() {
    for (;;) {
      const path = await this.planner.path();
      this.atFault = null;
      try {
        const shards = await this.#begin(path);
        for (const step of path) {
          this.atFault = step;
          await this.#follow(step, shards);
        }
        if (this.options.layouts && this.options.trust) {
          for (const { proof } of shards.values()) {
            this.#ensureLayout(proof.proven, proof.unproven, 'no signed commit vouches for a layout');
          }
        }
        return shards;
      } catch (error) {
        if (this.atFault === null) this.planner.failHeld(error);
        else this.planner.failRoute(this.atFault, error);
      }
    }
  }

  /** Returns the shards where a path begins. @param {Step[]} path */
  async #begin(path) {
    const held = path.length === 0 || path[0].from !== null ? this.held : null;
    /** @type {Map<number, Followed>} */
    const shards = new Map();
    for (const shard of this.taken) {
      const state = held?.shards[shard] ?? emptyState();
      const table = await state.table();
      const proof = new LayoutProof();
      const recorded = this.options.layouts ? held?.layouts?.[shard] : undefined;
      if (recorded !== undefined) proof.hold(recorded, table);
      shards.set(shard, { table, state, proof });
      if (path.length === 0 && this.options.layouts) await this.#compareLayout(proof, this.planner.wanted, shard);
    }
    return shards;
  }

  /** @param {LayoutProof<Step>} proof @param {number} version @param {number} shard */
  async #compareLayout(proof, version, shard) {
    const { commit } = await this.planner.commit(version);
    this.#ensureLayout(proof.compare(commit, shard), proof.origin, 'the commit names another layout');
  }

  /**
   * Throws R-LAY-03 unless the condition holds.
   * @param {boolean} condition
   * @param {Step | null} step at fault if not; null: the held version
   * @param {string} why
   */
  #ensureLayout(condition, step, why) {
    if (!condition) this.atFault = step;
    ensure(condition, 'R-LAY-03', why);
  }

  /** Applies one route, shard by shard. @param {Step} step @param {Map<number, Followed>} shards */
  async #follow(step, shards) {
    const { commit } = await this.planner.commit(step.version);
    for (const [shard, before] of shards) {
      const { digest, size } = step.files[shard];
      const source = await this.store.open(`files/${digest}.dcf`);
      ensure(source !== null, 'R-CHN-09', `the file ${digest} is missing`);
      try {
        ensure(source.length === size, 'R-CHN-10', `the file ${digest} has ${source.length} bytes instead of ${size}`);
        // If only some tensors are selected, only their segments are read, and only the size is compared.
        if (!this.partial || this.options.layouts) {
          ensure((await digestOf(source)) === digest, 'R-CHN-10', `the file ${digest} has another digest`);
        }
        const link = await open(source, { limits: this.limits });
        const right = link.header.target === commit.shards[shard];
        ensure(right, 'R-CHN-11', `a link to version ${step.version} leads to another state than its commit names`);
        const writer = memoryWriter();
        const base = { table: async () => before.table, readPiece: before.state.readPiece };
        const options = { take: this.take, signal: this.options.signal, baseLayout: before.proof.files };
        const table = await applyLinks([link], base, writer, options);
        const stands = commit.routes.some((route) => compareRoutes(route, step) === 0);
        before.proof.follow(step, stands, valueOf(link.index.metadata, LAYOUT), before.table, table);
        if (this.options.layouts) await this.#compareLayout(before.proof, step.version, shard);
        shards.set(shard, { table, state: writer.state(), proof: before.proof });
      } finally {
        await source.close?.();
      }
    }
  }
}

/** Computes BLAKE3 of a file, a piece at a time. @param {import('./sources.js').Source} source */
async function digestOf(source) {
  const hasher = new Hasher();
  for (let at = 0; at < source.length; at += 2 ** 22) {
    await hasher.update(await source.read(at, Math.min(2 ** 22, source.length - at)));
  }
  return hasher.hex();
}

/** Does step 6. @param {string} expected @param {{ table: Table }[]} shards */
function checkUnion(expected, shards) {
  const all = new Map();
  for (const { table } of shards) {
    for (const [name, tensor] of table) {
      ensure(!all.has(name), 'R-CHN-12', 'two shards have the same tensor', { tensor: name });
      all.set(name, tensor);
    }
  }
  const digest = digestOfTable(all);
  ensure(digest === expected, 'R-CHN-12', `the shards make ${digest}, the commit says ${expected}`);
}

/** @param {Table} table @param {State} state @param {StateWriter} writer @param {ReplayOptions} options */
async function copy(table, state, writer, { tensors = null }) {
  const names = [...table.keys()].filter((name) => tensors === null || tensors.includes(name));
  const own = /** @type {import('./state.js').TableEntry[]} */ (names.map((name) => table.get(name)));
  await writer.begin?.(own);
  for (const tensor of own) {
    for (let piece = 0; piece < Math.ceil(tensor.byteLength / 2 ** 24); piece++) {
      await writer.write(tensor, piece, await state.readPiece(tensor.name, piece));
    }
  }
}
