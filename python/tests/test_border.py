"""The border between Python and the native part: values that Python receives are read-only, and for
any argument the native part raises only exceptions that `except Exception` catches."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Chain, as_bytes, model

import deltachain as dc

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

KINDS = ["numpy", "deltachain"] + (["torch"] if torch else [])


def spoil(kind: str, shown: Any) -> None:
    """Writes to a value that Python received. torch can; every other way must be refused."""
    if kind == "torch":
        shown.view(torch.uint8).fill_(113)
        assert set(as_bytes(shown)) <= {113}
        return
    if kind == "numpy":
        assert not shown.flags.writeable
        with pytest.raises(ValueError):
            shown.setflags(write=True)
        shown = shown.reshape(-1).view(numpy.uint8)
    view = memoryview(shown.data if isinstance(shown, dc.Tensor) else shown)
    assert view.readonly
    if torch and view.nbytes:
        with warnings.catch_warnings():
            # torch warns, and makes a writable tensor.
            warnings.simplefilter("ignore")
            torch.frombuffer(view, dtype=torch.uint8).fill_(113)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_an_engine_does_to_patches_stays_with_it(
    chain: Chain, tmp_path: Path, on_disk: bool, kind: str
) -> None:
    place = {"host_copy": tmp_path / "host copy"} if on_disk else {}
    subscriber = dc.Subscriber(chain.url, kind=kind, **place)
    for step in range(4):
        chain.publish(model(step))
        update = subscriber.prepare(timeout=60)
        with update.full() if step == 2 else update.applying() as patches:
            for patch in patches:
                spoil(kind, patch.values)
                if patch.indices is not None:
                    spoil(kind, patch.indices)
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == {
            name: data for name, (_, _, data) in chain.versions[step].items()
        }
        if not on_disk:
            subscriber.verify()


def fails(*_: object) -> None:
    raise ValueError("fails")


def odd_values() -> Iterator[Any]:
    """Values that hardly any argument expects."""
    yield from (None, True, -1, 0, 1 << 40, 1 << 64, -0.5, math.nan, math.inf, 1e300)
    yield from (
        "",
        "\udc80",
        "a\0b",
        b"",
        b"x",
        [1, 2],
        (),
        {},
        {"a": None},
        {1: b"x"},
        {"\udc80": b"x"},
    )
    yield from ({"a": "text"}, {"a": b"xxx"}, object(), iter([]), fails)
    yield {"a": dc.Tensor("U8", (1 << 62, 1 << 62), b"")}
    yield {"a": dc.Tensor("U8", (-1,), b"")}
    yield {"a": dc.Tensor("NONE", (1,), b"x")}
    yield {"a": dc.Tensor("U8", (3,), lambda offset, length: b"")}
    yield {"a": dc.Tensor("U8", (3,), fails)}
    yield {"a": numpy.zeros((2, 3)).T}
    yield {"a": numpy.array([object()])}
    yield {"a": memoryview(b"abcdef")[::2]}
    if torch:
        yield {"a": torch.zeros(3, 3).to_sparse()}
        yield {"a": torch.zeros(3, 3).to_sparse_csr()}
        yield {"a": torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])}
        yield {"a": torch.zeros(3, device="meta")}
        yield {"a": torch.zeros(3, dtype=torch.complex64).conj()}
        yield {"a": torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)}


ODD_PATHS = ["", "\udc80", "a\0b", "x" * 5000, b"\xff", 1 << 40, 0.5, object()]


def uses_of_values(chain: Chain) -> dict[str, Callable[[Any], object]]:
    """Calls of public functions with one odd argument."""
    good = {"a": b"abc"}
    link = dc.diff(good, {"a": b"abd"})
    closed = dc.diff(good, good)
    closed.close()
    sub = dc.Subscriber(chain.url)
    sub.prepare().apply()

    def opened(**given: Any) -> None:
        with dc.Subscriber(chain.url, **given) as subscriber:
            subscriber.poll(timeout=5)

    return {
        "diff, base": lambda odd: dc.diff(odd, good),
        "diff, target": lambda odd: dc.diff(good, odd),
        "diff, profile": lambda odd: dc.diff(good, good, profile=odd),
        "diff, metadata": lambda odd: dc.diff(good, good, metadata=odd),
        "diff, a value of metadata": lambda odd: dc.diff(good, good, metadata={"a": odd}),
        "diff, threads": lambda odd: dc.diff(good, good, threads=odd),
        "diff, progress": lambda odd: dc.diff(good, good, progress=odd),
        "apply, base": lambda odd: dc.apply(odd, [link]),
        "apply, links": lambda odd: dc.apply(good, odd),
        "apply, a link": lambda odd: dc.apply(good, [odd]),
        "apply, a closed link": lambda odd: dc.apply(good, [closed]),
        "apply, kind": lambda odd: dc.apply(good, [link], kind=odd),
        "Subscriber, progress": lambda odd: opened(progress=odd),
        "Publisher, progress": lambda odd: dc.Publisher(chain.url, progress=odd),
        "digest": lambda odd: dc.digest(odd),
        "open": lambda odd: dc.open(odd),
        "patches, base": lambda odd: list(link.patches(odd)),
        "patches, names": lambda odd: list(link.patches(good, odd)),
        "patches, kind": lambda odd: list(link.patches(good, kind=odd)),
        "poll": lambda odd: sub.poll(timeout=odd),
        "prepare": lambda odd: sub.prepare(odd, timeout=0.0, poll=0.01),
        "prepare, timeout": lambda odd: sub.prepare(0, timeout=odd),
        "prepare, poll": lambda odd: sub.prepare(7, timeout=0.01, poll=odd),
        "Subscriber": lambda odd: dc.Subscriber(odd),
        "Subscriber, into": lambda odd: opened(into=odd),
        "Subscriber, trust": lambda odd: opened(trust=odd),
        "Subscriber, tensors": lambda odd: opened(tensors=odd),
        "Subscriber, allow_rollback": lambda odd: opened(allow_rollback=odd),
        "Subscriber, kind": lambda odd: opened(kind=odd),
        "Subscriber, threads": lambda odd: opened(threads=odd),
        "Store, storage_options": lambda odd: dc.log(dc.Store(chain.url, storage_options=odd)),
        "Store, credentials": lambda odd: dc.log(dc.Store(chain.url, credentials=odd)),
        "Store, stall": lambda odd: dc.log(dc.Store(chain.url, stall=odd)),
        "Store, attempts": lambda odd: dc.log(dc.Store(chain.url, attempts=odd)),
        "Store, max_rate": lambda odd: dc.log(dc.Store(chain.url, max_rate=odd)),
        "numbers of patches": lambda odd: link._native.patches(odd, good),
        "number of a tensor": lambda odd: sub._native.read(odd),
    }


def uses_of_paths(chain: Chain) -> dict[str, Callable[[Any], object]]:
    good = {"a": b"abc"}
    return {
        "diff, out": lambda odd: dc.diff(good, good, odd),
        "apply": lambda odd: dc.apply(odd, [odd], odd),
        "save": lambda odd: dc.diff(good, good).save(odd),
        "Subscriber, host_copy": lambda odd: dc.Subscriber(chain.url, host_copy=odd),
        "Subscriber, cache": lambda odd: dc.Subscriber(chain.url, cache=odd),
        "HostCopy": lambda odd: dc.HostCopy(odd),
    }


# Exceptions of this package, of Python's own conversions, and of the caller's functions in this
# test.
EXPECTED = (dc.Error, TypeError, ValueError, OverflowError, AttributeError)


def test_what_comes_out_is_an_exception_of_a_few_kinds(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.publish(model(0))
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = list(odd_values())
    wrong = []
    for uses, odds in ((uses_of_values(chain), values), (uses_of_paths(chain), ODD_PATHS)):
        for name, use in uses.items():
            for odd in odds:
                try:
                    use(odd)
                except BaseException as error:
                    if not isinstance(error, EXPECTED) or isinstance(error, dc.InternalError):
                        wrong.append(f"{name}, {odd!r:.60}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def test_nothing_becomes_json_within_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("JSON within one process")

    for name in ("dumps", "loads"):
        monkeypatch.setattr(json, name, refuse)
    chain, copy = tmp_path / "chain", tmp_path / "copy"
    with dc.Publisher(chain, profile="local", once="step") as publisher:
        for step in (1, 2, 2):
            weights = {"w": numpy.full(64, step, "u1")}
            published = publisher.publish(weights, metadata={"step": step})
        assert (published.version, published.is_new, published.elements) == (1, False, 0)
        assert publisher.newest is not None and publisher.newest.metadata == {"step": "2"}
    into = {"w": numpy.zeros(64, "u1")}
    with dc.Subscriber(chain, into=into) as subscriber:
        for version in range(2):
            subscriber.prepare(version).apply()
        assert into["w"].tolist() == [2] * 64
    dc.pull(chain, copy)
    assert [version.version for version in dc.log(chain)] == [1, 0]
    assert dc.show(chain, 0).metadata == {"step": "1"}
    assert dc.status(copy).version == 1
    assert dc.fsck(chain).healthy and dc.fsck(copy).healthy
    assert dc.doctor(chain).healthy
    assert dc.prune(chain, keep_last=1, dry_run=True).kept == (1,)
    assert dc.mirror(chain, tmp_path / "mirror").version == 1
    assert dc.compact(chain, snapshot=True).version == 1
