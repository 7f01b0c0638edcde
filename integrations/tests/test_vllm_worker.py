"""Requests of followers to vLLM's workers, without vLLM: whether weights were changed, and which
follower updates the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

import deltachain as dc  # noqa: E402
from ahead import LONG  # noqa: E402
from deltachain import _tensor_follower  # noqa: E402
from deltachain._device_memory import DeviceMemory  # noqa: E402
from deltachain_integrations import _engine_weights  # noqa: E402
from deltachain_integrations._engine_in_place import EngineInPlace  # noqa: E402
from deltachain_integrations._engine_weights import Lease, WeightSums  # noqa: E402
from deltachain_integrations._vllm_worker import add_to  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(300, 200),
        torch.nn.Linear(200, 3, dtype=torch.bfloat16),
        torch.nn.Embedding(7, 5),
    ]
    made = torch.nn.Sequential(*layers)
    # Other parameters as in engines: bytes, a view of another parameter, and one that was packed
    # away.
    made.register_parameter(
        "bytes", torch.nn.Parameter(torch.arange(70000).to(torch.uint8), requires_grad=False)
    )
    made.register_parameter(
        "view", torch.nn.Parameter(layers[0].weight.data.t()[5:9], requires_grad=False)
    )
    made.register_parameter("empty", torch.nn.Parameter(torch.empty(0)))
    layers[1].cpu_linear = lambda values: values
    return made


def zero(tensor: Any) -> None:
    tensor.data.zero_()


def swapped(weight: Any) -> Any:
    flat = weight.reshape(-1).clone()
    flat[[17, 4711]] = flat[[4711, 17]]
    return flat.view(weight.shape)


def test_views_of_memory_that_no_parameter_has_are_named() -> None:
    made = model()
    # Mixers of state-space models keep such views: a buffer, and an attribute.
    made[1].register_buffer("kept", made[1].weight.view(-1), persistent=False)
    made[2].other = made[2].weight[1:]
    made[2].constant = torch.arange(4)[1:]
    assert _engine_weights.stranded(made) == []
    # Written in place, as by a reload.
    made[1].weight.data.mul_(2)
    assert _engine_weights.stranded(made) == []
    made[1].weight = torch.nn.Parameter(made[1].weight.data.clone())
    made[2].weight.data = made[2].weight.data.clone()
    assert _engine_weights.stranded(made) == ["1.kept", "2.other"]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a reset": lambda made: [zero(parameter) for parameter in made.parameters()],
    "the smallest parameter": lambda made: zero(made[1].bias),
    "bytes": lambda made: made.bytes.data.add_(1),
    "one element of many": lambda made: made[0].weight.data.view(-1)[12345].neg_(),
    "one bit": lambda made: made.bytes.data[69999].bitwise_xor_(128),
    "two elements that change places": lambda made: made[0].weight.data.copy_(
        swapped(made[0].weight.data)
    ),
    "a sign of zero, and NaN": lambda made: made[1].bias.data.copy_(
        torch.tensor([-0.0, float("nan"), 1.0])
    ),
    "another memory": lambda made: setattr(
        made[0], "weight", torch.nn.Parameter(torch.zeros(300, 100))
    ),
    "what is packed": lambda made: setattr(made[1], "cpu_linear", lambda values: values),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed(change: str) -> None:
    made = model()
    made[1].bias.data.copy_(torch.tensor([0.0, float("nan"), 1.0]))
    sums = WeightSums(made)
    assert sums.fits(made) and sums.fits(made)
    CHANGES[change](made)
    assert not sums.fits(made)
    assert WeightSums(made).fits(made)


def test_the_same_weights_in_another_place_fit() -> None:
    made = model()
    sums = WeightSums(made)
    made.bytes = torch.nn.Parameter(made.bytes.data.clone(), requires_grad=False)
    assert sums.fits(made)


def test_the_same_weights_in_another_order_fit() -> None:
    made = model()
    sums = WeightSums(made)
    for name in ("view", "bytes"):
        parameter = getattr(made, name)
        delattr(made, name)
        made.register_parameter(name, parameter)
    assert sums.fits(made)


@pytest.fixture(params=["library", "device"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the library reads and writes the tensors, or torch, as on a device."""
    name: str = request.param
    if name == "device":
        monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    return name


def places(made: Any) -> dict[str, Any]:
    """The places of a chain's tensors: lanes of one, two and four bytes, contiguous, and as rows
    and columns of others."""
    weight = made[0].weight.data
    return {
        "left": weight[:, :100],
        "right": weight[:, 100:],
        "rows": made[2].weight.data[3:5],
        "bias": made[1].bias.data,
        "bytes": made.bytes.data,
        "transposed": made.wide.data.t(),
        "halves": [
            dc.Part(made.halves.data[4:], slice(0, 4)),
            dc.Part(made.halves.data[:4], slice(4, 8)),
        ],
        # A storage of two pieces, each with sums of its own.
        "long": made.long.data.view(-1, 5).t(),
        # Not a parameter, so the model's sums do not include it.
        "buffer": made.buffer,
    }


def whole(given: Any) -> Any:
    """A copy of a tensor as the chain has it."""
    return (
        torch.cat([part.tensor for part in given])
        if isinstance(given, list)
        else given.contiguous().clone()
    )


def followed(made: Any) -> Any:
    made.register_parameter("wide", torch.nn.Parameter(torch.randn(40, 50), requires_grad=False))
    made.register_parameter(
        "halves", torch.nn.Parameter(torch.randn(8, 3).bfloat16(), requires_grad=False)
    )
    made.register_parameter("long", torch.nn.Parameter(torch.zeros(20 << 18), requires_grad=False))
    made.register_buffer("buffer", torch.zeros(77))
    return made


def published(folder: Path, made: Any, versions: int) -> str:
    """Publishes the model's tensors as a chain. Lanes everywhere change with each version."""
    state = {name: whole(given) for name, given in places(made).items()}
    with dc.Publisher(folder / "chain", profile="local") as publisher:
        for version in range(versions):
            if version:
                draw = torch.Generator().manual_seed(version)
                for tensor in state.values():
                    raw = tensor.view(-1).view(torch.uint8).view(-1, tensor.element_size())
                    raw[
                        torch.randperm(len(raw), generator=draw)[: min(5000, len(raw) // 3)], 0
                    ] ^= 5
            publisher.publish(state)
    return str(folder / "chain")


def loader_of(made: Any) -> Callable[[Callable[[], Iterator[tuple[str, Any]]]], dict[str, Any]]:
    """Returns a loader, as an engine has one."""

    def load(given: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
        own = places(made)
        for name, tensor in given():
            parts = own[name] if isinstance(own[name], list) else [dc.Part(own[name])]
            for part in parts:
                part.tensor.copy_(tensor[part.index])
        return own

    return load


def test_sums_follow_changes(tmp_path: Path, by: str) -> None:
    """The sums after a version's changes are those of the model after the write, in whatever order
    the storages lie in memory."""
    made = followed(model())
    url = published(tmp_path, made, 4)
    follower = EngineInPlace(url, loader_of(made), None, lambda own: own, lambda own: own.number)
    try:
        for version in (0, 1, 3):
            before = WeightSums(made)
            taken = follower.take(version, None, LONG)
            changes = taken.update.changes()
            assert (changes is None) == (version == 0)
            after = before.after(changes or [])
            assert before.fits(made) and after.fits(made) == (version == 0)
            taken.update.apply()
            follower.taken(taken)
            if version:
                assert after.fits(made) and not before.fits(made)
                # The storage of more than 16 MiB changes in both pieces.
                assert changes is not None
                pieces = [
                    piece for address, piece, *_ in changes if address == made.long.data_ptr()
                ]
                assert sorted(set(pieces)) == [0, 1]
                # A changed bit outside the reported changes does not go unnoticed.
                made.bytes.data[4711] ^= 1
                assert not after.fits(made)
                made.bytes.data[4711] ^= 1
            follower.go_on()
        assert follower.check() >= 0
    finally:
        follower.close()


def test_sums_of_a_proof_that_was_interrupted_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    made = followed(model())
    original, calls = DeviceMemory.stage, 0

    def stage(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    with dc.Subscriber(published(tmp_path, made, 2), into=loader_of(made)) as subscriber:
        subscriber.prepare(0).apply()
        before = WeightSums(made)
        with monkeypatch.context() as patched:
            patched.setattr(DeviceMemory, "stage", stage)
            with pytest.raises(KeyboardInterrupt):
                subscriber.prepare(1)
        update = subscriber.prepare(1)
        assert update._native is not None
        changes = update.changes()
        assert changes is not None
        update.apply()
        assert subscriber.proof == "changed_lanes"
        assert before.after(changes).fits(made)


def test_sums_are_told_for_a_loader_alone(tmp_path: Path, by: str) -> None:
    made = followed(model())
    with dc.Subscriber(published(tmp_path, made, 2), into=places(made)) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1)
        assert update.changes() == []


def test_a_model_without_weights() -> None:
    assert WeightSums(torch.nn.Module()).fits(torch.nn.Module())


def test_one_follower_brings_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease = Lease()
    # The lease is free, and a request for 0 seconds does not take it.
    assert (
        lease.held_by_other("a") is None
        and lease.ask("a", 0.0) is None
        and lease.held_by_other("b") is None
    )
    assert lease.ask("a", 90.0) is None
    assert lease.held_by_other("a") is None and lease.held_by_other(None) == ("a", 90.0)
    now += 80
    assert lease.ask("b", 90.0) == ("a", 10.0) and lease.held_by_other("b") == ("a", 10.0)
    # An update of another follower does not renew the lease; one of the same follower does.
    lease.renew("b")
    lease.renew(None)
    assert lease.held_by_other("b") == ("a", 10.0)
    lease.renew("a")
    assert lease.held_by_other("b") == ("a", 90.0)
    now += 90
    assert lease.ask("b", 90.0) is None and lease.ask("a", 90.0) == ("b", 90.0)
    # A follower releases only its own lease.
    lease.ask("a", 0.0)
    assert lease.held_by_other("a") == ("b", 90.0)
    lease.ask("b", 0.0)
    assert lease.held_by_other("a") is None


def test_workers_are_asked_with_texts_and_an_open_update_is_ended() -> None:
    class Worker:
        is_open = True

        def __init__(self) -> None:
            self.weight_transfer_engine = self

        def state(self, follower: str, lease: float) -> dict[str, Any]:
            return {"follower": follower, "lease": lease}

        def update_weights(self, update_info: dict[str, Any]) -> None:
            """Does the same as vLLM's."""
            if not self.is_open:
                raise RuntimeError("start_weight_update must be called before update_weights")
            self.is_open = False
            raise ValueError(f"no version in {update_info}")

    add_to(Worker)
    worker: Any = Worker()
    assert worker.deltachain_state("a", "2.5") == {"follower": "a", "lease": 2.5}
    worker.deltachain_end_update()
    worker.deltachain_end_update()
    assert not worker.is_open
