"""Tensors of torch: published as they are, and returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Chain, as_bytes, model, write_model

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]


def random_bits(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """Returns a tensor of random bits, NaN payloads and -0 among them."""
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    if kind == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).view(torch.bool)
    width = torch.empty(0, dtype=kind).element_size()
    raw = torch.randint(
        0, 256, (*shape[:-1], shape[-1] * width), generator=generator, dtype=torch.uint8
    )
    return raw.view(kind)


def test_every_dtype_comes_back_bit_for_bit() -> None:
    base = {dtype: random_bits(dtype, (3, 40), 1) for dtype in DTYPES}
    target = {dtype: tensor.clone() for dtype, tensor in base.items()}
    for dtype, tensor in target.items():
        tensor[1] = random_bits(dtype, (40,), 2)
    target["scalar"] = torch.tensor(-0.0)
    target["empty"] = torch.zeros(0, 5, dtype=torch.bfloat16)
    target["parameter"] = torch.nn.Parameter(torch.ones(2, 2))
    link = dc.diff(base, target)
    built = dc.apply(base, [link])
    assert {
        name: (tensor.dtype, tensor.shape, as_bytes(tensor)) for name, tensor in built.items()
    } == {
        name: (tensor.dtype, tensor.shape, as_bytes(tensor))
        for name, tensor in sorted(target.items())
    }
    # Applies patches with `index_copy_`, as an engine on a device does.
    for patch in link.patches(base):
        if patch.indices is None:
            continue
        assert patch.indices.dtype == torch.int32
        width = base[patch.name].element_size()
        flat = base[patch.name].reshape(-1).view(torch.uint8).view(-1, width)
        flat.index_copy_(0, patch.indices.long(), patch.values.view(torch.uint8).view(-1, width))
        assert as_bytes(base[patch.name]) == as_bytes(target[patch.name])


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(4, 4).t()[1:], "not contiguous"),
        (torch.zeros(4, 4)[:, ::2], "not contiguous"),
        (torch.zeros(4).to_sparse(), "sparse or nested"),
        (torch.zeros(4, 4).to_sparse_csr(), "sparse or nested"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "sparse or nested"),
        (torch.zeros(4, device="meta"), "no data"),
        (torch.zeros(4, dtype=torch.complex64).conj(), "lazy view"),
        (torch.zeros(4, dtype=torch.complex128), "complex128"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(tensor: Any, text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        dc.digest({"the one": tensor})
    assert caught.value.tensor == "the one"


class Quantised(torch.Tensor):
    """A tensor that consists of others, as libraries for quantisation make them."""

    @staticmethod
    def __new__(cls, values: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values: Any, scale: Any) -> None:
        self.values, self.scale = values, scale

    def __tensor_flatten__(self) -> Any:
        return ["values", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].values, args[0].scale)
        raise NotImplementedError(func)


def test_a_tensor_that_is_made_of_others_is_refused_by_its_class(tmp_path: Path) -> None:
    tensor = Quantised(torch.zeros(4, dtype=torch.int8), torch.ones(1))
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"w": torch.zeros(4)})
        for use in (
            lambda: dc.digest({"the one": tensor}),
            lambda: publisher.publish({"the one": tensor}),
            lambda: dc.Subscriber(tmp_path / "chain", into={"the one": tensor}),
        ):
            with pytest.raises(
                dc.UsageError, match=r"Quantised .* of other tensors: give .*dequantize"
            ) as caught:
                use()
            assert caught.value.tensor == "the one"


def test_a_publisher_resolves_views_and_refuses_what_is_not_dense_by_name(tmp_path: Path) -> None:
    weights = torch.tensor([1 + 2j, -0.0 + 3j], dtype=torch.complex64)
    views = {
        "conj": weights.conj(),
        "neg": weights.conj().imag,
        "row": torch.arange(6).reshape(2, 3).t(),
    }
    assert views["conj"].is_conj() and views["neg"].is_neg()
    with dc.Publisher(tmp_path / "chain") as pub:
        made = pub.publish(views)
        plain = {
            name: view.resolve_conj().resolve_neg().contiguous() for name, view in views.items()
        }
        assert made.digest == dc.digest(plain).digest
        odd = [
            torch.zeros(4, 4).to_sparse(),
            torch.zeros(4, 4).to_sparse_csr(),
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            torch.zeros(4, device="meta"),
        ]
        for tensor in odd:
            with pytest.raises(dc.UsageError) as caught:
                pub.publish({"the one": tensor})
            assert caught.value.tensor == "the one"


def test_what_torch_itself_refuses_has_the_tensors_name(tmp_path: Path) -> None:
    lazy = torch.nn.LazyLinear(3)
    with dc.Publisher(tmp_path / "chain") as publisher:
        with pytest.raises(dc.UsageError, match="the tensor cannot be read: ValueError") as raised:
            publisher.publish({"a": torch.zeros(2), "lazy": lazy.weight})
        assert raised.value.tensor == "lazy"
        with pytest.raises(dc.UsageError, match="not the class Linear"):
            publisher.publish(torch.nn.Linear)
        assert publisher.publish({"a": torch.zeros(2)}).version == 0
    with pytest.raises(dc.UsageError, match="not the class Linear"):
        dc.Subscriber(tmp_path / "chain", into=torch.nn.Linear)
    freed = torch.nn.Linear(3, 4)
    for tensor in freed.parameters():
        tensor.untyped_storage().resize_(0)
    with pytest.raises(dc.UsageError, match="its storage was freed") as raised:
        dc.Subscriber(tmp_path / "chain", into=freed)
    assert raised.value.tensor in ("weight", "bias")


HAS_F4 = hasattr(torch, "float4_e2m1fn_x2")


@pytest.mark.skipif(not HAS_F4, reason="SKIPPED: this torch has no dtype of four bits")
@pytest.mark.parametrize("shape", [(2, 3), (4, 1), (2, 5, 3), (3, 4), (6,)])
@pytest.mark.parametrize("how", ["memory", "host_copy", "into"])
def test_four_bits_of_any_shape_are_followed(
    tmp_path: Path, how: str, shape: tuple[int, ...]
) -> None:
    """torch has a flat row where rows share bytes."""
    count = numpy.prod(shape) // 2
    states = [bytes(range(count)), bytes([*range(count - 1), 0xAB])]
    row = torch.zeros(*shape[:-1], shape[-1] // 2, dtype=torch.uint8)
    if shape[-1] % 2:
        row = torch.zeros(count, dtype=torch.uint8)
    tensor = row.view(torch.float4_e2m1fn_x2)
    place = {
        "memory": {},
        "into": {"into": {"w": tensor}},
        "host_copy": {"host_copy": tmp_path / "f"},
    }
    with (
        dc.Publisher(tmp_path / "chain", profile=["compact", "local"]) as publisher,
        dc.Subscriber(tmp_path / "chain", **place[how]) as subscriber,
    ):
        for number, state in enumerate(states):
            publisher.publish({"w": dc.Tensor("F4", shape, state)})
            update = subscriber.prepare()
            if how == "into":
                update.apply()
                assert row.numpy().tobytes() == state and subscriber.version == number
                continue
            with update.applying() as patches:
                (patch,) = patches
            assert (patch.shape, patch.dtype) == (shape, "F4")
            with update.full() as patches:
                (patch,) = patches
            assert (patch.shape, patch.dtype) == (shape, "F4")
            assert patch.values.view(torch.uint8).numpy().tobytes() == state
            ((_, found),) = subscriber.state()
            assert found.view(torch.uint8).numpy().tobytes() == state


@pytest.mark.skipif(not HAS_F4, reason="SKIPPED: this torch has no dtype of four bits")
@pytest.mark.parametrize("shape", [(2, 3), (3, 4)])
def test_four_bits_of_any_shape_are_published(tmp_path: Path, shape: tuple[int, ...]) -> None:
    count = numpy.prod(shape) // 2
    raw = torch.arange(count, dtype=torch.uint8)
    like = write_model(tmp_path / "like" / "model.safetensors", {"w": ("F4", shape, bytes(count))})
    own = raw if shape[-1] % 2 else raw.view(*shape[:-1], -1)
    with dc.Publisher(tmp_path / "chain", like=like.parent) as publisher:
        publisher.publish({"w": own.view(torch.float4_e2m1fn_x2)})
    with dc.Subscriber(tmp_path / "chain", kind="deltachain") as subscriber:
        subscriber.prepare().apply()
        ((_, found),) = subscriber.state()
        assert (found.dtype, found.shape) == ("F4", shape)
        assert bytes(found.data) == bytes(range(count))


@pytest.mark.skipif(not HAS_F4, reason="SKIPPED: this torch has no dtype of four bits")
def test_four_bits_that_are_not_contiguous_are_published(tmp_path: Path) -> None:
    raw = torch.arange(64, dtype=torch.uint8).view(8, 8)
    with dc.Publisher(tmp_path / "chain") as publisher:
        for number, own in enumerate((raw.t(), raw[:, ::2])):
            publisher.publish({"w": own.view(torch.float4_e2m1fn_x2)})
            found = dict(read(tmp_path / "chain", number))["w"]
            assert found.view(torch.uint8).equal(own)


def read(url: Path, version: int) -> Any:
    with dc.Subscriber(url) as subscriber:
        subscriber.prepare(version).apply()
        return list(subscriber.state())


def test_a_stale_backward_fails_after_an_update_in_place(chain: Chain) -> None:
    lanes = numpy.arange(3, dtype=numpy.float32)

    def version(step: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        return {"w": ("F32", (3,), (lanes + step).tobytes())}

    weight = torch.nn.Parameter(torch.zeros(3))
    subscriber = dc.Subscriber(chain.url, into={"w": weight})
    for step in range(3):
        chain.publish(version(step))
        update = subscriber.prepare()
        loss = (weight * weight).sum()
        update.apply()
        assert as_bytes(weight) == (lanes + step).tobytes()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        (weight * weight).sum().backward()


def test_nothing_is_copied() -> None:
    """The digest of a large tensor that shares its storage with others is that of its own part."""
    whole = torch.arange(1 << 20, dtype=torch.int32)
    part = whole[1000:2000]
    assert str(dc.digest({"w": part})) == str(dc.digest({"w": part.clone()}))


def test_a_device_is_read_through_a_buffer() -> None:
    """Reads from a GPU if there is one, and otherwise from a stand-in on the CPU, through the same
    code."""
    from deltachain._device import reader

    tensor = random_bits("bfloat16", (3, 5000), 3)
    expected = str(dc.digest({"w": tensor}))
    if torch.cuda.is_available():
        assert str(dc.digest({"w": tensor.cuda()})) == expected
    lazy = dc.Tensor("BF16", (3, 5000), reader("w", tensor))
    assert str(dc.digest({"w": lazy})) == expected


def test_a_state_dict_is_followed_in_place(chain: Chain) -> None:
    chain.publish(model(0))
    weights = {
        "a.weight": torch.zeros(300, 10, dtype=torch.bfloat16),
        "b.bias": torch.nn.Parameter(torch.zeros(2, 4)),
        "c.quantised": torch.zeros(16, 16, dtype=torch.float8_e4m3fn),
        "d.steady": torch.zeros(3, dtype=torch.uint8),
    }
    subscriber = dc.Subscriber(chain.url, into=weights)
    subscriber.prepare().apply()
    for step in (1, 2):
        chain.publish(model(step))
        subscriber.prepare().apply()
        assert {name: as_bytes(tensor) for name, tensor in weights.items()} == {
            name: data for name, (_, _, data) in chain.versions[step].items()
        }
