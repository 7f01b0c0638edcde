"""Error classes (section 11), rule ids with their class, and the reader's limits (section 13)."""
from dataclasses import dataclass

# The class of every rule a reader of a link file can report. The text of each rule is in SPEC.md.
RULES = {
    "R-INT-01": "NON_CANONICAL", "R-INT-02": "MALFORMED", "R-INT-03": "MALFORMED", "R-INT-04": "MALFORMED",
    "R-HDR-01": "NOT_DCF", "R-HDR-02": "TRUNCATED", "R-HDR-03": "CORRUPT", "R-HDR-04": "UNSUPPORTED",
    "R-HDR-05": "UNSUPPORTED", "R-HDR-06": "MALFORMED", "R-HDR-07": "NON_CANONICAL", "R-HDR-08": "MALFORMED",
    "R-HDR-09": "TRUNCATED", "R-HDR-10": "MALFORMED",
    "R-STR-01": "NON_CANONICAL", "R-STR-02": "MALFORMED", "R-STR-03": "LIMIT", "R-STR-04": "MALFORMED",
    "R-STR-05": "NON_CANONICAL", "R-STR-06": "MALFORMED",
    "R-IDX-01": "CORRUPT", "R-IDX-02": "MALFORMED", "R-IDX-03": "NON_CANONICAL", "R-IDX-05": "MALFORMED",
    "R-IDX-06": "NON_CANONICAL", "R-IDX-07": "MALFORMED", "R-IDX-08": "MALFORMED", "R-IDX-09": "MALFORMED",
    "R-IDX-10": "MALFORMED", "R-IDX-11": "MALFORMED", "R-IDX-12": "MALFORMED", "R-IDX-14": "MALFORMED",
    "R-IDX-16": "MALFORMED", "R-IDX-17": "MALFORMED", "R-IDX-18": "MALFORMED",
    "R-SEG-01": "CORRUPT", "R-SEG-02": "MALFORMED", "R-SEG-03": "MALFORMED", "R-SEG-04": "MALFORMED",
    "R-SEG-05": "MALFORMED", "R-SEG-06": "MALFORMED", "R-SEG-07": "MALFORMED", "R-SEG-08": "MALFORMED",
    "R-SEG-09": "MALFORMED",
    "R-POS-01": "MALFORMED", "R-POS-02": "MALFORMED", "R-VAL-01": "MALFORMED", "R-VAL-02": "MALFORMED",
    "R-APP-01": "WRONG_BASE", "R-APP-02": "MALFORMED", "R-APP-04": "STATE_MISMATCH", "R-APP-05": "STATE_MISMATCH",
    "R-APP-06": "WRONG_BASE",
    "R-LIM-01": "LIMIT", "R-LIM-02": "LIMIT", "R-LIM-03": "LIMIT", "R-LIM-04": "LIMIT",
}


class DcfError(Exception):
    """A link (or, with rule None, something outside the format) was refused."""

    def __init__(self, error_class, rule, message, where=None, offset=None, tensor=None):
        self.error_class, self.rule, self.message = error_class, rule, message
        self.where, self.offset, self.tensor = where, offset, tensor
        super().__init__(message)

    def __str__(self):
        text = f"{self.error_class} {self.rule or ''}: {self.message}"
        if self.where is not None:
            text += f", in {self.where}"
        if self.offset is not None:
            text += f" at byte {self.offset}"
        if self.tensor is not None:
            text += f", tensor {self.tensor!r}"  # repr: names are untrusted (section 15)
        return text


def fail(rule, message, where=None, offset=None, tensor=None):
    """Report the violation of a rule; `offset` counts from the start of the structure `where`."""
    raise DcfError(RULES[rule], rule, message, where, offset, tensor)


def check(condition, rule, message, where=None, offset=None, tensor=None):
    if not condition:
        fail(rule, message, where, offset, tensor)


@dataclass(frozen=True)
class Limits:
    """A reader's limits (R-LIM-01, R-LIM-04). By default what no file may exceed (second column of section 13)."""
    index_bytes: int = 1073741824
    metadata_entries: int = 65536
    metadata_bytes: int = 67108864
    name_bytes: int = 65535
    dimensions: int = 255
    tensors: int = 16777216
    segments: int = 16777216
    tensor_bytes: int = 2**60
    set_bytes: int = None  # R-LIM-04: the bytes of all *set* tensors together; None means any number


# What every reader supports at least (first column of section 13).
MINIMUM_LIMITS = Limits(16777216, 256, 1048576, 1024, 8, 100000, 65536, 2**40)
SEGMENT_BYTES = 33554432  # R-LIM-02, the same in both columns
SEGMENT_PIECES = 65536
