/**
 * `@deltachain/reader`: reads links (`.dcf`) and chains of links, in browsers and in Node. This file is the public
 * interface; SPEC.md defines the format.
 *
 * A link is opened from a source, which is anything with `length` and `read(offset, length)`:
 *
 *     import { open, blobSource } from '@deltachain/reader';
 *     const link = await open(blobSource(file));
 *     console.log(link.header.target, await link.inspect());
 *
 * Every refusal is a `DeltachainError` with class, rule, section, offset, tensor and segment.
 * @module
 */

export { applyLinks, memoryWriter } from './apply.js';
export { openChain, Chain } from './chain.js';
export { checkMemory, hashMemory, takeInPlace } from './in-place.js';
export { EMPTY_STATE_DIGEST, Hasher, blake3Hex, stateDigest } from './digests.js';
export { parseDocument } from './documents.js';
export { DeltachainError, usage as usageError } from './errors.js';
export { FORMAT_LIMITS, LIMITS } from './limits.js';
export { Link, open } from './link.js';
export { blobSource, bytesSource, httpSource } from './sources.js';
export { emptyState, openSafetensors, safetensorsHeader } from './state.js';
export { filesStore, httpStore } from './store.js';

/** @typedef {import('./apply.js').StateWriter} StateWriter */
/** @typedef {import('./apply.js').ApplyOptions} ApplyOptions */
/** @typedef {import('./chain.js').Held} Held */
/** @typedef {import('./chain.js').Plan} Plan */
/** @typedef {import('./chain.js').Replayed} Replayed */
/** @typedef {import('./chain.js').ReplayOptions} ReplayOptions */
/** @typedef {import('./documents.js').Commit} Commit */
/** @typedef {import('./documents.js').Route} Route */
/** @typedef {import('./documents.js').RoutesDocument} RoutesDocument */
/** @typedef {import('./documents.js').ChainDocument} ChainDocument */
/** @typedef {import('./dtypes.js').Dtype} Dtype */
/** @typedef {import('./dtypes.js').TensorInfo} TensorInfo */
/** @typedef {import('./errors.js').ErrorClass} ErrorClass */
/** @typedef {import('./extension.js').ExtensionRecord} ExtensionRecord */
/** @typedef {import('./in-place.js').Known} Known */
/** @typedef {import('./in-place.js').Memory} Memory */
/** @typedef {import('./inspect.js').Inspection} Inspection */
/** @typedef {import('./limits.js').Limits} Limits */
/** @typedef {import('./link.js').Coded} Coded */
/** @typedef {import('./link-index.js').Header} Header */
/** @typedef {import('./link-index.js').Index} Index */
/** @typedef {import('./signatures.js').Seen} Seen */
/** @typedef {import('./signatures.js').Trust} Trust */
/** @typedef {import('./sources.js').Source} Source */
/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Table} Table */
/** @typedef {import('./state.js').TableEntry} TableEntry */
/** @typedef {import('./store.js').Store} Store */
/** @typedef {import('./sums.js').PieceSums} PieceSums */
/** @typedef {import('./sums.js').Sums} Sums */
/** @typedef {import('./work.js').WorkOptions} WorkOptions */
