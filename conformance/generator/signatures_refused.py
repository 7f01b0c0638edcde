"""Arguments that a reader refuses at once (SPEC sections 23.1 and 23.2): USAGE, without a rule. The first key has
signed the one version."""
import hashlib

from .chains import good
from .registry import makes_vectors_since
from .signatures import FIRST, SECOND, Key, PublicKey, b64, trust, with_notes
from .signatures_notes import GOOD, TEXT, note

FEATURES = ["signatures-1.2"]
# Section 23.2, with the sign bits set to 0.
LOW_ORDER = tuple(bytes.fromhex(digits) for digits in (
    "00" * 32, "01" + "00" * 31, "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a", "ec" + "ff" * 30 + "7f", "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f"))


def with_sign(public):
    return public[:31] + bytes([public[31] | 0x80])


def refused(id, reason, *keys, quorum=1, features=()):
    vector = good(f"trust/{id}", with_notes(note(TEXT, GOOD)), [0], reason, section="23.2",
                  trust=trust(*keys, quorum=quorum) if keys else {"keys": [], "quorum": quorum, "seen": None},
                  features=features)
    vector.expect = {name: {"class": "USAGE", "rule": None} for name in vector.expect}
    return vector


@makes_vectors_since("1.2")
def keys():
    name, id, key = SECOND.text().split("+", 2)  # of an absent key, which is therefore no duplicate
    other = b"\x02" + SECOND.public()
    id_of_other = hashlib.sha256(name.encode() + b"\n" + other).digest()[:4].hex()
    for what, reason, text in (
            ("empty", "is empty", ""), ("without-id", "has no ID", f"{name}+{key}"),
            ("id-of-another", "has the ID of another key", f"{name}+{FIRST.id().hex()}+{key}"),
            ("name-of-another", "has another name", SECOND.text().replace("-2+", "-3+")),
            ("cut", "lacks its last character", SECOND.text()[:-1]),
            ("line-feed", "ends with a line feed", SECOND.text() + "\n"),
            ("private", "is a private one", f"PRIVATE+KEY+{name}+{id}+{key}"),
            ("other-kind", "is of another kind", f"{name}+{id}+{b64(other)}"),
            ("other-kind-and-id", "is of another kind, of which it has the ID", f"{name}+{id_of_other}+{b64(other)}")):
        yield refused(f"key-{what}", f"one of two keys {reason}", FIRST, text)
    yield refused("key-twice", "the same key is given twice", FIRST, FIRST)
    yield refused("key-twice-otherwise", "the same key is given under another name, too", FIRST, Key("other", FIRST.seed))
    yield refused("key-twice-for-two", "the same key is given under another name, too, and two are needed", FIRST,
                  Key("other", FIRST.seed), quorum=2)
    twins = [Key("public-test-key-twin", b"deltachain twin test key n%06d" % number) for number in (58263, 76267)]
    assert twins[0].id() == twins[1].id(), "it shows nothing with these keys"
    yield refused("key-of-the-same-name-and-id", "two of three keys have the same name and ID", FIRST, *twins)
    yield refused("no-key", "no key is given")
    yield refused("no-key-and-no-quorum", "no key is given, and none has to sign", quorum=0)
    yield refused("quorum-0", "none of the keys has to sign", FIRST, quorum=0)
    yield refused("quorum-2-of-1", "two keys have to sign, and one is given", FIRST, quorum=2)
    yield refused("quorum-3-of-2", "three keys have to sign, and two are given", FIRST, SECOND, quorum=3)


@makes_vectors_since("1.2")
def low_order():
    """Keys for which anyone can make signatures."""
    for number, public in enumerate(LOW_ORDER, 1):
        for id, reason, data in ((f"{number}", "", public), (f"{number}-sign", ", with the highest bit set",
                                                             with_sign(public))):
            yield refused(f"low-order-{id}", f"one of two keys is number {number} of those of low order{reason}", FIRST,
                          PublicKey("low", b"", data))


def wrong_chains():
    """Keys with invalid chains: id, reason and text."""
    text, one = FIRST.text(), "ab" * 32
    return (("space", "ends with a space", f"{text} "), ("two-spaces", "has two spaces before a chain", f"{text}  {one}"),
            ("space-last", "has a space after its chain", f"{text} {one} "),
            ("tab", "has a tab before a chain", f"{text}\t{one}"), ("comma", "has a comma between chains",
                                                                    f"{text} {one},{one}"),
            ("uppercase", "has a chain in capital letters", f"{text} {one.upper()}"),
            ("short", "has a chain that lacks a digit", f"{text} {one[1:]}"),
            ("long", "has a chain with a digit more", f"{text} {one}0"),
            ("word", "has a word in the place of a chain", f"{text} all"),
            ("alone", "is a chain alone", one))


@makes_vectors_since("1.2")
def chains():
    one = "ab" * 32
    for id, reason, key in wrong_chains():
        yield refused(f"chain-{id}", f"one of two keys {reason}", SECOND, key, features=FEATURES)
    yield refused("key-twice-of-chains", "the same key is given for two chains", FIRST.text(one), FIRST.text("cd" * 32),
                  features=FEATURES)
