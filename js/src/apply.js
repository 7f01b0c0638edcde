/**
 * Applying links: SPEC sections 9 and 10. The same engine applies one link or several. A piece is read from the base,
 * changed by all links in their order, and hashed once; no intermediate state is built. If something is wrong, a second
 * pass compares after each link and finds the first failure.
 */
import { DeltachainError, ensure } from './errors.js';
import { compareStrings } from './bytes.js';
import { DIGEST_OF_NOTHING, blake3Hex } from './digests.js';
import { pieceCount, pieceLength, sameDtype } from './dtypes.js';
import { LAYOUT, ONE_FILE, nextLayout, valueOf } from './layout.js';
import { applyPart } from './parts.js';
import { digestOfTable, emptyState } from './state.js';

/** @typedef {import('./link.js').Link} Link */
/** @typedef {import('./link-index.js').Written} Written */
/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Table} Table */
/** @typedef {import('./state.js').TableEntry} TableEntry */

/**
 * Destination of the result of an apply. Do not use the result before `applyLinks` has returned.
 * @typedef {object} StateWriter
 * @property {(tensors: TableEntry[]) => void | Promise<void>} [begin] called once with the tensors to come, in the order of names
 * @property {(tensor: TableEntry, piece: number, bytes: Uint8Array) => void | Promise<void>} write called with pieces
 *   in the order of `begin`; the writer may keep the bytes
 */

/**
 * @typedef {import('./work.js').WorkOptions & ApplyOnly} ApplyOptions
 * @typedef {object} ApplyOnly
 * @property {boolean} [layouts] check layouts (R-LAY-01), as a tool that writes files must; by default true
 * @property {import('./layout.js').Files} [baseLayout] layout of the base; by default one file without a name
 * @property {(name: string) => boolean} [take] tensors to build; by default all
 */

/**
 * Applies links one after another.
 * @param {Link[]} links
 * @param {State} base
 * @param {StateWriter | null} writer null to only prove the result
 * @param {ApplyOptions} [options]
 * @returns {Promise<Table>} of the result
 */
export async function applyLinks(links, base, writer, options = {}) {
  const layout = (options.layouts ?? true) ? (options.baseLayout ?? ONE_FILE) : null;
  const tables = promisedTables(links, await base.table({ signal: options.signal }), layout);
  const pass = new Pass(links, base, tables, options);
  try {
    await pass.run(writer);
  } catch (error) {
    const proven = error instanceof DeltachainError && error.class !== 'IO' && error.class !== 'USAGE';
    if (!proven) throw error;
    await new Pass(links, base, tables, { ...options, progress: undefined }).findFirstFailure();
    throw error;
  }
  return tables[tables.length - 1];
}

/**
 * Does R-APP-06 and step 7 of section 10 for consecutive links. Returns the tables before the first link and after
 * each.
 * @param {Link[]} links
 * @param {Table} base
 * @param {import('./layout.js').Files | null} layout of the base; null if layouts are not checked
 */
export function promisedTables(links, base, layout) {
  links.forEach((link, i) => {
    const fits = i === 0 || links[i - 1].header.target === link.header.base;
    ensure(fits, 'R-APP-06', 'the base of a link is not the target of the one before');
  });
  const tables = [base];
  let files = layout;
  for (const link of links) {
    const before = tables[tables.length - 1];
    const after = nextTable(link, before);
    if (files !== null) files = nextLayout(files, valueOf(link.index.metadata, LAYOUT), before, after);
    tables.push(after);
  }
  return tables;
}

/**
 * Does step 7 of section 10, except for the layout. Returns the table that a link promises.
 * @param {Link} link
 * @param {Table} before
 * @returns {Table}
 */
function nextTable(link, before) {
  const { header, index } = link;
  const digest = digestOfTable(before);
  ensure(digest === header.base, 'R-APP-01', `the link belongs to ${header.base}, the base is ${digest}`);
  const after = new Map(before);
  for (const entry of index.tensors) {
    if (entry.operation === 'patch') {
      const old = before.get(entry.name);
      const same = old !== undefined && sameDtype(old.dtype, entry.dtype) && old.byteLength === entry.byteLength;
      ensure(same, 'R-APP-02', 'the base lacks a patched tensor of this dtype and length', { tensor: entry.name });
    }
    if (entry.operation === 'remove') after.delete(entry.name);
    else after.set(entry.name, entry);
  }
  const result = digestOfTable(after);
  ensure(result === header.target, 'R-APP-05', `the result is ${result}, the link promises ${header.target}`);
  return after;
}

/** One pass over all tensors. Links count from 1 here, like the tables after them; table 0 is the base's. */
class Pass {
  /** Entry of each tensor, for each link. @type {Map<string, import('./link-index.js').TensorEntry>[]} */
  #entries;
  /** Decoded segments, the last used one at the end. @type {Map<string, import('./segment.js').Segment>} */
  #open = new Map();
  /** Bytes of the decoded segments. */
  #held = 0;

  /**
   * @param {Link[]} links
   * @param {State} base
   * @param {Table[]} tables before the first link, and after each
   * @param {ApplyOptions} options
   */
  constructor(links, base, tables, options) {
    this.links = links;
    this.base = base;
    this.tables = tables;
    this.take = options.take ?? (() => true);
    this.signal = options.signal;
    this.progress = options.progress;
    this.#entries = links.map((link) => new Map(link.index.tensors.map((entry) => [entry.name, entry])));
  }

  /** @param {StateWriter | null} writer */
  async run(writer) {
    const last = this.links.length;
    const tensors = [...this.tables[last].values()].filter((tensor) => this.take(tensor.name));
    tensors.sort((a, b) => compareStrings(a.name, b.name));
    await writer?.begin?.(tensors);
    const total = tensors.reduce((sum, tensor) => sum + tensor.byteLength, 0);
    let done = 0;
    for (const tensor of tensors) {
      const written = this.#lastWriter(tensor.name, last) !== null;
      for (let piece = 0; piece < pieceCount(tensor.byteLength); piece++) {
        if (written || writer !== null) {
          const bytes = await this.#build(tensor.name, piece, last);
          this.#compare(tensor, piece, bytes, last);
          await writer?.write(tensor, piece, bytes);
        }
        this.progress?.((done += pieceLength(tensor.byteLength, piece)), total);
      }
      if (written) this.#compareEmpty(tensor);
    }
    await this.#proveWhatEnds();
  }

  /**
   * Proves tensors that a later link removes or sets again: their segments are checked and their digests compared, too.
   */
  async #proveWhatEnds() {
    for (let number = 1; number <= this.links.length; number++) {
      for (const entry of this.links[number - 1].index.tensors) {
        if (entry.operation === 'remove' || !this.take(entry.name)) continue;
        const next = this.#entries.slice(number).find((entries) => entries.has(entry.name))?.get(entry.name);
        if (next === undefined || next.operation === 'patch') continue;
        await this.#prove(entry, number);
      }
    }
  }

  /** Does steps 8 and 9 of each link in order, as in section 10, to find the first failure. */
  async findFirstFailure() {
    for (let number = 1; number <= this.links.length; number++) {
      const link = this.links[number - 1];
      for (let place = 0; place < link.index.segments.length; place++) {
        const { parts } = link.index.segments[place];
        const names = parts.map((part) => link.index.tensors[part.entry].name);
        if (!names.some(this.take)) continue;
        const segment = await link.segment(place);
        for (let part = 0; part < parts.length; part++) {
          if (segment.table.contexts === 1 || !this.take(names[part])) continue;
          applyPart(segment, part, await this.#build(names[part], parts[part].piece, number - 1));
        }
      }
      for (const entry of link.index.tensors) {
        if (entry.operation !== 'remove' && this.take(entry.name)) await this.#prove(entry, number);
      }
    }
  }

  /** @param {Written} entry @param {number} number */
  async #prove(entry, number) {
    for (let piece = 0; piece < entry.segments.length; piece++) {
      this.#compare(entry, piece, await this.#build(entry.name, piece, number), number);
    }
    this.#compareEmpty(entry);
  }

  /** @param {TableEntry} tensor */
  #compareEmpty(tensor) {
    if (tensor.byteLength > 0) return;
    const right = tensor.digest === DIGEST_OF_NOTHING;
    ensure(right, 'R-APP-04', 'a tensor without elements has another digest', { tensor: tensor.name });
  }

  /** @param {TableEntry} tensor @param {number} piece @param {Uint8Array} bytes @param {number} number */
  #compare(tensor, piece, bytes, number) {
    const digest = blake3Hex(bytes);
    if (digest === tensor.pieces[piece]) return;
    const { name } = tensor;
    // Data of the base that no link touches have changed since they were hashed.
    const rule = this.#lastWriter(name, number) === null ? 'R-APP-01' : 'R-APP-04';
    ensure(false, rule, `piece ${piece} is ${digest} instead of ${tensor.pieces[piece]}`, { tensor: name });
  }

  /**
   * Returns the number of the last link up to `number` that writes a tensor; null if no link does.
   * @param {string} name
   * @param {number} number
   */
  #lastWriter(name, number) {
    for (let i = number; i > 0; i--) if (this.#entries[i - 1].has(name)) return i;
    return null;
  }

  /**
   * Returns a piece after the links 1 to `number`.
   * @param {string} name
   * @param {number} piece
   * @param {number} number
   */
  async #build(name, piece, number) {
    this.signal?.throwIfAborted();
    const steps = [];
    let fromZeros = false;
    let length = 0;
    for (let i = number; i > 0 && !fromZeros; i--) {
      const entry = this.#entries[i - 1].get(name);
      if (entry === undefined || entry.operation === 'remove') continue;
      steps.unshift(/** @type {const} */ ([i - 1, entry]));
      fromZeros = entry.operation === 'set';
      length = pieceLength(entry.byteLength, piece);
    }
    const bytes = fromZeros ? new Uint8Array(length) : await this.base.readPiece(name, piece);
    for (const [link, entry] of steps) {
      const number = entry.segments[piece];
      if (number === 0) continue;
      applyPart(await this.#segment(link, number - 1), entry.parts[piece], bytes);
    }
    return bytes;
  }

  /** Returns a decoded segment; recently used ones are kept. @param {number} link @param {number} place */
  async #segment(link, place) {
    const key = `${link} ${place}`;
    const known = this.#open.get(key);
    const segment = known ?? (await this.links[link].segment(place));
    this.#open.delete(key);
    this.#open.set(key, segment);
    if (known === undefined) this.#held += segment.memory;
    for (const [oldest, { memory }] of this.#open) {
      if (this.#held <= KEPT_BYTES || oldest === key) break;
      this.#open.delete(oldest);
      this.#held -= memory;
    }
    return segment;
  }
}

/** Maximum bytes of decoded segments that are kept for the next pieces. */
const KEPT_BYTES = 2 ** 26;

/** Makes a writer that builds a state in memory. */
export function memoryWriter() {
  /** @type {Map<string, Uint8Array[]>} */
  const data = new Map();
  /** @type {Table} */
  const table = new Map();
  const empty = emptyState();
  return {
    /** @param {TableEntry[]} tensors */
    begin(tensors) {
      for (const tensor of tensors) {
        table.set(tensor.name, tensor);
        data.set(tensor.name, []);
      }
    },
    /** @param {TableEntry} tensor @param {number} piece @param {Uint8Array} bytes */
    write(tensor, piece, bytes) {
      data.get(tensor.name)?.splice(piece, 1, bytes);
    },
    /** The result, once the apply has returned. @returns {State} */
    state: () => ({
      table: async () => table,
      readPiece: async (name, piece) => data.get(name)?.[piece].slice() ?? empty.readPiece(name, piece),
    }),
  };
}
