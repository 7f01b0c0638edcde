"""Readers that take some shards or some tensors: shards that do not exist (SPEC section 19, R-CHN-17), and what a
reader of tensors does with files, parts and assets (section 19.3)."""
from .builder import SMALL, SPARSE
from .chains import CHAIN, Chain, Held, Route, asset_name, bad, commit_name, digest, file_name, good, halves, line
from .chains import pairs, source, step, whole
from .chains_assets import BOTH, CONFIG, TOKENIZER
from .chains_fallback import damaged
from .chains_parts import take
from .coding import Plan, link
from .documents import chain_document
from .model import EMPTY, State, tensor
from .registry import makes_vectors

RULE, TWIN = "R-CHN-17", "parts/shard-second"


@makes_vectors
def shards_that_are_not_there():
    chain, one = pairs(2), line(2)
    path = [0, 1, 2]
    for id, store, numbers, reason in (
            ("after-the-last", chain, [2], "shard 2 of two"), ("and-one-that-is", chain, [0, 2],
                                                               "shards 0 and 2 of two"),
            ("far", chain, [2**32], "shard 2^32 of two, which is 0 in 32 bits"),
            ("highest", chain, [2**53 - 1], "shard 2^53 - 1 of two"), ("of-one", one, [1], "shard 1 of one"),
            ("of-one-and-it", one, [0, 1], "shards 0 and 1 of one")):
        yield bad(f"parts/no-shard-{id}", store, RULE, TWIN, f"{reason} is wanted", path=path, take=take(numbers))
    yield bad("parts/no-shard-with-tensors", chain, RULE, TWIN, "a tensor of shard 2 of two is wanted", path=path,
              take=take([2], ["left"]))
    yield bad("parts/no-shard-without-tensors", chain, RULE, TWIN, "no tensor of shard 2 of two is wanted", path=path,
              take=take([2], []))
    yield bad("parts/no-shard-held", chain, RULE, "parts/shard-held", "shard 2 of two is wanted, from a held version",
              path=[2], held=1, take=take([2]))
    yield bad("parts/no-shard-held-head", chain, RULE, "parts/shard-held-head",
              "shard 2 of two is wanted of the held head",
              path=[], held=2, take=take([2]))
    more, fewer = source("valid/more-shards"), source("valid/fewer-shards")
    yield bad("parts/no-shard-any-more", fewer, RULE, TWIN, "a shard is wanted that only older versions have",
              path=[2, 3],
              take=take([1]))
    yield bad("parts/no-shard-yet", more, RULE, TWIN, "a shard is wanted that only newer versions have", path=[0, 1],
              version=1, take=take([1]))
    yield bad("parts/no-shard-any-more-held", fewer, RULE, TWIN,
              "a shard is wanted that only the held version has", path=[2, 3], held=1, size=fewer.bytes_of([2, 3],
                                                                                                           None),
              take=take([1]))


@makes_vectors
def shards_that_are_not_there_and_other_faults():
    chain, two = pairs(2), take([2])
    for id, store, rule, reason in (
            ("malformed", chain.with_object(commit_name(2), chain.objects[commit_name(2)] + b"\n"), "R-DOC-03",
             "the version's commit is malformed"),
            ("no-chain", chain.without(CHAIN), "R-CHN-01", "there is no chain.json"),
            ("no-commits", Chain(), "R-CHN-03", "there is no commit")):
        yield bad(f"parts/no-shard-and-{id}", store, rule, TWIN,
                  f"{reason}, which comes before shards that are not there",
                  take=two)
    yield bad("parts/no-shard-and-another-chain", chain.with_object(CHAIN, chain_document("ab" * 16)), "R-CHN-13",
              "parts/shard-held", "another chain, which comes before shards that are not there", held=1, take=two)
    yield bad("parts/no-shard-and-a-gap", chain.without(commit_name(1)), "R-CHN-03", "parts/shard-held",
              "a gap above the held version, which comes before shards that are not there", held=0, take=two)
    for id, store, reason in (
            ("file", chain.without(*chain.files(None, 0)), "a file is missing"),
            ("commit-below", chain.without(commit_name(0)), "a commit below is missing"),
            ("parent-below", chain.with_object(commit_name(1), b"{}"), "a commit below is damaged"),
            ("pruned", pairs(2).put_routes(2, 1), "no route is left")):
        path = [0, 1, 2] if id == "file" else None
        if path is None:  # no path for *plan*, which knows no shards
            rule = {"commit-below": "R-CHN-03", "parent-below": "R-DOC-01", "pruned": "R-CHN-08"}[id]
            vector = bad(f"parts/no-shard-then-{id}", store, rule, TWIN,
                         f"a shard that is not there comes before the paths: {reason}", take=two)
            del vector.expect["plan"]
            vector.expect["replay"] = {"class": "CHAIN", "rule": RULE}
            vector.rules = [RULE]
            yield vector
            continue
        yield bad(f"parts/no-shard-then-{id}", store, RULE, TWIN,
                  f"a shard that is not there comes before the paths: {reason}", path=path, take=two)
    yield bad("parts/no-shard-then-held-otherwise", chain, RULE, "parts/shard-held",
              "a shard that is not there comes before what is held, but not as it was recorded", path=[2],
              held=Held(1, shards=halves(2)), take=two)
    yield bad("parts/no-shard-then-state", Chain().publish(halves(0), None, replaced={"state": "ab" * 32}), RULE, TWIN,
              "a shard that is not there comes before the state of all", path=[0], take=two)
    yield bad("parts/no-shard-then-asset", Chain().publish(halves(0), None, assets=BOTH).without(asset_name(CONFIG)),
              RULE,
              TWIN, "a shard that is not there comes before assets", path=[0], take=two)


@makes_vectors
def held_parts():
    """Only the tables of the selected shards of the held state count, and the number of all its shards."""
    chain = pairs(2).put_routes(0, 1).put_routes(1, 1)
    for id, shards in (("second", [halves(1)[0], halves(2)[1]]), ("second-empty", [halves(1)[0], EMPTY])):
        held = Held(1, shards=shards)
        yield good(f"parts/held-otherwise-{id}", chain, [2], "the shard that is not taken is held otherwise", held=held,
                   take=take([0]), rules=["R-APP-01"])
        yield bad(f"parts/held-otherwise-{id}-taken", chain, "R-APP-01", f"parts/held-otherwise-{id}",
                  "the shard that is taken is held otherwise", path=[2], held=held, take=take([1]))
    for id, shards in (("one", halves(1)[:1]), ("three", [*halves(1), EMPTY])):
        yield bad(f"parts/held-otherwise-{id}-of-two", chain, "R-APP-01", "parts/held-otherwise-second",
                  "other than two shards are held, of which the first is taken", path=[2], held=Held(1, shards=shards),
                  take=take([0]))


@makes_vectors
def sizes_of_files():
    """A reader of tensors compares the size, whether or not it reads the whole file."""
    data = step(whole(0), whole(1)).encode()
    for id, more, reason in (("longer", -1, "one byte longer"), ("shorter", 1, "one byte shorter"),
                             ("much-longer", 1 - len(data), "much longer"), ("much-shorter", 2**40, "much shorter")):
        named = Route(0, named=[(digest(data), len(data) + more)])
        chain = Chain().publish(whole(0), None).publish(whole(1), named).with_object(file_name(data), data)
        for taken, names in (("one", ["weight"]), ("none", [])):
            yield bad(f"parts/file-{id}-tensors-{taken}", chain, "R-CHN-10", f"parts/tensors-{taken}",
                      f"the file is {reason} than its route says", path=[0, 1], take=take(None, names))
        there = Chain().publish(whole(0), None).publish(whole(1), named, Route(0, 900 + len(data)))
        yield good(f"parts/file-{id}-and-another", there.with_object(file_name(data), data), [0, 1],
                   f"the file is {reason} than its route says; another route leads there", size=there.costs[None, 0]
                   + min(len(data) + more, 900 + len(data)), take=take(None, ["weight"]), rules=["R-CHN-10"])
    head = step(EMPTY, whole(0)).encode()
    snapshot = Chain().publish(whole(0), Route(None, named=[(digest(head), len(head) + 7)]))
    yield bad("parts/file-shorter-snapshot", snapshot.with_object(file_name(head), head), "R-CHN-10",
              "parts/tensors-one",
              "the snapshot's file is seven bytes shorter than its route says", path=[0], take=take(None, ["bias"]))


@makes_vectors
def members_of_other_parts():
    """A segment with parts of two tensors, one of which counts other members than its base has (step 8.5)."""
    states = [State(f"chain-members-{number}",
                    {name: tensor("BF16", [64 * i + (number if i == 5 else 0) for i in range(8)])
                                                for name in "ab"}) for number in range(2)]
    for id, parameters, rule in (("bitmap", (32, 32), "R-POS-02"), ("gaps", (0, 0), "R-POS-01")):
        file = link(*states, Plan(SPARSE, SMALL, parameters=parameters, widths=(1, 1), thresholds=[1]))
        segment = file.segments[0]
        if id == "bitmap":  # all lanes of b are stated to be in context 0, where nothing else shows the fault
            _increments, counts = segment.table.parts[1]
            segment.table.parts[1] = ([256], counts)
        else:
            segment.set_raw("gap high", segment.streams["gap high"].raw[:-1] + b"\7")
        chain = Chain().publish(states[0], None).publish(states[1], Route(0, links=[file]))
        yield good(f"parts/other-members-{id}", chain, [0, 1],
                   "the part of a tensor that is not taken has other members "
                   "than its table says", take=take(None, ["a"]), rules=[rule])
        for taken, names in (("", ["b"]), ("-both", ["a", "b"])):
            yield bad(f"parts/members-{id}{taken}", chain, rule, f"parts/other-members-{id}",
                      "the part of a tensor that is taken has other members than its table says", path=[0, 1],
                      take=take(None, names))


@makes_vectors
def assets_of_a_part():
    two = Chain().publish(halves(0), None, assets=BOTH)
    one = Chain().publish(whole(0), None, assets=BOTH)
    for id, chain, taken in (("tensors", one, take(None, ["bias"])), ("no-tensor", one, take(None, [])),
                             ("tensors-of-shards", two, take([0], ["left"])), ("no-tensor-of-shards", two,
                                                                               take([1], []))):
        yield good(f"assets/part-{id}", chain, [0], "who takes some tensors takes the assets, too", take=taken)
        first, second = asset_name(CONFIG), asset_name(TOKENIZER)
        yield bad(f"assets/missing-of-{id}", chain.without(first), "R-CHN-15", f"assets/part-{id}",
                  "an asset is missing, of which tensors alone are taken", path=[0], take=taken)
        yield bad(f"assets/damaged-of-{id}", chain.with_object(second, damaged(TOKENIZER)), "R-CHN-16",
                  f"assets/part-{id}",
                  "an asset is damaged, of which tensors alone are taken", path=[0], take=taken)
