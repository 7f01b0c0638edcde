/**
 * The canonical form of documents and layouts (SPEC section 18): parsed as JSON, written by the rules, and compared.
 */
import { compareStrings } from './bytes.js';

const ESCAPES = new Map([
  ['"', '\\"'], ['\\', '\\\\'], ['\b', '\\b'], ['\t', '\\t'], ['\n', '\\n'], ['\f', '\\f'], ['\r', '\\r'],
]);

/** @param {string} text */
function writeString(text) {
  const escape = (/** @type {string} */ c) => ESCAPES.get(c) ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return `"${text.replace(/["\\\u0000-\u001f]/g, escape)}"`;
}

/** Writes a value whose objects are maps, in their order. @param {unknown} value @returns {string} */
export function writeCanonical(value) {
  if (typeof value === 'string') return writeString(value);
  if (Array.isArray(value)) return `[${value.map(writeCanonical).join(',')}]`;
  if (value instanceof Map) return `{${[...value].map(([k, v]) => `${writeString(k)}:${writeCanonical(v)}`).join(',')}}`;
  return String(value);
}

/**
 * A check of a value: turns a JSON value into the ordered value, or throws. `Map` keeps the order of members, which
 * objects do not.
 * @typedef {(value: any) => any} Form
 */

class WrongForm extends Error {}

/** @param {boolean} condition @returns {asserts condition} */
function need(condition) {
  if (!condition) throw new WrongForm();
}

/** @param {Record<string, Form>} members in their order @returns {Form} */
export const object = (members) => (value) => {
  need(typeof value === 'object' && value !== null && !Array.isArray(value));
  const names = Object.keys(members);
  need(Object.keys(value).length === names.length && names.every((name) => Object.hasOwn(value, name)));
  return new Map(names.map((name) => [name, members[name](value[name])]));
};

/** @param {Form} item @param {number} [least] @param {number} [most] @returns {Form} */
export const array = (item, least = 0, most = Infinity) => (value) => {
  need(Array.isArray(value) && value.length >= least && value.length <= most);
  return value.map(item);
};

/** @param {number} [least] @param {number} [most] @returns {Form} */
export const integer = (least = 0, most = Number.MAX_SAFE_INTEGER) => (value) => {
  need(Number.isSafeInteger(value) && value >= least && value <= most);
  return value;
};

/** @param {RegExp} [pattern] @returns {Form} */
export const string = (pattern = /^/) => (value) => {
  need(typeof value === 'string' && pattern.test(value));
  return value;
};

/** @param {Form} form @returns {Form} */
export const nullable = (form) => (value) => (value === null ? null : form(value));

/** Members whose values are strings, in ascending order. @type {Form} */
export const strings = (value) => {
  need(typeof value === 'object' && value !== null && !Array.isArray(value));
  const entries = Object.entries(value).sort((a, b) => compareStrings(a[0], b[0]));
  need(entries.every((entry) => typeof entry[1] === 'string'));
  return new Map(entries);
};

/**
 * Returns the value of a text in canonical form; undefined for other texts. Objects become maps.
 * @param {string} text
 * @param {Form} form
 */
export function readCanonical(text, form) {
  try {
    const value = form(JSON.parse(text));
    return writeCanonical(value) === text ? value : undefined;
  } catch (error) {
    if (error instanceof WrongForm || error instanceof SyntaxError || error instanceof RangeError) return undefined;
    throw error;
  }
}
