/** The extension area of a link: SPEC section 4.2. Nothing in it is a reason to refuse a file. */
import { crc32 } from './crc32.js';

/** @typedef {import('./sources.js').Source} Source */

const MAGIC = [0x89, 0x44, 0x43, 0x58, 0x0d, 0x0a, 0x1a, 0x0a];
/** Kind, CRC, length. */
const FIELDS = 16;
/** Number of bytes that are read at once between records. */
const WINDOW = 2 ** 16;

/**
 * A record of the area. A record with a wrong CRC counts as missing; it is listed for people who inspect files.
 * @typedef {{ kind: number, data: Uint8Array, crcMatches: boolean }} ExtensionRecord
 */

/**
 * The place of a record's data in the file.
 * @typedef {{ kind: number, crc: number, offset: number, length: number }} Found
 */

/**
 * Finds the records of an area, without their data; none, if the area does not have the form of section 4.2.
 * @param {Source} source
 * @param {number} begin of the area in the file
 * @param {number} end
 * @returns {Promise<Found[]>}
 */
export async function findRecords(source, begin, end) {
  let window = /** @type {{ from: number, bytes: Uint8Array }} */ ({ from: 0, bytes: new Uint8Array() });
  const read = async (/** @type {number} */ at, /** @type {number} */ length) => {
    if (at < window.from || at + length > window.from + window.bytes.length) {
      window = { from: at, bytes: await source.read(at, Math.min(WINDOW, end - at)) };
    }
    return window.bytes.subarray(at - window.from, at - window.from + length);
  };
  if (end - begin < MAGIC.length) return [];
  const magic = await read(begin, MAGIC.length);
  if (MAGIC.some((byte, i) => magic[i] !== byte)) return [];
  const records = [];
  for (let at = begin + MAGIC.length, before = -1; at < end; ) {
    if (end - at < FIELDS) return [];
    const fields = await read(at, FIELDS);
    const view = new DataView(fields.buffer, fields.byteOffset, FIELDS);
    const [kind, crc, length] = [view.getUint32(0, true), view.getUint32(4, true), view.getBigUint64(8, true)];
    at += FIELDS;
    if (kind <= before || length > end - at) return [];
    records.push({ kind, crc, offset: at, length: Number(length) });
    at += Number(length);
    before = kind;
  }
  return records;
}

/** Reads a record with its data. @param {Source} source @param {Found} found @returns {Promise<ExtensionRecord>} */
export async function readRecord(source, { kind, crc, offset, length }) {
  const data = await source.read(offset, length);
  return { kind, data, crcMatches: crc32(data) === crc };
}
