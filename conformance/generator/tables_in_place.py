"""Tables of functions.json for links in place (SPEC section 24.2)."""
from .model import PIECE
from .sums import P, sums_of

ABOUT = {
    "sums": "Section 24.2: bytes as hexadecimal digits, the place of the first one in its piece, and their sums.",
    "piece_sums": "Section 24.2: the sums of a piece from its beginning. Byte i of the data is (i * multiply + add) mod "
                  "modulus.",
    "sums_added": "Section 24.2: the sums of disjoint sets of bytes, `more` those of both together."}

ROW = 8192


def made():
    return {"sums": sums(), "piece_sums": piece_sums(), "sums_added": sums_added()}


def sums():
    stated = [(0, "01"), (0, "0001"), (0, "803f"), (ROW, "803f"), (PIECE - 1, "ff")]  # the sums in the text
    stated += [(0, ""), (0, "00"), (0, "ff"), (1, "ff"), (0, "ffff"), (1, "0100"), (1, "0102"), (2, "01"), (3, "01"),
               (7, "0000803f"), (8, "000000000000f0bf"), (0, "ff" * 64), (1, "ff" * 63)]
    stated += [(place, text) for begin in (ROW, 2 * ROW, 5 * ROW, PIECE // 2, PIECE - ROW)
               for place, text in ((begin - 1, "80"), (begin - 2, "8040"), (begin - 1, "0102"), (begin - 3, "01020304"),
                                   (begin, "01"), (begin + 1, "01"), (begin - 4, "0102030405060708"))]
    stated += [(PIECE - 2, "ffff"), (PIECE - 8, "ff" * 8), (PIECE - 7, "01020304050607")]
    return [{"place": place, "bytes": text, "sums": sums_of_any(bytes.fromhex(text), place)} for place, text in stated]


def sums_of_any(data, place):
    """Computes the sums of bytes that may be in two rows."""
    first = min(len(data), ROW - place % ROW)
    return [sum(pair) % P for pair in zip(sums_of(data[:first], place), sums_of(data[first:], place + first))]


def piece_sums():
    rule = {"multiply": 7, "add": 3, "modulus": 251}
    return [{"bytes": length} | rule | {"sums": sums_of(bytes((i * 7 + 3) % 251 for i in range(length)))}
            for length in (0, 1, 2, 3, 64, ROW - 1, ROW, ROW + 1, ROW + 2, 3 * ROW, 200001)]


def sums_added():
    found = []
    for one, more in (([0, 0], [5, 6]), ([P - 1, 1], [1, P - 1]), ([P - 1, P - 1], [P - 1, P - 1]), ([7, P - 2], [P - 8, 1]),
                      ([0, 0], [0, 0]), ([1, 2], [3, 4])):
        found.append({"one": one, "other": more, "more": [(x + y) % P for x, y in zip(one, more)]})
    return found
