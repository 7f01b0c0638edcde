/* The constants of SPEC.md, the delta chain format, for C99. Made by conformance/generator/tables.py;
   constants.json has the same for other programs. CC0-1.0. */
#ifndef DELTACHAIN_H
#define DELTACHAIN_H

#include <stdint.h>

#define DELTACHAIN_LINK_VERSION 1
#define DELTACHAIN_DOCUMENT_VERSION 1
#define DELTACHAIN_MAGIC "\x89\x44\x43\x46\x0d\x0a\x1a\x0a"  /* 8 bytes */
#define DELTACHAIN_EXTENSION_MAGIC "\x89\x44\x43\x58\x0d\x0a\x1a\x0a"  /* 8 bytes */

/* Offsets in the header (section 4.1). */
#define DELTACHAIN_HEADER_BYTES 128
#define DELTACHAIN_OFFSET_MAGIC 0  /* bytes, 8 bytes */
#define DELTACHAIN_OFFSET_VERSION 8  /* u32, 4 bytes */
#define DELTACHAIN_OFFSET_INCOMPATIBLE_FEATURES 12  /* u32, 4 bytes */
#define DELTACHAIN_OFFSET_COMPATIBLE_FEATURES 16  /* u32, 4 bytes */
#define DELTACHAIN_OFFSET_RESERVED 20  /* u32, 4 bytes */
#define DELTACHAIN_OFFSET_BASE 24  /* digest, 32 bytes */
#define DELTACHAIN_OFFSET_TARGET 56  /* digest, 32 bytes */
#define DELTACHAIN_OFFSET_INDEX_STORED_LENGTH 88  /* u64, 8 bytes */
#define DELTACHAIN_OFFSET_INDEX_RAW_LENGTH 96  /* u64, 8 bytes */
#define DELTACHAIN_OFFSET_SEGMENTS_LENGTH 104  /* u64, 8 bytes */
#define DELTACHAIN_OFFSET_EXTENSION_LENGTH 112  /* u64, 8 bytes */
#define DELTACHAIN_OFFSET_INDEX_CRC 120  /* u32, 4 bytes */
#define DELTACHAIN_OFFSET_HEADER_CRC 124  /* u32, 4 bytes */

/* Digests and pieces (sections 2.3 and 3). */
#define DELTACHAIN_STATE_DIGEST_CONTEXT "deltachain 2026-11-21 state digest v1"
#define DELTACHAIN_EMPTY_STATE \
    "\xf2\x19\x6c\xc6\xca\x6d\x14\x9d\xf0\x0b\xec\x35\x76\xb0\x0e\xbc" \
    "\x53\x51\x5a\x8e\x2c\xba\x56\x8a\xa5\xf5\xba\xc1\xf3\x1f\xd2\xd6"  /* 32 bytes */
#define DELTACHAIN_PIECE_BYTES UINT64_C(16777216)
#define DELTACHAIN_WINDOW_BYTES UINT64_C(33554432)

/* Limits (section 13): what every reader supports at least, and what no file may exceed. */
#define DELTACHAIN_LEAST_INDEX_RAW_LENGTH UINT64_C(67108864)  /* R-LIM-01 */
#define DELTACHAIN_MOST_INDEX_RAW_LENGTH UINT64_C(1073741824)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_METADATA_ENTRIES UINT64_C(256)  /* R-LIM-01 */
#define DELTACHAIN_MOST_METADATA_ENTRIES UINT64_C(65536)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_METADATA_BYTES_OF_KEYS_AND_VALUES_TOGETHER UINT64_C(33554432)  /* R-LIM-01 */
#define DELTACHAIN_MOST_METADATA_BYTES_OF_KEYS_AND_VALUES_TOGETHER UINT64_C(67108864)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_NAME_BYTES UINT64_C(1024)  /* R-LIM-01 */
#define DELTACHAIN_MOST_NAME_BYTES UINT64_C(65535)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_DIMENSIONS UINT64_C(8)  /* R-LIM-01 */
#define DELTACHAIN_MOST_DIMENSIONS UINT64_C(255)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_TENSOR_ENTRIES UINT64_C(524288)  /* R-LIM-01 */
#define DELTACHAIN_MOST_TENSOR_ENTRIES UINT64_C(16777216)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_SEGMENTS UINT64_C(1048576)  /* R-LIM-01 */
#define DELTACHAIN_MOST_SEGMENTS UINT64_C(16777216)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_TENSOR_BYTES UINT64_C(1099511627776)  /* R-LIM-01 */
#define DELTACHAIN_MOST_TENSOR_BYTES UINT64_C(1152921504606846976)  /* R-LIM-01 */
#define DELTACHAIN_LEAST_SEGMENT_BYTES_OF_ITS_PIECES UINT64_C(33554432)  /* R-LIM-02 */
#define DELTACHAIN_MOST_SEGMENT_BYTES_OF_ITS_PIECES UINT64_C(33554432)  /* R-LIM-02 */
#define DELTACHAIN_LEAST_SEGMENT_NUMBER_OF_ITS_PIECES UINT64_C(65536)  /* R-LIM-02 */
#define DELTACHAIN_MOST_SEGMENT_NUMBER_OF_ITS_PIECES UINT64_C(65536)  /* R-LIM-02 */
#define DELTACHAIN_LEAST_DOCUMENT_OF_A_CHAIN_BYTES UINT64_C(16777216)  /* R-LIM-05 */
#define DELTACHAIN_MOST_DOCUMENT_OF_A_CHAIN_BYTES UINT64_C(67108864)  /* R-LIM-05 */
#define DELTACHAIN_LEAST_ASSETS_OF_A_COMMIT UINT64_C(1024)  /* R-LIM-07 */
#define DELTACHAIN_MOST_ASSETS_OF_A_COMMIT UINT64_C(65536)  /* R-LIM-07 */
#define DELTACHAIN_LEAST_ASSET_BYTES UINT64_C(1073741824)  /* R-LIM-07 */
#define DELTACHAIN_MOST_ASSET_BYTES UINT64_C(1099511627776)  /* R-LIM-07 */

/* R-LIM-03 and R-LIM-06. */
#define DELTACHAIN_TABLE_BYTES(parts) (UINT64_C(33) + 94 * (uint64_t)(parts))
#define DELTACHAIN_GAP_ESCAPE_BYTES(escapes) (UINT64_C(4) * (uint64_t)(escapes))
#define DELTACHAIN_MAGNITUDE_ESCAPE_BYTES(lane_bytes, escapes) \
    (((8 * (uint64_t)(lane_bytes) - 1 + 6) / 7) * (uint64_t)(escapes))
#define DELTACHAIN_SEGMENT_STORED_BYTES(parts, lanes, lane_bytes) \
    (UINT64_C(512) + 94 * (uint64_t)(parts) + ((uint64_t)(lane_bytes) + 8) * (uint64_t)(lanes))

/* Index and segments (sections 6 and 7). */
#define DELTACHAIN_OPERATION_REMOVE 0
#define DELTACHAIN_OPERATION_SET 1
#define DELTACHAIN_OPERATION_PATCH 2
#define DELTACHAIN_LARGEST_SHIFT 23
#define DELTACHAIN_BITMAP 32  /* position parameter */
#define DELTACHAIN_MOST_CONTEXTS 16

/* Dtypes (section 2.1). */
#define DELTACHAIN_DESCRIBED 255
#define DELTACHAIN_DESCRIBED_MOST_BITS 65536
#define DELTACHAIN_DESCRIBED_MOST_EXPONENT_BITS 11
#define DELTACHAIN_DESCRIBED_NAME_BYTES 32
struct deltachain_dtype {
    const char *name;
    uint8_t code, bits, lane_bytes, sign_magnitude, exponent_bits;
};
static const struct deltachain_dtype deltachain_dtypes[] = {
    {"BOOL", 1, 8, 1, 0, 0},
    {"F4", 2, 4, 1, 0, 0},
    {"F6_E2M3", 3, 6, 1, 0, 0},
    {"F6_E3M2", 4, 6, 1, 0, 0},
    {"U8", 5, 8, 1, 0, 0},
    {"I8", 6, 8, 1, 0, 0},
    {"F8_E5M2", 7, 8, 1, 1, 5},
    {"F8_E4M3", 8, 8, 1, 1, 4},
    {"F8_E8M0", 9, 8, 1, 0, 0},
    {"F8_E4M3FNUZ", 10, 8, 1, 1, 4},
    {"F8_E5M2FNUZ", 11, 8, 1, 1, 5},
    {"I16", 12, 16, 2, 0, 0},
    {"U16", 13, 16, 2, 0, 0},
    {"F16", 14, 16, 2, 1, 5},
    {"BF16", 15, 16, 2, 1, 8},
    {"I32", 16, 32, 4, 0, 0},
    {"U32", 17, 32, 4, 0, 0},
    {"F32", 18, 32, 4, 1, 8},
    {"C64", 19, 64, 8, 0, 0},
    {"F64", 20, 64, 8, 1, 11},
    {"I64", 21, 64, 8, 0, 0},
    {"U64", 22, 64, 8, 0, 0},
};

/* Streams of a segment in the order of its directory, by its coding byte (section 7). */
#define DELTACHAIN_MOST_STREAMS 13
struct deltachain_coding {
    uint8_t coding, streams;
    const char *names[DELTACHAIN_MOST_STREAMS];
};
static const struct deltachain_coding deltachain_codings[] = {
    {0x00, 2,
     {"table", "plane 0", "", "", "", "", "", "", "", "", "", "", ""}},
    {0x01, 3,
     {"table", "plane 0", "plane 1", "", "", "", "", "", "", "", "", "", ""}},
    {0x02, 5,
     {"table", "plane 0", "plane 1", "plane 2", "plane 3", "", "", "", "", "", "", "", ""}},
    {0x03, 9,
     {"table", "plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7", "", "", "", ""}},
    {0x04, 6,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "", "", "", "", "", "", ""}},
    {0x05, 7,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "", "", "", "", "", ""}},
    {0x06, 9,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "plane 2", "plane 3", "", "", "", ""}},
    {0x07, 13,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7"}},
    {0x08, 2,
     {"table", "plane 0", "", "", "", "", "", "", "", "", "", "", ""}},
    {0x09, 3,
     {"table", "plane 0", "plane 1", "", "", "", "", "", "", "", "", "", ""}},
    {0x0a, 5,
     {"table", "plane 0", "plane 1", "plane 2", "plane 3", "", "", "", "", "", "", "", ""}},
    {0x0b, 9,
     {"table", "plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7", "", "", "", ""}},
    {0x0c, 6,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "", "", "", "", "", "", ""}},
    {0x0d, 7,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "", "", "", "", "", ""}},
    {0x0e, 9,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "plane 2", "plane 3", "", "", "", ""}},
    {0x0f, 13,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7"}},
    {0x14, 8,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "sign", "magnitude", "magnitude escape", "", "", "", "", ""}},
    {0x15, 8,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "sign", "magnitude", "magnitude escape", "", "", "", "", ""}},
    {0x16, 8,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "sign", "magnitude", "magnitude escape", "", "", "", "", ""}},
    {0x17, 8,
     {"table", "bitmap", "gap low", "gap high", "gap escape", "sign", "magnitude", "magnitude escape", "", "", "", "", ""}},
};

/* Error classes (section 11), and the class and section of each rule that readers check. */
enum deltachain_class {
    DELTACHAIN_NOT_DCF,  /* the bytes are not a link */
    DELTACHAIN_TRUNCATED,  /* the file ends early */
    DELTACHAIN_CORRUPT,  /* a checksum does not match */
    DELTACHAIN_MALFORMED,  /* checksums match, but the content breaks a rule */
    DELTACHAIN_NON_CANONICAL,  /* a value is written in another than its one form */
    DELTACHAIN_UNSUPPORTED,  /* made for a newer reader, or for one that can do more */
    DELTACHAIN_LIMIT,  /* asks for more than the format or the reader allows */
    DELTACHAIN_WRONG_BASE,  /* the link belongs to another base */
    DELTACHAIN_STATE_MISMATCH,  /* the result differs from what the link promises */
    DELTACHAIN_CHAIN  /* the chain lacks something, forks, goes back, or does not lead where the reader wants to go */
};
struct deltachain_rule {
    const char *id, *section;
    enum deltachain_class error;
};
static const struct deltachain_rule deltachain_rules[] = {
    {"R-INT-01", "1", DELTACHAIN_NON_CANONICAL},
    {"R-INT-02", "1", DELTACHAIN_MALFORMED},
    {"R-INT-03", "1", DELTACHAIN_MALFORMED},
    {"R-INT-04", "1", DELTACHAIN_MALFORMED},
    {"R-HDR-01", "4.1", DELTACHAIN_NOT_DCF},
    {"R-HDR-02", "4.1", DELTACHAIN_TRUNCATED},
    {"R-HDR-03", "4.1", DELTACHAIN_CORRUPT},
    {"R-HDR-04", "4.1", DELTACHAIN_UNSUPPORTED},
    {"R-HDR-05", "4.1", DELTACHAIN_UNSUPPORTED},
    {"R-HDR-06", "4.1", DELTACHAIN_MALFORMED},
    {"R-HDR-08", "4.1", DELTACHAIN_MALFORMED},
    {"R-HDR-09", "4.1", DELTACHAIN_TRUNCATED},
    {"R-HDR-10", "4.1", DELTACHAIN_MALFORMED},
    {"R-STR-01", "5", DELTACHAIN_NON_CANONICAL},
    {"R-STR-02", "5", DELTACHAIN_MALFORMED},
    {"R-STR-03", "5", DELTACHAIN_LIMIT},
    {"R-STR-04", "5", DELTACHAIN_MALFORMED},
    {"R-STR-05", "5", DELTACHAIN_NON_CANONICAL},
    {"R-STR-06", "5", DELTACHAIN_MALFORMED},
    {"R-IDX-01", "6", DELTACHAIN_CORRUPT},
    {"R-IDX-02", "6", DELTACHAIN_MALFORMED},
    {"R-IDX-03", "6", DELTACHAIN_NON_CANONICAL},
    {"R-IDX-05", "6.1", DELTACHAIN_MALFORMED},
    {"R-IDX-06", "6.2", DELTACHAIN_NON_CANONICAL},
    {"R-IDX-07", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-08", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-20", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-09", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-10", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-11", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-16", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-19", "6.2", DELTACHAIN_MALFORMED},
    {"R-IDX-12", "6.3", DELTACHAIN_MALFORMED},
    {"R-IDX-14", "6.3", DELTACHAIN_MALFORMED},
    {"R-IDX-17", "6.3", DELTACHAIN_MALFORMED},
    {"R-IDX-18", "6.3", DELTACHAIN_MALFORMED},
    {"R-SEG-01", "7", DELTACHAIN_CORRUPT},
    {"R-SEG-02", "7", DELTACHAIN_MALFORMED},
    {"R-SEG-03", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-04", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-05", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-06", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-07", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-08", "7.1", DELTACHAIN_MALFORMED},
    {"R-SEG-09", "7.1", DELTACHAIN_MALFORMED},
    {"R-POS-01", "8.1", DELTACHAIN_MALFORMED},
    {"R-POS-02", "8.1", DELTACHAIN_MALFORMED},
    {"R-VAL-01", "8.4", DELTACHAIN_MALFORMED},
    {"R-VAL-02", "8.5", DELTACHAIN_MALFORMED},
    {"R-APP-01", "9", DELTACHAIN_WRONG_BASE},
    {"R-APP-02", "9", DELTACHAIN_MALFORMED},
    {"R-APP-05", "9", DELTACHAIN_STATE_MISMATCH},
    {"R-APP-04", "9", DELTACHAIN_STATE_MISMATCH},
    {"R-APP-06", "9", DELTACHAIN_WRONG_BASE},
    {"R-LAY-01", "12", DELTACHAIN_MALFORMED},
    {"R-LIM-01", "13", DELTACHAIN_LIMIT},
    {"R-LIM-02", "13", DELTACHAIN_LIMIT},
    {"R-LIM-03", "13", DELTACHAIN_LIMIT},
    {"R-LIM-04", "13", DELTACHAIN_LIMIT},
    {"R-LIM-08", "13", DELTACHAIN_LIMIT},
    {"R-LIM-06", "13", DELTACHAIN_LIMIT},
    {"R-LIM-05", "18", DELTACHAIN_LIMIT},
    {"R-DOC-01", "18", DELTACHAIN_MALFORMED},
    {"R-DOC-02", "18", DELTACHAIN_UNSUPPORTED},
    {"R-DOC-03", "18", DELTACHAIN_MALFORMED},
    {"R-DOC-04", "18", DELTACHAIN_MALFORMED},
    {"R-DOC-05", "18", DELTACHAIN_MALFORMED},
    {"R-DOC-06", "18", DELTACHAIN_MALFORMED},
    {"R-DOC-07", "18", DELTACHAIN_UNSUPPORTED},
    {"R-DOC-08", "18", DELTACHAIN_MALFORMED},
    {"R-LIM-07", "18", DELTACHAIN_LIMIT},
    {"R-CHN-01", "19", DELTACHAIN_CHAIN},
    {"R-CHN-13", "19", DELTACHAIN_CHAIN},
    {"R-CHN-03", "19", DELTACHAIN_CHAIN},
    {"R-CHN-14", "19", DELTACHAIN_CHAIN},
    {"R-CHN-02", "19", DELTACHAIN_CHAIN},
    {"R-CHN-05", "19", DELTACHAIN_CHAIN},
    {"R-CHN-04", "19", DELTACHAIN_CHAIN},
    {"R-CHN-17", "19", DELTACHAIN_CHAIN},
    {"R-CHN-06", "19", DELTACHAIN_CHAIN},
    {"R-CHN-07", "19", DELTACHAIN_CHAIN},
    {"R-CHN-08", "19", DELTACHAIN_CHAIN},
    {"R-CHN-09", "19", DELTACHAIN_CHAIN},
    {"R-CHN-10", "19", DELTACHAIN_CORRUPT},
    {"R-CHN-11", "19", DELTACHAIN_STATE_MISMATCH},
    {"R-CHN-12", "19", DELTACHAIN_STATE_MISMATCH},
    {"R-CHN-15", "19", DELTACHAIN_CHAIN},
    {"R-CHN-16", "19", DELTACHAIN_CORRUPT},
    {"R-SIG-05", "23.3", DELTACHAIN_CHAIN},
    {"R-SIG-01", "23.3", DELTACHAIN_CHAIN},
    {"R-SUM-03", "24.6", DELTACHAIN_STATE_MISMATCH},
    {"R-SUM-04", "24.6", DELTACHAIN_STATE_MISMATCH},
    {"R-LAY-03", "25.2", DELTACHAIN_STATE_MISMATCH},
};

#endif
