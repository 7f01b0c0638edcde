/** Numbers in the form that people read. */

/** @param {number | bigint} value */
export const grouped = (value) => value.toLocaleString('en');

/** @param {number | null} share from 0 to 1 */
export function percent(share) {
  if (share === null || !Number.isFinite(share)) return '';
  const value = 100 * share;
  if (value === 0 || value === 100) return `${value} %`;
  if (value < 0.01) return '< 0.01 %';
  if (value > 99.9) return '> 99.9 %';
  return `${value.toPrecision(value < 10 ? 2 : 3)} %`;
}

/** Formats bytes, in decimal units. @param {number | bigint} bytes */
export function size(bytes) {
  let value = Number(bytes);
  if (value < 1000) return `${Math.round(value)} bytes`;
  for (const unit of ['kB', 'MB', 'GB', 'TB', 'PB', 'EB']) {
    value /= 1000;
    if (value < 999.5) return `${value.toPrecision(3)} ${unit}`;
  }
  return `${Math.round(value)} EB`;
}

/** Formats a factor. @param {number} value */
export const times = (value) => (value < 99.5 ? value.toPrecision(2) : grouped(Math.round(value)));

/** @param {number} value in seconds */
export function seconds(value) {
  if (value < 1e-3) return '< 1 ms';
  if (value < 0.9995) return `${Math.round(1000 * value)} ms`;
  if (value < 99.95) return `${value.toPrecision(3)} s`;
  if (value < 5940) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toPrecision(3)} h`;
}

/** @param {(number | bigint)[] | null} shape */
export const shapeText = (shape) => (shape === null ? '' : shape.length === 0 ? 'scalar' : shape.join(' × '));

/** @param {number} count @param {string} one @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;
