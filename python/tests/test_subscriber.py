"""Following a chain in memory, in a directory, and in the caller's own tensors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Chain, as_bytes, model
from stalling_store import StallingStore

import deltachain as dc


class Engine:
    """Weights of an engine, patched from updates."""

    def __init__(self) -> None:
        self.weights: dict[str, bytearray] = {}

    def load(self, patch: dc.Patch) -> None:
        values = memoryview(as_bytes(patch.values))
        if patch.indices is None:
            self.weights[patch.name] = bytearray(values)
            return
        width = len(values) // len(patch.indices)
        for number, lane in enumerate(patch.indices):
            begin = int(lane) * width
            self.weights[patch.name][begin : begin + width] = values[
                number * width : (number + 1) * width
            ]

    def holds(self, version: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bool:
        return {name: bytes(data) for name, data in self.weights.items()} == {
            name: data for name, (_, _, data) in version.items()
        }


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "deltachain"])
def test_an_engine_is_patched_from_version_to_version(
    chain: Chain, tmp_path: Path, on_disk: bool, kind: str
) -> None:
    chain.publish(model(0))
    engine = Engine()
    place = {"host_copy": tmp_path / "host copy"} if on_disk else {}
    with dc.Subscriber(chain.url, kind=kind, **place) as subscriber:
        assert (subscriber.version, subscriber.digest) == (None, None)
        update = subscriber.prepare(timeout=60)
        assert subscriber.version is None and update.base is None
        with update.applying() as patches:
            for patch in patches:
                assert patch.indices is None
                engine.load(patch)
        assert engine.holds(chain.versions[0]) and subscriber.version == 0
        assert update.times is not None and update.times.switch >= 0 and update.lag.versions == 0
        assert subscriber.poll() is None

        for step in (1, 2, 3):
            chain.publish(model(step))
        update = subscriber.prepare(timeout=60)
        assert (update.base, update.version) == (0, 3)
        with update.applying() as patches:
            changed = {patch.name: patch for patch in patches}
            assert sorted(changed) == ["a.weight", "b.bias", "c.quantised"]
            for patch in changed.values():
                engine.load(patch)
        weight = changed["a.weight"]
        assert weight.shape == (300, 10) and weight.dtype == "BF16" and weight.count == 3
        assert memoryview(weight.indices).format == "i"
        assert engine.holds(chain.versions[3])
        # Arrays that were returned before stay as they were.
        assert (
            list(weight.indices) == [617, 1234, 1851] and as_bytes(weight.values) == b"\0\x80" * 3
        )
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == {
            name: data for name, (_, _, data) in chain.versions[3].items()
        }
        with pytest.raises(dc.UsageError, match="has been applied"):
            list(update.patches())
        same = subscriber.prepare(3, timeout=60)
        with same.applying() as patches:
            assert list(patches) == []
        back = subscriber.prepare(1, timeout=60)
        with back.applying() as patches:
            for patch in patches:
                engine.load(patch)
        assert engine.holds(chain.versions[1]) and subscriber.version == 1


def test_an_exception_while_patching_needs_a_full_load(chain: Chain) -> None:
    chain.publish(model(0))
    engine = Engine()
    subscriber = dc.Subscriber(chain.url)
    with subscriber.prepare().full() as patches:
        for patch in patches:
            engine.load(patch)
    assert engine.holds(chain.versions[0])
    chain.publish(model(1))
    update = subscriber.prepare()
    with pytest.raises(ZeroDivisionError), update.applying() as patches:
        engine.load(next(patches))
        _ = 1 / 0
    assert subscriber.torn and subscriber.version == 0
    with pytest.raises(dc.TornError), update.applying():
        pass
    chain.publish(model(2))
    update = subscriber.prepare()
    with pytest.raises(dc.TornError), update.applying():
        pass
    with update.full() as patches:
        for patch in patches:
            engine.load(patch)
    assert engine.holds(chain.versions[2]) and not subscriber.torn
    # The held version can be loaded again.
    engine.weights.clear()
    with subscriber.prepare(2).full() as patches:
        for patch in patches:
            engine.load(patch)
    assert engine.holds(chain.versions[2])


def into_arrays() -> dict[str, Any]:
    return {
        "a.weight": dc.Tensor("BF16", (300, 10), bytearray(6000)),
        "b.bias": numpy.zeros((2, 4), dtype=numpy.float32),
        "c.quantised": dc.Tensor("F8_E4M3", (16, 16), bytearray(256)),
        "d.steady": bytearray(3),
    }


def test_tensors_of_the_callers_are_patched_in_place(chain: Chain) -> None:
    chain.publish(model(0))
    weights = into_arrays()
    held = weights["b.bias"]

    def holds(step: int) -> bool:
        return {name: as_bytes(tensor) for name, tensor in weights.items()} == {
            name: data for name, (_, _, data) in chain.versions[step].items()
        }

    subscriber = dc.Subscriber(chain.url, into=weights)
    update = subscriber.prepare()
    assert not any(as_bytes(held))
    update.apply()
    assert holds(0)
    for step in (1, 2):
        chain.publish(model(step))
        update = subscriber.prepare()
        assert holds(step - 1)
        for use in (update.applying, update.full):
            with pytest.raises(dc.UsageError, match=r"update.apply\(\) patches"), use():
                pytest.fail("it gives patches")
        update.apply()
        assert holds(step) and weights["b.bias"] is held
    subscriber.verify()
    held[0, 0] = 17
    with pytest.raises(dc.WrongBaseError) as caught:
        subscriber.verify()
    assert caught.value.rule == "R-APP-01" and caught.value.advice and not caught.value.retryable


def test_tensors_that_do_not_fit_are_listed(chain: Chain) -> None:
    chain.publish(model(0))
    weights = into_arrays()
    del weights["d.steady"]
    weights["e"] = bytearray(1)
    with pytest.raises(dc.UsageError, match=r"'d.steady' is missing, 'e' is not in the chain"):
        dc.Subscriber(chain.url, into=weights).prepare()
    weights = into_arrays()
    weights["b.bias"] = numpy.zeros((8,), dtype=numpy.float32)
    with pytest.raises(
        dc.UsageError, match=r"has the shape \[8\], which is not that part of \[2, 4\]"
    ) as caught:
        dc.Subscriber(chain.url, into=weights).prepare()
    assert caught.value.tensor == "b.bias"
    weights["b.bias"] = numpy.zeros((2, 4), dtype=numpy.int32)
    with pytest.raises(dc.UsageError, match="the chain has F32, but this memory has I32"):
        dc.Subscriber(chain.url, into=weights).prepare()
    shared = bytearray(300)
    weights = into_arrays()
    weights["c.quantised"] = dc.Tensor("F8_E4M3", (16, 16), memoryview(shared)[:256])
    weights["d.steady"] = memoryview(shared)[255:258]
    with pytest.raises(dc.UsageError, match="shares a part of its memory"):
        dc.Subscriber(chain.url, into=weights).prepare()
    with pytest.raises(dc.UsageError, match="read-only"):
        dc.Subscriber(chain.url, into={"a": b"12"}).prepare()


def test_a_host_copy_is_shared_by_processes(chain: Chain, tmp_path: Path) -> None:
    chain.publish(model(0))
    place = tmp_path / "host"
    owner = dc.Subscriber(chain.url, host_copy=place)
    with pytest.raises(dc.InUseError, match="another process") as caught:
        dc.Subscriber(chain.url, host_copy=place)
    assert isinstance(caught.value, dc.UsageError)
    copy = dc.HostCopy(place, kind="deltachain")
    assert copy.current is None
    with pytest.raises(dc.UsageError, match="no version yet"):
        copy.tensors()
    owner.prepare().apply()
    engine = Engine()
    with pytest.raises(dc.UsageError, match="full"), copy.applying():
        pass
    for patch in copy.full():
        engine.load(patch)
    assert engine.holds(chain.versions[0]) and not copy.is_behind
    chain.publish(model(1))
    owner.prepare().apply()
    assert copy.is_behind
    with pytest.raises(KeyError), copy.applying():
        raise KeyError
    with pytest.raises(dc.TornError), copy.applying():
        pass
    for patch in copy.full():
        engine.load(patch)
    chain.publish(model(2))
    owner.prepare().apply()
    with copy.applying() as patches:
        for patch in patches:
            engine.load(patch)
    assert engine.holds(chain.versions[2])
    assert {name: as_bytes(tensor) for name, tensor in copy.tensors().items()} == {
        name: data for name, (_, _, data) in chain.versions[2].items()
    }


def test_waiting_has_an_end(chain: Chain) -> None:
    subscriber = dc.Subscriber(chain.url)
    assert subscriber.poll() is None
    with pytest.raises(TimeoutError) as caught:
        subscriber.prepare(timeout=0.05, poll=0.01)
    assert isinstance(caught.value, dc.TimeoutError) and caught.value.retryable
    with pytest.raises(dc.TimeoutError):
        subscriber.prepare(7, timeout=0.05, poll=0.01)
    chain.publish(model(0))
    assert subscriber.prepare(timeout=60).version == 0


def test_following_gives_each_version_until_it_is_stopped(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    chain.publish(model(0))
    stop = threading.Event()
    seen = []
    subscriber = dc.Subscriber(chain.url)
    for update in subscriber.follow(stop=stop, poll=0.01, poll_longest=0.02):
        if len(seen) == 0 and update.version == 0:
            # An update that is not applied is yielded again.
            seen.append(update.version)
            continue
        update.apply()
        seen.append(update.version)
        if update.version < 2:
            chain.publish(model(update.version + 1))
        else:
            stop.set()
    assert seen == [0, 0, 1, 2]
    # A damaged version is logged and retried.
    chain.publish(model(3))
    for link in Path(chain.url).rglob("*.dcf"):
        link.write_bytes(b"damaged" + link.read_bytes()[7:])
    assert list(subscriber.follow(stop=lambda: "will retry" in caplog.text, poll=0.01)) == []
    assert subscriber.version == 2


def test_some_tensors_only(chain: Chain) -> None:
    chain.publish(model(0))
    subscriber = dc.Subscriber(chain.url, tensors=["[ab].*"])
    with subscriber.prepare().applying() as patches:
        assert [patch.name for patch in patches] == ["a.weight", "b.bias"]


def test_wrong_places_are_said(tmp_path: Path, chain: Chain) -> None:
    with pytest.raises(dc.UsageError, match="no such directory"):
        dc.Subscriber(str(tmp_path / "nowhere")).prepare()
    with pytest.raises(dc.UsageError, match="not both"):
        dc.Subscriber(chain.url, host_copy=tmp_path / "x", into={})
    with pytest.raises(dc.UsageError, match="digest"):
        dc.Subscriber(chain.url, allow_rollback="17")
    with pytest.raises(dc.UsageError, match="only S3"):
        dc.Store("gs://bucket/x", credentials=dict, storage_options={"google_skip_signature": True})


def test_credentials_come_from_a_function_and_its_errors_are_shown() -> None:
    asked = []

    def credentials() -> dict[str, str]:
        asked.append(1)
        raise KeyError("the vault is sealed")

    options = {"endpoint": "http://127.0.0.1:9", "region": "x"}
    chain = dc.Store(
        "s3://bucket/chain", credentials=credentials, storage_options=options, attempts=1
    )
    with pytest.raises(dc.IoError, match="the vault is sealed"):
        dc.Subscriber(chain).poll()
    assert asked


def test_a_download_that_stands_still_ends_in_time() -> None:
    with StallingStore() as store:
        with dc.Publisher(store.chain()) as pub:
            pub.publish({"w": b"abc"})
        store.stall, store.methods = 3600, ("GET",)
        subscriber = dc.Subscriber(store.chain())
        with pytest.raises(dc.TimeoutError):
            subscriber.prepare(timeout=5)
        assert store.stands.is_set()
        store.stall = 0
        assert subscriber.prepare(timeout=60).version == 0


@pytest.mark.parametrize("timeout", [0, 0.2])
@pytest.mark.parametrize("version", [None, 0])
def test_a_server_that_does_not_answer_does_not_extend_a_limit(
    version: int | None, timeout: float
) -> None:
    with StallingStore() as store:
        with dc.Publisher(store.chain()) as pub:
            pub.publish({"w": b"abc"})
        # Without a limit, the first request would time out after ten seconds, with an IoError.
        subscriber = dc.Subscriber(store.chain(stall=10, attempts=1))
        store.stall, store.methods, store.part = 3600, ("GET", "HEAD"), ""
        with pytest.raises(dc.TimeoutError):
            subscriber.prepare(version, timeout=timeout, poll=0.01)
        with pytest.raises(dc.TimeoutError):
            subscriber.poll(timeout=timeout)
        store.stall = 0
        assert subscriber.prepare(version, timeout=60).version == 0


def test_the_last_look_has_a_limit_too() -> None:
    with StallingStore() as store:
        with dc.Publisher(store.chain()) as pub:
            pub.publish({"w": b"abc"})
        subscriber = dc.Subscriber(store.chain(stall=10, attempts=1))
        subscriber.prepare().apply()

        def stop_answering() -> None:
            store.stall, store.methods, store.part = 3600, ("GET", "HEAD"), ""

        threading.Timer(0.3, stop_answering).start()
        with pytest.raises(dc.TimeoutError):
            subscriber.prepare(timeout=1.0, poll=10)


def test_a_chain_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    url.mkdir()
    subscriber = dc.Subscriber(url)
    assert subscriber.poll() is None and subscriber.poll(timeout=0) is None
    for version in (None, 0):
        with pytest.raises(dc.TimeoutError):
            subscriber.prepare(version, timeout=0)
    threading.Timer(0.2, lambda: dc.Publisher(url).publish({"w": b"abc"})).start()
    subscriber.prepare(timeout=60, poll=0.01).apply()
    assert subscriber.version == 0
    # A chain that existed and is missing now is an error.
    (url / "chain.json").unlink()
    with pytest.raises(dc.ChainError) as caught:
        subscriber.prepare(timeout=60)
    assert caught.value.rule == "R-CHN-01"


def goes_on(subscriber: dc.Subscriber, update: dc.Update, way: str) -> None:
    """Continues after a first `apply()` that was interrupted."""
    if way == "apply":
        update.apply()
    else:
        subscriber.prepare(0).apply()


@pytest.mark.parametrize("way", ["apply", "prepare"])
def test_a_first_apply_into_tensors_can_be_interrupted_and_goes_on(chain: Chain, way: str) -> None:
    chain.publish(model(0))
    weights = into_arrays()
    fails = False

    def progress(*_: object) -> None:
        if fails:
            raise ZeroDivisionError

    subscriber = dc.Subscriber(chain.url, into=weights, progress=progress)
    update = subscriber.prepare()
    fails = True
    with pytest.raises(ZeroDivisionError):
        update.apply()
    fails = False
    # The interrupt came after everything was written, or before.
    assert subscriber.torn != (subscriber.version == 0)
    goes_on(subscriber, update, way)
    assert not subscriber.torn and subscriber.version == 0
    chain.publish(model(1))
    subscriber.prepare().apply()
    subscriber.verify()
    assert {name: as_bytes(tensor) for name, tensor in weights.items()} == {
        name: data for name, (_, _, data) in chain.versions[1].items()
    }


def test_what_is_stale_is_refused_before_the_block(chain: Chain, tmp_path: Path) -> None:
    for step in range(3):
        chain.publish(model(step))
    for place in ({}, {"host_copy": tmp_path / "host"}, {"into": into_arrays()}):
        subscriber = dc.Subscriber(chain.url, **place)
        subscriber.prepare(0).apply()
        stale = subscriber.prepare(1)
        held = subscriber.prepare(0)
        subscriber.prepare(2).apply()
        for update in (stale, held):
            for use in (update.applying, update.full):
                with pytest.raises(dc.UsageError, match="prepare again"), use():
                    pytest.fail("it gives patches")
            with pytest.raises(dc.UsageError, match="prepare again"):
                update.apply()
        assert not subscriber.torn and subscriber.version == 2


def test_a_host_copy_whose_switch_fails_is_torn_until_another_one_succeeds(
    chain: Chain, tmp_path: Path
) -> None:
    for step in range(2):
        chain.publish(model(step))
    place = tmp_path / "host"
    subscriber = dc.Subscriber(chain.url, host_copy=place)
    subscriber.prepare(0).apply()
    update = subscriber.prepare(1)
    # The link is replaced by something else.
    (place / "current").rename(place / "link")
    (place / "current").mkdir()
    with pytest.raises(dc.IoError, match="not a symbolic link"):
        update.apply()
    assert subscriber.torn and subscriber.version == 0
    (place / "current").rmdir()
    (place / "link").rename(place / "current")
    with pytest.raises(dc.UsageError, match="prepare it again"):
        update.apply()
    subscriber.prepare(1).apply()
    assert not subscriber.torn and subscriber.version == 1


def test_patches_that_are_not_taken_make_it_torn(chain: Chain) -> None:
    for step in range(2):
        chain.publish(model(step))
    subscriber = dc.Subscriber(chain.url)
    subscriber.prepare(0).apply()
    for count in (0, 1):
        update = subscriber.prepare(1)
        with pytest.raises(dc.TornError, match="before it read all"), update.applying() as patches:
            for _, _patch in zip(range(count), patches, strict=False):
                pass
        assert subscriber.torn and subscriber.version == 0
        with subscriber.prepare(0).full() as patches:
            assert len(list(patches)) == 4
        assert not subscriber.torn
    update = subscriber.prepare(1)
    with update.applying() as patches:
        # Applies all versions, without asking whether there is a newer one.
        for _ in range(3):
            next(patches)
    assert not subscriber.torn and subscriber.version == 1


def test_progress_is_told_and_can_stop(chain: Chain) -> None:
    chain.publish(model(0))
    told: list[tuple[str, int, int]] = []
    subscriber = dc.Subscriber(chain.url, progress=lambda *what: told.append(what))
    subscriber.prepare().apply()
    assert {"download", "build"} <= {phase for phase, _, _ in told}
    assert all(0 <= done <= total for _, done, total in told)


def test_a_version_is_found_whether_it_is_held_or_not(chain: Chain, tmp_path: Path) -> None:
    directory = tmp_path / "host copy"
    with dc.Subscriber(chain.url, host_copy=directory) as subscriber:
        assert subscriber.find() is None
        assert (
            dc.adapters.is_managed(directory)
            and not dc.adapters.is_managed(tmp_path)
            and dc.adapters.find_version(directory) is None
        )
        chain.publish(model(0))
        assert subscriber.find(1) is None
        update = subscriber.find(0)
        assert update is not None and not update.is_held
        update.apply()
        assert subscriber.poll() is None
        for held in (subscriber.find(), subscriber.find(0)):
            assert held is not None and held.is_held and held.digest == update.digest
            assert (held.table(), held.changes()) == ([], None)
    found = dc.adapters.find_version(directory, 0)
    assert (
        found is not None
        and found[:2] == (0, update.digest)
        and found == dc.adapters.find_version(directory)
    )
    assert dc.adapters.version_name(*found[:2]) == f"0@{found.digest[:12]}"
    shown = {name: as_bytes(tensor) for name, tensor in found.tensors("deltachain").items()}
    assert shown == {name: data for name, (_, _, data) in chain.versions[0].items()}
    shapes = {name: tensor.shape for name, tensor in found.tensors("deltachain").items()}
    assert dc.adapters.misfit(found.path, shapes) is None
    assert "a.weight" in str(dc.adapters.misfit(found.path, shapes | {"a.weight": (1, 1)}))


def test_who_follows_can_tell_why_nothing_new_comes() -> None:
    with dc.Subscriber(dc.Store("http://127.0.0.1:9/run7", attempts=1)) as subscriber:
        assert subscriber.failure is None
        assert not list(subscriber.follow(stop=lambda: subscriber.failure is not None, poll=0.01))
        assert "127.0.0.1:9" in str(subscriber.failure)
