/** The parts that only Node has: files and directories. Imported as `@deltachain/reader/node`. */
import { open as openFile, readdir, realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ioError } from './errors.js';

/** @typedef {import('./sources.js').Source} Source */
/** @typedef {import('./store.js').Store} Store */

/**
 * A file, open until `close` is called.
 * @param {string | URL} path
 * @returns {Promise<Source & { close(): Promise<void> }>}
 */
export async function fileSource(path) {
  try {
    const file = await openFile(path);
    const { size } = await file.stat();
    return {
      length: size,
      async read(offset, length) {
        const bytes = new Uint8Array(length);
        for (let done = 0; done < length; ) {
          const { bytesRead } = await file.read(bytes, done, length - done, offset + done);
          if (bytesRead === 0) throw ioError(`${path}: the file has become shorter`);
          done += bytesRead;
        }
        return bytes;
      },
      close: () => file.close(),
    };
  } catch (error) {
    throw ioError(`${path}: ${/** @type {Error} */ (error).message}`, error);
  }
}

/**
 * A chain in a directory.
 * @param {string} directory
 * @returns {Store}
 */
export function directoryStore(directory) {
  /** @template T @param {() => Promise<T>} work @returns {Promise<T | null>} */
  const orNull = async (work) => {
    try {
      return await work();
    } catch (error) {
      const { code } = /** @type {NodeJS.ErrnoException} */ (error);
      if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ELOOP') return null;
      throw ioError(`${directory}: ${/** @type {Error} */ (error).message}`, error);
    }
  };
  return {
    open: (name) =>
      orNull(async () => {
        const path = await realpath(join(directory, name));
        return (await stat(path)).isFile() ? fileSource(path) : null;
      }),
    async list(folder) {
      const names = (await orNull(() => readdir(join(directory, folder)))) ?? [];
      // Folders, and symbolic links without a target, are not objects.
      const files = names.map((name) => orNull(async () => (await stat(join(directory, folder, name))).isFile()));
      const found = await Promise.all(files);
      return names.filter((_, i) => found[i] === true);
    },
  };
}
