/** Layouts of safetensors files: in a link's metadata (SPEC section 12, R-LAY-01), named by commits (section 25). */
import { array, nullable, object, readCanonical, string, strings, writeCanonical } from './canonical.js';
import { compareStrings } from './bytes.js';
import { blake3Hex } from './digests.js';
import { ensure } from './errors.js';
import { folderOf, foldersOf, isPathName, withoutCase } from './names.js';

/** @typedef {import('./state.js').Table} Table */
/** The files of a layout, with `name`, `metadata` and `tensors`. @typedef {Map<string, any>[]} Files */
/**
 * A layout in a reader's record: the text, and whether it is proven.
 * @typedef {{ layout: string, proven: boolean }} Recorded
 */

export const LAYOUT = 'deltachain.layout';
const LAYOUTS = 'deltachain.layouts';
const FORM = object({
  files: array(object({ name: nullable(string()), metadata: nullable(strings), tensors: nullable(array(string())) }), 1),
});

/** True if names that differ also differ without case. @param {string[]} names */
const differWithoutCase = (names) => new Set(names).size === new Set(names.map(withoutCase)).size;

/** Returns the value of a key in metadata. @param {[string, string][]} metadata @param {string} key */
export const valueOf = (metadata, key) => metadata.find(([own]) => own === key)?.[1];

/**
 * Returns the files of a layout, checked against the tensors of its state.
 * @param {string} text
 * @param {{ has(name: string): boolean, size: number, keys(): Iterable<string> }} target
 * @returns {Files}
 */
export function readLayout(text, target) {
  const layout = readCanonical(text, FORM);
  ensure(layout !== undefined, 'R-LAY-01', 'the layout does not have its one legal form');
  const files = /** @type {Map<string, any>[]} */ (layout.get('files'));
  const ascending = (/** @type {string[]} */ list) =>
    list.every((name, i) => i === 0 || compareStrings(list[i - 1], name) < 0);
  /** @type {(string | null)[]} */
  const names = files.map((file) => file.get('name'));
  const single = files.length === 1;
  if (!(single && names[0] === null)) {
    const own = names.filter((name) => name !== null);
    ensure(own.length === names.length, 'R-LAY-01', 'a file among several has no name');
    ensure(ascending(own), 'R-LAY-01', 'the files are not ascending');
    for (const name of own) {
      ensure(isPathName(name) && name.endsWith('.safetensors'), 'R-LAY-01', 'the name of a file is not legal');
    }
    ensure(differWithoutCase(own), 'R-LAY-01', 'names of files differ in case alone');
    ensure(differWithoutCase(own.flatMap(foldersOf)), 'R-LAY-01', 'names of folders differ in case alone');
  }
  const placed = new Set();
  for (const file of files) {
    const tensors = /** @type {string[] | null} */ (file.get('tensors'));
    ensure((tensors === null) === single, 'R-LAY-01', 'tensors are listed if and only if there are several files');
    const folder = folderOf(file.get('name') ?? '');
    const inside = [...(tensors ?? target.keys())].every((tensor) => tensor.startsWith(folder));
    ensure(inside, 'R-LAY-01', 'the name of a tensor does not begin with the folder of its file');
    if (tensors === null) return files;
    ensure(ascending(tensors), 'R-LAY-01', 'the tensors of a file are not ascending');
    for (const tensor of tensors) {
      ensure(target.has(tensor) && !placed.has(tensor), 'R-LAY-01', 'a listed tensor is missing or duplicate', { tensor });
      placed.add(tensor);
    }
  }
  ensure(placed.size === target.size, 'R-LAY-01', 'a tensor is in no file');
  return files;
}

/** One file without a name. @type {Files} */
export const ONE_FILE = [new Map([['name', null], ['metadata', null], ['tensors', null]])];

/**
 * Returns the layout of a target whose link states none.
 * @param {Files} files
 * @param {Table} before
 * @param {Table} after
 */
function carriedOver(files, before, after) {
  const folders = files.map((file) => folderOf(file.get('name') ?? ''));
  const lists = files.map((file) => /** @type {string[]} */ (file.get('tensors') ?? []).filter((name) => after.has(name)));
  for (const name of after.keys()) {
    if (before.has(name)) continue;
    let place = -1;
    folders.forEach((folder, i) => {
      if (name.startsWith(folder) && (place < 0 || folder.length >= folders[place].length)) place = i;
    });
    ensure(place >= 0, 'R-LAY-01', 'the layout of the base has no file for a tensor that is added', { tensor: name });
    lists[place].push(name);
  }
  if (files.length === 1) return files;
  return files.map((file, i) => new Map([...file, ['tensors', lists[i].sort(compareStrings)]]));
}

/**
 * Returns the layout of a target (SPEC section 12): the one that its link states, or else the one of the base.
 * @param {Files} files of the base
 * @param {string | undefined} stated
 * @param {Table} before
 * @param {Table} after
 */
export function nextLayout(files, stated, before, after) {
  return stated === undefined ? carriedOver(files, before, after) : readLayout(stated, after);
}

/**
 * Returns the digest of a shard's layout that a commit names; undefined if it names none (SPEC section 25.1).
 * @param {{ metadata: [string, string][], shards: string[] }} commit
 * @param {number} shard
 */
function named({ metadata, shards }, shard) {
  const digests = valueOf(metadata, LAYOUTS)?.split(' ') ?? [];
  const legal = digests.length === shards.length && digests.every((digest) => /^[0-9a-f]{64}$/.test(digest));
  return legal ? digests[shard] : undefined;
}

/** The layout of a shard on a path, and the state of its proof (SPEC section 25.2). @template Step */
export class LayoutProof {
  files = ONE_FILE;
  proven = false;
  /** The step that the layout comes from; null: the held version. @type {Step | null} */
  origin = null;
  /** The last step that proves nothing by itself; null: the held version. @type {Step | null} */
  unproven = null;

  /** Begins with the layout of a held version. @param {Recorded} recorded @param {Table} table */
  hold({ layout, proven }, table) {
    this.files = readLayout(layout, table);
    this.proven = proven;
  }

  /**
   * Continues with a file that was hashed whole.
   * @param {Step & { from: number | null }} step
   * @param {boolean} stands whether its route stands in the commit
   * @param {string | undefined} stated
   * @param {Table} before
   * @param {Table} after
   */
  follow(step, stands, stated, before, after) {
    this.files = nextLayout(this.files, stated, before, after);
    const known = stated !== undefined || step.from === null || this.proven;
    if (known) this.origin = step;
    if (!stands) this.unproven = step;
    this.proven = stands && known;
  }

  /**
   * Compares the layout with the one that the commit of its version names.
   * @param {Parameters<typeof named>[0]} commit
   * @param {number} shard
   */
  compare(commit, shard) {
    const digest = named(commit, shard);
    if (digest === undefined) return true;
    this.proven = digest === blake3Hex(new TextEncoder().encode(this.text()));
    return this.proven;
  }

  text() {
    return writeCanonical(new Map([['files', this.files]]));
  }
}
