"""Right links and chains, to damage, and sequences of links."""
from deltachain_py import link as dcf, writer
from deltachain_py.errors import DcfError
from deltachain_py.index import ABSOLUTE, DENSE, PLANES, SMALL, SPARSE
from deltachain_py.model import BY_NAME, DTYPES, Tensor
from deltachain_py.writer import Options

from . import links
from .states import change_state, random_tensor


def corpus(rng, made, short):
    """Returns (label, base, link): the small links of the matrix, and links with every coding forced."""
    result = [link for link in made if 131 < len(link[2]) < (6000 if short else 12000)]
    wide = [d for d in DTYPES.values() if d.name in ("BF16", "F8_E4M3", "F32", "F64", "F16", "U8", "F4")]
    codings = (DENSE, ABSOLUTE), (SPARSE, ABSOLUTE), (DENSE, PLANES), (SPARSE, PLANES), (SPARSE, SMALL)
    for positions, values in codings:
        for contexts in (1,) if values == ABSOLUTE else (1, 2, 16) if short else (1, 2, 3, 5, 16):
            for parameters in [None] if positions == DENSE else ([0], [32], [23], [2, 32]):
                for dtypes, elements in (([rng.choice(wide)], 40), (rng.sample(wide, 3), 7), ([rng.choice(wide)], 700)):
                    folder = rng.choice(["", "", "vae/", "vae/x/"])
                    base = {folder + d.name: random_tensor(rng, d, elements) for d in dtypes}
                    target = change_state(rng, base, rng.choice([0.05, 0.3, 0.9]))
                    options = Options(positions=positions, values=values, contexts=contexts,
                                      position_parameters=parameters, widths=rng.choice([[1], [2], [4, 1], [8], None]),
                                      segment_bytes=rng.choice([100, 1 << 25]))
                    label = f"python, {positions} {values} {contexts} {parameters} {options.widths}"
                    result.append((label, base, writer.diff(base, target, options)))
    zeros = {"t": Tensor(BY_NAME["U8"], ((1 << 24) + 2,), bytes((1 << 24) + 2))}
    result.append(("two pieces of zeros", {}, writer.snapshot(zeros)))
    return result


def damaged_sequence(rng, entries):
    """Returns (base, links): two to four links that fit at first."""
    _, base, data = rng.choice(entries)
    try:
        states = [base, dcf.apply(data, base)]
    except DcfError:
        return base, [data, data]
    if sum(len(tensor.data) for tensor in states[1].values()) > 1 << 16:
        return base, [data, data]
    files = [data]
    for _ in range(rng.choice([1, 1, 2])):
        states.append(rng.choice([base, change_state(rng, states[-1], 0.2)]))
        files.append(writer.diff(states[-2], states[-1]))
    for _ in range(rng.choice([0, 1, 1, 2])):
        number = rng.randrange(len(files))
        if rng.random() < 0.15:
            number, files[number] = -1, rng.choice(files)
        try:
            _, _, files[number] = links.mutate(rng, states[number], files[number])
        except DcfError:  # it was damaged before
            continue
        if rng.random() < 0.6:  # fits all the same
            for at in range(max(number, 0), len(files) - 1):
                try:
                    files[at + 1] = links.reseal(files[at + 1], base=dcf.parse(files[at]).header.target)
                except DcfError:
                    break
    return base, files


def through_described(rng, base, data):
    """Returns (base, links): a state whose tensors are set again with described dtypes, then changed, then removed."""
    other, changed = links.described(rng, base, data)
    try:
        there = writer.diff(base, other)
        last = dcf.apply(changed, other)
    except (DcfError, KeyError):
        return base, [data]
    end = change_state(rng, base, 0.3)
    middle = changed if rng.random() < 0.4 else links.mutate(rng, other, changed)[2]
    return base, [there, middle, writer.diff(last, end)]


def short_sequences():
    """Yields (label, base, links): right and wrong ones (R-APP-06)."""
    u8 = BY_NAME["U8"]
    states = [{}, *({"t": Tensor(u8, (8,), bytes([n]) * 8)} for n in range(3))]
    good = [writer.diff(a, b) for a, b in zip(states, states[1:])]
    last = len(good[1]) - 1
    bad_index, bad_segment = (good[1][:at] + bytes([good[1][at] ^ 1]) + good[1][at + 1:] for at in (130, last))
    files = {"0": good[0], "1": good[1], "2": good[2], "index": bad_index, "segment": bad_segment}
    for base, names in ((0, "0 1 2"), (1, "1 2"), (2, "2"), (2, "0 2"), (2, "1 0"), (0, "0 2"), (2, "0 index"),
                        (2, "1 1"), (0, "0 segment 2"), (0, "0 segment 0"), (2, "segment 2"), (2, "1 2"),
                        (0, "index 0")):
        yield f"state {base}, links {names}", states[base], [files[name] for name in names.split()]
