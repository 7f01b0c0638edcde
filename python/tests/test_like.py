"""`like=`: names, dtypes, shapes and tied tensors are the checkpoint's, or the error names those
that differ."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import write_model
from test_publisher import followed

import deltachain as dc
from deltachain._native import divide
from deltachain._ranks import usual_shards

ONE = {"model.layers.0.w": ("U8", (2,), b"ab"), "model.layers.0.b": ("U8", (1,), b"c")}


def taken(
    tmp_path: Path, checkpoint: dict[str, Any], weights: Any, config: Any = None, **how: Any
) -> dict[str, bytes]:
    """Publishes `weights` like a checkpoint, and returns what a follower gets."""
    like = tmp_path / "like"
    write_model(like / "model.safetensors", checkpoint)
    if config is not None:
        (like / "config.json").write_text(json.dumps(config))
    with dc.Publisher(tmp_path / "chain", like=dc.Like(like, **how)) as pub:
        pub.publish(weights)
    return followed(tmp_path / "chain")


def u8(data: bytes) -> dc.Tensor:
    return dc.Tensor("U8", (len(data),), data)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "_orig_mod.",
        "module.",
        "module._orig_mod.",
        "base_model.model.",
        "_fsdp_wrapped_module.module._checkpoint_wrapped_module.",
    ],
)
def test_names_lose_what_wrappers_add(tmp_path: Path, before: str) -> None:
    weights = {
        f"{before}model.layers.0.w": u8(b"xy"),
        f"{before}model.layers._orig_mod.0.b": u8(b"z"),
    }
    found = taken(tmp_path, ONE, weights)
    assert (found["model.layers.0.w"], found["model.layers.0.b"]) == (b"xy", b"z")


def test_a_name_that_looks_wrapped_and_is_not(tmp_path: Path) -> None:
    found = taken(tmp_path, {"module.w": ("U8", (1,), b"a")}, {"module.w": u8(b"x")})
    assert found["module.w"] == b"x"


def test_names_that_are_missing_or_too_many_are_listed(tmp_path: Path) -> None:
    weights = {"model.layers.0.w": u8(b"xy"), "lora_A": u8(b"x"), "module.lora_B": u8(b"y")}
    listed = r"1 missing: model\.layers\.0\.b; 2 unexpected: lora_A, module\.lora_B; a transform"
    with pytest.raises(dc.UsageError, match=listed):
        taken(tmp_path, ONE, weights)
    many = {f"t{number}": ("U8", (1,), b"a") for number in range(30)}
    with pytest.raises(dc.UsageError, match=r"30 missing: t0, t1, t10, .*t26 and 10 more"):
        taken(tmp_path, many, {})


def test_wrong_shapes_and_dtypes_name_the_tensor(tmp_path: Path) -> None:
    with pytest.raises(
        dc.UsageError, match=r"U8 of shape \[2\], but this is U8 of shape \[1, 2\]"
    ) as raised:
        taken(
            tmp_path,
            ONE,
            {"model.layers.0.w": dc.Tensor("U8", (1, 2), b"xy"), "model.layers.0.b": u8(b"z")},
        )
    assert raised.value.tensor == "model.layers.0.w"
    with pytest.raises(dc.UsageError, match="this is I8"):
        taken(
            tmp_path,
            ONE,
            {"model.layers.0.w": dc.Tensor("I8", (2,), b"xy"), "model.layers.0.b": u8(b"z")},
        )


def test_each_tensor_is_cast_to_its_own_dtype(tmp_path: Path) -> None:
    numpy, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    router = numpy.array([1.00001, -0.0, numpy.nan], "float32")
    weight = numpy.array([[1.00001, -0.0], [3.14159, 65504.0]], "float32")
    checkpoint = {
        "router.bias": ("F32", (3,), bytes(12)),
        "w": ("BF16", (2, 2), bytes(8)),
        "h": ("F16", (2, 2), bytes(8)),
        "steps": ("I64", (), bytes(8)),
    }
    weights = {"router.bias": router, "w": weight.T, "h": weight, "steps": numpy.array(7, "int64")}
    found = taken(tmp_path, checkpoint, weights)
    assert found["router.bias"] == router.tobytes()
    assert found["w"] == numpy.ascontiguousarray(weight.T).astype(ml_dtypes.bfloat16).tobytes()
    assert found["h"] == weight.astype("float16").tobytes()
    assert found["steps"] == struct.pack("<q", 7)
    with pytest.raises(dc.UsageError, match=r"has I64, this is float32.*transform"):
        taken(tmp_path, checkpoint, {**weights, "steps": numpy.array(7.0, "float32")})
    checkpoint["w"] = ("F8_E4M3", (2, 2), bytes(4))
    with pytest.raises(dc.UsageError, match=r"has F8_E4M3, this is float32"):
        taken(tmp_path, checkpoint, weights)


def test_torch_casts_as_torch_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(40, 30)
    buffers = torch.nn.BatchNorm1d(3)
    checkpoint = {"w": ("BF16", (30, 40), bytes(2400)), "bias": ("F32", (30,), bytes(120))}
    for name, tensor in buffers.state_dict().items():
        dtype = "I64" if tensor.dtype is torch.int64 else "F32"
        checkpoint[f"norm.{name}"] = (dtype, tuple(tensor.shape), bytes(tensor.nbytes))
    weights = {"w": weight.t().requires_grad_(), "bias": weight[0].double()}
    found = taken(
        tmp_path,
        checkpoint,
        weights | {f"norm.{name}": tensor for name, tensor in buffers.state_dict().items()},
    )
    assert found["w"] == weight.t().bfloat16().contiguous().view(torch.uint8).numpy().tobytes()
    assert found["bias"] == weight[0].numpy().tobytes()
    assert found["norm.running_var"] == buffers.running_var.numpy().tobytes()
    assert found["norm.num_batches_tracked"] == bytes(8)


EMBEDDED = {"model.embed_tokens.weight": ("U8", (2,), b"ab")}
TIES = {"tie_word_embeddings": True}


@pytest.mark.parametrize("order", [1, -1])
def test_tied_tensors_are_written_once(tmp_path: Path, order: int) -> None:
    weights = [("model.embed_tokens.weight", u8(b"xy")), ("lm_head.weight", u8(b"xy"))][::order]
    assert taken(tmp_path, EMBEDDED, weights, TIES)["model.embed_tokens.weight"] == b"xy"
    # Any of the tied tensors is enough.
    assert taken(tmp_path, EMBEDDED, weights[:1], TIES)["model.embed_tokens.weight"] == b"xy"


@pytest.mark.parametrize("order", [1, -1])
def test_tied_tensors_that_differ_are_an_error(tmp_path: Path, order: int) -> None:
    weights = [("model.embed_tokens.weight", u8(b"xy")), ("lm_head.weight", u8(b"xz"))][::order]
    with pytest.raises(dc.UsageError, match="they differ"):
        taken(tmp_path, EMBEDDED, weights, TIES)


def tied(order: int) -> list[tuple[str, Any]]:
    """Names of one array. No rule says that they are tied."""
    array = numpy.frombuffer(b"xy", dtype=numpy.uint8)
    names = ["shared.weight", "encoder.embed.weight", "decoder.embed.weight"][::order]
    return [(name, array) for name in names]


SHARED = {"shared.weight": ("U8", (2,), b"ab")}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("form", [dict, iter])
def test_ties_are_known_by_their_memory(tmp_path: Path, order: int, form: Any) -> None:
    assert taken(tmp_path, SHARED, form(tied(order)))["shared.weight"] == b"xy"


def test_equal_values_elsewhere_and_a_part_are_no_ties(tmp_path: Path) -> None:
    shared = numpy.frombuffer(b"xyxy", dtype=numpy.uint8)
    for other in (shared[:2].copy(), shared[2:], shared[:1]):
        weights = {"shared.weight": shared[:2], "other": other}
        with pytest.raises(dc.UsageError, match="1 unexpected: other"):
            taken(tmp_path, SHARED, weights)


def test_a_stream_that_uses_its_memory_again_has_no_ties(tmp_path: Path) -> None:
    array = numpy.zeros(2, dtype=numpy.uint8)

    def stream(names: list[str]) -> Any:
        for value, name in enumerate(names):
            array[:] = value
            yield name, array

    with pytest.raises(dc.UsageError, match="1 unexpected: other"):
        taken(tmp_path, SHARED, stream(["shared.weight", "other"]))


def test_ties_of_a_module_by_memory(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = torch.nn.Embedding(4, 3)
            self.encoder = torch.nn.Linear(3, 4, bias=False)
            self.encoder.weight = self.shared.weight

    model = Model()
    found = taken(tmp_path, {"shared.weight": ("BF16", (4, 3), bytes(24))}, torch.compile(model))
    expected = model.shared.weight.detach().bfloat16()
    assert found["shared.weight"] == expected.view(torch.uint8).numpy().tobytes()
    model.encoder.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    with pytest.raises(dc.UsageError, match=r"1 unexpected: encoder\.weight"):
        taken(tmp_path, {"shared.weight": ("BF16", (4, 3), bytes(24))}, model)


def test_a_checkpoint_of_a_wrapped_model(tmp_path: Path) -> None:
    wrapped = {f"_orig_mod.{name}": row for name, row in ONE.items()}
    weights = {"model.layers.0.w": u8(b"xy"), "module.model.layers.0.b": u8(b"z")}
    found = taken(tmp_path, wrapped, weights)
    assert [found[name] for name in wrapped] == [b"xy", b"z"]


def test_a_config_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(dc.UsageError, match=r"config\.json of like= cannot be read"):
        taken(tmp_path, SHARED, dict(tied(1)), None)
        (tmp_path / "like" / "config.json").write_text("{")
        dc.Publisher(tmp_path / "chain", like=tmp_path / "like")


def test_untied_heads_are_no_ties(tmp_path: Path) -> None:
    weights = {"model.embed_tokens.weight": u8(b"xy"), "lm_head.weight": u8(b"xy")}
    with pytest.raises(dc.UsageError, match=r"1 unexpected: lm_head\.weight"):
        taken(tmp_path, EMBEDDED, weights, {"tie_word_embeddings": False})


@pytest.mark.parametrize("given", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_checkpoint_with_both_gets_both(tmp_path: Path, given: str) -> None:
    both = {**EMBEDDED, "lm_head.weight": ("U8", (2,), b"ab")}
    found = taken(tmp_path, both, {given: u8(b"xy")}, TIES)
    assert (found["model.embed_tokens.weight"], found["lm_head.weight"]) == (b"xy", b"xy")


def test_names_that_a_file_notes_as_the_same(tmp_path: Path) -> None:
    like = tmp_path / "like.safetensors"
    header = json.dumps(
        {
            "__metadata__": {"b": "a", "format": "pt"},
            "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        }
    ).encode()
    like.write_bytes(struct.pack("<Q", len(header)) + header + b"ab")
    with dc.Publisher(tmp_path / "chain", like=like) as pub:
        pub.publish({"a": u8(b"xy"), "b": u8(b"xy")})
    assert followed(tmp_path / "chain")["a"] == b"xy"


def test_a_transform_makes_what_the_checkpoint_has(tmp_path: Path) -> None:
    def transform(name: str, tensor: Any) -> Any:
        match name:
            case "drop":
                return None
            case "same":
                return tensor
            case "several":
                return {"several.a": u8(b"1"), "several.b": u8(b"2")}
        return ((f"{name}.{part}", u8(part.encode())) for part in "xy")

    checkpoint = dict.fromkeys(
        ("same", "several.a", "several.b", "pairs.x", "pairs.y"), ("U8", (1,), b"a")
    )
    weights = {f"module.{name}": u8(b"s") for name in ("drop", "same", "several", "pairs")}
    # A name that the checkpoint does not have keeps its prefix, unless the prefix is a wrapper's.
    found = taken(tmp_path, checkpoint, weights, transform=transform)
    assert [found[name] for name in checkpoint] == [b"s", b"1", b"2", b"x", b"y"]


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(dc.Error):
        dc.Publisher(tmp_path / "chain", like=tmp_path / "nothing")


def test_shards_are_even_and_do_not_depend_on_ranks() -> None:
    sizes = {f"layers.{number}.w": 1000 + number % 7 for number in range(200)} | {
        "embed": 30_000,
        "b": 1,
    }
    places = divide(sizes, 24)
    assert places == divide(dict(reversed(sizes.items())), 24)
    loads = [
        sum(size for name, size in sizes.items() if places[name] == shard) for shard in range(24)
    ]
    assert (
        max(load for shard, load in enumerate(loads) if shard != places["embed"]) - min(loads)
        <= 1006
    )
    assert [usual_shards(ranks) for ranks in (1, 2, 24, 25, 64)] == [1, 24, 24, 48, 72]
