"""What followers ask of vLLM's workers, without vLLM: whether weights were changed, and who brings versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from deltachain import _engine_weights, _in_place, _parts, _sums  # noqa: E402
from deltachain._engine_weights import Lease, WeightSums  # noqa: E402
from deltachain._vllm_worker import add_to  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(300, 200), torch.nn.Linear(200, 3, dtype=torch.bfloat16), torch.nn.Embedding(7, 5)]
    made = torch.nn.Sequential(*layers)
    # Others that engines have: bytes, a view of another one, one that was packed away.
    made.register_parameter("bytes", torch.nn.Parameter(torch.arange(70000).to(torch.uint8), requires_grad=False))
    made.register_parameter("view", torch.nn.Parameter(layers[0].weight.data.t()[5:9], requires_grad=False))
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
    # As mixers of state-space models keep it: a buffer, and an attribute.
    made[1].register_buffer("kept", made[1].weight.view(-1), persistent=False)
    made[2].other = made[2].weight[1:]
    made[2].constant = torch.arange(4)[1:]
    assert _engine_weights.stranded(made) == []
    # Written where it is, as a reload does.
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
    "two elements that change places": lambda made: made[0].weight.data.copy_(swapped(made[0].weight.data)),
    "a sign of zero, and NaN": lambda made: made[1].bias.data.copy_(torch.tensor([-0.0, float("nan"), 1.0])),
    "another memory": lambda made: setattr(made[0], "weight", torch.nn.Parameter(torch.zeros(300, 100))),
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


def held(name: str, lanes: Any) -> _parts.Held:
    """All lanes of a tensor."""
    row = ((0, len(lanes)),)
    return _parts.Held(name, lanes, True, row, (len(lanes),), row)


def test_sums_follow_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lanes of one and of four bytes, of rows and of a transposed view, in several pieces."""
    for module in (_engine_weights, _sums):
        monkeypatch.setattr(module, "PIECE_BYTES", 1 << 14)
    made = model()
    sums = WeightSums(made)
    changes = _in_place.Changes()
    generator = torch.Generator().manual_seed(1)
    for name, tensor in (("0.weight", made[0].weight), ("bytes", made.bytes), ("1.bias", made[1].bias)):
        lanes = _sums.as_lanes(tensor, tensor.element_size())
        places = torch.randperm(len(lanes), generator=generator)[: len(lanes) // 3].int()
        old = lanes[places.long()].clone()
        changes._changes.append(_in_place._Change(held(name, lanes), lanes, places, old, old ^ 5))
    lanes = _sums.as_lanes(made[2].weight[3:5], 4)
    changes._changes.append(_in_place._Change(held("2.weight", lanes), lanes, None, lanes.clone(), lanes ^ 3))
    after = sums.after(changes)
    assert sums.fits(made) and not after.fits(made)
    changes.switch()
    assert after.fits(made) and not sums.fits(made)
    changes.undo()
    assert sums.fits(made)


def test_a_model_without_weights() -> None:
    assert WeightSums(torch.nn.Module()).fits(torch.nn.Module())


def test_one_follower_brings_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lease = Lease()
    # Nobody has it, and who asks for no time does not take it.
    assert lease.held_by_other("a") is None and lease.ask("a", 0.0) is None and lease.held_by_other("b") is None
    assert lease.ask("a", 90.0) is None
    assert lease.held_by_other("a") is None and lease.held_by_other(None) == ("a", 90.0)
    now += 80
    assert lease.ask("b", 90.0) == ("a", 10.0) and lease.held_by_other("b") == ("a", 10.0)
    # An update of another one does not renew it, its own does.
    lease.renew("b")
    lease.renew(None)
    assert lease.held_by_other("b") == ("a", 10.0)
    lease.renew("a")
    assert lease.held_by_other("b") == ("a", 90.0)
    now += 90
    assert lease.ask("b", 90.0) is None and lease.ask("a", 90.0) == ("b", 90.0)
    # Only its own.
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
            """As in vLLM."""
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
