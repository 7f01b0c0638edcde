"""Tensors of `into=` that torch or numpy move, free or replace between two calls: the version is
written to their new place, or the tensor is refused by its name. Nothing else is written to, and
freed memory is not touched."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

# Registers torch's tensors with the pickler.
importlib.import_module("torch.multiprocessing")
prune = importlib.import_module("torch.nn.utils.prune")
from conftest import as_bytes  # noqa: E402

import deltachain as dc  # noqa: E402
from deltachain import _tensor_follower  # noqa: E402
from deltachain._device_memory import DeviceMemory  # noqa: E402
from deltachain._ranks import Alone  # noqa: E402

NAMES = ("a", "b", "c")
# Each tensor has 96 KiB: with a low threshold for mmap, each has its own pages, which are unmapped
# when it is freed.
SHAPE = (192, 256)
VERSIONS = 3


def values(version: int) -> dict[str, Any]:
    """Returns some tensors, of which a few lanes change with each version."""
    made = {}
    for number, name in enumerate(NAMES):
        flat = (
            torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.int32)
            .bitwise_and(0x3FF)
            .add(number)
            .to(torch.int16)
        )
        for step in range(version):
            flat[step * 31 + number :: 997] += 1
        made[name] = flat.view(torch.bfloat16).view(SHAPE)
    return made


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("places") / "chain"
    with dc.Publisher(path, profile="local") as publisher:
        for version in range(VERSIONS):
            publisher.publish(values(version))
    return str(path)


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.register_parameter(
                name, torch.nn.Parameter(torch.zeros(SHAPE, dtype=torch.bfloat16))
            )


FORMS: dict[str, Callable[[Model], Any]] = {
    "state_dict": lambda model: model.state_dict(),
    "parameters": lambda model: dict(model.named_parameters()),
    "module": lambda model: model,
}

Way = Callable[[Model, dict[str, Any]], Any]


def fresh(dtype: Any = torch.bfloat16) -> Any:
    return torch.full(SHAPE, 3, dtype=dtype)


def resized(tensor: Any, *sizes: int) -> None:
    """Resizes the storage of a tensor to each of these numbers of bytes in turn."""
    for size in sizes:
        tensor.untyped_storage().resize_(size)


FULL = SHAPE[0] * SHAPE[1] * 2


@torch.no_grad()
def set_data(tensor: Any, data: Any) -> None:
    tensor.data = data


# Calls of torch that move a model, or the tensors of a mapping.
WAYS: dict[str, Way] = {
    "share_memory of a model": lambda model, _: model.share_memory(),
    "share_memory_ of a tensor": lambda _, into: into["b"].detach().share_memory_(),
    "pickled for another process": lambda _, into: ForkingPickler.dumps(into["b"].detach()),
    "all pickled for another process": lambda model, _: ForkingPickler.dumps(
        dict(model.state_dict())
    ),
    "float": lambda model, _: model.float(),
    "float and back": lambda model, _: model.float().bfloat16(),
    "double": lambda model, _: model.double(),
    "to another dtype": lambda model, _: model.to(torch.float16),
    "to meta": lambda model, _: model.to("meta"),
    "to_empty": lambda model, _: model.to_empty(device="cpu"),
    "data": lambda _, into: set_data(into["b"], fresh()),
    "data of another dtype": lambda _, into: set_data(into["b"], fresh(torch.float32)),
    "data of another shape": lambda _, into: set_data(into["b"], fresh()[:100]),
    "data that is a view of another": lambda _, into: set_data(
        into["b"], torch.stack([fresh(), fresh()])[1]
    ),
    "data that is not contiguous": lambda _, into: set_data(
        into["b"], fresh().t().contiguous().t()
    ),
    "set_": lambda _, into: into["b"].detach_().set_(fresh()),
    "resize_ to more": lambda _, into: into["b"].detach_().resize_(4 * SHAPE[0], SHAPE[1]),
    "resize_ to more and back": lambda _, into: (
        into["b"].detach_().resize_(4 * SHAPE[0], SHAPE[1]).resize_(SHAPE)
    ),
    "resize_ to less": lambda _, into: into["b"].detach_().resize_(10, 10),
    "resize_ to nothing": lambda _, into: into["b"].detach_().resize_(0),
    "storage freed": lambda _, into: resized(into["b"], 0),
    "all storages freed": lambda model, _: [resized(tensor, 0) for tensor in model.parameters()],
    "storage freed and taken again": lambda _, into: resized(into["b"], 0, FULL),
    "storage freed and taken too small": lambda _, into: resized(into["b"], 0, FULL - 2),
    "storage made smaller": lambda _, into: resized(into["b"], FULL // 2),
    "storage made larger": lambda _, into: resized(into["b"], 64 * FULL),
    "load_state_dict that assigns": lambda model, _: model.load_state_dict(
        {n: fresh() for n in NAMES}, assign=True
    ),
    "another parameter": lambda model, _: setattr(model, "b", torch.nn.Parameter(fresh())),
    "another entry": lambda _, into: into.__setitem__("b", fresh()),
    "another entry of another dtype": lambda _, into: into.__setitem__("b", fresh(torch.float32)),
    "an entry that is none": lambda _, into: into.__setitem__("b", None),
    "an entry less": lambda _, into: into.pop("b"),
    "an entry more": lambda _, into: into.__setitem__("d", fresh()),
    "swapped tensors": lambda _, into: torch.utils.swap_tensors(into["a"], into["b"]),
    "swapped entries": lambda _, into: into.update(a=into["b"], b=into["a"]),
    "one entry for two": lambda _, into: into.__setitem__("a", into["b"]),
    "transposed in place": lambda _, into: into["b"].detach_().t_(),
    "reshaped in place": lambda _, into: into["b"].detach_().unsqueeze_(0),
    "strides in place": lambda _, into: into["b"].detach_().as_strided_(SHAPE, (1, SHAPE[0])),
    "vector_to_parameters": lambda model, _: torch.nn.utils.vector_to_parameters(
        torch.cat([fresh().view(-1) for _ in NAMES]), model.parameters()
    ),
    "a parameter less": lambda model, _: delattr(model, "b"),
    "pruned": lambda model, _: prune.l1_unstructured(model, "b", 0.5),
    "parametrized": lambda model, _: torch.nn.utils.parametrize.register_parametrization(
        model, "b", torch.nn.Identity(), unsafe=True
    ),
}


@pytest.fixture(params=["library", "device"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether the library reads and writes the tensors, or torch, as on a device, which a group
    also causes."""
    if request.param == "library":
        return None
    monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    return Alone()


def tensors_of(into: Any) -> dict[str, Any]:
    return dict(into if isinstance(into, dict) else into.state_dict())


def holds(tensors: dict[str, Any], version: int) -> bool:
    expected = values(version)
    return tensors.keys() == expected.keys() and all(
        lanes(tensors[name]) == lanes(expected[name]) for name in NAMES
    )


def lanes(tensor: Any) -> Any:
    """Returns the bits of a tensor. torch does not resize a tensor that numpy has seen, so this
    does not use numpy."""
    if isinstance(tensor, torch.Tensor):
        return tensor.dtype.itemsize, tensor.detach().view(torch.int16).tolist()
    return 2, numpy.frombuffer(as_bytes(tensor), numpy.int16).reshape(SHAPE).tolist()


class Beside:
    """Arrays that occupy freed memory and more, and that must stay untouched."""

    def __init__(self) -> None:
        self.arrays = [numpy.full(FULL, 0xA5, numpy.uint8) for _ in range(40)]

    def assert_untouched(self) -> None:
        assert all((array == 0xA5).all() for array in self.arrays), "foreign memory was overwritten"


def refusal(work: Callable[[], Any]) -> dc.Error | None:
    """Returns the error if the call was refused. The error must name tensors."""
    try:
        work()
    except dc.Error as error:
        named = error.tensor is not None or any(
            f"{quote}{name}{quote}" in str(error) for name in "abcd" for quote in "'\""
        )
        return error if named else pytest.fail(f"no tensor is named: {error}")
    return None


def taken(
    subscriber: dc.Subscriber, version: int, into: Any, *, update: dc.Update | None = None
) -> bool:
    """Updates to a version. Returns True if the tensors hold it, and False if the update was
    refused by name."""
    if refusal(lambda: (update or subscriber.prepare(version)).apply()) is not None:
        return False
    assert holds(tensors_of(into), version), "the tensors are not the version that is held"
    assert subscriber.version == version and not subscriber.torn
    return True


@pytest.mark.parametrize(
    ("form", "when"),
    [
        *((form, when) for form in FORMS for when in ("before prepare", "before apply")),
        ("module", "before check"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_move_tensors(url: str, way: str, form: str, when: str, group: Any) -> None:
    model = Model()
    into = FORMS[form](model)
    with dc.Subscriber(url, into=into, group=group) as subscriber:
        subscriber.prepare(0).apply()
        assert holds(tensors_of(into), 0)
        update = subscriber.prepare(1) if when == "before apply" else None
        mapping = into if isinstance(into, dict) else dict(model.named_parameters())
        try:
            WAYS[way](model, mapping)
        except (RuntimeError, TypeError, AttributeError) as error:
            pytest.skip(f"torch refuses that here: {error}")
        beside = Beside()
        if when == "before check":
            # Either the check refuses, or the memory still holds the version.
            assert refusal(subscriber.check) is not None or holds(tensors_of(into), 0)
        # An update that was refused is refused again, or the version is loaded as a whole.
        for _ in range(2):
            taken(subscriber, 1, into, update=update)
            update = None
        for _ in range(2):
            taken(subscriber, 2, into)
        beside.assert_untouched()


def test_a_model_that_is_shared_goes_on(
    url: str, group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    with dc.Subscriber(url, into=model.state_dict(), group=group) as subscriber:
        subscriber.prepare(0).apply()
        model.share_memory()
        update = subscriber.prepare(1)
        update.apply()
        assert holds(dict(model.state_dict()), 1)
        assert update.fallback_reason == "place" and subscriber.fallbacks == {"place": 1}
        assert "has moved" in caplog.text
        # From then on, updates are in place.
        update = subscriber.prepare(2)
        update.apply()
        assert update.fallback_reason is None and subscriber.proof == "changed_lanes"
        assert holds(dict(model.state_dict()), 2)
        subscriber.check()


def test_an_update_that_was_prepared_before_names_the_tensor(url: str, group: Any) -> None:
    model = Model()
    with dc.Subscriber(url, into=dict(model.named_parameters()), group=group) as subscriber:
        first = subscriber.prepare(0)
        # An update that is loaded as a whole still works.
        model.share_memory()
        first.apply()
        assert holds(dict(model.named_parameters()), 0)
        update = subscriber.prepare(1)
        set_data(model.b, fresh())
        for _ in range(2):
            with pytest.raises(dc.Error) as caught:
                update.apply()
            assert (caught.value.tensor == "b") == isinstance(caught.value, dc.StateMismatchError)
        assert (subscriber.version, subscriber.torn) == (None, False)
        assert taken(subscriber, 1, model)


@pytest.mark.parametrize("call", ["check", "verify", "state"])
def test_calls_that_read_name_the_tensor(url: str, group: Any, call: str) -> None:
    model = Model()
    with dc.Subscriber(url, into=dict(model.named_parameters()), group=group) as subscriber:
        subscriber.prepare(0).apply()
        set_data(model.c, fresh())
        with pytest.raises(dc.StateMismatchError) as caught:
            list(subscriber.state()) if call == "state" else getattr(subscriber, call)()
        assert caught.value.tensor == "c"
        assert subscriber.version is None
        assert taken(subscriber, 1, model)


def test_a_module_means_its_tensors(url: str, group: Any) -> None:
    model = Model()
    with dc.Subscriber(url, into=model, group=group) as subscriber:
        subscriber.prepare(0).apply()
        # The module's tensors include those that replaced others.
        model.b = torch.nn.Parameter(fresh())
        subscriber.prepare(1).apply()
        assert holds(dict(model.state_dict()), 1)
        model.b = torch.nn.Parameter(fresh(torch.float32))
        assert isinstance(refusal(lambda: subscriber.prepare(2)), dc.UsageError)
        model.b = torch.nn.Parameter(fresh())
        assert taken(subscriber, 2, model)
    with pytest.raises(dc.UsageError, match="a module of torch"):
        dc.Subscriber(url, into=3)  # type: ignore[arg-type]


# Calls of numpy and of other owners of memory.


def arrays() -> dict[str, Any]:
    return {name: numpy.zeros(SHAPE, numpy.int16) for name in NAMES}


def reshaped(array: Any) -> None:
    array.shape = (-1,)


OTHER_WAYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "resize": lambda into: into["b"].resize((1000, 1000), refcheck=False),
    "resize to nothing": lambda into: into["b"].resize((0,), refcheck=False),
    "resize and back": lambda into: [
        into["b"].resize(shape, refcheck=False) for shape in ((1000, 1000), SHAPE)
    ],
    "another shape": lambda into: reshaped(into["b"]),
    "another entry": lambda into: into.__setitem__("b", numpy.zeros(SHAPE, numpy.int16)),
    "another dtype": lambda into: into.__setitem__("b", numpy.zeros(SHAPE, numpy.int32)),
    "read-only": lambda into: into["b"].setflags(write=False),
    "other data": lambda into: setattr(into["b"], "data", numpy.zeros(SHAPE, numpy.int16).data),
    "swapped": lambda into: into.update(a=into["b"], b=into["a"]),
    "a view": lambda into: into.__setitem__(
        "b", numpy.zeros((2 * SHAPE[0], SHAPE[1]), numpy.int16)[::2]
    ),
    "a bytearray": lambda into: into.__setitem__("b", dc.Tensor("I16", SHAPE, bytearray(FULL))),
    "less": lambda into: into.pop("b"),
}


@pytest.fixture(scope="module")
def url_of_arrays(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("places of arrays") / "chain"
    with dc.Publisher(path, profile="local") as publisher:
        for version in range(VERSIONS):
            publisher.publish(
                {name: tensor.view(torch.int16) for name, tensor in values(version).items()}
            )
    return str(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("when", ["before prepare", "before apply"])
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_way_to_move_arrays(url_of_arrays: str, way: str, when: str) -> None:
    into = arrays()
    with dc.Subscriber(url_of_arrays, into=into) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1) if when == "before apply" else None
        try:
            OTHER_WAYS[way](into)
        except (AttributeError, ValueError) as error:
            pytest.skip(f"numpy refuses that here: {error}")
        beside = Beside()
        for _ in range(2):
            taken(subscriber, 1, into, update=update)
            update = None
        taken(subscriber, 2, into)
        beside.assert_untouched()


def test_owners_that_lock_their_memory(url_of_arrays: str) -> None:
    data = {name: bytearray(FULL) for name in NAMES}
    into = {name: dc.Tensor("I16", SHAPE, own) for name, own in data.items()}
    with dc.Subscriber(url_of_arrays, into=into) as subscriber:
        subscriber.prepare(0).apply()
        with pytest.raises(BufferError):
            data["b"].extend(b"0")
        # Other memory for the same tensor is noticed.
        into["b"].data = bytearray(FULL)
        assert taken(subscriber, 1, into)
        assert subscriber.fallbacks == {"place": 1}
        data["b"].extend(b"0")
        into["b"].shape = (7,)
        assert not taken(subscriber, 2, into)


def test_all_of_this_where_freed_memory_is_gone() -> None:
    # Each tensor has its own pages, which are unmapped when it is freed: a process that touches
    # them is killed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "32768", "MALLOC_PERTURB_": "165"}
    stale = (
        "import ctypes, torch; a = torch.ones(1 << 16); p = a.data_ptr(); del a; "
        "ctypes.string_at(p, 9)"
    )
    died = subprocess.run([sys.executable, "-c", stale], env=environment, check=False, timeout=60)
    if died.returncode != -signal.SIGSEGV:
        pytest.skip("SKIPPED: this machine's allocator keeps what was freed")
    # With torch this takes minutes.
    which = "" if "DELTACHAIN_GUARD_PAGES" in os.environ else " and not device"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-k",
        "not freed_memory_is_gone" + which,
        __file__,
    ]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
