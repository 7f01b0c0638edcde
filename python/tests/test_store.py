"""Stores that are opened once and passed to every function that takes a chain."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import model, write_model
from stalling_store import StallingStore

import deltachain as dc

WEIGHTS = {"w": b"abc"}


def test_one_store_serves_all(tmp_path: Path) -> None:
    with StallingStore() as server:
        store = server.chain()
        assert server.requests == []
        with (
            dc.Publisher(store) as one,
            dc.Publisher(store, once="step") as two,
            dc.Subscriber(store) as subscriber,
        ):
            assert one.publish(WEIGHTS).version == 0
            subscriber.prepare(timeout=60).apply()
            assert two.publish({"w": b"abd"}, metadata={"step": 1}).version == 1
            with dc.Subscriber(store, host_copy=tmp_path / "copy") as other:
                other.prepare(timeout=60).apply()
                assert (subscriber.version, other.version) == (0, 1)
        # The store outlives the objects that used it.
        assert [version.version for version in dc.log(store)] == [1, 0]
        assert dc.show(store).metadata == {"step": "1"}
        assert dc.compact(store, snapshot=True).routes
        assert dc.prune(store, keep_last=1).kept == (1,) and 0 in dc.undo_prune(store)
        assert dc.fsck(store).healthy and dc.doctor(store).healthy


def test_a_limit_is_for_all_that_use_a_store(tmp_path: Path) -> None:
    write_model(tmp_path / "model", model(0))
    store = dc.Store(tmp_path / "chain", max_rate=1 << 30, attempts=2, stall=5.0)
    with dc.Publisher(store, like=tmp_path / "model") as publisher:
        assert (
            publisher.publish({name: dc.Tensor(*form) for name, form in model(0).items()}).version
            == 0
        )
    with dc.Subscriber(store) as subscriber:
        assert subscriber.prepare(timeout=60).version == 0


def test_a_missing_directory_is_made_awaited_or_refused(tmp_path: Path) -> None:
    store = dc.Store(tmp_path / "not yet" / "chain")
    for call in (dc.log, dc.show, dc.fsck, dc.doctor, dc.undo_prune):
        with pytest.raises(dc.UsageError, match="no such directory") as caught:
            call(store)
        assert caught.value.file == str(tmp_path / "not yet" / "chain") and caught.value.advice
    with dc.Subscriber(store) as subscriber:
        assert subscriber.poll(timeout=60) is None
        assert not (tmp_path / "not yet").exists()
        with dc.Publisher(store) as publisher:
            publisher.publish(WEIGHTS)
        assert subscriber.prepare(timeout=60).version == 0
    assert [version.version for version in dc.log(store)] == [0]


def test_what_a_store_shows(tmp_path: Path) -> None:
    options = {"region": "x", "access_key_id": "hidden", "secret_access_key": "hidden"}
    store = dc.Store("s3://bucket/chain", storage_options=options)
    assert repr(store) == "<deltachain.Store s3://bucket/chain>" and "hidden" not in str(
        vars(store)
    )
    with pytest.raises(TypeError, match="stores cannot be pickled"):
        pickle.dumps(store)
    assert (
        repr(dc.Subscriber(dc.Store(tmp_path)))
        == f"<deltachain.Subscriber {tmp_path}, no version yet>"
    )


@pytest.mark.parametrize("kind", [dc.Publisher, dc.Subscriber])
def test_a_person_can_know_all_arguments(kind: Any) -> None:
    assert len(inspect.signature(kind).parameters) <= 16


def test_values_of_other_classes_are_refused(tmp_path: Path) -> None:
    for given in ({"routes": {"snapshot_every": 2}}, {"guard": 0.1}, {"guard": dc.RoutePlan()}):
        with pytest.raises(dc.UsageError, match=r"must be a dc\."):
            dc.Publisher(tmp_path / "chain", **given)


def publish(chain: Path, count: int) -> None:
    with dc.Publisher(chain) as publisher:
        for number in range(count):
            publisher.publish({"w": bytes([number])}, metadata={"step": number})


def test_files_come_from_a_copy_and_versions_from_the_store(tmp_path: Path) -> None:
    chain, copy = tmp_path / "chain", tmp_path / "copies" / "one"
    publish(chain, 3)
    with pytest.raises(dc.UsageError, match="parent"):
        dc.mirror(chain, copy)
    copy.parent.mkdir()
    report = dc.mirror(chain, copy)
    assert (report.version, report.documents, report.files) == (
        2,
        3,
        len(list((chain / "files").iterdir())),
    )
    assert dc.mirror(chain, dc.Store(copy)).documents == 0
    assert dc.fsck(copy).healthy
    store = dc.Store(chain, copies=[copy], attempts=1)
    # The chain loses its files.
    (chain / "files").rename(tmp_path / "files")
    with dc.Subscriber(store) as subscriber:
        subscriber.prepare(timeout=60).apply()
        assert subscriber.version == 2
    (tmp_path / "files").rename(chain / "files")
    # A copy does not replace the chain, even if it is complete.
    chain.rename(tmp_path / "lost")
    with dc.Subscriber(store) as subscriber:
        for call in (subscriber.prepare, subscriber.find, subscriber.poll):
            with pytest.raises(dc.UsageError, match="no such directory") as caught:
                call()
            assert caught.value.file == str(chain) and "timeout=" in caught.value.advice
        assert subscriber.poll(timeout=60) is None
    with pytest.raises(dc.UsageError, match="no such directory") as caught:
        dc.pull(store, tmp_path / "pulled")
    assert caught.value.file == str(chain) and "timeout" not in caught.value.advice
    assert not (tmp_path / "pulled").exists()
    with pytest.raises(dc.ChainError, match="another chain"):
        publish(tmp_path / "other", 1)
        dc.mirror(tmp_path / "other", copy)
    with pytest.raises(dc.UsageError, match="copies= must be a list"):
        dc.Store(chain, copies=str(copy))
    with pytest.raises(dc.UsageError, match="no such directory"):
        dc.mirror(tmp_path / "nothing", copy)


def test_a_mirror_names_what_it_cannot_copy_and_restores(tmp_path: Path) -> None:
    chain, copy = tmp_path / "chain", tmp_path / "copy"
    publish(chain, 2)
    files = sorted((chain / "files").iterdir())
    assert dc.mirror(chain, copy).healthy
    content = files[0].read_bytes()
    (copy / "files" / files[0].name).write_bytes(b"x" * len(content))
    assert dc.mirror(chain, copy).healthy
    assert dc.mirror(chain, copy, verify=True).files == 1
    assert (copy / "files" / files[0].name).read_bytes() == content
    publish(chain, 1)
    files[0].unlink()
    with pytest.raises(dc.ChainError, match="--restore"):
        dc.mirror(copy, chain)
    assert dc.mirror(copy, chain, restore=True).files == 1
    files[0].unlink()
    report = dc.mirror(chain, tmp_path / "new")
    assert (report.healthy, report.version) == (False, 2)
    assert [problem.rule for problem in report.problems] == ["R-CHN-09"]
    key = dc.public_key(dc.new_key("a-key"))
    with pytest.raises(dc.ChainError, match="signed"):
        dc.mirror(chain, tmp_path / "signed", trust=key)
    with pytest.raises(dc.UsageError, match="excludes"):
        dc.mirror(chain, copy, trust=key, restore=True)


def test_a_setting_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPY_SECRET", "hidden")
    monkeypatch.setenv("EMPTY_SECRET", "")
    keys = {"access_key_id": "a", "secret_access_key": "env:COPY_SECRET"}
    dc.Store("s3://bucket/chain", storage_options=keys)
    for name in ("EMPTY_SECRET", "NO_SUCH_SECRET"):
        with pytest.raises(dc.UsageError, match=name):
            dc.Store("s3://bucket/chain", storage_options={"secret_access_key": f"env:{name}"})


def test_pull_brings_a_directory_to_a_version(tmp_path: Path) -> None:
    publish(tmp_path / "chain", 3)
    current = dc.pull(tmp_path / "chain", tmp_path / "served")
    assert current == tmp_path / "served" / "current" and (current / "model.safetensors").is_file()
    assert dc.pull(tmp_path / "chain", tmp_path / "served") == current
    assert dc.status(tmp_path / "served").version == 2
    dc.pull(tmp_path / "chain", tmp_path / "served", 1)
    assert dc.status(tmp_path / "served").version == 1
    with pytest.raises(dc.ChainError, match="does not have a version 9") as raised:
        dc.pull(tmp_path / "chain", tmp_path / "served", 9)
    assert raised.value.rule == "R-CHN-03" and "log()" in raised.value.advice


def test_every_third_version(tmp_path: Path) -> None:
    publish(tmp_path / "chain", 9)
    with dc.Subscriber(tmp_path / "chain") as subscriber:
        found = next(iter(subscriber.follow(every=4, poll=0.01)))
        assert found.version == 8
        with pytest.raises(dc.UsageError, match="every="):
            next(iter(subscriber.follow(every=0)))


def test_whoever_follows_again_need_not_list_again() -> None:
    with StallingStore() as server:
        store = server.chain()
        with dc.Publisher(store) as publisher, dc.Subscriber(store) as subscriber:
            publisher.publish(WEIGHTS)
            next(iter(subscriber.follow(poll=0.01))).apply()
            before = len(server.requests)
            assert (
                next(subscriber.follow(stop=lambda: len(server.requests) > before, poll=0.01), None)
                is None
            )
            assert not [request for request in server.requests[before:] if "list-type" in request]


def test_a_timeout_says_what_was_waited_for(tmp_path: Path) -> None:
    with (
        dc.Subscriber(tmp_path / "chain") as subscriber,
        pytest.raises(dc.TimeoutError, match="R-CHN-01: there is no"),
    ):
        subscriber.prepare(timeout=0.2)
    publish(tmp_path / "chain", 1)
    with (
        dc.Subscriber(tmp_path / "chain") as subscriber,
        pytest.raises(dc.TimeoutError, match="R-CHN-03"),
    ):
        subscriber.prepare(5, timeout=0.2)


def test_settings_are_checked_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, said in [
        (
            "AWS_ENDPOINT_URL",
            "minio:9000",
            "AWS_ENDPOINT_URL is not an address: write http://minio:9000",
        ),
        ("AWS_ACCESS_KEY_ID", "key\n", "AWS_ACCESS_KEY_ID ends with a newline"),
        ("AWS_SESSION_TOKEN", "token\r\n", "AWS_SESSION_TOKEN ends with a newline"),
        ("AWS_REGION", "r\t", "AWS_REGION has the character"),
        ("AWS_CA_BUNDLE", "/nowhere", "AWS_CA_BUNDLE names a file that cannot be read"),
    ]:
        with monkeypatch.context() as here:
            here.setenv(name, value)
            with pytest.raises(dc.UsageError, match=said):
                dc.Store("s3://bucket/chain")
    with pytest.raises(dc.UsageError, match="write s3://NAME/PREFIX"):
        dc.Store("hf://buckets/org/name")


def test_a_home_directory_is_not_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with dc.Publisher("~/models") as publisher:
        publisher.publish(WEIGHTS)
    assert (tmp_path / "models" / "chain.json").is_file()


def test_what_a_file_is_is_said(tmp_path: Path) -> None:
    def archive(name: bytes) -> bytes:
        return b"PK\x03\x04" + bytes(22) + bytes([len(name), 0, 0, 0]) + name + bytes(20)

    for begin, said in [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html>", "HTML"),
        (archive(b"archive/data.pkl"), "PyTorch pickle"),
        (b"\x80\x02\x8a\x0a" + bytes(20), "PyTorch pickle"),
        (archive(b"layer.weight.npy"), "a NumPy file"),
        (b"\x93NUMPY\x01\x00" + bytes(20), "a NumPy file"),
        (archive(b"config.json"), "ZIP archive"),
        (b"PK\x03\x04" + bytes(20), "ZIP archive"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "HDF5"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
        (b"\x08\x07\x12\x07pytorch" + bytes(20), "ONNX"),
        (b"GGUF" + bytes(20), "GGUF"),
        (b'{"metadata": {}}', "JSON"),
    ]:
        (tmp_path / "model.safetensors").write_bytes(begin)
        with pytest.raises(dc.UsageError, match=said):
            dc.diff(tmp_path / "model.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(dc.UsageError, match=r"hf download Qwen/Qwen3-0\.6B"):
        dc.Publisher(tmp_path / "chain", like="Qwen/Qwen3-0.6B")


def test_numbers_of_arrays_are_numbers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="SKIPPED: numpy is not installed")
    with dc.Publisher(tmp_path / "chain", once="step") as publisher:
        published = publisher.publish(
            WEIGHTS, metadata={"step": numpy.array(5), "loss": numpy.float32(0.5)}
        )
        assert published.is_new and not publisher.publish(WEIGHTS, metadata={"step": 5}).is_new
    assert dc.show(tmp_path / "chain").metadata == {"step": "5", "loss": "0.5"}


def test_pull_of_some_tensors_with_progress_and_a_stop(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"a.w": b"a", "b.w": b"b"})
    phases: set[str] = set()
    current = dc.pull(
        tmp_path / "chain",
        tmp_path / "some",
        tensors=["a.*"],
        progress=lambda phase, *_: phases.add(phase),
    )
    assert set(dc.digest(current).tensors) == {"a.w"} and "download" in phases
    with pytest.raises(dc.CancelledError):
        dc.pull(tmp_path / "chain", tmp_path / "none", stop=lambda: True)
    assert dc.adapters.find_version(tmp_path / "none") is None


def test_a_host_copy_is_read_in_a_block(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"a": b"a", "b": b"b"})
    dc.pull(tmp_path / "chain", tmp_path / "copy")
    copy = dc.HostCopy(tmp_path / "copy")
    with pytest.raises(dc.TornError, match="before it read all"), copy.full() as patches:
        next(patches)
    with copy.full() as patches:
        assert [patch.name for patch in patches] == ["a", "b"]
    assert not copy.torn and copy.held is not None


def test_a_job_says_what_it_does(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        job = publisher.publish_async({"a": b"a"})
        assert "pending" not in repr(job)
        job.result()
        assert repr(job) == "<deltachain.PublishJob, published>"


def test_the_model_of_a_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--tiny--qwen3" / "snapshots" / "aaa"
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"norm": b"abc"})
    current = dc.pull(tmp_path / "chain", tmp_path / "copy")
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes((current / "model.safetensors").read_bytes())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert dc.adapters.misfit("tiny/qwen3", {"norm": [3]}) is None
    assert "has the shape [3]" in str(dc.adapters.misfit("tiny/qwen3", {"norm": [1]}))
    assert dc.adapters.misfit("tiny/other", {"norm": [1]}) is None
