/** Layouts of safetensors files: in a link's metadata (SPEC section 12), and along a path (section 25). */
import { array, nullable, object, readCanonical, string, strings, writeCanonical } from './canonical.js';
import { compareStrings } from './bytes.js';
import { blake3Hex } from './digests.js';
import { broken, ensure } from './errors.js';
import { folderOf, foldersOf, isPathName, withoutCase } from './names.js';

const KEY = 'deltachain.layout';
const FORM = object({
  files: array(object({ name: nullable(string()), metadata: nullable(strings), tensors: nullable(array(string())) }), 1),
});

/** The layout of one file without a name. */
const NAMELESS = '{"files":[{"name":null,"metadata":null,"tensors":null}]}';
const NAMED = 'deltachain.layouts';

/**
 * What is known of a shard's layout: its text, and whether it is proven (SPEC section 25.2).
 * @typedef {{ layout: string, proven: boolean }} KnownLayout
 * @typedef {{ has(name: string): boolean, size: number, keys(): Iterable<string> }} Names
 */

/** Whether different ones of these names differ in more than case. @param {string[]} names */
const differWithoutCase = (names) => new Set(names).size === new Set(names.map(withoutCase)).size;

/**
 * Checks the layout of a link, if it has one, against the tensors of its target.
 * @param {[string, string][]} metadata
 * @param {Names} target
 */
export function checkLayout(metadata, target) {
  const text = metadata.find(([key]) => key === KEY)?.[1];
  if (text === undefined) return;
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
    if (tensors === null) return;
    ensure(ascending(tensors), 'R-LAY-01', 'the tensors of a file are not ascending');
    for (const tensor of tensors) {
      ensure(target.has(tensor) && !placed.has(tensor), 'R-LAY-01', 'a tensor that is not there, or is twice', { tensor });
      placed.add(tensor);
    }
  }
  ensure(placed.size === target.size, 'R-LAY-01', 'a tensor is in no file');
}

/**
 * The text of the layout after a link, whose own has been checked: the one it states, the one before carried over, or one
 * file without a name.
 * @param {[string, string][]} metadata
 * @param {string | null} before null: that of nothing
 * @param {Names} base
 * @param {Names} target
 */
function layoutAfter(metadata, before, base, target) {
  const stated = metadata.find(([key]) => key === KEY)?.[1];
  if (stated !== undefined) return stated;
  if (before === null) return NAMELESS;
  const layout = readCanonical(before, FORM);
  ensure(layout !== undefined, 'R-LAY-01', 'the layout before does not have its one legal form');
  const files = /** @type {Map<string, any>[]} */ (layout.get('files'));
  /** @type {Map<string, number>} */
  const places = new Map();
  files.forEach((file, i) => [...(file.get('tensors') ?? base.keys())].forEach((name) => places.set(name, i)));
  // Of several files of a folder, the last one stays.
  const last = new Map(files.map((file, i) => [folderOf(file.get('name') ?? ''), i]));
  /** @type {string[][]} */
  const lists = files.map(() => []);
  for (const name of [...target.keys()].sort(compareStrings)) {
    const folders = [...foldersOf(name).map((folder) => `${folder}/`).reverse(), ''];
    const place = places.get(name) ?? folders.map((folder) => last.get(folder)).find((found) => found !== undefined);
    ensure(place !== undefined, 'R-LAY-01', 'no file lies in a folder that the name of an added tensor begins with');
    lists[place].push(name);
  }
  if (files.length > 1) files.forEach((file, i) => file.set('tensors', lists[i]));
  return writeCanonical(layout);
}

/**
 * The digests of layouts that a commit names; null if it names none.
 * @param {{ metadata: [string, string][], shards: string[] }} commit
 */
export function namedLayouts({ metadata, shards }) {
  const text = metadata.find(([key]) => key === NAMED)?.[1] ?? '';
  const named = text.split(' ');
  return named.length === shards.length && named.every((digest) => /^[0-9a-f]{64}$/.test(digest)) ? named : null;
}

/** R-LAY-03, with the number of the route at fault; -1 stands for what is held. */
export class OtherLayout extends Error {
  /** @param {string} message @param {number} route */
  constructor(message, route) {
    super(message);
    this.error = broken('R-LAY-03', message);
    this.route = route;
  }
}

/** The layout of a shard along a path (SPEC section 25.2). */
export class PathLayout {
  /** @param {KnownLayout | null} held null if the path begins from nothing */
  constructor(held) {
    this.layout = held?.layout ?? null;
    this.proven = held?.proven ?? false;
    /** The route that the layout comes from. */
    this.origin = -1;
    /** The last route that proves nothing by itself. */
    this.unproven = -1;
    this.routes = 0;
  }

  /**
   * After the file of a route.
   * @param {{ metadata: [string, string][], base: Names, target: Names }} link
   * @param {{ fromNothing: boolean, stands: boolean }} route `stands`: in the commit, with a file that was hashed whole
   * @param {string | undefined} named digest, if the commit names it
   */
  follow({ metadata, base, target }, { fromNothing, stands }, named) {
    const isNew = fromNothing || metadata.some(([key]) => key === KEY);
    if (isNew || this.proven) this.origin = this.routes;
    if (!stands) this.unproven = this.routes;
    this.routes++;
    this.proven = stands && (isNew || this.proven);
    this.layout = layoutAfter(metadata, this.layout, base, target);
    this.compare(named);
  }

  /** @param {string | undefined} named */
  compare(named) {
    if (named === undefined) return;
    const found = blake3Hex(new TextEncoder().encode(this.layout ?? ''));
    if (found !== named) throw new OtherLayout(`the layout is ${found}, the commit names ${named}`, this.origin);
    this.proven = true;
  }

  /** At the end of a path, with trust. */
  checkProven() {
    if (!this.proven) throw new OtherLayout('no signed commit vouches for the layout', this.unproven);
  }
}
