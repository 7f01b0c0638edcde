/**
 * Signed commits: SPEC section 23. Keys, notes, and the keys that a note counts for. WebCrypto is not used: Node 20
 * warns that its Ed25519 is experimental, and pages from plain http do not have it.
 */
import { hashes, verify } from '@noble/ed25519';
import { sha256, sha512 } from '@noble/hashes/sha2.js';
import { hex } from './bytes.js';
import { blake3Hex } from './digests.js';
import { usage } from './errors.js';
import { versionDigits } from './names.js';

/** @typedef {import('./store.js').Store} Store */

/**
 * A public key. `hash` has 64 hexadecimal digits: it names the key's own notes, and begins with `id`, which has 8.
 * @typedef {{ name: string, id: string, hash: string, bytes: Uint8Array }} Key
 */

/**
 * A key that is trusted for the chains with these digests, or for all chains if there are none.
 * @typedef {Key & { chains: string[] }} TrustedKey
 */

/**
 * A well-formed note on a commit. The signers that its lines name are not verified, and signatures of other kinds of
 * keys have other lengths.
 * @typedef {{ text: Uint8Array, lines: { name: string, id: string, signature: Uint8Array }[] }} Note
 */

/**
 * A head that was seen: its version, and the digest of its commit.
 * @typedef {{ version: number, commit: string }} Seen
 */

/**
 * The signers whose versions a reader accepts (SPEC section 23.3). In a store without `list`, a reader finds only the
 * own notes of keys.
 * @typedef {object} Trust
 * @property {string[]} keys public keys, each as `NAME+ID+KEY`, or `NAME+ID+KEY CHAIN CHAIN` to trust it only for these
 *   chains, which are the digests of their `chain.json`
 * @property {number} [quorum] how many of them must have signed a version; by default 1
 * @property {Seen | null} [seen] the newest signed head so far, from the last call of `record`
 * @property {(seen: Seen) => void | Promise<void>} [record] called with the signed head that replaces `seen`, after its
 *   commits were checked, and before anything is applied. Keep it across restarts: without it an old head is not
 *   noticed
 */

/** @typedef {{ keys: TrustedKey[], quorum: number, seen: Seen | null, record: NonNullable<Trust['record']> }} CheckedTrust */

hashes.sha512 = sha512;

/** Maximum bytes of a note, and maximum number of notes on one commit that are read. */
const NOTE_BYTES = 16384;
const NOTES = 64;
const LINES = 100;
const ED25519 = 1;
const ID_BYTES = 4;
const SIGNATURE_BYTES = 64;
/** Public keys for which anyone can make signatures, with the highest bit 0. */
const LOW_ORDER = new Set([
  '0000000000000000000000000000000000000000000000000000000000000000',
  '0100000000000000000000000000000000000000000000000000000000000000',
  '26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05',
  'c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a',
  'ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
  'edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
  'eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
]);

/** @param {string} name */
const isKeyName = (name) => name !== '' && !/[+\u0000-\u0020\p{White_Space}\p{Surrogate}]/u.test(name);

/** Returns the bytes of canonical base64; null for other texts. @param {string} text */
function unbase64(text) {
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)) return null;
  const binary = atob(text);
  return btoa(binary) === text ? Uint8Array.from(binary, (character) => character.charCodeAt(0)) : null;
}

/** @param {Uint8Array} bytes of a public key */
export const isLowOrder = (bytes) => LOW_ORDER.has(hex(bytes.map((byte, i) => (i === 31 ? byte & 0x7f : byte))));

/**
 * @param {string} text `NAME+ID+KEY`
 * @param {number} [place] number of the key among those given, from 0; messages do not repeat the text, which may be a
 *   private key
 * @returns {Key}
 */
export function parseKey(text, place = 0) {
  const [, name, id, base64] = /^([^+]*)\+([0-9a-f]{8})\+(.*)$/s.exec(text) ?? [];
  const typed = base64 === undefined ? null : unbase64(base64);
  if (typed === null || typed.length !== 33 || typed[0] !== ED25519 || !isKeyName(name)) {
    throw usage(`key ${place + 1} is not an Ed25519 public key, NAME+ID+KEY`);
  }
  const named = new TextEncoder().encode(`${name}\n`);
  const hash = hex(sha256.create().update(named).update(typed).digest());
  if (!hash.startsWith(id)) throw usage(`the ID of key ${place + 1}, ${name}, is not that of its text, which is damaged`);
  const bytes = typed.subarray(1);
  if (isLowOrder(bytes)) throw usage(`anybody can sign with key ${place + 1}, ${name}, which is of low order`);
  return { name, id, hash, bytes };
}

/**
 * @param {string} text `NAME+ID+KEY CHAIN CHAIN`
 * @param {number} [place] same as for `parseKey`
 * @returns {TrustedKey}
 */
export function parseTrustedKey(text, place = 0) {
  const [key, ...chains] = text.split(' ');
  if (!chains.every((chain) => /^[0-9a-f]{64}$/.test(chain))) {
    throw usage(`the chains of key ${place + 1} are not digests, each after one space`);
  }
  return { ...parseKey(key, place), chains };
}

/** Returns the keys that are trusted for a chain. @param {TrustedKey[]} keys @param {string} chain digest */
export const keysOf = (keys, chain) => keys.filter(({ chains }) => chains.length === 0 || chains.includes(chain));

/**
 * Checks the trust of a caller, before anything is read.
 * @param {Trust} trust
 * @returns {CheckedTrust}
 */
export function checkTrust({ keys, quorum = 1, seen = null, record = () => {} }) {
  const own = keys.map((text, i) => parseTrustedKey(text, i));
  // One key under two names would count twice, and with two keys of one name and ID, a note would be ambiguous.
  for (const each of [own.map(({ bytes }) => hex(bytes)), own.map(({ name, id }) => `${name}+${id}`)]) {
    if (new Set(each).size < own.length) throw usage('a key is duplicate, perhaps under another name');
  }
  const possible = Number.isInteger(quorum) && quorum >= 1 && quorum <= own.length;
  if (!possible) throw usage(`a quorum of ${quorum} is not from 1 to the number of keys, ${own.length}`);
  const known = (/** @type {Seen} */ { version, commit }) =>
    Number.isSafeInteger(version) && version >= 0 && /^[0-9a-f]{64}$/.test(commit);
  if (seen !== null && !known(seen)) throw usage('`seen` must be a version and the digest of its commit');
  return { keys: own, quorum, seen, record };
}

/**
 * Returns the text that keys sign for a version.
 * @param {string} chain digest of `chain.json`
 * @param {number} version
 * @param {string} commit digest
 */
export const noteText = (chain, version, commit) => `deltachain commit v1\n${chain}\n${version}\n${commit}\n`;

/**
 * Parses a note; null if it does not have the form of a note on this text.
 * @param {Uint8Array} bytes
 * @param {string} text
 * @returns {Note | null}
 */
export function parseNote(bytes, text) {
  let whole;
  try {
    whole = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
  if (!whole.startsWith(`${text}\n`) || !whole.endsWith('\n')) return null;
  const rows = whole.slice(text.length + 1).split('\n').slice(0, -1);
  if (rows.length < 1 || rows.length > LINES) return null;
  const lines = [];
  for (const row of rows) {
    const [, name, base64] = /^\u2014 ([^ ]*) ([^ ]*)$/.exec(row) ?? [];
    const signed = base64 === undefined ? null : unbase64(base64);
    if (signed === null || signed.length <= ID_BYTES || !isKeyName(name)) return null;
    lines.push({ name, id: hex(signed.subarray(0, ID_BYTES)), signature: signed.subarray(ID_BYTES) });
  }
  return { text: new TextEncoder().encode(text), lines };
}

/**
 * Returns the keys that a note counts for.
 * @param {Note} note
 * @param {Key[]} keys
 * @param {Set<string>} valid verified lines, on the same text
 * @returns {Key[]}
 */
function countsFor({ text, lines }, keys, valid) {
  const found = [];
  for (const { name, id, signature } of lines) {
    const key = keys.find((one) => one.name === name && one.id === id);
    if (key === undefined) continue;
    const line = `${name}+${id} ${hex(signature)}`;
    // A wrong line in the name of a trusted key invalidates the whole note.
    const isOne = signature.length === SIGNATURE_BYTES;
    if (!isOne || (!valid.has(line) && !verify(signature, text, key.bytes, { zip215: false }))) return [];
    valid.add(line);
    found.push(key);
  }
  return found;
}

/** Returns the keys that notes on one commit count for, each once. @param {Note[]} notes @param {Key[]} keys */
export function signersOf(notes, keys) {
  // A valid line may be copied thousands of times.
  const valid = new Set();
  const found = new Set(notes.flatMap((note) => countsFor(note, keys, valid)));
  return keys.filter((key) => found.has(key));
}

/** The notes of a chain. */
export class Notes {
  /** Names of the notes on commits of each version; listed when they are needed. @type {Promise<Map<string, string[]>> | null} */
  #names = null;

  /** @param {Store} store @param {string} chain digest of `chain.json` */
  constructor(store, chain) {
    this.store = store;
    this.chain = chain;
  }

  async #list() {
    const byVersion = new Map();
    for (const name of ((await this.store.list?.('signatures')) ?? []).sort()) {
      if (!/^\d{20}(-[0-9a-f]{64}){2}$/.test(name)) continue;
      const version = name.slice(0, 20);
      if (!byVersion.has(version)) byVersion.set(version, []);
      byVersion.get(version).push(`signatures/${name}`);
    }
    return byVersion;
  }

  /** @param {number} version */
  async #of(version) {
    this.#names ??= this.#list();
    return (await this.#names).get(versionDigits(version)) ?? [];
  }

  /** True if the store lists notes on commits of a version, whatever their content. @param {number} version */
  async have(version) {
    return (await this.#of(version)).length > 0;
  }

  /**
   * Reads the well-formed notes on a commit that the store lists: the first ones, without the own notes of these keys.
   * @param {number} version
   * @param {string} commit digest
   * @param {Key[]} [keys]
   */
  async on(version, commit, keys = []) {
    const own = keys.map((key) => ownNote(version, commit, key));
    const start = noteStart(version, commit);
    const names = (await this.#of(version)).filter((name) => name.startsWith(start) && !own.includes(name));
    return this.#read(version, commit, names.slice(0, NOTES), (name, bytes) => name === start + blake3Hex(bytes));
  }

  /**
   * Reads notes, and returns those that are well-formed and have the right name.
   * @param {number} version
   * @param {string} commit digest
   * @param {string[]} names
   * @param {(name: string, bytes: Uint8Array) => boolean} isRight
   */
  async #read(version, commit, names, isRight) {
    const text = noteText(this.chain, version, commit);
    const read = await Promise.all(names.map((name) => this.#bytes(name)));
    return read.flatMap((bytes, i) => (bytes !== null && isRight(names[i], bytes) && parseNote(bytes, text)) || []);
  }

  /** Reads the bytes of a note; null if it does not exist, or is too long. @param {string} name */
  async #bytes(name) {
    const source = await this.store.open(name);
    if (source === null) return null;
    try {
      return source.length > NOTE_BYTES ? null : await source.read(0, source.length);
    } finally {
      await source.close?.();
    }
  }

  /**
   * Returns the keys that have signed a commit. Own notes are read first, and others only if these are not enough.
   * @param {number} version
   * @param {string} commit digest
   * @param {Key[]} keys that are trusted for this chain
   * @param {number} enough keys
   */
  async signers(version, commit, keys, enough) {
    const own = await this.#read(version, commit, keys.map((key) => ownNote(version, commit, key)), () => true);
    const found = signersOf(own, keys);
    return found.length >= enough ? found : signersOf([...own, ...(await this.on(version, commit, keys))], keys);
  }
}

/** Returns the prefix of the names of notes on a commit. @param {number} version @param {string} commit digest */
const noteStart = (version, commit) => `signatures/${versionDigits(version)}-${commit}-`;

/** Returns the name of the own note of a key. @param {number} version @param {string} commit digest @param {Key} key */
export const ownNote = (version, commit, { hash }) => noteStart(version, commit) + hash;
