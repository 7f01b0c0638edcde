"""Parts that all link vectors share: the expectations of good ones, and bad ones as changed copies of good ones."""
import copy
import os
import re

from blake3 import blake3

from .builder import ABSOLUTE, REMOVE
from .primitives import text_bytes, u64
from .registry import MADE, Vector

UNSUPPORTED = {"class": "UNSUPPORTED", "rule": None}  # relative values, requested without a base
SMALL_STATE = 1 << 16  # results up to this size are kept as files
FEW_TENSORS = 64



def text_of(name):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", name), encoding="utf-8") as file:
        return file.read()


SPEC_TEXT = "".join(map(text_of, ("SPEC.md", "spec/publishing.md", "spec/worked-files.md", "spec/registry.md")))
ADDITIONS = "".join(text_of(f"spec/{name}.md") for name in ("signatures", "in-place", "layouts"))
# Rules of readers with their classes; rules of writers have "writer" in place of a class.
CLASSES = dict(re.findall(r"\*\*(R-[A-Z]{3}-\d{2})\*\*\s+\(([A-Z_]+)\)", SPEC_TEXT + ADDITIONS))


def valid(id, link, section, reason, rules=(), base=None, result=None, check=True, apply=True, patches=True, features=(),
          **members):
    """A vector of a good link. `base` and `result` are given where they differ from those of the link. `check`, `apply`
    and `patches`: whether the operation is run."""
    expect = {}
    if check:
        expect["check"] = accepted(link)
    if apply:
        expect["apply"] = result_of(result or link.target)
        members = {"base": state_or_null(base or link.base)} | members
    if patches and len(link.entries) <= FEW_TENSORS:
        expect["patches"] = {"patches": patches_of(link)} if is_direct(link) else dict(UNSUPPORTED)
    return Vector(f"links/valid/{id}", link.encode(), section, reason, expect, rules=list(rules), source=link,
                  features=[*link.features(), *features], members=members)


def refused(id, link, rule, reason, twin, section, base=None, check=True, apply=True, patches=None, features=(),
            **members):
    """A vector of a bad link. `check` and `apply`: True: refused by the rule; False: accepted; None: not run.
    `patches`: the expected answer, if it is run; True: refused by the rule."""
    refusal = {"class": CLASSES[rule], "rule": rule}
    expect = {}
    if check is not None:
        expect["check"] = refusal if check else accepted(link)
    if apply is not None:
        expect["apply"] = refusal
        members = {"base": state_or_null(base or link.base)} | members
    if patches is not None:
        expect["patches"] = refusal if patches is True else patches
    file = link if isinstance(link, bytes) else link.encode()
    twin_vector = MADE[f"links/valid/{twin}"]
    return Vector(f"links/{id}", file, section, reason, expect, rules=[rule], twin=twin_vector.id,
                  features=[*twin_vector.features, *features], members=members)


def copy_of(id):
    """Returns a good link to damage."""
    return copy.deepcopy(MADE[f"links/valid/{id}"].source)


def followed_by(*ids):
    """Returns the members of a sequence: the links that follow the first one, and the features that a reader of them
    must know."""
    return {"then": [*ids], "features": ["sequence", *(feature for id in ids for feature in MADE[id].features)]}


def accepted(link):
    return {name: link.header.get(name, getattr(link, name).digest()).hex() for name in ("base", "target")}


def is_direct(link):
    return all(segment.values == ABSOLUTE for segment in link.segments)


def state_or_null(state):
    return state if state.tensors else None


def result_of(state):
    result = {"digest": state.digest().hex()}
    if len(state.tensors) <= FEW_TENSORS:
        result["tensors"] = [{"name": name, "dtype": item.dtype.name, "shape": list(item.shape),
                              "digest": item.digest().hex()} for name, item in state.tensors.items()]
    if len(state.file()) <= SMALL_STATE:
        result["state"] = state
    return result


def patches_of(link):
    """Returns what each entry writes, as the operation *patches* of protocol.md requires it."""
    found = []
    for entry in link.entries:
        if entry.operation == REMOVE:
            continue
        data, width = link.target.tensors[entry.name].data, entry.dtype.lane_bytes
        lanes = b"".join(u64(lane) + data[lane * width:(lane + 1) * width] for lane in sorted(entry.coded))
        found.append({"name": text_bytes(entry.name).decode(), "lanes": len(entry.coded),
                      "digest": blake3(lanes).hexdigest()})
    return found
