/** Limits of SPEC section 13: this reader accepts what every reader must support. */

/**
 * @typedef {object} Limits
 * @property {number} indexBytes raw length of the index
 * @property {number} metadataEntries
 * @property {number} metadataBytes keys and values together
 * @property {number} nameBytes
 * @property {number} dimensions
 * @property {number} tensors
 * @property {number} segments
 * @property {number} tensorBytes
 * @property {number | null} setBytes bytes of all *set* tensors together (R-LIM-04); null for no limit
 * @property {number | null} codedBytes bytes of all pieces that have a part together (R-LIM-08); null for no limit
 * @property {number} documentBytes of a document of a chain
 * @property {number} assets of a commit
 * @property {number} assetBytes
 */

/** @type {Readonly<Limits>} */
export const LIMITS = Object.freeze({
  indexBytes: 67108864,
  metadataEntries: 256,
  metadataBytes: 33554432,
  nameBytes: 1024,
  dimensions: 8,
  tensors: 524288,
  segments: 1048576,
  tensorBytes: 2 ** 40,
  setBytes: null,
  codedBytes: null,
  documentBytes: 16777216,
  assets: 1024,
  assetBytes: 2 ** 30,
});

/**
 * Limits of any file, for callers that trust the source and have the memory: an index of this size can take many times
 * its bytes.
 * @type {Readonly<Limits>}
 */
export const FORMAT_LIMITS = Object.freeze({
  indexBytes: 2 ** 30,
  metadataEntries: 65536,
  metadataBytes: 67108864,
  nameBytes: 65535,
  dimensions: 255,
  tensors: 16777216,
  segments: 16777216,
  tensorBytes: 2 ** 60,
  setBytes: null,
  codedBytes: null,
  documentBytes: 67108864,
  assets: 65536,
  assetBytes: 2 ** 40,
});

/** Bytes of a full piece (SPEC section 2.3). */
export const PIECE_BYTES = 2 ** 24;
export const SEGMENT_PIECES = 65536;
export const SEGMENT_BYTES = 33554432;
