"""Subscribers that patch the caller's tensors in place, by the library or by torch."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from conftest import as_bytes  # noqa: E402

import deltachain as dc  # noqa: E402
from deltachain import _native, _tensor_follower  # noqa: E402
from deltachain._device_memory import DeviceMemory, Lanes  # noqa: E402

VERSIONS = 4


def model(version: int) -> dict[str, Any]:
    """Returns some tensors, of which a few lanes change with each version."""
    generator = torch.Generator().manual_seed(0)
    made = {
        "embed.weight": torch.randn(300, 64, generator=generator).bfloat16(),
        "up.weight": torch.randn(128, 64, generator=generator).bfloat16(),
        "down.weight": torch.randn(64, 128, generator=generator).bfloat16(),
        "norm.weight": torch.randn(64, generator=generator),
        "scale": torch.tensor(0.5),
        "steps": torch.zeros(3, dtype=torch.int64),
    }
    made["lm_head.weight"] = made["embed.weight"]
    for step in range(version):
        changed = torch.Generator().manual_seed(step + 1)
        for tensor in dict.fromkeys(made.values()):
            lanes = torch.randint(
                tensor.numel(), (max(1, tensor.numel() // 100),), generator=changed
            )
            tensor.view(-1)[lanes] += 1
    return made


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return published(tmp_path_factory.mktemp("chain") / "chain", "local")


def published(path: Path, profile: Any, versions: int = VERSIONS) -> str:
    with dc.Publisher(path, profile=profile) as publisher:
        for version in range(versions):
            publisher.publish(model(version))
    return str(path)


def zeros() -> dict[str, Any]:
    made = {name: torch.zeros_like(tensor) for name, tensor in model(0).items()}
    made["lm_head.weight"] = made["embed.weight"]
    return made


def assert_holds(tensors: dict[str, Any], version: int) -> None:
    expected = model(version)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert as_bytes(tensor) == as_bytes(expected[name]), name


@pytest.fixture(params=["library", "tied", "device"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the library reads and writes the tensors, some of them tied, or torch, as on a
    device."""
    name: str = request.param
    if name == "device":
        monkeypatch.setattr(_tensor_follower, "_torch_for", lambda _: DeviceMemory())
    return name


def tensors_for(by: str) -> dict[str, Any]:
    made = zeros()
    if by == "library":
        made["lm_head.weight"] = made["lm_head.weight"].clone()
    return made


def test_versions_are_taken_in_place(url: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    tensors = tensors_for(by)
    with dc.Subscriber(url, into=tensors) as subscriber:
        assert (subscriber.proof, subscriber.checked, subscriber.version) == (None, None, None)
        first = subscriber.prepare(0)
        assert not any(map(torch.any, tensors.values()))
        first.apply()
        assert_holds(tensors, 0)
        assert subscriber.proof == "memory" and subscriber.checked is not None
        loaded = subscriber.checked
        for version in (1, 3):
            update = subscriber.prepare(version)
            assert_holds(tensors, update.base)
            update.apply()
            update.apply()
            assert_holds(tensors, version)
            assert (subscriber.version, subscriber.torn) == (version, False)
            assert (subscriber.proof, subscriber.checked) == ("changed_lanes", loaded)
            assert update.times is not None and update.times.switch >= 0
        assert update.routes == [(1, 2), (2, 3)]
        assert subscriber.check() >= 0
        assert subscriber.proof == "memory" and subscriber.checked > loaded
        subscriber.verify()
        assert subscriber.proof == "hashed"
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == {
            name: as_bytes(tensor) for name, tensor in tensors.items()
        }
        assert "as a whole" not in caplog.text
        # No route leads backwards, and the log says so.
        subscriber.prepare(2).apply()
        assert_holds(tensors, 2)
        assert subscriber.proof == "memory"
    assert (
        "version 2 is loaded as a whole: no path from the held version can be taken in place"
        in caplog.text
    )


def test_there_are_no_patches_to_load(url: str, by: str) -> None:
    with dc.Subscriber(url, into=tensors_for(by)) as subscriber:
        update = subscriber.prepare(0)
        for call in (
            lambda: list(update.patches()),
            update.applying().__enter__,
            update.full().__enter__,
        ):
            with pytest.raises(dc.UsageError, match=r"update.apply\(\) patches"):
                call()
        assert not subscriber.torn
        update.apply()
        assert subscriber.version == 0


def test_a_wrong_lane_means_a_whole_load(
    url: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = tensors_for(by)
    changed = (model(0)["up.weight"] != model(1)["up.weight"]).nonzero()[0].tolist()
    same = (model(0)["up.weight"] == model(1)["up.weight"]).nonzero()[0].tolist()
    with dc.Subscriber(url, into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        assert subscriber.fallbacks == {}
        tensors["up.weight"].view(torch.int16)[tuple(changed)] ^= 1
        update = subscriber.prepare(1)
        update.apply()
        # The second call does nothing.
        update.apply()
        assert (update.fallback_reason, subscriber.fallbacks) == ("proof", {"proof": 1})
        assert_holds(tensors, 1)
        assert subscriber.proof == "memory"
        # A lane that does not change: only the check finds the flipped bit.
        tensors["up.weight"].view(torch.int16)[tuple(same)] ^= 1
        if same not in (model(1)["up.weight"] != model(2)["up.weight"]).nonzero().tolist():
            subscriber.prepare(2).apply()
            assert subscriber.proof == "changed_lanes"
        with pytest.raises(dc.StateMismatchError) as caught:
            subscriber.check()
        assert caught.value.rule == "R-SUM-04"
        assert subscriber.proof is None and subscriber.checked is None
        subscriber.prepare(3).apply()
        assert_holds(tensors, 3)
        assert subscriber.fallbacks == {"proof": 1, "check": 1}


def test_a_write_between_proof_and_switch_is_refused(url: str, by: str) -> None:
    tensors = tensors_for(by)
    with dc.Subscriber(url, into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1)
        lane = (model(0)["down.weight"] != model(1)["down.weight"]).nonzero()[0].tolist()
        tensors["down.weight"].view(torch.int16)[tuple(lane)] ^= 64
        with pytest.raises((dc.StateMismatchError, dc.WrongBaseError)):
            update.apply()
        assert not subscriber.torn
        tensors["down.weight"].view(torch.int16)[tuple(lane)] ^= 64
        assert_holds(tensors, 0)
        tensors["down.weight"].view(torch.int16)[tuple(lane)] ^= 64
        subscriber.prepare(1).apply()
        assert_holds(tensors, 1)
        assert subscriber.proof == "memory"


def test_compact_links_are_taken_by_digests(tmp_path: Path, by: str) -> None:
    url = published(tmp_path / "chain", "compact", 2)
    tensors = tensors_for(by)
    with dc.Subscriber(url, into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1)
        update.apply()
        assert_holds(tensors, 1)
        assert (update.fallback_reason, subscriber.proof) == (None, "changed_lanes")
        subscriber.check()
        assert subscriber.proof == "hashed"


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", ["now", "put", "fill"])
@pytest.mark.parametrize("by", ["device"], indirect=True)
def test_an_exception_anywhere_leaves_the_old_version_or_says_torn(
    url: str, by: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tensors_for(by)
    with dc.Subscriber(url, into=tensors) as subscriber:
        if at == "fill":
            update = subscriber.prepare(0)
            fail_third(monkeypatch, DeviceMemory, "fill")
            with pytest.raises(Stopped):
                update.apply()
            assert subscriber.torn and subscriber.version is None and subscriber.proof is None
            monkeypatch.undo()
            # The same update can be applied again, or another one.
            update.apply()
            assert not subscriber.torn
            assert_holds(tensors, 0)
            return
        subscriber.prepare(0).apply()
        update = subscriber.prepare(2)
        fail_third(monkeypatch, Lanes, at)
        with pytest.raises(Stopped):
            update.apply()
        monkeypatch.undo()
        assert not subscriber.torn and subscriber.version == 0
        assert_holds(tensors, 0)
        update.apply()
        assert_holds(tensors, 2)


def fail_third(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    """Makes the third call of a function fail."""
    original, calls = getattr(place, name), itertools.count(1)

    def called(*arguments: Any) -> Any:
        if next(calls) == 3:
            raise Stopped
        return original(*arguments)

    monkeypatch.setattr(place, name, called)


@pytest.mark.parametrize("by", ["device"], indirect=True)
def test_an_undo_that_fails_is_torn(url: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tensors_for(by)
    with dc.Subscriber(url, into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        update = subscriber.prepare(1)

        def put(*_: object) -> None:
            raise Stopped

        monkeypatch.setattr(Lanes, "put", put)
        with pytest.raises(Stopped):
            update.apply()
        assert subscriber.torn and subscriber.proof is None
        monkeypatch.undo()
        subscriber.prepare(1).apply()
        assert not subscriber.torn
        assert_holds(tensors, 1)


def test_tied_names_that_differ_are_refused(tmp_path: Path) -> None:
    first, second = model(0), model(0)
    second["lm_head.weight"] = second["lm_head.weight"].clone()
    second["lm_head.weight"][0, 0] += 1
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(first)
        publisher.publish(second)
    tensors = tensors_for("torch")
    with dc.Subscriber(tmp_path / "chain", into=tensors) as subscriber:
        subscriber.prepare(0).apply()
        with pytest.raises(dc.UsageError, match=r"shares its memory with .*, but they differ"):
            subscriber.prepare(1)
        assert subscriber.version == 0 and not subscriber.torn
        assert_holds(tensors, 0)


def test_tensors_that_are_not_those_of_the_chain_are_listed(url: str) -> None:
    tensors = tensors_for("torch")
    del tensors["scale"]
    tensors["more"] = torch.zeros(1)
    with pytest.raises(dc.UsageError) as caught:
        dc.Subscriber(url, into=tensors).prepare()
    assert "'scale' is missing" in str(caught.value) and "'more' is not in the chain" in str(
        caught.value
    )
    tensors = tensors_for("torch")
    tensors["norm.weight"] = torch.zeros(64, dtype=torch.bfloat16)
    expected = "the chain has F32, but this memory has BF16"
    with pytest.raises(dc.UsageError, match=expected) as caught:
        dc.Subscriber(url, into=tensors).prepare()
    assert caught.value.tensor == "norm.weight"


def test_selected_tensors_are_enough(url: str) -> None:
    embed = torch.zeros(300, 64, dtype=torch.bfloat16)
    tensors = {"embed.weight": embed, "lm_head.weight": embed}
    with dc.Subscriber(url, into=tensors, tensors=["embed*", "lm_head*"]) as subscriber:
        for version in (0, 2):
            subscriber.prepare(version).apply()
            assert as_bytes(embed) == as_bytes(model(version)["embed.weight"])
        assert subscriber.proof == "changed_lanes"
        subscriber.check()
        subscriber.verify()


def test_a_stale_backward_fails(url: str) -> None:
    tensors = tensors_for("torch")
    norm = torch.nn.Parameter(tensors["norm.weight"])
    tensors["norm.weight"] = norm
    with dc.Subscriber(url, into=tensors) as subscriber:
        for version in (0, 1):
            update = subscriber.prepare(version)
            loss = (norm * norm).sum()
            update.apply()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


# Prints by how many MiB the process's peak exceeds its memory with the tensors, for a version in
# which 1 % changes.
PEAK = """
import sys

import torch

import deltachain as dc
from deltachain import _tensor_follower
from deltachain._device_memory import DeviceMemory

url, by = sys.argv[1:]


def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


torch.set_num_threads(1)
tensors = {f"w{number}": torch.ones(1 << 22, dtype=torch.bfloat16) for number in range(16)}
if by == "device":
    _tensor_follower._torch_for = lambda _: DeviceMemory()
with dc.Subscriber(url, into=tensors) as subscriber:
    subscriber.prepare(0).apply()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    subscriber.prepare(1).apply()
    assert subscriber.proof == "changed_lanes"
    print(status("VmHWM") - before)
"""


def test_the_memory_is_that_of_what_changes(tmp_path: Path, by: str) -> None:
    tensors = {
        f"w{number}": torch.full((1 << 22,), number, dtype=torch.bfloat16) for number in range(16)
    }
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(tensors)
        for tensor in tensors.values():
            tensor[::100] += 1
        publisher.publish(tensors)
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "chain", by],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # The tensors have 128 MiB. The positions and two values of each changed lane take 5 MiB.
    assert float(ran.stdout) < 40


def test_a_function_that_says_a_wrong_place_is_found_out(url: str) -> None:
    tensors, loads = tensors_for("torch"), []

    def load(given: Any) -> Any:
        loads.append(1)
        for name, tensor in given():
            tensors[name].copy_(tensor)
        # The halves' columns are swapped.
        halves = {0: slice(0, 64), 1: slice(64, 128)}
        other = [
            dc.Part(tensors["down.weight"][:, halves[1 - at]], (slice(None), part))
            for at, part in halves.items()
        ]
        return {**tensors, "down.weight": other}

    with dc.Subscriber(url, into=load) as subscriber:
        for version in (0, 1):
            subscriber.prepare(version).apply()
            assert_holds(tensors, version)
            assert not subscriber.is_found
            # The places that the function wrote to are unknown, so nothing was read.
            assert (subscriber.proof, subscriber.checked, subscriber.torn) == (None, None, False)
            for call in (subscriber.check, subscriber.verify):
                with pytest.raises(dc.UsageError, match="their places are unknown"):
                    call()
    assert len(loads) == 2 and subscriber.fallbacks == {"place": 1}


def test_a_function_loads_and_says_where_the_tensors_are(url: str) -> None:
    tensors, loads = tensors_for("torch"), []

    def load(given: Any) -> Any:
        loads.append({name: tensor.clone() for name, tensor in given()})
        assert all(as_bytes(tensor) == as_bytes(loads[-1][name]) for name, tensor in given())
        if len(loads) == 3:
            raise Stopped
        with torch.no_grad():
            for name, tensor in loads[-1].items():
                tensors[name].copy_(tensor)
        # The function says that it needs none of the scale.
        return {**tensors, "scale": []} if len(loads) < 4 else None

    with dc.Subscriber(url, into=load) as subscriber:
        subscriber.prepare(0).apply()
        assert subscriber.proof == "memory"
        subscriber.prepare(1).apply()
        assert subscriber.proof == "changed_lanes" and len(loads) == 1
        subscriber.check()
        assert as_bytes(tensors["scale"]) == as_bytes(model(0)["scale"])
        tensors["scale"].copy_(model(1)["scale"])
        assert_holds(tensors, 1)
        # The tensors count as lost: all of them are loaded again.
        subscriber.mark_written()
        subscriber.prepare(1).apply()
        assert len(loads) == 2 and subscriber.proof == "memory"
        subscriber.mark_written()
        update = subscriber.prepare(2)
        with pytest.raises(Stopped):
            update.apply()
        assert subscriber.torn and not subscriber.is_found
        update.apply()
        assert not subscriber.torn and subscriber.version == 2
        assert_holds(tensors, 2)
        # The function named no places, so the next version is loaded as a whole, too.
        assert subscriber.proof is None
        subscriber.prepare(1).apply()
        assert len(loads) == 5
        assert_holds(tensors, 1)


def test_a_tied_name_that_the_chain_does_not_have_is_no_fault(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        for version in range(2):
            publisher.publish(
                {
                    name: tensor
                    for name, tensor in model(version).items()
                    if name != "lm_head.weight"
                }
            )
    tensors = zeros()
    with dc.Subscriber(tmp_path / "chain", into=tensors) as subscriber:
        for version in range(2):
            subscriber.prepare(version).apply()
            assert_holds(tensors, version)
        subscriber.verify()
        subscriber.check()
    # A name that has memory of its own is a fault.
    other = dc.Subscriber(tmp_path / "chain", into=tensors_for("library"))
    with pytest.raises(dc.UsageError, match=r"lm_head.weight.* is not in the chain"):
        other.prepare(0)


@pytest.mark.parametrize(
    "before", ["module.", "_orig_mod.", "module._orig_mod.", "base_model.model."]
)
def test_parts_that_wrappers_add_to_names_do_not_matter(url: str, before: str, by: str) -> None:
    bare = tensors_for(by)
    with dc.Subscriber(
        url, into={before + name: tensor for name, tensor in bare.items()}
    ) as subscriber:
        for version in range(2):
            subscriber.prepare(version).apply()
            assert_holds(bare, version)
        subscriber.check()
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == {
            name: as_bytes(tensor) for name, tensor in model(1).items()
        }


def test_a_compiled_module_is_followed(tmp_path: Path) -> None:
    made = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(made)
    other = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with dc.Subscriber(tmp_path / "chain", into=torch.compile(other)) as subscriber:
        subscriber.prepare().apply()
    assert all(
        torch.equal(own, others)
        for own, others in zip(made.parameters(), other.parameters(), strict=True)
    )


def test_tensors_that_one_side_lacks_are_left_as_they_are_if_asked_for(url: str, by: str) -> None:
    tensors = tensors_for(by)
    del tensors["scale"]
    tensors["more"] = torch.ones(3)
    into = {**tensors, "norm._extra_state": torch.ones(1)}
    with pytest.raises(dc.UsageError, match=r"'more' is not in the chain.*'scale' is missing"):
        dc.Subscriber(url, into=into).prepare(0)
    with dc.Subscriber(url, into=into, strict=False) as subscriber:
        for version in (0, 1, 3):
            subscriber.prepare(version).apply()
            subscriber.check()
            for name, tensor in tensors.items():
                expected = torch.ones(3) if name == "more" else model(version)[name]
                assert as_bytes(tensor) == as_bytes(expected), name
        assert "scale" not in dict(subscriber.state()) and "more" not in dict(subscriber.state())
        tensors["up.weight"][1, 1] = 17
        with pytest.raises(dc.StateMismatchError):
            subscriber.check()
    with pytest.raises(dc.UsageError, match="'more' is not in the chain"):
        dc.Subscriber(url, into={"more": torch.ones(3)}, strict=False).prepare(0)
    with pytest.raises(dc.UsageError, match="strict= is for the tensors of into="):
        dc.Subscriber(url, strict=False)


@pytest.mark.parametrize("loads", ["nothing", "one of two"])
def test_a_function_that_does_not_load_proves_nothing(url: str, loads: str) -> None:
    tensors = tensors_for("torch")

    def load(given: Any) -> Any:
        if loads != "nothing":
            for name, tensor in given():
                if name != "up.weight":
                    tensors[name].copy_(tensor)
        return tensors

    with dc.Subscriber(url, into=load) as subscriber:
        subscriber.prepare(0).apply()
        assert (subscriber.version, subscriber.proof, subscriber.checked) == (0, None, None)


@pytest.mark.parametrize("made", [["up.weight"], True, 3])
def test_what_a_function_must_return_is_said(url: str, made: Any) -> None:
    with dc.Subscriber(url, into=lambda _: made) as subscriber:
        update = subscriber.prepare(0)
        with pytest.raises(
            dc.UsageError, match="must return a mapping from names to tensors, or None"
        ):
            update.apply()
        assert subscriber.torn and subscriber.version is None


ON_ONE_PROCESSOR = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch, deltachain as dc
tensors = {name: torch.zeros(100_000, dtype=torch.bfloat16) for name in "abcd"}
def load(given):
    for name, tensor in given():
        tensors[name].copy_(tensor)
    return tensors
with dc.Subscriber(sys.argv[1], into=load, threads=1) as subscriber:
    for number in (0, 1):
        subscriber.prepare(number, timeout=60).apply()
    print(subscriber.proof, int(sum(tensor.long().sum() for tensor in tensors.values())))
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="SKIPPED: processes are bound to processors on Linux alone"
)
def test_on_one_processor_nothing_waits_for_itself(tmp_path: Path) -> None:
    # Inference engines bind their workers to processors. The tensors do not fit the queue.
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        for number in range(2):
            publisher.publish(
                {name: torch.full((100_000,), number, dtype=torch.bfloat16) for name in "abcd"}
            )
    command = [sys.executable, "-c", ON_ONE_PROCESSOR, str(tmp_path / "chain")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["changed_lanes", "400000"], ran.stderr


def test_an_exception_of_progress_ends_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of any class ends the proof. The version is not loaded as a whole instead."""
    tensors = {"a": torch.randn(400_000).bfloat16()}
    into = {"a": torch.zeros(400_000).bfloat16()}
    prove = _native.Follower.prove
    is_proving: list[None] = []

    def begin(own: Any, *given: Any) -> Any:
        is_proving.append(None)
        return prove(own, *given)

    def progress(*_: object) -> None:
        if is_proving:
            raise RuntimeError("enough")

    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(tensors)
        subscriber = dc.Subscriber(tmp_path / "chain", into=into, progress=progress)
        subscriber.prepare().apply()
        tensors["a"][5] += 1
        publisher.publish(tensors)
    monkeypatch.setattr(_native.Follower, "prove", begin)
    with pytest.raises(RuntimeError, match="enough"):
        subscriber.prepare()
    is_proving.clear()
    monkeypatch.undo()
    update = subscriber.prepare()
    update.apply()
    assert update.fallback_reason is None and subscriber.version == 1


def test_a_module_that_cannot_be_looked_up_is_an_error(tmp_path: Path) -> None:
    """The error is raised. The version is not loaded as a whole instead, without a word."""

    class Odd(torch.nn.Linear):
        is_odd = False

        def state_dict(self, *given: Any, **named: Any) -> Any:
            if Odd.is_odd:
                Odd.is_odd = False
                raise RuntimeError("the hook of somebody else")
            return super().state_dict(*given, **named)

    model = Odd(4, 4)
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish(torch.nn.Linear(4, 4))
        with dc.Subscriber(tmp_path / "chain", into=model) as subscriber:
            subscriber.prepare().apply()
            publisher.publish(torch.nn.Linear(4, 4))
            Odd.is_odd = True
            with pytest.raises(RuntimeError, match="somebody else"):
                subscriber.prepare()
            subscriber.prepare().apply()
            assert subscriber.version == 1


WRAPPED = {
    "compiled": "_orig_mod.",
    "DDP": "module.",
    "PEFT": "base_model.model.",
    "FSDP1": "_fsdp_wrapped_module.",
    "DDP of a compiled one": "module._orig_mod.",
}


@pytest.mark.parametrize("chain_has", WRAPPED)
@pytest.mark.parametrize("model_has", ["plain", *WRAPPED])
def test_a_chain_of_a_wrapped_model_is_followed(
    tmp_path: Path, chain_has: str, model_has: str
) -> None:
    before, own = WRAPPED[chain_has], WRAPPED.get(model_has, "")
    tensors = {"0.weight": torch.randn(4, 3), "1.bias": torch.randn(4)}
    into = {f"{own}{name}": torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        publisher.publish({f"{before}{name}": tensor for name, tensor in tensors.items()})
    with dc.Subscriber(tmp_path / "chain", into=into) as subscriber:
        subscriber.prepare().apply()
        subscriber.check()
    for name, tensor in tensors.items():
        assert torch.equal(into[f"{own}{name}"], tensor)


def test_the_shortest_loop_of_a_compiled_model(tmp_path: Path) -> None:
    model, own = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish(torch.compile(model))
    with dc.Subscriber(tmp_path / "chain", into=own) as subscriber:
        subscriber.prepare().apply()
    assert torch.equal(own.weight, model.weight) and torch.equal(own.bias, model.bias)


def test_names_that_two_of_the_chain_may_be_are_refused(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"module.w": torch.ones(2), "_orig_mod.w": torch.zeros(2)})
    for into in ({"w": torch.zeros(2)}, {"base_model.model.w": torch.zeros(2)}):
        with (
            dc.Subscriber(tmp_path / "chain", into=into) as subscriber,
            pytest.raises(dc.UsageError, match="is not in the chain"),
        ):
            subscriber.prepare()
    into = {"module.w": torch.zeros(2), "_orig_mod.w": torch.ones(2)}
    with dc.Subscriber(tmp_path / "chain", into=into) as subscriber:
        subscriber.prepare().apply()
    assert torch.equal(into["module.w"], torch.ones(2))


def test_the_older_of_two_subscribers_says_that_it_lost_its_tensors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    into = {"w": torch.zeros(1000).bfloat16()}
    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        first = torch.randn(1000).bfloat16()
        publisher.publish({"w": first})
        older, newer, other = (
            dc.Subscriber(tmp_path / "chain", into=tensors)
            for tensors in (into, into, {"w": torch.zeros(1000).bfloat16()})
        )
        for subscriber in (other, older, newer):
            subscriber.prepare().apply()
        assert older.version is None and older.torn and older.proof is None
        assert newer.version == 0 == other.version and not other.torn
        with pytest.raises(dc.UsageError, match="do not hold a whole version"):
            older.check()
        first[3] += 1
        publisher.publish({"w": first})
        update = older.prepare()
        update.apply()
        assert update.fallback_reason == "torn" and older.version == 1 and newer.version is None
        older.check()
    assert torch.equal(into["w"], first)
    assert sum("two subscribers" in record.getMessage() for record in caplog.records) == 2
    for subscriber in (older, newer, other):
        subscriber.close()
    kept = len(_tensor_follower._owners)
    del older, newer, other, subscriber, update
    gc.collect()
    assert len(_tensor_follower._owners) < kept


def test_modules_are_states(tmp_path: Path) -> None:
    old, new = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    link = dc.diff(old, new)
    assert dc.digest(new).digest == link.target == dc.digest(new.state_dict()).digest
    made = dc.apply(old, [link])
    assert torch.equal(made["weight"], new.weight) and torch.equal(made["bias"], new.bias)


def test_another_dtype_is_loaded_by_the_loader(tmp_path: Path) -> None:
    """A server's loader converts the dtype, so the version is not refused for ever."""
    own = {"a": torch.zeros(40).bfloat16(), "b": torch.zeros(40).bfloat16()}
    loads: list[None] = []

    def load(given: Any) -> dict[str, Any]:
        loads.append(None)
        for name, tensor in given():
            own[name].copy_(tensor)
        return own

    with dc.Publisher(tmp_path / "chain", profile="local") as publisher:
        states = [{name: torch.randn(40).bfloat16() for name in own}]
        states.append({**states[0], "b": states[0]["b"].float() + 1})
        states.append({**states[1], "a": states[1]["a"] + 1})
        states.append({**states[0], "a": states[0]["a"] + 2})
        with dc.Subscriber(tmp_path / "chain", into=load) as subscriber:
            for state in states:
                publisher.publish(state)
                subscriber.prepare().apply()
                for name, tensor in state.items():
                    assert torch.equal(own[name], tensor.bfloat16())
            assert subscriber.version == 3 and len(loads) == 4
            # With the old dtype, the tensors are updated in place again.
            publisher.publish({**states[0], "a": states[0]["a"] + 3})
            subscriber.prepare().apply()
            assert len(loads) == 4 and subscriber.is_found
