/** The extension area of a link: SPEC section 4.2. Nothing in it is a reason to refuse a file. */
import { crc32 } from './crc32.js';

const MAGIC = [0x89, 0x44, 0x43, 0x58, 0x0d, 0x0a, 0x1a, 0x0a];
/** Kind, CRC, length. */
const FIELDS = 16;

/**
 * A record of the area. One whose CRC is wrong is to be taken as not there; it is listed for people who look at files.
 * @typedef {{ kind: number, data: Uint8Array, crcMatches: boolean }} ExtensionRecord
 */

/**
 * The records of an area; none, if it is not as section 4.2 says.
 * @param {Uint8Array} area
 * @returns {ExtensionRecord[]}
 */
export function readExtension(area) {
  if (area.length < MAGIC.length || MAGIC.some((byte, i) => area[i] !== byte)) return [];
  const view = new DataView(area.buffer, area.byteOffset, area.length);
  const records = [];
  for (let at = MAGIC.length, before = -1; at < area.length; ) {
    if (area.length - at < FIELDS) return [];
    const [kind, crc, length] = [view.getUint32(at, true), view.getUint32(at + 4, true), view.getBigUint64(at + 8, true)];
    at += FIELDS;
    if (kind <= before || length > area.length - at) return [];
    const data = area.subarray(at, at + Number(length));
    records.push({ kind, data, crcMatches: crc32(data) === crc });
    at += data.length;
    before = kind;
  }
  return records;
}
