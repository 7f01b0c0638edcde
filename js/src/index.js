/**
 * `@deltachain/reader`: reads links (`.dcf`) and chains of links, in browsers and in Node. This file is the public
 * interface; what the bytes mean is in SPEC.md.
 *
 * A link is opened from a source, which is anything with `length` and `read(offset, length)`:
 *
 *     import { open, blobSource } from '@deltachain/reader';
 *     const link = await open(blobSource(file));
 *     console.log(link.header.target, await link.inspect());
 *
 * Every refusal is a `DeltachainError` with class, rule, section, offset and tensor.
 * @module
 */

/**
 * Bytes that are read by position. `read` gives exactly `length` bytes.
 * @typedef {object} Source
 * @property {number} length in bytes
 * @property {(offset: number, length: number) => Promise<Uint8Array>} read
 */

/**
 * The header of a link (SPEC section 4.1). Lengths are in bytes, digests 64 lowercase hexadecimal digits.
 * @typedef {object} Header
 * @property {number} version
 * @property {number} compatibleFeatures
 * @property {string} base state digest of the base
 * @property {string} target state digest of the target
 * @property {number} indexStored
 * @property {number} indexRaw
 * @property {number} segmentsLength
 * @property {number} extensionLength
 * @property {number} fileLength
 */

/**
 * A dtype (SPEC section 2.1).
 * @typedef {object} Dtype
 * @property {string} name
 * @property {number} code 255 if the file describes it
 * @property {number} bits per element
 * @property {number} laneBytes 1, 2, 4 or 8
 * @property {boolean} signMagnitude
 * @property {number} exponentBits
 */

/**
 * A segment entry of the index (SPEC section 6.1).
 * @typedef {object} SegmentEntry
 * @property {number} laneBytes
 * @property {boolean} sparse
 * @property {'absolute' | 'relative planes' | 'relative small'} values
 * @property {number} stored bytes in the file
 * @property {number} crc
 * @property {number} offset in the file
 * @property {{entry: number, piece: number, lanes: number}[]} parts `entry` is a place in `Index.tensors`
 */

/**
 * A tensor entry of the index (SPEC section 6.2). A removal has the name and the operation alone.
 * @typedef {object} TensorEntry
 * @property {string} name
 * @property {'remove' | 'set' | 'patch'} operation
 * @property {Dtype} [dtype]
 * @property {bigint[]} [shape]
 * @property {number} [byteLength]
 * @property {number[]} [segments] for each piece 0, or 1 + the number of its segment
 * @property {string} [digest] tensor digest in the target
 * @property {string[]} [pieceDigests] of each piece
 */

/**
 * @typedef {object} Index
 * @property {[string, string][]} metadata
 * @property {SegmentEntry[]} segments
 * @property {TensorEntry[]} tensors
 */

/**
 * Options of what takes long.
 * @typedef {object} WorkOptions
 * @property {(done: number, total: number) => void} [progress] called now and then, in bytes
 * @property {AbortSignal} [signal] ends the work with the signal's reason
 */

// open(source, options?: { limits?, signal? }): Promise<Link>
// Link: header, index, isDirect, isSnapshot,
//   inspect({ segments?: boolean } & WorkOptions): Promise<object>   the members of `deltachain inspect --json` but
//                                                                    `link`; with `segment_details` if asked for
//   check(WorkOptions): Promise<void>                                steps 1 to 6 and 8 of SPEC section 10
//   apply(base: State, writer?: StateWriter, WorkOptions): Promise<State table>
//   patches(WorkOptions): AsyncGenerator<{ name, dtype, shape, lanes: Float64Array (lane numbers), values }>
//   changes(name, WorkOptions): AsyncGenerator<{ piece, lanes: Uint32Array | null, values, differences: boolean }>
// applyLinks(links, base, writer, WorkOptions)
// emptyState(), openSafetensors(source), memoryWriter(), safetensorsBlob(...)
// blobSource(blob), bytesSource(arrayBufferOrView), httpSource(url, { fetch?, headers? }): Promise<Source>
// '@deltachain/reader/node': fileSource(path), directoryStore(path)
// openChain(store, options): Chain;  httpStore(url), filesStore(iterable of [name, Blob])
// Chain: head(), versions(), document(name) -> { kind, bytes, text, value }, commit(version), routes(version),
//   plan({ version?, held?, accept? }), replay({ version?, held?, accept?, shards?, tensors? })
// parseDocument(kind, bytes)
