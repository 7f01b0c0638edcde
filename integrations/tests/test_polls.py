"""Polls of a worker: their cost for a device, and when they notice that other code has changed the
weights."""

from __future__ import annotations

import logging
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import deltachain as dc  # noqa: E402
from ahead import published, until  # noqa: E402
from deltachain import _sums  # noqa: E402
from deltachain_integrations import _engine_weights, _storages  # noqa: E402
from deltachain_integrations._engine_weights import WeightSums  # noqa: E402
from deltachain_integrations._engine_worker import EngineWorker  # noqa: E402

# Seconds between two polls of a follower.
POLL = 2.0


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Counts the calls of torch that launch kernels on a device or copy from it, and the bytes that
    they read. Views and calls without a kernel do not count."""

    FREE = frozenset({"aten::empty", "aten::set_"})

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.read = 0

    def __torch_dispatch__(self, function: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        name = function._schema.name.partition(".")[0]
        # `to` may be a view, but not in the calls of this test.
        if name == "aten::to" or (not function.is_view and name not in self.FREE):
            self.calls += 1
            for argument in given:
                tensors = argument if isinstance(argument, list | tuple) else [argument]
                self.read += sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor))
        return function(*given, **(named or {}))


def model(layers: int) -> Any:
    """A model of 18 tensors in each layer, and two more."""
    made = torch.nn.Module()

    def add(name: str, *shape: int) -> None:
        values = torch.randn(*shape).bfloat16()
        made.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))

    add("embedding", 3000, 64)
    add("norm", 64)
    for layer in range(layers):
        for name in ("q", "k", "v", "o"):
            add(f"layer{layer}_{name}", 64, 64)
            add(f"layer{layer}_{name}_bias", 64)
        for number in range(6):
            add(f"layer{layer}_norm{number}", 64)
        for name, *shape in (("up", 256, 64), ("gate", 256, 64), ("down", 64, 256), ("scale", 1)):
            add(f"layer{layer}_{name}", *shape)
    return made


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes sums as on a device."""
    monkeypatch.setattr(_sums, "_of_rows_here", _sums._of_rows)


class Clock:
    """The clock of the sums. Only the test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(_engine_weights, "time", made)
    return made


def test_a_poll_costs_as_many_calls_for_few_tensors_as_for_many(clock: Clock) -> None:
    costs = []
    for layers in (2, 16):
        made = model(layers)
        sums = WeightSums(made)
        with Counted() as counted:
            assert sums.seems_to_fit(made)
        costs.append(counted.calls)
        # Each value is read once on the device, and twice in host memory, with the known values.
        count = len(list(made.parameters()))
        assert counted.read <= count * 2 * 2 * _storages._LANES * 6
    # One gather for each device, and the comparison on the host.
    assert costs[0] == costs[1] <= 5


@pytest.mark.usefixtures("by_torch")
def test_all_sums_take_some_calls_for_each_form_and_not_for_each_tensor(clock: Clock) -> None:
    costs = []
    for layers in (2, 16):
        made = model(layers)
        assert layers == 2 or len(list(made.parameters())) == 290
        sums = WeightSums(made)
        with Counted() as counted:
            assert sums.fits(made)
        costs.append(counted.calls)
    # Summing each tensor on its own took more than 6,000.
    assert costs[0] == costs[1] < 100


def test_sums_are_those_of_each_piece_alone() -> None:
    draw = random.Random(0)
    lengths = [1, 2, 3, 17, 17, 17, 8192, 8193, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 3 << 23]
    tensors = {
        number: torch.frombuffer(bytearray(draw.randbytes(length)), dtype=torch.uint8)
        for number, length in enumerate(lengths)
    }
    lanes = {number: _storages.lanes_of(one.untyped_storage()) for number, one in tensors.items()}
    batches = _storages.batches_of(lanes)
    found = _storages.sums_of(lanes, batches)
    expected = {
        (number, place): tuple(_sums.of_bytes(piece).tolist())
        for number, one in tensors.items()
        for place, piece in enumerate(one.view(torch.int8).split(1 << 24))
    }
    assert found == expected
    sizes = [
        sum(_storages._piece(lanes[key], number).nbytes for key, number in batch)
        for batch in batches
    ]
    assert max(sizes) == 1 << 24
    assert max(map(len, batches)) == 3


def test_samples_are_drawn_over_whole_storages_and_anew_each_time() -> None:
    lanes = {"a": torch.arange(1 << 14), "b": torch.arange(100), "c": torch.arange(3)}
    places: dict[str, set[int]] = {key: set() for key in lanes}
    draws = set()
    for _ in range(40):
        sample = _storages.Sample(lanes)
        for _ in range(10):
            assert sample.fits(lanes)
            for numbers, span in (one.draw() for one in sample._spans):
                own = span.view(lanes[span.key]).tolist()
                # The lanes are those of the values that they are compared with.
                values = dict(zip((one.key for one in sample._spans), sample._values, strict=True))
                assert values[span.key][numbers].tolist() == own
                assert len(own) >= min(_storages._LANES, len(lanes[span.key]))
                places[span.key].update(own)
                draws.add(tuple(own))
    assert places["b"] == set(range(100)) and places["c"] == {0, 1, 2}
    assert min(places["a"]) < 200 and max(places["a"]) > (1 << 14) - 200
    assert len(places["a"]) > 5000 and len(draws) > 200


def test_storages_longer_than_torch_gathers_at_once_have_several_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_storages, "_SPAN", 1000)
    spans = _storages._drawn("a", 2500)
    assert [span.first // 1000 for span in spans] == [0, 1, 2]
    assert all(span.first + (span.count - 1) * span.step < 2500 for span in spans)


@pytest.mark.parametrize("seed", range(20))
def test_another_model_is_noticed_by_the_next_poll(seed: int, clock: Clock) -> None:
    made = model(2)
    sums = WeightSums(made)
    torch.manual_seed(seed)
    for parameter in made.parameters():
        parameter.data.copy_(torch.randn(parameter.shape))
    assert not sums.seems_to_fit(made)


@pytest.mark.parametrize("seed", range(20))
def test_one_bit_is_noticed_within_the_bound(seed: int, clock: Clock) -> None:
    """At any time, and at any place."""
    made = model(2)
    made.register_parameter(
        "long", torch.nn.Parameter(torch.zeros(5 << 22).to(torch.int8), requires_grad=False)
    )
    sums = WeightSums(made)
    draw = random.Random(seed)
    for _ in range(draw.randrange(700)):
        clock.now += POLL
        assert sums.seems_to_fit(made)
    parameter = draw.choice(list(made.parameters()))
    raw = parameter.data.view(-1).view(torch.uint8)
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    bound = clock.now + sums.round_seconds + 2 * POLL
    clock.now += POLL
    while sums.seems_to_fit(made):
        clock.now += POLL
        assert clock.now <= bound


def test_a_round_reads_each_batch_once_however_often_polls_come(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    original = _engine_weights.sums_of

    def sums_of(lanes: Any, batches: Any) -> Any:
        read.extend(batches)
        return original(lanes, batches)

    made = model(2)
    sums = WeightSums(made)
    monkeypatch.setattr(_engine_weights, "sums_of", sums_of)
    for pause in (0.1, 2.0, 60.0, 599.0):
        del read[:]
        sums.fits(made)
        whole = read[:]
        del read[:]
        begin = clock.now
        while len(read) < len(whole):
            # No sums are compared before they are due.
            assert len(read) <= len(whole) * (clock.now - begin) / sums.round_seconds
            clock.now += pause
            assert sums.seems_to_fit(made) and clock.now < begin + 1300
        assert read == whole and clock.now - begin <= sums.round_seconds + pause
    # No follower has polled for an hour: all sums are due, once.
    del read[:]
    sums.fits(made)
    del read[:]
    clock.now += 3600.0
    assert sums.seems_to_fit(made) and read == whole
    assert sums.seems_to_fit(made) and read == whole


def test_rounds_take_a_hundredth_of_the_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    original = _engine_weights.sums_of

    def sums_of(lanes: Any, batches: Any) -> Any:
        clock.now += 1.5 * len(batches)
        return original(lanes, batches)

    monkeypatch.setattr(_engine_weights, "sums_of", sums_of)
    made = model(2)
    sums = WeightSums(made)
    count = len(sums._batches)
    assert sums.round_seconds == max(600.0, 150.0 * count) > 600.0
    begin, spent = clock.now, 0.0
    for _ in range(2000):
        clock.now += POLL
        before = clock.now
        assert sums.seems_to_fit(made)
        spent += clock.now - before
    assert 0 < spent <= 0.011 * (clock.now - begin)


def test_memory_in_another_place_is_compared_at_once(clock: Clock) -> None:
    """As after a sleep of the server."""
    made = model(2)
    sums = WeightSums(made)
    for parameter in made.parameters():
        parameter.data = parameter.data.clone()
    assert sums.seems_to_fit(made)
    # The new place is known now.
    with Counted() as counted:
        assert sums.seems_to_fit(made)
    assert counted.calls <= 5
    made.norm.data = made.norm.data.clone()
    made.norm.data.view(torch.int16)[3] ^= 1
    assert not sums.seems_to_fit(made)


@pytest.mark.parametrize("change", ["shape", "dtype", "rows and columns", "offset"])
def test_another_form_of_the_same_memory_is_noticed(change: str, clock: Clock) -> None:
    made = model(1)
    sums = WeightSums(made)
    old = made.layer0_q
    made.layer0_q.data = {
        "shape": lambda: old.data.view(32, 128),
        "dtype": lambda: old.data.view(torch.float16),
        "rows and columns": lambda: old.data.t(),
        "offset": lambda: old.data[1:],
    }[change]()
    assert not sums.seems_to_fit(made)
    assert not sums.fits(made)


class Worker(EngineWorker):
    """A worker with the model that `ahead` publishes. The other workers of its server are
    threads."""

    _log = logging.getLogger(__name__)

    def __init__(self, folder: Path, told: Told | None, number: int, **settings: Any) -> None:
        self.model = torch.nn.Module()
        self.model.weight = torch.nn.Parameter(torch.zeros(1000).bfloat16(), requires_grad=False)
        self.model.bias = torch.nn.Parameter(torch.zeros(8), requires_grad=False)
        self.device = torch.device("cpu")
        self.told, self.number = told, number
        # The group of the threads that work ahead.
        group = None if told is None else Rank(told.beside, number)
        configured = {"chain": str(folder / "chain"), "mode": "sparse", **settings}
        self._begin(configured, str(folder / "own"), group)

    def _number(self) -> int:
        # `_begin` calls this, too.
        return self.number

    def _gathered(self, own: Any) -> list[Any]:
        if self.told is None:
            return [own]
        return [
            pickle.loads(one)
            for one in Rank(self.told, self.number).exchange(pickle.dumps(own), None)
        ]

    def _load_all(self, tensors: Any, *, is_whole: bool = True) -> None:
        parameters = dict(self.model.named_parameters())
        for name, tensor in tensors:
            parameters[name].data.copy_(tensor)

    def ready(self, version: int) -> None:
        until(lambda: bool(self.readiness("me", version, begins=False)["ready"]))

    def update(self, version: int) -> None:
        self._receive(version, None, "me")
        self._preparer.go_on()

    def says(self) -> str:
        state: str = self.state("me", 90.0)["state"]
        return state


class Told:
    """Messages between workers."""

    def __init__(self, size: int, beside: Told | None = None) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.messages = [b""] * size
        self.beside = beside or self


class Rank:
    """One worker, as `Subscriber(group=)` takes it."""

    def __init__(self, told: Told, rank: int) -> None:
        self.told, self.rank, self.size = told, rank, len(told.messages)

    def exchange(self, message: bytes, timeout: float | None) -> list[bytes]:
        self.told.messages[self.rank] = message
        self.told.barrier.wait()
        messages = list(self.told.messages)
        self.told.barrier.wait()
        return messages


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    published(tmp_path, 4, "local")
    made = Worker(tmp_path, None, 0)
    yield made
    made.shutdown()


def one_lane(worker: Worker) -> None:
    worker.model.weight.data[777] = 5


def all_lanes(worker: Worker) -> None:
    for parameter in worker.model.parameters():
        parameter.data.add_(1)


def other_memory(worker: Worker) -> None:
    for parameter in worker.model.parameters():
        parameter.data = parameter.data.clone()


def other_parameters(worker: Worker) -> None:
    for name, parameter in worker.model.named_parameters():
        setattr(worker.model, name, torch.nn.Parameter(parameter.data.clone(), requires_grad=False))


CHANGES: dict[str, Callable[[Worker], None]] = {
    "another model by hand": all_lanes,
    "a sleep that moves the weights": other_memory,
    "a sleep that discards them": lambda own: [one.data.zero_() for one in own.model.parameters()],  # type: ignore[assignment, return-value]
    "a reload that replaces the parameters": other_parameters,
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_poll_sees_what_others_have_done_and_the_next_update_mends_it(
    change: str, worker: Worker, clock: Clock
) -> None:
    worker.update(0)
    worker.ready(1)
    worker.update(1)
    assert (worker.how, worker.says()) == ("in place", "held")
    CHANGES[change](worker)
    assert worker.says() == "other"
    worker.ready(1)
    worker.update(1)
    assert (worker.how, worker.says()) == ("all tensors", "held")
    assert worker.model.weight[:4].tolist() == [1, 1, 0, 0] and worker.model.bias.sum() == 8


@pytest.mark.parametrize("before", ["a poll in the bound", "readiness", "nothing"])
def test_one_lane_is_noticed_by_each_whole_comparison(
    before: str, worker: Worker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.update(0)
    monkeypatch.setattr("deltachain_integrations._engine_worker.time", clock)
    clock.now += 100.0
    one_lane(worker)
    if before == "a poll in the bound":
        clock.now += 600.0
        assert worker.says() == "other"
    elif before == "readiness":
        worker.ready(3)
        assert worker._holds is None and worker.says() == "other"
    worker.update(3)
    assert (worker.how, worker.says()) == ("all tensors", "held")
    assert worker.model.weight[777] == 0


def test_one_lane_that_changes_after_the_comparison_is_noticed_within_the_bound(
    worker: Worker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update writes in place, and the changed lane is not in the sums after it."""
    worker.update(0)
    worker.ready(1)
    one_lane(worker)
    with monkeypatch.context() as patched:
        # Samples may find the lane by chance.
        patched.setattr(_storages.Sample, "fits", lambda *_: True)
        worker.update(1)
    assert (worker.how, worker.says()) == ("in place", "held")
    said = []
    for _ in range(302):
        clock.now += POLL
        said.append(worker.says())
    assert said[-1] == "other"
    worker.update(1)
    assert worker.how == "all tensors" and worker.model.weight[777] == 0


def test_a_worker_whose_load_breaks_is_torn_until_all_is_loaded(
    worker: Worker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.update(0)

    def breaks(self: Worker, tensors: Any, *, is_whole: bool = True) -> None:
        self.model.weight.data.fill_(3)
        raise RuntimeError("out of memory")

    all_lanes(worker)
    assert worker.says() == "other"
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_load_all", breaks)
        with pytest.raises(dc.TornError):
            worker.update(1)
    assert worker.says() == "torn"
    clock.now += 1000.0
    assert worker.says() == "torn"
    worker.update(1)
    assert (worker.how, worker.says()) == ("all tensors", "held")
    assert worker.model.weight[:3].tolist() == [1, 1, 0]


def test_the_pause_reads_nothing_again_that_was_compared_before_it(
    worker: Worker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltachain_integrations._engine_worker.time", clock)
    whole: list[float] = []
    original = WeightSums.fits

    def fits(sums: WeightSums, model: Any) -> bool:
        whole.append(clock.now)
        return original(sums, model)

    monkeypatch.setattr(WeightSums, "fits", fits)
    worker.update(0)
    for _ in range(100):
        clock.now += POLL
        assert worker.says() == "held"
    assert not whole
    for version, late in ((1, 0.0), (2, 9.0), (3, 11.0)):
        clock.now += 1000.0
        del whole[:]
        worker.ready(version)
        begin = clock.now
        assert whole == [begin]
        # A follower that asks again soon causes no comparison.
        worker.ready(version)
        clock.now += late
        worker.update(version)
        assert worker.how == "in place"
        # The follower was slow to pause the server.
        assert whole == [begin] if late < 10 else [begin, begin + late]


def test_a_new_process_knows_no_version(tmp_path: Path, worker: Worker) -> None:
    worker.update(1)
    other = Worker(tmp_path, None, 0)
    try:
        other.model = worker.model
        assert other.says() == "other"
        other.update(2)
        assert (other.how, other.says()) == ("all tensors", "held")
    finally:
        other.shutdown()
    assert worker.model.weight[:4].tolist() == [1, 1, 1, 0]


def test_a_group_of_which_one_was_changed_loads_all_together(tmp_path: Path) -> None:
    published(tmp_path, 4, "local")
    told = Told(2, Told(2))
    workers = [Worker(tmp_path, told, number) for number in (0, 1)]

    def each(work: Callable[[Worker], Any]) -> list[Any]:
        results: list[Any] = [None, None]

        def run(number: int) -> None:
            try:
                results[number] = work(workers[number])
            except Exception as error:
                results[number] = error

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def update(version: int) -> list[Any]:
        each(lambda worker: worker.ready(version))
        assert each(lambda worker: worker.update(version)) == [None, None]
        return [worker.how for worker in workers]

    try:
        each(lambda worker: worker._follow({}))
        assert update(0) == ["all tensors"] * 2
        assert update(1) == ["in place"] * 2
        all_lanes(workers[1])
        assert [worker.says() for worker in workers] == ["held", "other"]
        assert update(2) == ["all tensors"] * 2
        one_lane(workers[0])
        # As if the last comparison before the pause were long ago.
        for worker in workers:
            worker._checked = -1e9
        assert update(3) == ["all tensors"] * 2
        assert [worker.says() for worker in workers] == ["held"] * 2
        for worker in workers:
            assert worker.model.weight[:5].tolist() == [1, 1, 1, 1, 0]
            assert worker.model.weight[777] == 0
    finally:
        each(lambda worker: worker.shutdown())


def test_a_copy_is_compared_only_with_the_version_that_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other version is loaded as a whole, whatever the weights are."""
    published(tmp_path, 3)
    whole = []
    original = WeightSums.fits
    monkeypatch.setattr(
        WeightSums, "fits", lambda sums, model: whole.append(1) or original(sums, model)
    )
    own = Worker(tmp_path, None, 0, mode="reload")
    try:
        for version in (0, 1):
            own.ready(version)
            own.update(version)
            assert own.how == "all tensors" and not whole
        own._checked = -1e9
        own.update(1)
        assert own.how == "nothing, already loaded" and whole
        one_lane(own)
        own._checked = -1e9
        own.update(1)
        assert own.how == "all tensors" and own.model.weight[777] == 0
    finally:
        own.shutdown()


def test_sums_keep_no_memory_that_the_model_has_given_up(clock: Clock) -> None:
    """Otherwise a reload would need memory for two models."""
    import gc
    import weakref

    made = model(1)
    sums = WeightSums(made)
    old = weakref.ref(made.embedding.data.untyped_storage())
    made.embedding.data = torch.zeros(3000, 64).bfloat16()
    gc.collect()
    held = SimpleNamespace(sums=sums, storage=old())
    assert held.storage is None and not held.sums.seems_to_fit(made)
