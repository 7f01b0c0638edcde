/**
 * The reader behind the protocol of conformance/protocol.md: one JSON object per line, and one line as the answer. With
 * `--format-limits`, links may have any size, except for the index, as in the reference for small files.
 */
import { mkdir, open as openFile, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import {
  DeltachainError, FORMAT_LIMITS, Hasher, LIMITS, applyLinks, blake3Hex, emptyState, hashMemory, open, openChain,
  openSafetensors, parseDocument, safetensorsHeader, stateDigest, takeInPlace, usageError,
} from './src/index.js';
import { directoryStore, fileSource } from './src/node.js';
import { PIECE_BYTES } from './src/limits.js';

/** @typedef {import('./src/index.js').State} State */

const OPERATIONS = { check, apply, patches, sums, 'in-place': inPlace, document, plan, replay };
const HELLO = {
  testee: '@deltachain/reader',
  protocol: 2,
  operations: Object.keys(OPERATIONS),
  without: [],
  additions: ['signatures', 'in-place', 'signatures-1.2', 'layouts'],
  routes: true,
};

/** @type {(() => Promise<void>)[]} files that the current request has opened */
let opened = [];

/** @param {string} path */
async function file(path) {
  const source = await fileSource(path);
  opened.push(source.close);
  return source;
}

const { indexBytes, documentBytes, assets, assetBytes } = LIMITS;
const limits = process.argv.includes('--format-limits')
  ? { ...FORMAT_LIMITS, indexBytes, documentBytes, assets, assetBytes }
  : LIMITS;
/** @param {any} request */
const limitsOf = ({ set_bytes: setBytes = null, coded_bytes: codedBytes = null }) => ({ ...limits, setBytes, codedBytes });

/** @param {string} path @param {any} request */
const link = async (path, request) => open(await file(path), { limits: limitsOf(request) });

/** @param {string | null} path */
const state = async (path) => (path === null ? { ...emptyState(), infos: new Map() } : openSafetensors(await file(path)));

/** @param {any} request */
async function check(request) {
  const own = await link(request.link, request);
  await own.check();
  return { base: own.header.base, target: own.header.target };
}

/** Writes a safetensors file that stays only if the work succeeds. @param {string} path */
function output(path) {
  /** @type {import('node:fs/promises').FileHandle} */
  let handle;
  return {
    /** @param {import('./src/index.js').TableEntry[]} tensors */
    async begin(tensors) {
      const header = safetensorsHeader(tensors);
      handle = await openFile(path, 'w');
      opened.push(() => handle.close());
      await handle.writeFile(header);
    },
    /** @param {unknown} _tensor @param {number} _piece @param {Uint8Array} bytes */
    async write(_tensor, _piece, bytes) {
      await handle.writeFile(bytes);
    },
  };
}

/** @param {any} request */
async function apply(request) {
  const links = [];
  for (const path of request.links) links.push(await link(path, request));
  try {
    const table = await applyLinks(links, await state(request.base), output(request.output));
    return { digest: stateDigest(table.values()) };
  } catch (error) {
    await rm(request.output, { force: true });
    throw error;
  }
}

/** @param {any} request */
async function patches(request) {
  const own = await link(request.link, request);
  const nothing = blake3Hex(new Uint8Array());
  const written = own.index.tensors.filter((entry) => entry.operation !== 'remove');
  const found = new Map(written.map(({ name }) => [name, { name, lanes: 0, digest: nothing }]));
  let last;
  let hasher = new Hasher();
  for await (const { tensor, firstLane, lanes, values } of own.patches()) {
    const entry = found.get(tensor.name);
    if (entry !== last) {
      if (last !== undefined) last.digest = await hasher.hex();
      [last, hasher] = [entry, new Hasher()];
    }
    const each = tensor.dtype.laneBytes;
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    const record = new Uint8Array(lanes.length * (8 + each));
    const view = new DataView(record.buffer);
    for (let i = 0; i < lanes.length; i++) {
      view.setBigUint64(i * (8 + each), BigInt(firstLane + lanes[i]), true);
      record.set(bytes.subarray(i * each, (i + 1) * each), i * (8 + each) + 8);
    }
    entry.lanes += lanes.length;
    await hasher.update(record);
  }
  if (last !== undefined) last.digest = await hasher.hex();
  return { patches: [...found.values()] };
}

/** @param {any} request */
async function sums(request) {
  const own = await link(request.link, request);
  await own.check();
  const found = await own.sums();
  return { sums: found === null ? null : Array.from(found, ([name, pieces]) => ({ name, pieces })) };
}

/** @param {any} request */
async function inPlace(request) {
  const links = [];
  for (const path of request.links) links.push(await link(path, request));
  const { infos, readPiece } = await state(request.base);
  /** @type {Map<string, Uint8Array>} */
  const memory = new Map();
  for (const { name, byteLength } of infos.values()) {
    const bytes = new Uint8Array(byteLength);
    for (let piece = 0; piece * PIECE_BYTES < byteLength; piece++) bytes.set(await readPiece(name, piece), piece * PIECE_BYTES);
    memory.set(name, bytes);
  }
  const { table } = await takeInPlace(links, memory, await hashMemory(memory, infos.values()));
  const out = output(request.output);
  await out.begin([...table.values()]);
  for (const { name } of table.values()) await out.write(null, 0, /** @type {Uint8Array} */ (memory.get(name)));
  // The digest of the memory: in place, what a link states about its target is not compared.
  return { digest: stateDigest((await hashMemory(memory, table.values())).table.values()) };
}

/** @param {any} request */
async function document(request) {
  parseDocument(request.document, await readFile(request.file));
  return {};
}

/** @param {any} request */
async function plan(request) {
  const { version, held, accept, direct = false, trust = null } = request;
  const result = await openChain(directoryStore(request.chain)).plan({ version, held, accept, direct, trust });
  const path = result.path.map((route) => route.version);
  const routes = result.path.map((route) => route.files.map((one) => one.digest));
  return { version: result.version, bytes: Number(result.bytes), path, routes };
}

/** @param {any} request */
async function replay(request) {
  const { version, accept, shards, tensors, trust = null, layouts = false } = request;
  let held = null;
  if (request.held !== null) {
    const states = [];
    for (const path of request.held.shards) states.push(await state(path));
    held = { ...request.held, shards: states };
  }
  const folder = request.output;
  try {
    await mkdir(folder);
    const chain = openChain(directoryStore(request.chain), { limits: limitsOf(request) });
    const result = await chain.replay({
      version, held, accept, shards, tensors, trust, layouts, assets: true,
      writer: (shard) => output(join(folder, `${shard}.safetensors`)),
    });
    for (const { name, bytes } of result.assets) {
      const path = join(folder, 'assets', name);
      await mkdir(dirname(path), { recursive: true });
      await writeFile(path, bytes);
    }
    const digests = result.layouts?.map(({ layout }) => blake3Hex(new TextEncoder().encode(layout)));
    return { version: result.version, digest: result.state, layouts: digests };
  } catch (error) {
    await rm(folder, { recursive: true, force: true });
    throw error;
  }
}

/** @param {any} request */
async function answer(request) {
  const { case: name, operation } = request;
  try {
    const work = OPERATIONS[/** @type {keyof typeof OPERATIONS} */ (operation)];
    if (work === undefined) throw usageError(`operation ${operation}`);
    return { case: name, result: 'valid', ...(await work(request)) };
  } catch (error) {
    if (!(error instanceof DeltachainError)) throw error;
    return { case: name, result: 'invalid', class: error.class, rule: error.rule, message: error.message };
  } finally {
    for (const close of opened) await close();
    opened = [];
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const reply = request.operation === 'hello' ? HELLO : await answer(request);
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
