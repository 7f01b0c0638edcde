"""Links between states in memory and in files."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import as_bytes, model, tool, write_model
from hypothesis import given, settings
from hypothesis import strategies as st

import deltachain as dc

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "F16": "f2", "I32": "i4",
    "U32": "u4", "F32": "f4", "F64": "f8", "I64": "i8", "U64": "u8", "C64": "c8",
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two states that share some names, dtypes and lanes. Bytes are arbitrary, with NaN payloads
    and -0 among them."""
    names = draw(st.lists(st.text(max_size=5), min_size=0, max_size=6, unique=True))
    base: dict[str, Any] = {}
    target: dict[str, Any] = {}
    for name in names:
        dtype = numpy.dtype(DTYPES[draw(st.sampled_from(sorted(DTYPES)))])
        lanes = draw(st.integers(0, 40))
        data = bytearray(
            draw(st.binary(min_size=lanes * dtype.itemsize, max_size=lanes * dtype.itemsize))
        )
        if dtype.kind == "b":
            data = bytearray(byte & 1 for byte in data)
        where = draw(st.sampled_from(["both", "base", "target", "changed"]))
        if where != "target":
            base[name] = numpy.frombuffer(bytes(data), dtype=dtype)
        if where == "changed" and data:
            data[draw(st.integers(0, len(data) - 1))] ^= 1
        if where != "base":
            target[name] = numpy.frombuffer(bytes(data), dtype=dtype)
    return base, target


def raw(state: dict[str, Any]) -> dict[str, tuple[Any, Any, bytes]]:
    return {name: (tensor.dtype, tensor.shape, as_bytes(tensor)) for name, tensor in state.items()}


@settings(max_examples=60, deadline=None)
@given(states(), st.sampled_from(["compact", "direct"]))
def test_any_state_comes_back_bit_for_bit(
    pair: tuple[dict[str, Any], dict[str, Any]], profile: Any
) -> None:
    base, target = pair
    link = dc.diff(base, target, profile=profile, metadata={"step": "1"})
    assert link.metadata["step"] == "1" and (link.base, link.target) == (
        str(dc.digest(base)),
        str(dc.digest(target)),
    )
    assert link.report is not None and len(link) == link.report.bytes == len(bytes(link))
    kind = None if base else "numpy"
    assert raw(dc.apply(base, [link], kind=kind)) == raw(
        dict(sorted(target.items(), key=lambda item: item[0].encode()))
    )
    again = dc.open(bytes(link))
    again.verify()
    # The base with the patches applied is the target.
    held = {name: bytearray(as_bytes(base[name])) for name in target if name in base}
    for patch in again.patches(base, kind="numpy"):
        values = as_bytes(patch.values)
        if patch.indices is None:
            held[patch.name] = bytearray(values)
            continue
        width = len(values) // len(patch.indices)
        assert (
            patch.indices.dtype == numpy.int32
            and (numpy.diff(patch.indices) > 0).all()
            and patch.count > 0
        )
        for number, lane in enumerate(patch.indices):
            held[patch.name][lane * width : (lane + 1) * width] = values[
                number * width : (number + 1) * width
            ]
    assert {name: bytes(data) for name, data in held.items() if name in target} == {
        name: as_bytes(tensor) for name, tensor in target.items()
    }


def test_files_and_memory_give_the_same_links_and_states(tmp_path: Path) -> None:
    paths = [
        write_model(tmp_path / f"ein Modell {step}" / "model.safetensors", model(step)).parent
        for step in range(3)
    ]
    memory = [
        {name: dc.Tensor(dtype, shape, data) for name, (dtype, shape, data) in model(step).items()}
        for step in range(3)
    ]
    report = dc.diff(paths[0], paths[1], tmp_path / "1.dcf", metadata={"step": "1"})
    assert (report.changed, report.tensors) == (3, 3)
    second = dc.diff(memory[1], paths[2])
    assert isinstance(second, dc.Link) and second.base == report.target
    with pytest.raises(dc.UsageError, match="exists"):
        dc.diff(paths[0], paths[1], tmp_path / "1.dcf")
    assert dc.diff(paths[0], paths[1], tmp_path / "1.dcf", replace=True).bytes > 0

    built = dc.apply(paths[0], [tmp_path / "1.dcf", second], tmp_path / "built")
    assert built.target == second.target == str(dc.digest(tmp_path / "built"))
    in_memory = dc.apply(paths[0], [tmp_path / "1.dcf", second])
    assert {
        name: (tensor.dtype, tensor.shape, bytes(tensor.data)) for name, tensor in in_memory.items()
    } == model(2)
    whole = dc.snapshot(paths[2])
    assert isinstance(whole, dc.Link)
    assert {name: bytes(tensor.data) for name, tensor in dc.apply(None, [whole]).items()} == {
        name: data for name, (_, _, data) in model(2).items()
    }
    # The tool of the package sees the same.
    assert json.loads(tool("inspect", "--json", tmp_path / "1.dcf"))["base"] == report.base


def test_a_link_says_what_it_holds(tmp_path: Path) -> None:
    base, target = (
        {name: dc.Tensor(*tensor) for name, tensor in model(step).items()} for step in (0, 1)
    )
    del target["d.steady"]
    target["e.new"] = bytearray(b"\0\1")
    dc.diff(base, target, tmp_path / "link.dcf", profile="direct")
    with dc.open(tmp_path / "link.dcf") as link:
        assert link.is_direct and link.path == str(tmp_path / "link.dcf")
        operations = {tensor.name: tensor.operation for tensor in link.index}
        assert operations == {
            "a.weight": "patch", "b.bias": "patch", "c.quantised": "patch", "d.steady": "remove",
            "e.new": "set",
        }  # fmt: skip
        assert link.header.file_length == len(link) == (tmp_path / "link.dcf").stat().st_size
        (new,) = link.patches(names=["e.new"])
        assert (new.indices, as_bytes(new.values)) == (None, b"\0\1")
        (one,) = link.patches(names=lambda name: name.startswith("a."))
        assert (list(one.indices), as_bytes(one.values), one.dtype, one.count) == (
            [617],
            b"\0\x80",
            "BF16",
            1,
        )
    with pytest.raises(dc.UsageError, match="closed"):
        link.verify()
    # Arrays that were returned before stay as they were.
    assert list(one.indices) == [617]
    compact = dc.diff(base, target)
    with pytest.raises(dc.UsageError, match="give the base"):
        list(compact.patches())


def test_errors_say_what_and_where(tmp_path: Path) -> None:
    base, target = (
        {name: dc.Tensor(*tensor) for name, tensor in model(step).items()} for step in (0, 1)
    )
    link = dc.diff(base, target)
    with pytest.raises(dc.WrongBaseError) as caught:
        dc.apply(target, [link])
    error = caught.value
    assert (error.rule, error.link, error.retryable) == (
        "R-APP-01",
        0,
        False,
    ) and "base" in error.advice
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.rule) == (dc.WrongBaseError, str(error), "R-APP-01")

    whole = bytes(link)
    damaged = tmp_path / "damaged.dcf"
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with dc.open(damaged) as bad, pytest.raises(dc.CorruptError) as caught:
        bad.verify()
    assert caught.value.rule == "R-SEG-01" and caught.value.section.startswith("segment ")
    assert (
        caught.value.offset is not None
        and caught.value.file == str(damaged)
        and caught.value.retryable
    )
    for data, kind in [
        (whole[:50], dc.errors.TruncatedError),
        (b"no link at all", dc.errors.NotDcfError),
    ]:
        with pytest.raises(kind):
            dc.open(data)
    with pytest.raises(OSError) as missing:
        dc.open(tmp_path / "missing.dcf")
    assert isinstance(missing.value, dc.IoError) and not missing.value.retryable
    with pytest.raises(ValueError, match="no link"):
        dc.apply(base, [])
    with pytest.raises(dc.UsageError, match="profile"):
        dc.diff(base, target, profile="small")  # type: ignore[call-overload]
    with pytest.raises(dc.UsageError, match="threads"):
        dc.diff(base, target, threads=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], "give a torch.Tensor"),
        (3.5, "<class 'float'>"),
        (numpy.float32(1), "numpy.float32"),
        (numpy.zeros((4, 4))[:, ::2], "not C-contiguous"),
        (numpy.zeros(2, dtype=">f4"), ">f4"),
        (numpy.zeros(2, dtype="M8[s]"), "unknown dtype"),
        (numpy.array(["x"]), "unknown dtype"),
        (memoryview(bytes(8))[::2], "not contiguous"),
        (dc.Tensor("BF16", (3,), b"12345"), "5 bytes do not fit"),
        (dc.Tensor("F17", (3,), b"12345"), "unknown dtype"),
        (dc.Tensor("U8", (3,), "abc"), "give a torch.Tensor"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        dc.diff({}, {"the one": value})
    assert "the one" in str(caught.value) and caught.value.tensor == "the one"


def test_what_is_no_state_is_refused() -> None:
    for state in (3, ["a"], {1: b"x"}):
        with pytest.raises(dc.UsageError):
            dc.digest(state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind"):
        dc.apply(None, [dc.snapshot({"a": b"x"})], kind="jax")
    with pytest.raises(dc.UsageError, match="None or a path"):
        dc.apply({}, [], "out")


def test_tensors_can_be_read_piece_by_piece() -> None:
    data = bytes(range(256)) * (20 << 12)  # 20 MiB, more than a piece
    asked = []

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    lazy = {"w": dc.Tensor("U8", (len(data),), read)}
    assert str(dc.digest(lazy)) == str(dc.digest({"w": data}))
    assert max(asked) <= 16 << 20 and sum(asked) == len(data)

    def fail(offset: int, length: int) -> bytes:
        raise RuntimeError("the device is gone")

    with pytest.raises(dc.IoError, match="the device is gone"):
        dc.digest({"w": dc.Tensor("U8", (3,), fail)})
    with pytest.raises(dc.IoError, match="exactly the requested number of bytes"):
        dc.digest({"w": dc.Tensor("U8", (3,), lambda offset, length: b"1")})


def test_an_open_safetensors_file_is_a_state(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = write_model(
        tmp_path / "model.safetensors", {"a": ("F32", (2,), bytes(8)), "b": ("U8", (1,), b"x")}
    )
    with safetensors.safe_open(path, framework="numpy") as file:
        assert str(dc.digest(file)) == str(dc.digest(path))


def test_progress_is_told_from_the_callers_thread_and_ends_the_work() -> None:
    import threading

    base, target = {"w": bytearray(30 << 20)}, {"w": bytearray(b"\1") * (30 << 20)}
    told: list[tuple[str, int, int]] = []
    threads = set()

    def progress(phase: str, done: int, total: int) -> None:
        threads.add(threading.get_ident())
        told.append((phase, done, total))

    dc.diff(base, target, progress=progress)
    assert told[-1] == ("compare", 60 << 20, 60 << 20) and threads == {threading.get_ident()}

    def stop(phase: str, done: int, total: int) -> None:
        raise InterruptedError("enough")

    zeros = dc.Tensor("U8", (1 << 24,), lambda _, length: bytes(length))
    with pytest.raises(InterruptedError, match="enough"):
        dc.digest({f"{number}": zeros for number in range(200)}, threads=1, progress=stop)


def long_model(path: Path) -> Path:
    """Makes a sparse file of 64 GB: no function can have read all of it when it first reports
    progress."""
    header = json.dumps(
        {"t": {"dtype": "U8", "shape": [1 << 36], "data_offsets": [0, 1 << 36]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + (1 << 36))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open cannot be cut there")
@pytest.mark.parametrize(
    "work", ["digest", "diff", "snapshot", "mixed", "apply", "apply in memory"]
)
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, work: str) -> None:
    small = write_model(tmp_path / "small", {"t": ("U8", (1,), b"x")})
    other = write_model(tmp_path / "other", {"t": ("U8", (1,), b"y")})
    links = [tmp_path / "0.dcf", tmp_path / "1.dcf"]
    dc.snapshot(small, links[0])
    dc.diff(small, other, links[1])
    long, out = long_model(tmp_path / "long"), tmp_path / "out"
    told = []

    def cut(phase: str, done: int, total: int) -> None:
        if not told:
            os.truncate(long, 1000)
        told.append(phase)

    with pytest.raises(dc.IoError, match="changed while it was being read") as caught:
        if work == "digest":
            dc.digest(long, progress=cut)
        elif work == "diff":
            dc.diff(small, long, out, progress=cut)
        elif work == "snapshot":
            dc.snapshot(long, out, progress=cut)
        elif work == "mixed":
            dc.diff({"t": b"x"}, long, out, progress=cut)
        elif work == "apply":
            dc.apply(long, links, out, progress=cut)
        else:
            dc.apply(long, [links[1]], progress=cut)
    assert caught.value.file == str(long)
    assert told and not out.exists()


def test_nothing_is_pickled() -> None:
    link = dc.snapshot({"a": b"x"})
    for handle in (link, link._native, next(link.patches())):  # type: ignore[union-attr]
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(handle)


def test_patches_show_the_library_that_is_used() -> None:
    base, target = {"w": numpy.zeros(3, dtype="f4")}, {"w": numpy.ones(3, dtype="f4")}
    base["v"], target["v"] = b"abcdefgh", b"abcdefgx"
    patches = {
        patch.name: patch for patch in dc.diff(base, target).patches(base, kind="deltachain")
    }
    assert patches["w"].indices is None and isinstance(patches["w"].values, dc.Tensor)
    assert list(patches["v"].indices) == [7] and bytes(patches["v"].values.data) == b"x"
    assert io.BytesIO(patches["v"].values.data).read() == b"x"
    assert struct.pack("<3f", 1, 1, 1) == bytes(patches["w"].values.data)


def test_lanes_beyond_2_31_have_numbers_of_64_bits() -> None:
    lanes = [5, (1 << 31) - 1, 1 << 31, (1 << 31) + 4095]

    def reader(changed: list[int]) -> Any:
        def read(offset: int, length: int) -> bytearray:
            data = bytearray(length)
            for lane in changed:
                if offset <= lane < offset + length:
                    data[lane - offset] = 1
            return data

        return read

    base, target = (
        {"w": dc.Tensor("U8", ((1 << 31) + 4096,), reader(changed))} for changed in ([], lanes)
    )
    (patch,) = dc.diff(base, target, profile="direct").patches(kind="numpy")
    assert (patch.indices.dtype, list(patch.indices)) == (numpy.int64, lanes)
