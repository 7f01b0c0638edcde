"""Error classes (section 11), rule ids with their class, and the reader's limits (section 13)."""
from dataclasses import dataclass


def _classes(**rules):
    """Returns rule id -> class, from the ids of each class."""
    return {f"R-{rule}": error_class for error_class, ids in rules.items() for rule in ids.split()}


# The rules that a reader of a link can report (part 1); their text is in SPEC.md.
RULES = _classes(
    NOT_DCF="HDR-01",
    TRUNCATED="HDR-02 HDR-09",
    CORRUPT="HDR-03 IDX-01 SEG-01",
    UNSUPPORTED="HDR-04 HDR-05",
    MALFORMED="INT-02 INT-03 INT-04 HDR-06 HDR-08 HDR-10 STR-02 STR-04 STR-06 IDX-02 IDX-05 IDX-07 IDX-08 IDX-09 "
              "IDX-10 IDX-11 IDX-12 IDX-14 IDX-16 IDX-17 IDX-18 IDX-19 IDX-20 SEG-02 SEG-03 SEG-04 SEG-05 SEG-06 "
              "SEG-07 SEG-08 SEG-09 POS-01 POS-02 VAL-01 VAL-02 APP-02 LAY-01",
    NON_CANONICAL="INT-01 STR-01 STR-05 IDX-03 IDX-06",
    LIMIT="STR-03 LIM-01 LIM-02 LIM-03 LIM-04 LIM-06 LIM-08",
    WRONG_BASE="APP-01 APP-06",
    STATE_MISMATCH="APP-04 APP-05")

# Rules that only a reader in place can report (spec/in-place.md).
IN_PLACE_RULES = _classes(STATE_MISMATCH="SUM-03 SUM-04")

# Rules that only a reader of a chain can report (part 2, spec/signatures.md and spec/layouts.md).
CHAIN_RULES = _classes(
    LIMIT="LIM-05 LIM-07",
    MALFORMED="DOC-01 DOC-03 DOC-04 DOC-05 DOC-06 DOC-08",
    UNSUPPORTED="DOC-02 DOC-07",
    CHAIN="CHN-01 CHN-02 CHN-03 CHN-04 CHN-05 CHN-06 CHN-07 CHN-08 CHN-09 CHN-13 CHN-14 CHN-15 CHN-17 "
          "SIG-01 SIG-05",
    CORRUPT="CHN-10 CHN-16",
    STATE_MISMATCH="CHN-11 CHN-12 LAY-03")
_CLASS = RULES | IN_PLACE_RULES | CHAIN_RULES


class DcfError(Exception):
    """A link or a chain (or, with rule None, something outside the format) was refused."""

    def __init__(self, error_class, rule, message, where=None):
        self.error_class, self.rule, self.message, self.where = error_class, rule, message, where
        super().__init__(f"{error_class} {rule or ''}: {message}" + (f", in {where}" if where else ""))


def fail(rule, message, where=None):
    """Reports the violation of a rule. Names in messages are untrusted (section 15) and shown by `repr`."""
    raise DcfError(_CLASS[rule], rule, message, where)


def check(condition, rule, message, where=None):
    if not condition:
        fail(rule, message, where)


@dataclass(frozen=True)
class Limits:
    """A reader's limits. The defaults are the maxima for any file (second column of section 13)."""
    index_bytes: int = 1073741824
    metadata_entries: int = 65536
    metadata_bytes: int = 67108864
    name_bytes: int = 65535
    dimensions: int = 255
    tensors: int = 16777216
    segments: int = 16777216
    tensor_bytes: int = 2**60
    set_bytes: int = None  # R-LIM-04: the bytes of all *set* tensors together; None means any number
    coded_bytes: int = None  # R-LIM-08: the bytes of the pieces that have a part


# The minimum that every reader supports (first column of section 13).
MINIMUM_LIMITS = Limits(2**26, 256, 2**25, 1024, 8, 2**19, 2**20, 2**40)
# Limits that are equal in both columns.
SEGMENT_BYTES = 33554432  # R-LIM-02
SEGMENT_PIECES = 65536
# Limits of documents, from the second column.
DOCUMENT_BYTES = 67108864  # R-LIM-05
ASSETS = 65536             # R-LIM-07
ASSET_BYTES = 2**40
