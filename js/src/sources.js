/** Sources of bytes: memory, a `Blob`, a server with range requests. Files of Node are in `node.js`. */
import { ioError } from './errors.js';

/**
 * Bytes that are read by position. `read` returns exactly `length` bytes, or fails.
 * @typedef {object} Source
 * @property {number} length in bytes
 * @property {(offset: number, length: number) => Promise<Uint8Array>} read
 */

/** Number of bytes in the first request: a header and most indexes. */
const FIRST_BYTES = 2 ** 18;

/** @param {ArrayBuffer | ArrayBufferView} data @returns {Source} */
export function bytesSource(data) {
  const bytes = ArrayBuffer.isView(data)
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
  return { length: bytes.length, read: async (offset, length) => bytes.subarray(offset, offset + length) };
}

/** Makes a source from a `Blob`, such as a dropped `File`. @param {Blob} blob @returns {Source} */
export function blobSource(blob) {
  return {
    length: blob.size,
    async read(offset, length) {
      try {
        return new Uint8Array(await blob.slice(offset, offset + length).arrayBuffer());
      } catch (error) {
        throw ioError('the file cannot be read', error);
      }
    },
  };
}

/**
 * @typedef {object} HttpOptions
 * @property {typeof globalThis.fetch} [fetch]
 * @property {HeadersInit} [headers] of every request
 * @property {AbortSignal} [signal]
 */

/**
 * Opens a file on a server. The first request asks for the beginning, and the answer has the length, too, so that a
 * link with a short index is opened by one request, and any other by two. A server without ranges sends the whole file,
 * which is kept. If the server sends an ETag, later requests require it: a file that changes in between is an error.
 * @param {string | URL} url
 * @param {HttpOptions} [options]
 * @returns {Promise<Source>}
 */
export async function httpSource(url, options = {}) {
  const source = await openHttp(url, options);
  if (source === null) throw ioError(`${url}: not found`);
  return source;
}

/**
 * Same as `httpSource`, but null if the file does not exist.
 * @param {string | URL} url
 * @param {HttpOptions} [options]
 * @returns {Promise<Source | null>}
 */
export async function openHttp(url, options = {}) {
  const first = await get(url, options, { range: `bytes=0-${FIRST_BYTES - 1}` });
  if (first.status === 404) return null;
  // An empty file has no range to return.
  if (first.status === 416) return bytesSource(new Uint8Array());
  if (first.status === 200) return bytesSource(await body(url, first));
  if (first.status !== 206) throw ioError(`${url}: status ${first.status}`);
  const range = /^bytes 0-(\d+)\/(\d+)$/.exec(first.headers.get('content-range') ?? '');
  if (range === null) {
    throw ioError(`${url}: the server does not report the length (a browser needs Content-Range exposed by CORS)`);
  }
  const length = Number(range[2]);
  const start = await body(url, first);
  if (start.length !== Math.min(length, FIRST_BYTES)) throw ioError(`${url}: the server sent another range`);
  const etag = first.headers.get('etag');
  // Weak tags do not guarantee equal bytes.
  /** @type {Record<string, string>} */
  const condition = etag !== null && !etag.startsWith('W/') ? { 'if-match': etag } : {};
  return {
    length,
    async read(offset, count) {
      const end = offset + count;
      if (end <= start.length) return start.subarray(offset, end);
      const have = offset < start.length ? start.subarray(offset) : null;
      const from = have === null ? offset : start.length;
      const answer = await get(url, options, { ...condition, range: `bytes=${from}-${end - 1}` });
      if (answer.status === 412) throw ioError(`${url}: the file changed while it was being read`);
      if (answer.status !== 206) throw ioError(`${url}: status ${answer.status} for a range`);
      const rest = await body(url, answer);
      if (rest.length !== end - from) throw ioError(`${url}: the server sent ${rest.length} bytes of ${end - from}`);
      if (have === null) return rest;
      const whole = new Uint8Array(count);
      whole.set(have);
      whole.set(rest, have.length);
      return whole;
    },
  };
}

/**
 * @param {string | URL} url
 * @param {HttpOptions} options
 * @param {Record<string, string>} headers
 */
async function get(url, options, headers) {
  const all = new Headers(options.headers);
  for (const [name, value] of Object.entries(headers)) all.set(name, value);
  try {
    return await (options.fetch ?? fetch)(url, { headers: all, signal: options.signal });
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason;
    throw ioError(`${url}: no answer (a browser needs the server's permission, CORS)`, error);
  }
}

/** @param {string | URL} url @param {Response} answer */
async function body(url, answer) {
  try {
    return new Uint8Array(await answer.arrayBuffer());
  } catch (error) {
    throw ioError(`${url}: the response ended early`, error);
  }
}
