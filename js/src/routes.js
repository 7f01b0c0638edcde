/** Routes documents: which routes to a version are in force (SPEC sections 18 and 19.1). */
import { parseDocument } from './documents.js';
import { ensure } from './errors.js';
import { versionDigits } from './names.js';

/** @typedef {import('./documents.js').Route} Route */

/** @param {number} version @param {number} generation */
export function routesName(version, generation) {
  return `routes/${versionDigits(version)}-${String(generation).padStart(10, '0')}.json`;
}

/**
 * Lists the generations of the routes documents of each version, the highest first.
 * @param {import('./store.js').Store} store without `list`, none is found
 */
export async function listGenerations(store) {
  /** @type {Map<number, number[]>} */
  const found = new Map();
  for (const name of (await store.list?.('routes')) ?? []) {
    const parts = /^(\d{20})-(\d{10})\.json$/.exec(name);
    if (parts === null || Number(parts[2]) === 0) continue;
    const version = Number(parts[1]);
    found.set(version, [...(found.get(version) ?? []), Number(parts[2])]);
  }
  for (const list of found.values()) list.sort((a, b) => b - a);
  return found;
}

/**
 * Reads documents for `routesInForce`, and receives those that it cannot use.
 * @typedef {object} RoutesReader
 * @property {(name: string) => Promise<Uint8Array | null>} read bytes of a document; null if it is missing
 * @property {Partial<import('./limits.js').Limits>} limits
 * @property {(error: unknown) => void} failed called for each unusable document; throws what is no fault of the document
 * @property {() => void} [missing] called for each document that was listed and is missing
 */

/**
 * Finds the routes in force of a version: those of its usable routes document with the highest generation. If there is
 * none, they are those of the commit.
 * @param {import('./documents.js').Commit} commit
 * @param {string} digest of the commit
 * @param {number[]} generations of the version's routes documents, the highest first
 * @param {RoutesReader} reader
 * @returns {Promise<{ routes: Route[], generation: number }>} generation 0 stands for the commit
 */
export async function routesInForce(commit, digest, generations, reader) {
  for (const generation of generations) {
    try {
      const bytes = await reader.read(routesName(commit.version, generation));
      if (bytes !== null) return { routes: usableRoutes(bytes, commit.version, generation, digest, reader.limits), generation };
      reader.missing?.();
    } catch (error) {
      reader.failed(error);
    }
  }
  return { routes: commit.routes, generation: 0 };
}

/**
 * Returns the routes of a routes document, if it is of this name and of this commit.
 * @param {Uint8Array} bytes
 * @param {number} version
 * @param {number} generation
 * @param {string} commit digest
 * @param {Partial<import('./limits.js').Limits>} limits
 */
function usableRoutes(bytes, version, generation, commit, limits) {
  const document = parseDocument('routes', bytes, limits);
  const named = document.version === version && document.generation === generation;
  ensure(named, 'R-CHN-02', `routes document ${version}-${generation} has another name`);
  ensure(document.commit === commit, 'R-CHN-06', `routes document ${version}-${generation} is of another commit`);
  return document.routes;
}
