/** The content of a link, tensor by tensor and segment by segment: the members of `deltachain inspect --json`. */
import { compareStrings } from './bytes.js';
import { PIECE_BYTES } from './limits.js';

/** @typedef {import('./link.js').Link} Link */
/** @typedef {import('./segment.js').Segment} Segment */
/** @typedef {import('./link-index.js').Written} Written */

/** Number of coded lanes of each part and context that are shown. */
const FIRST = 4;
const BITMAP = 32;

/**
 * @typedef {object} TensorRow
 * @property {string} name
 * @property {'remove' | 'set' | 'patch'} operation
 * @property {string | null} dtype
 * @property {(number | bigint)[] | null} shape
 * @property {number} lanes
 * @property {number} coded lanes that the link holds values of
 * @property {number | null} share of `coded` in `lanes`
 * @property {number} bytes its share of the segments
 * @property {number | null} bits_per_coded
 * @property {number} contexts
 * @property {string[]} codings
 */

/**
 * @typedef {object} Inspection
 * @property {number} version
 * @property {number} compatible_features
 * @property {boolean} direct
 * @property {boolean} snapshot
 * @property {string} base
 * @property {string} target
 * @property {number} bytes
 * @property {number} index_bytes
 * @property {number} index_raw_bytes
 * @property {number} segments_bytes
 * @property {number} extension_bytes
 * @property {number} segments
 * @property {Record<string, string>} metadata
 * @property {TensorRow[]} tensors
 * @property {{ lanes: number, coded: number, bytes: number }} total
 * @property {object[]} [segment_details]
 */

/**
 * @param {Link} link
 * @param {import('./work.js').WorkOptions & { segments?: boolean }} options
 * @returns {Promise<Inspection>}
 */
export async function inspect(link, { segments: wanted = false, progress, signal }) {
  const { header, index } = link;
  const rows = index.tensors.map(startRow);
  const details = [];
  let done = 0;
  for (let number = 0; number < index.segments.length; number++) {
    signal?.throwIfAborted();
    const segment = await link.segment(number);
    addFigures(rows, segment);
    if (wanted) details.push(detail(link, segment));
    progress?.((done += index.segments[number].stored), header.segmentsLength);
  }
  for (const row of rows) {
    row.share = row.lanes === 0 ? null : row.coded / row.lanes;
    row.bits_per_coded = row.coded === 0 ? null : (8 * row.bytes) / row.coded;
    row.codings.sort(compareStrings);
  }
  const sum = (/** @type {'lanes' | 'coded' | 'bytes'} */ of) => rows.reduce((all, row) => all + row[of], 0);
  return {
    version: header.version,
    compatible_features: header.compatibleFeatures,
    direct: link.isDirect,
    snapshot: link.isSnapshot,
    base: header.base,
    target: header.target,
    bytes: header.fileLength,
    index_bytes: header.indexStored,
    index_raw_bytes: header.indexRaw,
    segments_bytes: header.segmentsLength,
    extension_bytes: header.extensionLength,
    segments: index.segments.length,
    metadata: Object.fromEntries(index.metadata),
    tensors: rows,
    total: { lanes: sum('lanes'), coded: sum('coded'), bytes: sum('bytes') },
    ...(wanted ? { segment_details: details } : {}),
  };
}

/** @param {import('./link-index.js').TensorEntry} entry @returns {TensorRow} */
function startRow(entry) {
  const { name, operation } = entry;
  const figures = { coded: 0, share: null, bytes: 0, bits_per_coded: null, contexts: 0, codings: [] };
  if (entry.operation === 'remove') return { name, operation, dtype: null, shape: null, lanes: 0, ...figures };
  const { dtype, shape, byteLength } = entry;
  return { name, operation, dtype: dtype.name, shape, lanes: byteLength / dtype.laneBytes, ...figures };
}

/** @param {TensorRow[]} rows @param {Segment} segment */
function addFigures(rows, segment) {
  const { parts, stored } = segment.entry;
  const coded = parts.map((_, part) => segment.codedLanes(part));
  const bytes = shareOut(stored, coded);
  const coding = describe(segment.entry);
  parts.forEach(({ entry }, part) => {
    const row = rows[entry];
    row.coded += coded[part];
    row.bytes += bytes[part];
    row.contexts = Math.max(row.contexts, segment.table.contexts);
    if (!row.codings.includes(coding)) row.codings.push(coding);
  });
}

/** @param {import('./link-index.js').SegmentEntry} entry */
function describe({ sparse, values }) {
  if (values === 'absolute') return sparse ? 'sparse absolute' : 'dense absolute';
  if (!sparse) return 'dense relative';
  return values === 'relative planes' ? 'sparse relative (planes)' : 'sparse relative';
}

/**
 * Divides `total` in proportion to the weights, evenly if all are 0.
 * @param {number} total
 * @param {number[]} weights
 */
function shareOut(total, weights) {
  const even = weights.every((weight) => weight === 0);
  const exact = weights.map((weight) => (even ? 1n : BigInt(weight)));
  const sum = exact.reduce((all, weight) => all + weight, 0n);
  let running = 0n;
  let given = 0;
  return exact.map((weight) => {
    running += weight;
    const upToHere = Number((BigInt(total) * running) / sum);
    const share = upToHere - given;
    given = upToHere;
    return share;
  });
}

/** @param {Link} link @param {Segment} segment */
function detail(link, segment) {
  const { entry, table, streams } = segment;
  const contexts = Array.from({ length: table.contexts }, (_, c) => {
    const parameter = table.positions[c];
    const gaps = parameter !== undefined && parameter !== BITMAP;
    const positions = parameter === undefined ? 'all' : gaps ? 'gaps' : 'bitmap';
    return { positions, shift: gaps ? parameter : null, symbol_bits: table.widths[c] ?? null };
  });
  return {
    offset: entry.offset,
    bytes: entry.stored,
    crc: entry.crc.toString(16).padStart(8, '0'),
    lane_bytes: entry.laneBytes,
    positions: entry.sparse ? 'sparse' : 'dense',
    values: entry.values,
    contexts,
    streams: streams.map(({ name, raw, stored }) => ({ name, raw, stored })),
    parts: entry.parts.map(({ entry: place, piece, lanes }, part) => ({
      tensor: link.index.tensors[place].name,
      piece,
      lanes,
      thresholds: table.thresholds[part],
      contexts: table.counts[part].map((count, c) => ({
        count,
        coded: segment.run(c, part).count,
        first: firstLanes(segment, part, c, piece),
      })),
    })),
  };
}

/** @param {Segment} segment @param {number} part @param {number} context @param {number} piece */
function firstLanes(segment, part, context, piece) {
  const { laneBytes } = segment.entry;
  const begin = (piece * PIECE_BYTES) / laneBytes;
  const { start, count } = segment.run(context, part);
  return Array.from({ length: Math.min(count, FIRST) }, (_, i) => {
    const rank = segment.ranks === null ? i : segment.ranks[start + i];
    const value = BigInt(segment.values[start + i]);
    const signed = BigInt.asIntN(8 * laneBytes, value);
    const safe = BigInt.asIntN(53, signed) === signed;
    return {
      rank,
      lane: segment.table.contexts === 1 ? begin + rank : null,
      bits: segment.relative ? null : value.toString(16).toUpperCase().padStart(2 * laneBytes, '0'),
      difference: segment.relative ? (safe ? Number(signed) : signed) : null,
    };
  });
}
