"""Torn means torn: after each event of a random sequence, the memory of a stand-in for an engine,
the copy and the caller's own tensors are compared with the chain.

100 sequences by default; `DELTACHAIN_TORN_SEQUENCES` sets another number. The number in a test's
name is its seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import as_bytes

import deltachain as dc
from deltachain._ranks import Alone

SEQUENCES = int(os.environ.get("DELTACHAIN_TORN_SEQUENCES", "100"))
EVENTS = 14
VERSIONS = 7
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "a": ("F32", (40,)),
    "b": ("U8", (5, 7)),
    "c": ("I16", (300,)),
    "d": ("F64", ()),
    "e": ("I32", (64,)),
}
DTYPES = {"F32": "f4", "U8": "u1", "I16": "i2", "F64": "f8", "I32": "i4"}
Weights = dict[str, bytes]


def drawn_versions() -> list[Weights]:
    """Returns random versions: some lanes change, some tensors change as a whole, some not at all;
    two versions are equal."""
    draw = random.Random(31)
    state = {name: numpy.zeros(shape, DTYPES[dtype]) for name, (dtype, shape) in SHAPES.items()}
    versions: list[Weights] = []
    for number in range(VERSIONS):
        for array in state.values():
            flat = array.reshape(-1).view(numpy.uint8)
            share = (
                1.0 if number == 0 else draw.choice([0.0, 0.03, 0.03, 1.0]) if number != 4 else 0.0
            )
            for lane in range(array.size):
                if draw.random() < share:
                    flat[lane * array.itemsize] = draw.randrange(256)
        versions.append({name: array.tobytes() for name, array in state.items()})
    return versions


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Weights]]:
    url = str(tmp_path_factory.mktemp("torn") / "chain")
    versions = drawn_versions()
    with dc.Publisher(url, profile=["compact", "local"]) as publisher:
        for version in versions:
            publisher.publish(
                {name: dc.Tensor(*SHAPES[name], data) for name, data in version.items()}
            )
    return url, versions


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Restores the handler of SIGINT, which a parent process may have set to be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Stopped(Exception):
    """The exception that the stand-ins raise."""


class Engine:
    """Weights that are patched by hand. Each patch is overwritten afterwards: patches belong to the
    engine."""

    def __init__(self) -> None:
        self.weights: dict[str, bytearray] = {}

    def load(self, patch: dc.Patch) -> None:
        values = as_bytes(patch.values)
        if patch.indices is None:
            self.weights[patch.name] = bytearray(values)
        else:
            width = len(values) // len(patch.indices)
            for number, lane in enumerate(patch.indices):
                begin = int(lane) * width
                self.weights[patch.name][begin : begin + width] = values[
                    number * width : (number + 1) * width
                ]
        for shown in (patch.values, patch.indices):
            spoil(shown)

    def load_some(self, patches: Iterator[dc.Patch], count: int) -> None:
        """Loads this many patches, and no more."""
        for _, patch in zip(range(count), patches, strict=False):
            self.load(patch)

    def holds(self, version: Weights) -> bool:
        return self.weights == version


def spoil(shown: Any) -> None:
    """Overwrites an array of a patch, where Python allows it."""
    if hasattr(shown, "zero_"):
        shown.fill_(113)
        return
    with suppress(TypeError, ValueError, AttributeError):
        memoryview(shown.data if isinstance(shown, dc.Tensor) else shown)[...] = 113
    with suppress(TypeError, ValueError, AttributeError):
        shown.flags.writeable = True
    with suppress(TypeError, ValueError):
        shown[...] = 113


class Sequence:
    """A subscriber with its stand-ins, and the updates that it has prepared."""

    def __init__(self, seed: int, url: str, versions: list[Weights], folder: Path) -> None:
        self.draw = random.Random(seed)
        self.url, self.versions, self.folder = url, versions, folder
        self.place = PLACES[seed % len(PLACES)]
        # In the other places the caller's tensors are the copy.
        self.gives_patches = self.place in ("memory", "host copy")
        self.kind = self.draw.choice(KINDS)
        self.fails = False
        self.open()

    def open(self) -> None:
        self.engine = Engine()
        self.lent = {name: bytearray(len(data)) for name, data in self.versions[0].items()}
        self.lent_tensors = {
            name: dc.Tensor(*SHAPES[name], data) for name, data in self.lent.items()
        }
        places: dict[str, dict[str, Any]] = {
            "memory": {},
            "into": {"into": self.lent_tensors},
            "into, by torch": {"group": Alone()},
            "host copy": {"host_copy": self.folder / "host copy"},
        }
        if self.place == "into, by torch":
            places[self.place]["into"] = {
                name: tensor_over(name, data) for name, data in self.lent.items()
            }
        self.subscriber = dc.Subscriber(
            self.url, kind=self.kind, progress=self.progress, **places[self.place]
        )
        self.updates: list[dc.Update] = []
        # True if the engine has not read the copy since a host copy was opened, or an update was
        # applied without patches.
        self.is_behind = True
        self.check()

    def progress(self, *_: object) -> None:
        if self.fails:
            self.fails = False
            raise Stopped

    def event(self) -> Callable[[Sequence], None]:
        events = ORDINARY if self.draw.random() < 0.5 else ROUGH
        return self.draw.choice(
            [one for one in events if self.gives_patches or one in WITHOUT_PATCHES]
        )

    def read_the_copy(self) -> None:
        if self.is_behind and not self.subscriber.torn:
            self.engine.weights = {
                name: bytearray(as_bytes(tensor)) for name, tensor in self.subscriber.state()
            }
            self.is_behind = False

    def update(self) -> dc.Update:
        """Returns a prepared update, mostly the newest."""
        if not self.updates or self.draw.random() < 0.3:
            self.prepare()
        return self.updates[-1] if self.draw.random() < 0.8 else self.draw.choice(self.updates)

    # Events.

    def prepare(self) -> None:
        version = self.draw.choice([None, *range(VERSIONS)])
        if version is None and self.subscriber.version == VERSIONS - 1:
            version = 0
        self.updates.append(self.subscriber.prepare(version, timeout=60))
        # `prepare` has finished what was interrupted.
        self.read_the_copy()

    def prepare_fails(self) -> None:
        self.fails = True
        self.prepare()

    def apply(self) -> None:
        update = self.update()
        self.is_behind = True
        update.apply()

    def apply_fails(self) -> None:
        update = self.update()
        self.is_behind = self.fails = True
        update.apply()

    def apply_is_interrupted(self) -> None:
        interrupted(self.draw.random() * 0.003, self.apply)

    def take_all(self) -> None:
        with self.update().applying() as patches:
            for patch in patches:
                self.engine.load(patch)

    def take_all_interrupted(self) -> None:
        interrupted(self.draw.random() * 0.003, self.take_all)

    def take_some(self) -> None:
        with self.update().applying() as patches:
            self.engine.load_some(patches, self.draw.randrange(3))

    def block_fails(self) -> None:
        with self.update().applying() as patches:
            self.engine.load_some(patches, self.draw.randrange(3))
            raise self.draw.choice([Stopped, KeyboardInterrupt, SystemExit])

    def block_is_left(self) -> None:
        patches = self.update().applying().__enter__()
        self.engine.load_some(patches, self.draw.randrange(3))

    def another_meanwhile(self) -> None:
        update, other = self.update(), self.update()
        with update.applying() as patches:
            if self.draw.random() < 0.5:
                other.apply()
            for patch in patches:
                self.engine.load(patch)
            other.apply()

    def full(self) -> None:
        with self.update().full() as patches:
            for patch in patches:
                assert patch.indices is None
                self.engine.load(patch)

    def full_is_interrupted(self) -> None:
        interrupted(self.draw.random() * 0.003, self.full)

    def full_fails(self) -> None:
        with self.update().full() as patches:
            self.engine.load_some(patches, self.draw.randrange(5))
            raise Stopped

    def full_ends_early(self) -> None:
        with self.update().full() as patches:
            self.engine.load_some(patches, self.draw.randrange(5))

    def close(self) -> None:
        self.subscriber.close()
        with pytest.raises(dc.UsageError, match="closed"):
            self.subscriber.poll()
        for update in self.updates[-1:]:
            with pytest.raises(dc.UsageError, match="closed"):
                update.apply()
            for use in (update.applying, update.full):
                with pytest.raises(dc.UsageError, match="closed"), use():
                    pytest.fail("a closed subscriber gives patches")
        self.open()

    # Invariants after each event.

    def check(self) -> None:
        subscriber = self.subscriber
        held = subscriber.version
        expected = {} if held is None else self.versions[held]
        assert {name: as_bytes(tensor) for name, tensor in subscriber.state()} == expected, (
            "the copy"
        )
        if not self.gives_patches:
            assert held is None or self.lent == expected, "the caller's tensors"
            assert (held is None) == (subscriber.proof is None)
            return
        self.read_the_copy()
        if not subscriber.torn:
            assert self.engine.holds(expected), "the engine"
            return
        for update in self.updates[-1:]:
            # The error is UsageError if another update was applied since this one was prepared.
            with pytest.raises((dc.TornError, dc.UsageError)), update.applying():
                pytest.fail("a torn subscriber gives patches")

    def repair(self) -> None:
        update = self.subscriber.prepare(self.draw.randrange(VERSIONS), timeout=60)
        if self.gives_patches:
            with update.full() as patches:
                for patch in patches:
                    self.engine.load(patch)
        else:
            update.apply()
        assert not self.subscriber.torn and self.subscriber.version == update.version
        self.is_behind = False
        self.check()


def interrupted(delay: float, work: Callable[[], None]) -> None:
    """Runs `work` and sends SIGINT after a delay."""
    main = threading.main_thread().ident
    assert main is not None

    def fire() -> None:
        time.sleep(delay)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        work()
    finally:
        # The signal arrives here at the latest.
        with suppress(KeyboardInterrupt):
            thread.join()
            time.sleep(0)


ORDINARY = [Sequence.prepare, Sequence.apply, Sequence.take_all, Sequence.take_all, Sequence.full]
ROUGH = [
    Sequence.prepare_fails,
    Sequence.apply_fails,
    Sequence.apply_is_interrupted,
    Sequence.take_all_interrupted,
    Sequence.take_some,
    Sequence.block_fails,
    Sequence.block_is_left,
    Sequence.another_meanwhile,
    Sequence.full_is_interrupted,
    Sequence.full_fails,
    Sequence.full_ends_early,
    Sequence.close,
]
WITHOUT_PATCHES = [
    Sequence.prepare,
    Sequence.apply,
    Sequence.prepare_fails,
    Sequence.apply_fails,
    Sequence.apply_is_interrupted,
    Sequence.close,
]
KINDS = ["numpy", "deltachain"]
PLACES = ["memory", "into", "host copy"]
try:
    import torch

    KINDS.append("torch")
    PLACES.append("into, by torch")
except ImportError:
    pass


def tensor_over(name: str, data: bytearray) -> Any:
    dtype, shape = SHAPES[name]
    kinds = {
        "F32": torch.float32,
        "U8": torch.uint8,
        "I16": torch.int16,
        "F64": torch.float64,
        "I32": torch.int32,
    }
    return torch.frombuffer(data, dtype=kinds[dtype]).view(shape)


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_what_is_not_torn_is_the_version_that_it_says(
    seed: int, chain: tuple[str, list[Weights]], tmp_path: Path
) -> None:
    sequence = Sequence(seed, *chain, tmp_path)
    print(f"seed {seed}: {sequence.place}, {sequence.kind}")
    for _ in range(EVENTS):
        event = sequence.event()
        try:
            event(sequence)
            said = "done"
        except (dc.TornError, dc.UsageError, Stopped, KeyboardInterrupt, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"
        sequence.fails = False
        print(
            f"{event.__name__}: {said}; version {sequence.subscriber.version}, torn "
            f"{sequence.subscriber.torn}"
        )
        sequence.check()
        if sequence.subscriber.torn and sequence.draw.random() < 0.5:
            print("repair")
            sequence.repair()
    sequence.repair()
    sequence.subscriber.close()


class Reader:
    """A process that reads the files of another one's host copy."""

    def __init__(self, seed: int, url: str, versions: list[Weights], folder: Path) -> None:
        self.draw = random.Random(seed)
        self.versions = versions
        self.owner = dc.Subscriber(url, host_copy=folder)
        self.another_version()
        self.copy = dc.HostCopy(folder, kind=self.draw.choice(KINDS))
        self.engine = Engine()

    def another_version(self) -> None:
        self.owner.prepare(self.draw.randrange(VERSIONS), timeout=60).apply()

    def some(self, patches: Iterator[dc.Patch], most: int) -> None:
        for _, patch in zip(range(self.draw.randrange(most)), patches, strict=False):
            self.engine.load(patch)

    def take_all(self) -> None:
        with self.copy.applying() as patches:
            for patch in patches:
                self.engine.load(patch)

    def take_all_interrupted(self) -> None:
        interrupted(self.draw.random() * 0.003, self.take_all)

    def take_some(self) -> None:
        with self.copy.applying() as patches:
            self.some(patches, 3)

    def block_fails(self) -> None:
        with self.copy.applying() as patches:
            self.some(patches, 3)
            raise self.draw.choice([Stopped, KeyboardInterrupt])

    def full(self) -> None:
        for patch in self.copy.full():
            self.engine.load(patch)

    def full_ends_early(self) -> None:
        self.some(self.copy.full(), 5)

    def check(self) -> None:
        if self.copy.torn:
            with pytest.raises(dc.TornError), self.copy.applying():
                pytest.fail("a torn copy gives patches")
        elif self.copy.held is not None:
            # The directory itself may have been deleted.
            held = int(Path(self.copy.held).parent.name.partition("-")[0])
            assert self.engine.holds(self.versions[held])


@pytest.mark.parametrize("seed", range(SEQUENCES // 4))
def test_the_same_for_processes_that_read_a_host_copy(
    seed: int, chain: tuple[str, list[Weights]], tmp_path: Path
) -> None:
    reader = Reader(seed, *chain, tmp_path / "host copy")
    reader.full()
    events = [
        *[Reader.another_version] * 3,
        *[Reader.take_all] * 2,
        *[Reader.full] * 2,
        Reader.take_all_interrupted,
        Reader.take_some,
        Reader.block_fails,
        Reader.full_ends_early,
    ]
    for _ in range(EVENTS):
        event = reader.draw.choice(events)
        print(f"{event.__name__}, torn {reader.copy.torn}, held {reader.copy.held}")
        with suppress(dc.TornError, dc.UsageError, Stopped, KeyboardInterrupt):
            event(reader)
        reader.check()
    reader.full()
    assert not reader.copy.torn
    reader.check()
