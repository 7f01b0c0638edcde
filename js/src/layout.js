/** The layout of safetensors files in a link's metadata: SPEC section 12, R-LAY-01. */
import { array, nullable, object, readCanonical, string, strings } from './canonical.js';
import { compareStrings } from './bytes.js';
import { ensure } from './errors.js';
import { folderOf, foldersOf, isPathName, withoutCase } from './names.js';

const KEY = 'deltachain.layout';
const FORM = object({
  files: array(object({ name: nullable(string()), metadata: nullable(strings), tensors: nullable(array(string())) }), 1),
});

/** Whether different ones of these names differ in more than case. @param {string[]} names */
const differWithoutCase = (names) => new Set(names).size === new Set(names.map(withoutCase)).size;

/**
 * Checks the layout of a link, if it has one, against the tensors of its target.
 * @param {[string, string][]} metadata
 * @param {{ has(name: string): boolean, size: number, keys(): Iterable<string> }} target
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
