/** Rows of the table of tensors. */
import { shapeText } from './words.js';

/** Number of elements of a shape. @param {(number | bigint)[]} shape */
export const elementsOf = (shape) => shape.reduce((product, dimension) => product * Number(dimension), 1);

/**
 * Returns what the lanes of tensors are called. They are their elements, but for dtypes such as F4, of which several
 * elements share a lane, and described ones.
 * @param {{ shape: (number | bigint)[], lanes: number }[]} rows
 */
export const laneWord = (rows) => (rows.every((row) => row.lanes === elementsOf(row.shape)) ? 'elements' : 'lanes');

/**
 * Sorts rows by a column; shapes by their number of elements. Unknown values come last in any order.
 * @param {any[]} rows
 * @param {{ key: string, down: boolean }} order
 */
export function sortedRows(rows, { key, down }) {
  const compare = (x, y) => {
    if (x === y) return 0;
    if (x === null || y === null) return x === null ? 1 : -1;
    return (x < y ? -1 : 1) * (down ? -1 : 1);
  };
  if (key !== 'shape') return [...rows].sort((a, b) => compare(a[key], b[key]));
  const size = (row) => (row.shape === null ? null : elementsOf(row.shape));
  return [...rows].sort((a, b) => compare(size(a), size(b)) || compare(shapeText(a.shape), shapeText(b.shape)));
}
