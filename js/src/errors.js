/**
 * Errors: the classes of SPEC section 11, and the class and section of each rule. Every refusal of this package is a
 * `DeltachainError`, made here.
 */

/**
 * @typedef {'NOT_DCF' | 'TRUNCATED' | 'CORRUPT' | 'MALFORMED' | 'NON_CANONICAL' | 'UNSUPPORTED' | 'LIMIT' | 'WRONG_BASE'
 *   | 'STATE_MISMATCH' | 'CHAIN' | 'IO' | 'USAGE'} ErrorClass
 */

/**
 * The known place of a fault.
 * @typedef {object} Place
 * @property {number} [offset] in the file, in bytes
 * @property {string} [tensor]
 * @property {number} [segment] number of the segment, from 0
 */

/** Class and section of each rule that a reader checks. @type {Record<string, [ErrorClass, string]>} */
const RULES = {
  'R-INT-01': ['NON_CANONICAL', '1'],
  'R-INT-02': ['MALFORMED', '1'],
  'R-INT-03': ['MALFORMED', '1'],
  'R-INT-04': ['MALFORMED', '1'],
  'R-HDR-01': ['NOT_DCF', '4.1'],
  'R-HDR-02': ['TRUNCATED', '4.1'],
  'R-HDR-03': ['CORRUPT', '4.1'],
  'R-HDR-04': ['UNSUPPORTED', '4.1'],
  'R-HDR-05': ['UNSUPPORTED', '4.1'],
  'R-HDR-06': ['MALFORMED', '4.1'],
  'R-HDR-08': ['MALFORMED', '4.1'],
  'R-HDR-09': ['TRUNCATED', '4.1'],
  'R-HDR-10': ['MALFORMED', '4.1'],
  'R-STR-01': ['NON_CANONICAL', '5'],
  'R-STR-02': ['MALFORMED', '5'],
  'R-STR-03': ['LIMIT', '5'],
  'R-STR-04': ['MALFORMED', '5'],
  'R-STR-05': ['NON_CANONICAL', '5'],
  'R-STR-06': ['MALFORMED', '5'],
  'R-IDX-01': ['CORRUPT', '6'],
  'R-IDX-02': ['MALFORMED', '6'],
  'R-IDX-03': ['NON_CANONICAL', '6'],
  'R-IDX-05': ['MALFORMED', '6.1'],
  'R-IDX-06': ['NON_CANONICAL', '6.2'],
  'R-IDX-07': ['MALFORMED', '6.2'],
  'R-IDX-08': ['MALFORMED', '6.2'],
  'R-IDX-20': ['MALFORMED', '6.2'],
  'R-IDX-09': ['MALFORMED', '6.2'],
  'R-IDX-10': ['MALFORMED', '6.2'],
  'R-IDX-11': ['MALFORMED', '6.2'],
  'R-IDX-16': ['MALFORMED', '6.2'],
  'R-IDX-19': ['MALFORMED', '6.2'],
  'R-IDX-12': ['MALFORMED', '6.3'],
  'R-IDX-14': ['MALFORMED', '6.3'],
  'R-IDX-17': ['MALFORMED', '6.3'],
  'R-IDX-18': ['MALFORMED', '6.3'],
  'R-SEG-01': ['CORRUPT', '7'],
  'R-SEG-02': ['MALFORMED', '7'],
  'R-SEG-03': ['MALFORMED', '7.1'],
  'R-SEG-04': ['MALFORMED', '7.1'],
  'R-SEG-05': ['MALFORMED', '7.1'],
  'R-SEG-06': ['MALFORMED', '7.1'],
  'R-SEG-07': ['MALFORMED', '7.1'],
  'R-SEG-08': ['MALFORMED', '7.1'],
  'R-SEG-09': ['MALFORMED', '7.1'],
  'R-POS-01': ['MALFORMED', '8.1'],
  'R-POS-02': ['MALFORMED', '8.1'],
  'R-VAL-01': ['MALFORMED', '8.4'],
  'R-VAL-02': ['MALFORMED', '8.5'],
  'R-APP-01': ['WRONG_BASE', '9'],
  'R-APP-02': ['MALFORMED', '9'],
  'R-APP-05': ['STATE_MISMATCH', '9'],
  'R-APP-04': ['STATE_MISMATCH', '9'],
  'R-APP-06': ['WRONG_BASE', '9'],
  'R-LAY-01': ['MALFORMED', '12'],
  'R-LIM-01': ['LIMIT', '13'],
  'R-LIM-02': ['LIMIT', '13'],
  'R-LIM-03': ['LIMIT', '13'],
  'R-LIM-04': ['LIMIT', '13'],
  'R-LIM-06': ['LIMIT', '13'],
  'R-LIM-08': ['LIMIT', '13'],
  'R-LIM-05': ['LIMIT', '18'],
  'R-LIM-07': ['LIMIT', '18'],
  'R-DOC-01': ['MALFORMED', '18'],
  'R-DOC-02': ['UNSUPPORTED', '18'],
  'R-DOC-03': ['MALFORMED', '18'],
  'R-DOC-04': ['MALFORMED', '18'],
  'R-DOC-05': ['MALFORMED', '18'],
  'R-DOC-06': ['MALFORMED', '18'],
  'R-DOC-07': ['UNSUPPORTED', '18'],
  'R-DOC-08': ['MALFORMED', '18'],
  'R-CHN-01': ['CHAIN', '19'],
  'R-CHN-13': ['CHAIN', '19'],
  'R-CHN-03': ['CHAIN', '19'],
  'R-CHN-14': ['CHAIN', '19'],
  'R-CHN-02': ['CHAIN', '19'],
  'R-CHN-05': ['CHAIN', '19'],
  'R-CHN-04': ['CHAIN', '19'],
  'R-CHN-17': ['CHAIN', '19'],
  'R-CHN-06': ['CHAIN', '19'],
  'R-CHN-07': ['CHAIN', '19'],
  'R-CHN-08': ['CHAIN', '19'],
  'R-CHN-09': ['CHAIN', '19'],
  'R-CHN-10': ['CORRUPT', '19'],
  'R-CHN-11': ['STATE_MISMATCH', '19'],
  'R-CHN-12': ['STATE_MISMATCH', '19'],
  'R-CHN-15': ['CHAIN', '19'],
  'R-CHN-16': ['CORRUPT', '19'],
  'R-LAY-03': ['STATE_MISMATCH', '25.2'],
  'R-SIG-01': ['CHAIN', '23.3'],
  'R-SIG-05': ['CHAIN', '23.3'],
  'R-SUM-03': ['STATE_MISMATCH', '24.6'],
  'R-SUM-04': ['STATE_MISMATCH', '24.6'],
};

/** The reason why something was refused. `message` is for people, the other members are for programs. */
export class DeltachainError extends Error {
  /**
   * @param {ErrorClass} errorClass
   * @param {string | null} rule
   * @param {string} message
   * @param {Place & { cause?: unknown }} [place]
   */
  constructor(errorClass, rule, message, place = {}) {
    super(message, place.cause === undefined ? undefined : { cause: place.cause });
    this.name = 'DeltachainError';
    /** Class of SPEC section 11, or IO or USAGE. */
    this.class = errorClass;
    /** Rule that is broken, such as `R-IDX-05`; null if there is none. */
    this.rule = rule;
    /** Section of SPEC.md, of spec/signatures.md (23), spec/in-place.md (24) or spec/layouts.md (25), that defines the rule; null without a rule. */
    this.section = rule === null ? null : RULES[rule][1];
    /** Offset of the fault in the file, in bytes; null if it has no single place. */
    this.offset = place.offset ?? null;
    /** Name of the tensor with the fault, or null. */
    this.tensor = place.tensor ?? null;
    /** Number of the segment with the fault, from 0, or null. */
    this.segment = place.segment ?? null;
  }
}

/**
 * Makes an error of a rule, with the rule's class.
 * @param {string} rule
 * @param {string} message
 * @param {Place} [place]
 */
export function broken(rule, message, place) {
  return new DeltachainError(RULES[rule][0], rule, message, place);
}

/**
 * Throws the rule's error unless `condition` holds.
 * @param {boolean} condition
 * @param {string} rule
 * @param {string} message
 * @param {Place} [place]
 * @returns {asserts condition}
 */
export function ensure(condition, rule, message, place) {
  if (!condition) throw broken(rule, message, place);
}

/** @param {string} message */
export function usage(message) {
  return new DeltachainError('USAGE', null, message);
}

/**
 * @param {string} message
 * @param {unknown} [cause]
 */
export function ioError(message, cause) {
  return new DeltachainError('IO', null, message, { cause });
}

/**
 * Adds a place to an error of `work`, unless it has one.
 * @template T
 * @param {Place} place
 * @param {() => T} work
 * @returns {T}
 */
export function at(place, work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof DeltachainError) {
      error.offset ??= place.offset ?? null;
      error.tensor ??= place.tensor ?? null;
      error.segment ??= place.segment ?? null;
    }
    throw error;
  }
}
