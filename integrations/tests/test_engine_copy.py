"""The copy that the workers of engines on one machine share: which process manages it, the versions
that it prepares ahead, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")

from ahead import LONG, published, tells_why, until  # noqa: E402
from deltachain_integrations import _engine_copy  # noqa: E402
from deltachain_integrations._engine_copy import EngineCopy, shared_memory_directory  # noqa: E402


def test_goes_ahead(tmp_path: Path) -> None:
    digests = published(tmp_path, 3)
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        until(lambda: copy.ready == 2)
        # A version older than the newest.
        first = copy.take(0, digests[0], LONG)
        assert (first.number, first.digest) == (0, digests[0])
        copy.taken(first)
        copy.go_on()
        until(lambda: copy.ready == 2)
        copy.taken(copy.take(2, digests[2], LONG))
        assert copy.is_ready(2) and copy.is_ready(0)
        copy.lost()
        # Other code has changed the engine, but not the files.
        assert copy.is_ready(2) and not copy.is_ready(3)
        again = copy.take(2, digests[2], LONG)
        assert torch.equal(again.tensors["weight"][:4].float(), torch.tensor([1.0, 1, 1, 0]))
    finally:
        copy.close()


def test_tells_why_it_finds_no_newer_version(tmp_path: Path) -> None:
    published(tmp_path, 2)
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        until(lambda: copy.ready == 1)
        assert copy.shapes == {"weight": [1000], "bias": [8]}
        tells_why(tmp_path, copy)
    finally:
        copy.close()


def test_what_is_refused_leaves_what_is_held(tmp_path: Path) -> None:
    digests = published(tmp_path, 2)
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        copy.taken(copy.take(0, digests[0], LONG))
        with pytest.raises(dc.WrongBaseError, match=digests[1]):
            copy.take(1, digests[0], LONG)
        with pytest.raises(dc.ChainError, match="no version 7"):
            copy.take(7, None, LONG)
        assert copy._held is not None and copy._held.number == 0
        assert copy.take(1, digests[1], LONG).number == 1
    finally:
        copy.close()


def test_one_process_keeps_it_and_others_read(tmp_path: Path) -> None:
    digests = published(tmp_path, 2)
    program = (
        "import sys, deltachain as dc\n"
        "with dc.Subscriber(sys.argv[1], host_copy=sys.argv[2]) as s:\n"
        "    s.prepare(0, timeout=60).apply(); print('there', flush=True); sys.stdin.readline()\n"
        "    s.prepare(1, timeout=60).apply(); print('there', flush=True); sys.stdin.readline()\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "chain"), str(tmp_path / "copy")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        assert keeper.stdout.readline() == "there\n"
        # Another process manages the directory: without a chain, and with a chain that must not be
        # opened.
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(_engine_copy, "Subscriber", None)
            copy = EngineCopy(None, str(tmp_path / "copy"))
        try:
            assert not copy.keeps
            assert copy.take(None, None, LONG).number == 0
            copy.go_on()
            copy.taken(copy.take(0, digests[0], LONG))
            with pytest.raises(dc.TimeoutError, match="managed by another process"):
                copy.take(1, digests[1], 0.3)
            keeper.stdin.write("\n")
            keeper.stdin.flush()
            taken = copy.take(1, digests[1], LONG)
            assert torch.equal(taken.tensors["weight"][:3].float(), torch.tensor([1.0, 1, 0]))
        finally:
            copy.close()
            keeper.stdin.write("\n")
            keeper.stdin.flush()
    assert (tmp_path / "copy").is_dir()


def test_a_stranger_is_not_downloaded(tmp_path: Path) -> None:
    key = dc.new_key("trainer")
    for step, own in ((0, [key]), (1, [])):
        with dc.Publisher(tmp_path / "chain", sign_key=own, unsigned=not own) as pub:
            pub.publish({"weight": torch.full((8,), float(step))})
    trust = [dc.public_key(key)]
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"), trust=trust)
    try:
        # The newest version would be 1.
        until(lambda: copy.ready == 0)
    finally:
        copy.close()


def test_views_outlive_files_and_the_directory_is_removed(tmp_path: Path) -> None:
    digests = published(tmp_path, 1)
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"), remove=True)
    taken = copy.take(0, digests[0], LONG)
    copy.close()
    assert not (tmp_path / "copy").exists() and list(tmp_path.iterdir()) == [tmp_path / "chain"]
    assert float(taken.tensors["weight"][0]) == 1.0


def test_a_directory_without_a_chain_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(dc.Error):
        EngineCopy(str(tmp_path / "missing"), str(tmp_path / "copy"), remove=True)
    assert not (tmp_path / "copy").exists()


def test_two_who_have_the_chain_share_a_copy(tmp_path: Path) -> None:
    digests = published(tmp_path, 1)
    first = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    second = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        assert (first.keeps, second.keeps) == (True, False)
        assert first.take(0, digests[0], LONG).path == second.take(0, digests[0], LONG).path
    finally:
        second.close()
        first.close()


def test_the_newest_version_is_waited_for(tmp_path: Path) -> None:
    # A chain without versions.
    with dc.Publisher(tmp_path / "chain"):
        copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        with pytest.raises(dc.TimeoutError, match=r"a version was not ready after 0 s"):
            copy.take(None, None, 0.3)
        head = published(tmp_path, 2)
        taken = copy.take(None, None, LONG)
        assert (taken.number, taken.digest) == (1, head[1])
    finally:
        copy.close()


def test_the_newest_version_is_that_of_the_chain_and_not_of_an_old_copy(tmp_path: Path) -> None:
    published(tmp_path, 1)
    with dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy") as subscriber:
        subscriber.prepare().apply()
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish_async(
            {"weight": torch.ones(1000, dtype=torch.bfloat16), "bias": torch.ones(8)}
        ).result()
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        assert copy.take(None, None, LONG).number == 1
    finally:
        copy.close()


def test_a_chain_that_fails_is_why_no_version_came(tmp_path: Path) -> None:
    published(tmp_path, 1)
    for path in (tmp_path / "chain" / "files").iterdir():
        path.write_bytes(b"damaged")
    copy = EngineCopy(str(tmp_path / "chain"), str(tmp_path / "copy"))
    try:
        with pytest.raises(dc.TimeoutError, match=r"a version was not ready.*R-"):
            copy.take(None, None, 3.0)
    finally:
        copy.close()


def test_a_copy_that_nobody_manages_is_named(tmp_path: Path) -> None:
    copy = EngineCopy(None, str(tmp_path / "copy"))
    try:
        with pytest.raises(
            dc.TimeoutError, match="was not at a version after 0 s: check that process"
        ):
            copy.take(None, None, 0.1)
    finally:
        copy.close()
    assert not (tmp_path / "copy").exists()


def test_memory_that_cannot_hold_two_versions_is_refused(tmp_path: Path) -> None:
    place = Path(shared_memory_directory("a chain", 1 << 20))
    try:
        assert place.is_relative_to("/dev/shm") and place.stat().st_mode & 0o777 == 0o700
        assert shared_memory_directory("a chain", 1 << 20) == str(place)
    finally:
        place.rmdir()
    with pytest.raises(
        dc.UsageError, match=r"room for two versions.*--shm-size.*host_copy"
    ) as raised:
        shared_memory_directory("a chain", 1 << 50)
    assert raised.value.file == "/dev/shm"


def test_what_a_killed_process_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    for name in ("chain", "other"):
        (tmp_path / name).mkdir()
        published(tmp_path / name, 1)
    with dc.Subscriber(tmp_path / "chain" / "chain", host_copy=tmp_path / "copy") as subscriber:
        subscriber.prepare().apply()
    # A directory that stays belongs to one chain.
    for remove in (False, True):
        copy = EngineCopy(str(tmp_path / "other" / "chain"), str(tmp_path / "copy"), remove=remove)
        try:
            if remove:
                assert copy.take(None, None, LONG).number == 0
            else:
                with pytest.raises(dc.TimeoutError, match="R-CHN-13"):
                    copy.take(None, None, 2.0)
        finally:
            copy.close()
    assert not (tmp_path / "copy").exists()
