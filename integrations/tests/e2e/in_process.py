"""An engine of vLLM in this process: its answers after a fresh start, after updates, and after
updates that fail.

`run.py` starts this, once for each engine. The result is a file of JSON."""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltachain as dc
import served
from deltachain import _device_memory, _native, _tensor_follower
from deltachain_integrations import _vllm_api
from models import tensors_of

BACKEND = {"backend": "deltachain"}


class Updated:
    """An engine that started with a model that is not the chain's, and is updated to versions of
    the chain.

    Args:
        folder: the folder that `models.py` has made.
        plain: as for `served.engine`.
        settings: more for vLLM.
    """

    def __init__(self, folder: Path, *, plain: int, **settings: Any) -> None:
        self.folder = folder
        self.rows = json.loads((folder / "versions.json").read_text())
        self.llm = served.engine(
            folder / "other", plain=plain, weight_transfer_config=BACKEND, **settings
        )

    def begin(self, mode: str, chain: str = "chain") -> None:
        """Configures the backend as if the engine had started with this configuration."""
        configured = {"chain": str(self.folder / chain), "mode": mode, "timeout": 30.0}
        self.llm.collective_rpc(
            lambda worker: setattr(worker.weight_transfer_engine, "_configured", configured)
        )
        self.llm.init_weight_transfer_engine({"init_info": {}})

    def update(
        self, number: int, digest: str | None = None, named: str | None = None
    ) -> dict[str, float]:
        """Makes the calls of a driver, and returns the seconds of the phases."""
        begin = time.monotonic()
        self.llm.start_weight_update()
        digest = digest or self.rows[number]["digest"]
        self.llm.update_weights({"update_info": {"version": number, "digest": digest}})
        self.llm.finish_weight_update(named or str(number))
        self.llm.reset_prefix_cache()
        whole = time.monotonic() - begin
        times, *_ = self.llm.collective_rpc(
            lambda worker: dict(worker.weight_transfer_engine.times)
        )
        return {**times, "pause": whole}

    def shows(self) -> list[Any]:
        """Everything that can differ between two models."""
        return [served.answers(self.llm), served.checksums(self.llm)]

    def states(self) -> list[Any]:
        """The state that each worker reports."""
        found = self.llm.collective_rpc("deltachain_state", kwargs={"follower": "", "lease": "0"})
        assert isinstance(found, list)
        return found

    def engine(self, change: Callable[[Any], Any]) -> Any:
        """Applies a function to the backend."""
        (found,) = self.llm.collective_rpc(lambda worker: change(worker.weight_transfer_engine))
        return found


def fresh(folder: Path, number: int, plain: bool) -> list[Any]:
    """The answers and checksums of an engine that starts with the version that the trainer
    saved."""
    llm = served.engine(folder / f"saved-{number}", plain=plain)
    return [served.answers(llm), served.checksums(llm)]


def updates(folder: Path, mode: str, numbers: list[int]) -> list[Any]:
    """Updates to versions one after the other, and returns what the engine shows after each."""
    engine = Updated(folder, plain=mode == "sparse")
    engine.begin(mode)
    found = []
    for at, number in enumerate(numbers):
        times = engine.update(number)
        assert engine.llm.get_weight_version() == str(number)
        if mode == "sparse":
            # The first update makes the map, and there are no links back to older versions.
            expected = "in place" if at and number > numbers[at - 1] else "all tensors"
            assert engine.engine(lambda backend: backend.how) == expected
        found.append([number, [*engine.shows(), times]])
    return found


def failures(folder: Path) -> list[list[Any]]:
    """Updates that must be refused, with the errors. Returns rows of a name, whether the check
    passed, and a text."""
    engine = Updated(folder, plain=True)
    rows: list[list[Any]] = []

    def refused(
        name: str, kind: type[Exception], act: Callable[[], object], expected: list[Any]
    ) -> None:
        """Asserts that the act raises, and that the model then has the expected answers."""
        try:
            act()
        except kind as error:
            rows.append([name, engine.shows() == expected, f"{type(error).__name__}: {error}"])
        except Exception as error:
            rows.append([name, False, f"{type(error).__name__}: {error}"])
        else:
            rows.append([name, False, "it was not refused"])

    start = engine.shows()
    refused("update without a chain", dc.UsageError, lambda: engine.update(0), start)
    for name, info in (
        ("a chain in a request", {"chain": str(folder / "chain")}),
        ("an address in a request", {"chain": "http://127.0.0.1:9/x"}),
        ("a directory in a request that is not managed", {"host_copy": str(folder)}),
        ("neither in a request", {"mode": "reload"}),
    ):
        told = {"init_info": info}
        refused(
            name,
            dc.UsageError,
            lambda told=told: engine.llm.init_weight_transfer_engine(told),
            start,
        )
    refused(
        "chain that is not there",
        dc.Error,
        lambda: (engine.begin("auto", "missing"), engine.update(0)),
        start,
    )

    engine.begin("sparse")
    engine.update(0)
    first = engine.shows()
    rows.append(["first version", first != start, "another model than the server started with"])
    refused("wrong digest", dc.WrongBaseError, lambda: engine.update(1, digest="0" * 64), first)
    refused(
        "version that is not there",
        dc.ChainError,
        lambda: engine.update(99, digest="0" * 64),
        first,
    )

    def named_without() -> None:
        engine.llm.start_weight_update()
        engine.llm.finish_weight_update("1")

    refused("a version named, and none received", dc.UsageError, named_without, first)
    assert engine.llm.get_weight_version() == "0"
    # The update is still open.
    engine.llm.update_weights({"update_info": {"version": 1, "digest": engine.rows[1]["digest"]}})
    engine.llm.finish_weight_update("1")

    # A chain with one damaged link.
    damaged = folder / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(folder / "chain", damaged)
    with dc.Subscriber(str(damaged)) as subscriber:
        subscriber.prepare(2, timeout=60).apply()
        update = subscriber.prepare(3, timeout=60)
        update.apply()
    assert update.routes == [(2, 3)]
    link = damaged / "files" / link_of(damaged, 3)
    good = link.read_bytes()
    link.write_bytes(
        good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :]
    )
    engine.begin("sparse", "damaged")
    engine.update(2)
    second = engine.shows()
    refused("damaged link", dc.Error, lambda: engine.update(3), second)
    link.write_bytes(good)
    engine.update(3)
    rows.append(
        ["the link is good again", engine.shows() == fresh_of(folder, 3), "as a fresh start"]
    )

    # An update that fails half way restores the lanes that it has written.
    engine.begin("sparse")
    engine.update(2)
    engine.engine(by_torch)
    engine.update(3)
    with breaking_writes(5):
        refused(
            "a write in place that breaks",
            RuntimeError,
            lambda: engine.update(4),
            fresh_of(folder, 3),
        )
    states = [state["version"] for state in engine.states()]
    rows.append(
        ["what is held then", states == [3] and engine.llm.get_weight_version() == "3", f"{states}"]
    )
    engine.update(4)
    good = (
        engine.shows() == fresh_of(folder, 4)
        and engine.engine(lambda backend: backend.how) == "in place"
    )
    rows.append(["update after a write that broke", good, "in place, as a fresh start"])

    # A load that fails half way: no version may be named until all tensors are loaded.
    def break_loader(backend: Any) -> None:
        whole = backend.model.load_weights

        def half(weights: Any) -> None:
            backend.model.load_weights = whole
            found = list(weights)
            whole(found[: len(found) // 2])
            raise RuntimeError("the device is gone")

        backend.model.load_weights = half

    for name, mode in (("first load", "sparse"), ("whole load", "reload")):
        engine.begin(mode)
        engine.update(3)
        if mode == "sparse":
            # As if the server held a version of another chain.
            engine.engine(lambda backend: backend._forget())
        engine.engine(break_loader)
        try:
            engine.update(4)
            rows.append([f"{name} that breaks", False, "it was not refused"])
        except dc.TornError as error:
            rows.append(
                [
                    f"{name} that breaks",
                    engine.llm.get_weight_version() == "3",
                    f"TornError: {error}",
                ]
            )
        try:
            engine.llm.finish_weight_update("4")
            rows.append([f"finish after a {name} that broke", False, "it was not refused"])
        except Exception as error:
            rows.append(
                [f"finish after a {name} that broke", True, f"{type(error).__name__}: {error}"]
            )
        engine.update(4)
        rows.append(
            [
                f"update after a {name} that broke",
                engine.shows() == fresh_of(folder, 4),
                "as a fresh start",
            ]
        )

    # Weights that other code changes behind the backend.
    def by_path(worker: Any) -> None:
        worker.reload_weights(weights_path=str(folder / "other"))

    for name, change in (("a reload", by_path), ("a reset", lambda worker: worker.reset_weights())):
        for mode, number in (("sparse", 3), ("sparse", 4), ("reload", 4)):
            engine.begin(mode)
            engine.update(4)
            engine.llm.collective_rpc(change)
            # The worker reports the change when asked, or the update notices it.
            states = [state["state"] for state in engine.states()] if number == 4 else ["other"]
            engine.update(number)
            good = states == ["other"] and engine.shows() == fresh_of(folder, number)
            rows.append(
                [f"{name} behind the backend, {mode} to {number}", good, "then as a fresh start"]
            )

    rows += automatic(engine)
    rows += kept_elsewhere(engine)

    # An update that another client has left open.
    engine.begin("sparse")
    engine.llm.start_weight_update()
    engine.llm.collective_rpc("deltachain_end_update")
    engine.update(4)
    rows.append(
        [
            "an update left open",
            engine.shows() == fresh_of(folder, 4),
            "ended, and then as a fresh start",
        ]
    )
    refused(
        "an update of a draft model",
        RuntimeError,
        lambda: engine.llm.start_draft_weight_update(),
        fresh_of(folder, 4),
    )
    last = fresh_of(folder, 4)
    for name, act in unsupported().items():
        refused(name, dc.UnsupportedError, lambda act=act: engine.engine(act), last)
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    return rows


def automatic(engine: Updated) -> list[list[Any]]:
    """The choice of mode `auto`. Same rows as `failures`."""
    folder = engine.folder

    def told() -> tuple[str, str]:
        found = engine.engine(
            lambda backend: (backend.how, "sparse" if backend._preparer.is_collective else "reload")
        )
        assert isinstance(found, tuple)
        return found

    engine.begin("auto")
    engine.update(2)
    engine.update(3)
    good = told() == ("in place", "sparse") and engine.shows() == fresh_of(folder, 3)
    rows = [["auto writes in place", good, ", ".join(told())]]
    # Links without sums.
    shutil.rmtree(folder / "compact", ignore_errors=True)
    with dc.Publisher(folder / "compact", like=folder / "base") as publisher:
        published = [
            publisher.publish(tensors_of(folder / f"saved-{number}")) for number in (2, 3, 4)
        ]
    engine.begin("auto", "compact")
    found = []
    for number in (0, 1, 2):
        engine.update(number, digest=published[number].digest)
        found.append(told())
        if number:
            found.append(engine.shows() == fresh_of(folder, number + 2))
    expected = [
        ("all tensors", "sparse"),
        ("in place", "sparse"),
        True,
        ("in place", "sparse"),
        True,
    ]
    return [
        *rows,
        ["auto takes a chain without local links by digests", found == expected, f"{found}"],
    ]


def kept_elsewhere(engine: Updated) -> list[list[Any]]:
    """A copy that another process manages, named by a request. Same rows as `failures`."""
    copied = engine.folder / "kept"
    shutil.rmtree(copied, ignore_errors=True)
    with dc.Subscriber(engine.folder / "chain", host_copy=copied) as subscriber:
        subscriber.prepare(3, timeout=60).apply()
        engine.llm.collective_rpc(
            lambda worker: setattr(worker.weight_transfer_engine, "_configured", {})
        )
        engine.llm.init_weight_transfer_engine({"init_info": {"host_copy": str(copied)}})
        engine.llm.start_weight_update()
        said = ""
        try:
            engine.llm.update_weights({"update_info": {"version": 3}})
        except dc.UsageError as error:
            said = str(error)
        rows = [
            [
                "a copy of another process, without a digest",
                "give the version's digest" in said,
                said,
            ]
        ]
        engine.update(3)
        good = engine.shows()[0] == fresh_of(engine.folder, 3)[0]
        return [*rows, ["a copy of another process", good, "as a fresh start"]]


def workers(folder: Path) -> list[list[Any]]:
    """Two workers, one of which fails. Same rows as `failures`."""
    # Otherwise each worker binds processors of its own. Functions are sent to workers as pickles.
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    engine = Updated(folder, plain=True, tensor_parallel_size=2)
    engine.begin("sparse")
    engine.update(3)
    third = engine.shows()
    engine.update(1)
    first = engine.shows()
    rows: list[list[Any]] = [["two workers take versions", first != third, "two models"]]

    def at_worker_1(act: Callable[[Any], Any]) -> None:
        def there(worker: Any) -> None:
            if worker.rank == 1:
                act(worker.weight_transfer_engine)

        engine.llm.collective_rpc(there)

    def late(_: object) -> None:
        follower = _native.Follower

        class Late(follower):
            """A follower whose first download fails."""

            def poll(self, *_: object) -> Any:
                _native.Follower = follower
                raise TimeoutError("it is not here")

        _native.Follower = Late

    def broken(backend: Any) -> None:
        writing = breaking_writes(5)
        writing.__enter__()
        backend._ends = writing

    def whole_again(backend: Any) -> None:
        backend._ends.__exit__(None, None, None)

    def torn(backend: Any) -> None:
        def load_all(_: object) -> None:
            del backend._load_all
            raise RuntimeError("the device is gone")

        backend._load_all = load_all
        backend._forget()

    for name, number, digest, expected in (
        ("version that is not there", 99, "0" * 64, "there is no version 99"),
        ("wrong digest", 3, "0" * 64, "was expected"),
    ):
        try:
            engine.update(number, digest=digest)
            rows.append([name, False, "it was not refused"])
        except Exception as error:
            # The worker that manages the copy fails at once. The other worker alone would fail only
            # after a timeout.
            good = engine.shows() == first and expected in str(error)
            rows.append([name, good, str(error)])
    at_worker_1(late)
    try:
        engine.update(3)
        rows.append(["one of two workers is late", False, "it was not refused"])
    except Exception as error:
        good = (
            engine.shows() == first
            and engine.llm.get_weight_version() == "1"
            and "it is not here" in str(error)
        )
        rows.append(["one of two workers is late", good, str(error)])
    at_worker_1(by_torch)
    engine.update(3)
    rows.append(["update after that", engine.shows() == third, "as before"])
    at_worker_1(broken)
    try:
        engine.update(4)
        rows.append(["one of two workers breaks", False, "it was not refused"])
    except Exception as error:
        good = (
            engine.shows() == third
            and engine.llm.get_weight_version() == "3"
            and "device is gone" in str(error)
        )
        rows.append(["one of two workers breaks", good, str(error)])
    at_worker_1(whole_again)
    states = [state["version"] for state in engine.states()]
    rows.append(["both have gone back", states == [3, 3], f"{states}"])
    at_worker_1(torn)
    try:
        engine.update(1)
        rows.append(["a whole load of one of two workers breaks", False, "it was not refused"])
    except Exception as error:
        good = engine.llm.get_weight_version() == "3" and "may hold parts of two versions" in str(
            error
        )
        rows.append(["a whole load of one of two workers breaks", good, str(error)])
    states = [state["state"] for state in engine.states()]
    rows.append(["what the workers say then", states == ["torn", "torn"], ", ".join(states)])
    engine.update(1)
    rows.append(["update after it broke", engine.shows() == first, "as before"])
    at_worker_1(
        lambda backend: [parameter.data.zero_() for parameter in backend.model.parameters()]
    )
    states = [state["state"] for state in engine.states()]
    engine.update(3)
    good = states == ["held", "other"] and engine.shows() == third
    rows.append(
        ["weights of one of two workers are changed", good, f"{', '.join(states)}; then as before"]
    )
    at_worker_1(
        lambda backend: [parameter.data.zero_() for parameter in backend.model.parameters()]
    )
    engine.update(3)
    rows.append(["and the same version is asked for", engine.shows() == third, "as before"])
    engine.llm.collective_rpc("shutdown_weight_transfer_engine")
    return rows


def by_torch(backend: Any) -> None:
    """Makes torch write the tensors from the next version on, as on a device."""
    _tensor_follower._torch_for = lambda _: _device_memory.DeviceMemory()
    # Makes the follower bind the tensors again.
    backend._preparer._subscriber._native._bound = None


@contextmanager
def breaking_writes(good: int) -> Iterator[None]:
    """Makes one write in place fail, after this many."""
    whole, left = _device_memory.Lanes.put, [good]

    def put(lanes: Any, values: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the device is gone")
        whole(lanes, values)

    _device_memory.Lanes.put = put
    try:
        yield
    finally:
        _device_memory.Lanes.put = whole


def unsupported() -> dict[str, Callable[[Any], object]]:
    """Configurations that a server must refuse at its start or in a request. Each function gets the
    backend of a good server."""

    def again(backend: Any, **changes: Any) -> object:
        config = copy.copy(backend.vllm_config)
        for name, value in changes.items():
            object.__setattr__(config, name, value)
        return type(backend)(backend.config, config, backend.device, backend.model)

    def without(backend: Any) -> object:
        from vllm.model_executor.model_loader import reload

        good = reload.finalize_layerwise_reload
        del reload.finalize_layerwise_reload
        try:
            return _vllm_api.check()
        finally:
            reload.finalize_layerwise_reload = good

    def connector(backend: Any) -> object:
        other = again(backend, kv_transfer_config=SimpleNamespace())
        other._configured = backend._configured
        return other.init_transfer_engine(type(backend).init_info_cls())

    def sleeping(backend: Any) -> object:
        config = copy.copy(backend.model_config)
        config.enable_sleep_mode = True
        return again(backend, model_config=config)

    return {
        "sleep mode": sleeping,
        "a draft model beside it": lambda backend: again(
            backend, speculative_config=SimpleNamespace(method="eagle")
        ),
        "a KV connector": connector,
        "vLLM without a function that is used": without,
    }


def fresh_of(folder: Path, number: int) -> list[Any]:
    """The answers and checksums of a fresh start, as `run.py` has recorded before."""
    return json.loads((folder / f"fresh-{number}-plain.json").read_text())


def link_of(chain: Path, number: int) -> str:
    """The name of the file with the link to a version, from its commit."""
    commit = json.loads((chain / "commits" / f"{number:020d}.json").read_text())
    names = [path.name for path in (chain / "files").iterdir()]
    (found,) = [name for name in names if name.removesuffix(".dcf") in json.dumps(commit)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["fresh", "updates", "failures", "workers"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--mode")
    parser.add_argument("--versions")
    given = parser.parse_args()
    if given.what == "fresh":
        found: Any = fresh(given.folder, given.version, given.plain)
    elif given.what == "updates":
        found = updates(
            given.folder, given.mode, [int(number) for number in given.versions.split(",")]
        )
    elif given.what == "failures":
        found = failures(given.folder)
    else:
        found = workers(given.folder)
    given.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
