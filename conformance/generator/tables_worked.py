"""The worked files of section 16 of which there are no vectors: what they must be, by this implementation."""
import json

from blake3 import blake3

from .chains import CHAIN, Chain, commit_name
from .coding import Plan, link
from .links import SPEC_TEXT
from .links_valid_structure import worked
from .model import EMPTY, PIECE, State, described, tensor
from .signatures import FIRST, note_of
from .sums import with_sums

TENSORS = ["b", "vae/w", "vae/z", "x"]


def smallest_chain():
    """Returns the chain of section 18, whose documents stand there."""
    chain = Chain()
    chain.objects = {name: SPEC_TEXT.split(f"```json {tag}\n")[1].split("\n")[0].encode()
                     for name, tag in ((CHAIN, "chain"), (commit_name(0), "commit"))}
    return chain


def with_described_dtype():
    dtype = described("FP16_X", 16, 2, True, 6)
    base = State("unused", {"t": tensor(dtype, [0x3E00] * 4)})
    target = State("unused", {"t": tensor(dtype, [0x3E00, 0xBE01, 0x3E00, 0x3E00])})
    return with_sums(link(base, target, Plan()))


def of_two_pieces():
    target = State("unused", {"t": tensor("U8", bytes(PIECE) + b"\7")})
    return link(EMPTY, target, Plan())


def check():
    """Yields the differences of the text, as lines."""
    for name, made in (("described", with_described_dtype()), ("pieces", of_two_pieces())):
        if worked(name) != made.encode():
            yield f"differs from what the generator makes: the worked file {name}"
    chain = smallest_chain()
    note = note_of(chain, 0, FIRST)
    commit = blake3(chain.objects[commit_name(0)]).hexdigest()
    name = f"signatures/{0:020}-{commit}-{FIRST.hash().hex()}"
    for what, text in (("note", note.decode()), ("name of a note", name), ("key", FIRST.text()),
                       ("layout", f"{carried()}\n"), ("digest of a layout", blake3(carried().encode()).hexdigest())):
        if text not in SPEC_TEXT:
            yield f"not in the worked files: {what}"


def carried():
    """Returns the layout of section 16.7 after the link."""
    files = [{"name": "a.safetensors", "metadata": {"format": "pt"}, "tensors": ["b", "x"]},
             {"name": "vae/b.safetensors", "metadata": None, "tensors": ["vae/w", "vae/z"]}]
    assert sorted(name for file in files for name in file["tensors"]) == TENSORS
    return json.dumps({"files": files}, separators=(",", ":"))
