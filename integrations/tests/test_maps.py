"""Maps that are made by watching a model's own loader, which fuses, stacks, transposes, divides and
computes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

import deltachain as dc  # noqa: E402
from deltachain_integrations._maps import Map, taken  # noqa: E402

Weights = dict[str, Any]
Loader = Callable[[Any, str, Any], None]


def drawn(seed: int, **shapes: tuple[int, ...]) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()
    }


def bits(tensor: Any) -> Any:
    return (
        tensor.detach()
        .contiguous()
        .view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
    )


def addresses(tensor: Any) -> set[int]:
    """The addresses of a tensor's elements."""
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    places = torch.arange(extent).as_strided(tensor.shape, tensor.stride()).flatten()
    return set((tensor.data_ptr() + places * tensor.element_size()).tolist())


class Model(torch.nn.Module):
    """Parameters of some shapes, and a loader that is called with each tensor."""

    def __init__(
        self, loader: Loader, dtype: Any = torch.bfloat16, **shapes: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.loader = loader
        for name, shape in shapes.items():
            self.register_parameter(
                name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            )

    def load(self, weights: Iterator[tuple[str, Any]]) -> None:
        for name, tensor in weights:
            self.loader(self, name, tensor)

    def memory(self) -> list[tuple[str, Any]]:
        return [*self.named_parameters(), *self.named_buffers()]

    def taken(self, weights: Weights) -> Map:
        found = taken(self.load, iter(weights.items()), self.memory())
        for name, parts in found.into().items():
            for part in parts:
                assert torch.equal(bits(part.tensor), bits(weights[name][part.index])), name
        return found

    def unmapped(self, found: Map) -> list[str]:
        """The tensors with elements that no tensor of the checkpoint is mapped to."""
        mapped: set[int] = set()
        mapped.update(
            *(addresses(part.tensor) for parts in found.into().values() for part in parts)
        )
        return [name for name, tensor in self.memory() if addresses(tensor) - mapped]


def assert_follows(model: Model, found: Map, first: Weights, tmp_path: Path) -> None:
    """Asserts that updates through the map equal the loader's result, for a version in which a few
    elements change, NaN and -0 among them."""
    second = {name: tensor.clone() for name, tensor in first.items()}
    for tensor in second.values():
        flat = tensor.view(-1)
        flat[1::7] *= 1.5
        flat[-1], flat[len(flat) // 2] = float("nan"), -0.0
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(first)
        publisher.publish(second)
    subscriber = dc.Subscriber(tmp_path / "chain", into=found.into())
    subscriber.prepare(0).apply()
    subscriber.prepare(1).apply()
    assert subscriber.proof == "changed_lanes"
    subscriber.check()
    written = {name: tensor.detach().clone() for name, tensor in model.memory()}
    model.load(iter(second.items()))
    for name, tensor in model.memory():
        assert torch.equal(bits(tensor), bits(written[name])), name


def fused(model: Any, name: str, tensor: Any) -> None:
    begin = {"q": 0, "k": 4, "v": 6}[name]
    model.qkv.data.narrow(0, begin, len(tensor)).copy_(tensor)


def experts(model: Any, name: str, tensor: Any) -> None:
    if name == "all":
        for expert, own in enumerate(tensor.unbind(0)):
            gate, up = own.chunk(2, dim=0)
            model.w13[expert, :3].copy_(gate)
            model.w13[expert, 3:].copy_(up)
    else:
        model.w2.data[int(name)].copy_(tensor.t())


def whole(model: Any, name: str, tensor: Any) -> None:
    model.get_parameter(name).data.copy_(tensor)


def test_fused_rows(tmp_path: Path) -> None:
    weights = drawn(0, q=(4, 5), k=(2, 5), v=(2, 5))
    model = Model(fused, qkv=(8, 5))
    found = model.taken(weights)
    assert not found.reload and not found.unused and not model.unmapped(found)
    assert {name: len(parts) for name, parts in found.into().items()} == {"q": 1, "k": 1, "v": 1}
    assert_follows(model, found, weights, tmp_path)


def test_stacked_experts_of_one_tensor_and_of_many(tmp_path: Path) -> None:
    weights = drawn(0, all=(4, 6, 5), **{str(number): (3, 5) for number in range(4)})
    model = Model(experts, w13=(4, 6, 5), w2=(4, 5, 3))
    found = model.taken(weights)
    assert not found.reload and not model.unmapped(found)
    assert len(found.into()["all"]) == 8
    assert_follows(model, found, weights, tmp_path)


def test_transposed_memory_and_transposed_copies(tmp_path: Path) -> None:
    weights = drawn(0, w=(4, 5), x=(6, 2, 3))

    def load(model: Any, name: str, tensor: Any) -> None:
        target = {"w": model.a.data.t(), "x": model.b.data}[name]
        target.copy_(tensor if name == "w" else tensor.permute(2, 0, 1))

    model = Model(load, a=(5, 4), b=(3, 6, 2))
    found = model.taken(weights)
    assert not found.reload and not model.unmapped(found)
    assert_follows(model, found, weights, tmp_path)


def test_columns_of_a_fused_tensor(tmp_path: Path) -> None:
    weights = drawn(0, left=(4, 3), right=(4, 5))

    def load(model: Any, name: str, tensor: Any) -> None:
        (model.w[:, :3] if name == "left" else model.w[:, 3:]).copy_(tensor)

    model = Model(load, w=(4, 8))
    found = model.taken(weights)
    assert not found.reload and not model.unmapped(found)
    assert_follows(model, found, weights, tmp_path)


def test_new_tensors_whose_elements_were_only_moved(tmp_path: Path) -> None:
    weights = drawn(0, a=(6, 4), b=(6, 4), c=(4, 4), d=(4, 4), e=(8,), f=(4, 3))
    waiting: Weights = {}

    def load(model: Any, name: str, tensor: Any) -> None:
        if name == "a":
            model.a.data.copy_(torch.cat([tensor[3:], tensor[:3]]).to("cpu", copy=True))
        elif name == "b":
            model.b.data.copy_(tensor.index_select(0, torch.tensor([5, 1, 0, 2, 4, 3])))
        elif name in "cd":
            # The loader keeps both tensors until it has both.
            waiting[name] = tensor
            if len(waiting) == 2:
                made = torch.stack([waiting.pop("c"), waiting.pop("d")], dim=1).flatten(0, 1)
                model.cd.data.copy_(made)
        elif name == "e":
            # A layer that is built outside the model and copied as a whole.
            beside = torch.empty_like(model.e)
            beside[:4].copy_(tensor[:4])
            beside[4:] = tensor[4:].clone()
            model.e.data.copy_(beside)
        else:
            model.f.data.copy_(torch.nn.functional.pad(tensor, (0, 1)))

    model = Model(load, a=(6, 4), b=(6, 4), cd=(8, 4), e=(8,), f=(4, 4))
    found = model.taken(weights)
    assert not found.reload
    assert model.unmapped(found) == ["f"]
    assert_follows(model, found, weights, tmp_path)


def test_a_detour_by_numpy_is_the_same_memory(tmp_path: Path) -> None:
    weights = {"w": torch.randn(4, 5)}

    def load(model: Any, name: str, tensor: Any) -> None:
        model.w.data.copy_(torch.from_numpy(tensor.numpy())[:, :])

    model = Model(load, torch.float32, w=(4, 5))
    found = model.taken(weights)
    assert not found.reload
    assert_follows(model, found, weights, tmp_path)


def test_loads_that_come_twice(tmp_path: Path) -> None:
    weights = drawn(0, w=(4, 5))

    def load(model: Any, name: str, tensor: Any) -> None:
        for _ in range(2):
            model.w.data.zero_()
            whole(model, name, tensor)

    model = Model(load, w=(4, 5))
    found = model.taken(weights)
    assert not found.reload and len(found.into()["w"]) == 1
    assert_follows(model, found, weights, tmp_path)


def test_replicated_heads_lie_in_several_places(tmp_path: Path) -> None:
    weights = drawn(0, k=(4, 5))

    def load(model: Any, name: str, tensor: Any) -> None:
        for head in range(4):
            model.k[head].copy_(tensor[2 * (head // 2) : 2 * (head // 2) + 2])

    model = Model(load, k=(4, 2, 5))
    found = model.taken(weights)
    assert not found.reload and len(found.into()["k"]) == 4
    assert_follows(model, found, weights, tmp_path)


def test_tied_names_are_written_once_and_refused_when_they_differ(tmp_path: Path) -> None:
    weights = drawn(0, head=(4, 5))
    weights["embed"] = weights["head"].clone()
    model = Model(lambda model, name, tensor: model.w.data.copy_(tensor), w=(4, 5))
    found = model.taken(weights)
    assert not found.reload and set(found.into()) == {"head", "embed"}
    assert_follows(model, found, weights, tmp_path)
    weights["head"][0, 0] += 1
    with dc.Publisher(tmp_path / "untied", profile="local") as publisher:
        publisher.publish({"head": weights["embed"], "embed": weights["embed"]})
        publisher.publish(weights)
    subscriber = dc.Subscriber(tmp_path / "untied", into=found.into())
    subscriber.prepare(0).apply()
    with pytest.raises(dc.UsageError, match="differ in this version"):
        subscriber.prepare(1)


def by_numpy(model: Any, tensor: Any) -> None:
    model.bad.data.copy_(torch.from_numpy(tensor.float().numpy().copy()))


def beside_torch(model: Any, tensor: Any) -> None:
    model.bad.data.view(torch.int16).numpy()[:] = tensor.view(torch.int16).numpy()


def replaced(model: Any, tensor: Any) -> None:
    model.bad.data = tensor


def in_place(model: Any, tensor: Any) -> None:
    model.bad.data.copy_(tensor)
    model.bad.data.mul_(2)


def over(model: Any, tensor: Any) -> None:
    model.bad.data.copy_(tensor)
    model.bad.data[:2].copy_(tensor[2:])


def by_index(model: Any, tensor: Any) -> None:
    model.bad.data[torch.tensor([1, 0, 3, 2])] = tensor


def keeping(model: Any, tensor: Any) -> None:
    model.bad.data.copy_(tensor)
    model.transposed = model.bad.t().contiguous()


def computing(model: Any, tensor: Any) -> None:
    model.bad.data.copy_(tensor)
    model.doubled = [model.bad * 2]


def once(model: Any, tensor: Any) -> None:
    """Does nothing: the model was loaded before."""


UNKIND: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "multiplies": (lambda model, tensor: model.bad.data.copy_(tensor * 2), "computes with mul"),
    "multiplies in place": (in_place, "computes with mul_"),
    "changes what it gets": (
        lambda model, tensor: model.bad.data.copy_(tensor.neg_()),
        "computes with neg_",
    ),
    "casts": (
        lambda model, tensor: model.bad.data.copy_(tensor.half()),
        "casts bfloat16 to float16",
    ),
    # This changes the bits of NaN.
    "casts and back": (
        lambda model, tensor: model.bad.data.copy_(
            torch.cat([tensor[:2], tensor[2:]]).float().bfloat16()
        ),
        "casts bfloat16 to float32",
    ),
    "fills it later": (
        lambda model, tensor: model.bad.data.copy_(tensor).zero_(),
        "overwrites it in bad",
    ),
    "a copy by numpy": (by_numpy, "the loader was not seen to copy it, nor to fill bad"),
    "all of it by numpy": (beside_torch, "the loader was not seen to copy it, nor to fill bad"),
    "the tensor itself": (replaced, "the model keeps another tensor that is computed from it"),
    "keeps a copy": (keeping, "the model keeps another tensor that is computed from it"),
    "keeps what it computes": (
        computing,
        "the model keeps another tensor that is computed from it",
    ),
    "loads once": (once, "the loader was not seen to copy it, nor to fill bad"),
    "writes a part twice": (over, "to a part of bad twice"),
    "writes by indices": (by_index, "computes with index_put_"),
    "other elements": (
        lambda model, tensor: model.bad.data.copy_(tensor.roll(1, 0).sign()),
        "computes with sign",
    ),
}


@pytest.mark.parametrize("name", UNKIND)
@pytest.mark.parametrize("is_zero", [False, True])
def test_what_cannot_be_followed_is_to_be_reloaded(
    name: str, is_zero: bool, tmp_path: Path
) -> None:
    """Also if all elements are equal, so that values prove nothing."""
    act, reason = UNKIND[name]
    weights = drawn(0, good=(4, 5), bad=(4, 5))
    if is_zero and "numpy" not in name:
        weights["bad"].zero_()

    def load(model: Any, name: str, tensor: Any) -> None:
        if name == "bad":
            act(model, tensor)
        else:
            whole(model, name, tensor)

    model = Model(load, good=(4, 5), bad=(4, 5))
    found = model.taken(weights)
    assert list(found.reload) == ["bad"]
    assert reason in found.reload["bad"]
    assert list(found.into()) == ["good"] and "bad" in model.unmapped(found)


def test_another_dtype_than_the_checkpoint_has() -> None:
    model = Model(whole, torch.float32, w=(4, 5))
    found = model.taken(drawn(0, w=(4, 5)))
    assert found.reload == {"w": "the loader casts bfloat16 to float32: publish float32"}


def test_other_dtypes_of_the_same_size() -> None:
    weights = {"scale": torch.arange(12, dtype=torch.uint8).view(3, 4).view(torch.float8_e8m0fnu)}
    model = Model(
        lambda model, _, tensor: model.w.data.copy_(tensor.view(torch.uint8)), torch.uint8, w=(3, 4)
    )
    found = model.taken(weights)
    assert not found.reload
    (part,) = found.into()["scale"]
    assert (
        part.tensor.dtype == torch.float8_e8m0fnu and part.tensor.data_ptr() == model.w.data_ptr()
    )


def test_names_that_the_loader_skips_and_tensors_that_nothing_fills() -> None:
    weights = drawn(0, w=(4, 5), skipped=(3,))
    model = Model(
        lambda model, name, tensor: None if name == "skipped" else whole(model, name, tensor),
        w=(4, 5),
    )
    model.register_buffer("table", torch.arange(7.0))
    found = model.taken(weights)
    assert (found.reload, found.unused, model.unmapped(found)) == ({}, ["skipped"], ["table"])


def test_a_tensor_made_from_the_model_is_followed_too(tmp_path: Path) -> None:
    """As in DeepSeek's attention: another parameter has a transposed copy, and a buffer is a
    view."""
    weights = drawn(0, w=(4, 6))

    def load(model: Any, name: str, tensor: Any) -> None:
        whole(model, name, tensor)
        model.up.data.copy_(model.w.view(2, 2, 6).permute(0, 2, 1)[:, :3])
        model.same.copy_(model.w[1:3])

    model = Model(load, w=(4, 6), up=(2, 3, 2))
    model.register_buffer("same", model.w[1:3])
    found = model.taken(weights)
    assert not found.reload and not model.unmapped(found)
    assert sum(part.tensor.numel() for part in found.into()["w"]) == 24 + 12


def test_a_map_holds_while_the_parameters_stay() -> None:
    model = Model(whole, a=(4, 5), b=(4, 5))
    found = model.taken(drawn(0, a=(4, 5), b=(4, 5)))
    assert found.fits(model.memory())
    kept = model.a.data
    model.a.data = kept.clone()
    assert not found.fits(model.memory())
    model.a.data = kept
    assert found.fits(model.memory())
    model.a.data = kept[:2]
    assert not found.fits(model.memory())
    model.a.data = kept.view(torch.float16)
    assert not found.fits(model.memory())
    model.a.data = kept
    del model.b
    assert not found.fits(model.memory())


def test_a_chain_with_a_name_that_the_map_lacks_is_refused(tmp_path: Path) -> None:
    weights = drawn(0, a=(4, 5), b=(4, 5))
    model = Model(whole, a=(4, 5), b=(4, 5))
    found = model.taken({"a": weights["a"]})
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(weights)
    with pytest.raises(dc.UsageError, match="'b' is missing"):
        dc.Subscriber(tmp_path / "chain", into=found.into()).prepare(0)


def test_parts_that_are_not_all_of_a_tensor_are_refused(tmp_path: Path) -> None:
    """As in one of two workers that follows alone."""
    weights = drawn(0, w=(4, 6))
    model = Model(lambda model, _, tensor: model.w.data.copy_(tensor[:, 3:]), w=(4, 3))
    found = model.taken(weights)
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(weights)
    with pytest.raises(dc.UsageError, match="do not cover the shape"):
        dc.Subscriber(tmp_path / "chain", into=found.into()).prepare(0)


def test_tensors_come_one_at_a_time_and_are_freed() -> None:
    alive: list[Any] = []
    most = 0

    def weights() -> Iterator[tuple[str, Any]]:
        nonlocal most
        for number in range(20):
            tensor = torch.full((100,), float(number)).bfloat16()
            alive.append(weakref.ref(tensor))
            yield f"w{number}", tensor
            del tensor
            gc.collect()
            most = max(most, sum(one() is not None for one in alive))

    model = Model(lambda model, name, tensor: model.w[int(name[1:])].copy_(tensor), w=(20, 100))
    found = taken(model.load, weights(), model.memory())
    assert len(found.into()) == 20 and most <= 1


def test_tensors_of_one_storage_get_storages_of_their_own() -> None:
    base = torch.randn(8, 5).bfloat16()
    weights = {"a": base[:4], "b": base[4:], "c": base[:4].t(), "d": base[:4]}
    model = Model(whole, a=(4, 5), b=(4, 5), c=(5, 4), d=(4, 5))
    found = model.taken(weights)
    assert not found.reload and sorted(found.into()) == ["a", "b", "c", "d"]


def test_errors_of_the_loader_come_through() -> None:
    model = Model(whole, a=(4, 5))
    with pytest.raises(RuntimeError):
        model.taken(drawn(0, a=(4, 4)))
