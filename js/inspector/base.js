/** The base of a link from files, and the result of an apply as a file. */
import { openSafetensors, safetensorsHeader, usageError } from '../src/index.js';
import { stateOf } from '../src/state.js';
import { blobSource } from '../src/sources.js';

/**
 * Returns the state that several files form together.
 * @param {File[]} files
 * @returns {Promise<import('../src/state.js').State & { metadata: Record<string, string> | null }>}
 */
export async function baseOf(files) {
  const states = await Promise.all(files.map((file) => openSafetensors(blobSource(file))));
  if (states.length === 1) return states[0];
  const infos = new Map();
  const owner = new Map();
  for (const state of states) {
    for (const [name, info] of state.infos) {
      if (owner.has(name)) throw usageError(`two of these files have the tensor ${name}`);
      infos.set(name, info);
      owner.set(name, state);
    }
  }
  return { ...stateOf(infos, (name, piece) => owner.get(name).readPiece(name, piece)), metadata: null };
}

/**
 * Collects a result as parts of a file. The browser may keep them on its disk, so that a large model does not fill the
 * memory of the page.
 * @param {import('../src/link.js').Link} link
 * @param {any} base
 */
export function fileWriter(link, base) {
  /** @type {Record<string, string> | null} */
  let metadata = null;
  /** @type {Map<string, Blob[]>} */
  const parts = new Map();
  /** @type {any[]} */
  let tensors = [];
  return {
    begin(all) {
      // The order of the tool: wide dtypes first, then names.
      tensors = [...all].sort((a, b) => b.dtype.code - a.dtype.code);
      // The layout has been checked by now.
      const { files } = layoutOf(link) ?? { files: [base] };
      metadata = files.length === 1 ? (files[0].metadata ?? null) : null;
      safetensorsHeader(tensors, metadata);
      for (const { name } of all) parts.set(name, []);
    },
    write({ name }, _, bytes) {
      parts.get(name).push(new Blob([bytes]));
    },
    /** Call this once the apply has returned. */
    file: () => new Blob([safetensorsHeader(tensors, metadata), ...tensors.flatMap(({ name }) => parts.get(name))]),
  };
}

/**
 * Returns the files of the target if the link states a layout; null if it does not.
 * @param {import('../src/link.js').Link} link
 * @returns {{ files: { metadata: Record<string, string> | null }[] } | null}
 */
export function layoutOf(link) {
  const text = link.index.metadata.find(([key]) => key === 'deltachain.layout')?.[1];
  return text === undefined ? null : JSON.parse(text);
}

/** Hands a file to the user. @param {Blob} file @param {string} name */
export function save(file, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  // By then the download has the bytes, or keeps them alive.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
