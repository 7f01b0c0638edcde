"""Publishing from a program: the tensors are read back bit for bit; failures are reported and
change nothing."""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import model, tool, write_model
from stalling_store import StallingStore

import deltachain as dc


def tensors(step: int, lanes: int = 3000) -> dict[str, dc.Tensor]:
    return {
        name: dc.Tensor(dtype, shape, bytearray(data))
        for name, (dtype, shape, data) in model(step, lanes).items()
    }


def followed(url: Path | str, version: int | None = None) -> dict[str, bytes]:
    """Returns the bytes of a version, as a follower on this machine gets them."""
    base = Path(url).parent / f"followed {version} {os.urandom(4).hex()}"
    with dc.Subscriber(url, host_copy=base) as sub:
        update = sub.prepare(version, timeout=60)
        with update.applying() as patches:
            list(patches)
        found = {}
        for file in sorted((base / "current").glob("*.safetensors")):
            data = file.read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            for name, row in json.loads(data[8 : 8 + length]).items():
                if name != "__metadata__":
                    begin, end = row["data_offsets"]
                    found[name] = data[8 + length + begin : 8 + length + end]
        found["files"] = ",".join(
            sorted(path.name for path in (base / "current").iterdir())
        ).encode()
        return found


def assert_version(url: Path | str, version: int | None, step: int) -> None:
    found = followed(url, version)
    for name, (_, _, data) in model(step).items():
        assert found[name] == data, name


def versions(url: Path | str) -> list[dict[str, Any]]:
    """Returns all versions, oldest first."""
    return list(reversed(json.loads(tool("--json", "log", url))["versions"]))


def test_versions_are_what_was_given(tmp_path: Path) -> None:
    url = tmp_path / "a chain"
    with dc.Publisher(url) as pub:
        first = pub.publish(tensors(0), metadata={"step": 0})
        second = pub.publish(tensors(1).items(), metadata={"step": 1})
        assert pub.last == second
    assert (first.version, second.version) == (0, 1)
    assert first.snapshot and not second.snapshot
    assert 0 < second.changed < 20 < second.elements == first.changed
    assert second.bytes < first.bytes
    assert second.digest == dc.digest(tensors(1)).digest
    assert_version(url, 0, 0)
    assert_version(url, 1, 1)


def test_a_restart_goes_on_with_links(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    for step in range(3):
        with dc.Publisher(url) as pub:
            made = pub.publish(tensors(step))
            assert (made.version, made.snapshot) == (step, step == 0)
            assert made.digest == dc.digest(tensors(step)).digest
    assert_version(url, None, 2)


def test_another_writer_is_no_obstacle(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url) as one, dc.Publisher(url) as other:
        one.publish(tensors(0))
        other.publish(tensors(1))
        made = one.publish(tensors(2))
        assert (made.version, made.snapshot) == (2, False)
    assert_version(url, 2, 2)


def test_a_stream_may_use_one_buffer(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    buffer = bytearray(4)

    def stream() -> Iterator[tuple[str, Any]]:
        for number in range(5):
            buffer[:] = struct.pack("<I", number)
            yield f"t{number}", dc.Tensor("U32", (1,), buffer)

    with dc.Publisher(url) as pub:
        pub.publish(stream())
    found = followed(url)
    assert [found[f"t{number}"] for number in range(5)] == [
        struct.pack("<I", number) for number in range(5)
    ]


def test_training_goes_on_while_a_version_is_published(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    weights = tensors(0)
    with dc.Publisher(url) as pub:
        for step in range(4):
            for name, tensor in tensors(step).items():
                weights[name].data[:] = tensor.data
            job = pub.publish_async(weights)
            for tensor in weights.values():
                tensor.data[:] = bytes(len(tensor.data))
        assert job.result().version == 3
    for step in range(4):
        assert_version(url, step, step)


def test_one_job_at_a_time_and_its_error_is_not_lost(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    fails = True

    def progress(phase: str, done: int, total: int) -> None:
        if fails:
            raise RuntimeError("no more")

    pub = dc.Publisher(url, progress=progress)
    job = pub.publish_async(tensors(0))
    with pytest.raises(RuntimeError, match="no more"):
        job.result()
    # The error was reported, so the next call does not raise it.
    pub.publish_async(tensors(0))
    with pytest.raises(RuntimeError, match="no more"):
        pub.publish_async(tensors(0))
    pub.publish_async(tensors(0))
    with pytest.raises(RuntimeError, match="no more"):
        pub.wait()
    fails = False
    assert pub.publish(tensors(1)).version == 0
    fails = True
    pub.publish_async(tensors(2))
    with pytest.raises(RuntimeError, match="no more"):
        pub.close()
    pub.close()
    with pytest.raises(dc.UsageError, match="closed"):
        pub.publish(tensors(2))
    assert_version(url, None, 1)
    assert len(versions(url)) == 1


def test_a_stream_is_drained_when_something_is_wrong(tmp_path: Path) -> None:
    count = 0

    def stream() -> Iterator[tuple[str, Any]]:
        nonlocal count
        for name, tensor in tensors(0).items():
            yield name, object() if name == "b.bias" else tensor
            count += 1

    with dc.Publisher(tmp_path / "chain") as pub:
        with pytest.raises(dc.UsageError, match=r"b\.bias"):
            pub.publish(stream())
        assert count == 4
        assert pub.publish(tensors(0)).version == 0


def test_a_stream_that_breaks_off_changes_nothing(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, Any]]:
        yield from list(tensors(1).items())[:2]
        raise OSError("the device is gone")

    url = tmp_path / "chain"
    with dc.Publisher(url) as pub:
        pub.publish(tensors(0))
        with pytest.raises(OSError, match="the device is gone"):
            pub.publish(stream())
        assert pub.publish(tensors(1)).version == 1
    assert_version(url, None, 1)


def test_a_guard_against_another_model(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain", guard=dc.Guard(max_changed=0.01)) as pub:
        pub.publish(tensors(0))
        other = tensors(0)
        other["a.weight"].data[:] = b"\x01" * len(other["a.weight"].data)
        with pytest.raises(dc.UsageError, match="more than the limit"):
            pub.publish(other)
        assert pub.publish(tensors(1)).version == 1


def test_a_guard_counts_tensors_that_are_removed(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain", guard=dc.Guard(max_changed=0.5)) as pub:
        pub.publish(dict.fromkeys("abcdefgh", b"abc"))
        with pytest.raises(dc.UsageError, match=r"87\.50 %"):
            pub.publish({"a": b"abc"})
        with pytest.raises(dc.UsageError, match="no tensors"):
            pub.publish({})
        assert pub.publish(dict.fromkeys("abcdef", b"abc")).version == 1
    with dc.Publisher(tmp_path / "chain", guard=dc.Guard(allow_empty=True)) as pub:
        assert pub.publish({}).version == 2


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def model(bits: str) -> dict[str, Any]:
        return {"a": dc.Tensor("F16", (3,), bytes.fromhex(bits)), "b": b"\xff"}

    with dc.Publisher(tmp_path / "chain", guard=dc.Guard(refuse_nonfinite=True)) as pub:
        pub.publish(model("003c00800100"))
        with pytest.raises(dc.UsageError, match=r'"a" \(2\); nothing was published'):
            pub.publish(model("007c003c01fe"))
        assert pub.publish(model("003c00800200")).version == 1


def test_a_lost_version_is_not_published_again(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url) as pub:
        made = [pub.publish(tensors(version)) for version in range(3)]
        lost = url / "commits" / f"{2:020}.json"
        content = lost.read_bytes()
        lost.unlink()
        for _ in range(2):
            with pytest.raises(dc.Error, match="version 2 was published") as caught:
                pub.publish(tensors(3))
            assert caught.value.rule == "R-PUB-11"
            assert made[1].commit in str(caught.value)
        assert not lost.exists()
        lost.write_bytes(content)
        assert pub.publish(tensors(3)).version == 3
        assert_version(url, None, 3)
        lost = url / "commits" / f"{3:020}.json"
        lost.unlink()
        with pytest.raises(dc.Error):
            pub.publish(tensors(4))
    with dc.Publisher(url, vouch=made[2].commit) as pub:
        assert pub.publish(tensors(4)).version == 3


def test_a_publish_takes_at_most_eight_requests(tmp_path: Path) -> None:
    write_model(tmp_path / "like" / "model.safetensors", model(0))
    for number in range(12):
        (tmp_path / "like" / f"{number}.json").write_text(f"{number}")
    with StallingStore() as store:
        like = tmp_path / "like"
        with dc.Publisher(store.chain(), like=like, routes=dc.RoutePlan(snapshot_every=2)) as pub:
            pub.publish(tensors(0))
            for step in (1, 2, 3):
                store.requests.clear()
                made = pub.publish(tensors(step))
                assert (made.version, made.snapshot) == (step, step == 2)
                assert len(store.requests) <= 8, store.requests


def test_several_shards_need_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(dc.UsageError, match="need like="):
        dc.Publisher(tmp_path / "chain", shards=2)


def test_old_versions_are_pruned(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url, keep_last=2, routes=dc.RoutePlan(snapshot_every=2)) as pub:
        for step in range(6):
            pub.publish(tensors(step))
    routes = {version["version"]: len(version["routes"]) for version in versions(url)}
    assert routes[0] == 0
    assert routes[5] > 0
    assert_version(url, None, 5)


def test_publishers_stay_where_they_are(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as pub, pytest.raises(TypeError, match="pickled"):
        pickle.dumps(pub)


def run(text: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program that can import the modules of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
        **options,
    )


def test_a_child_has_no_publisher(tmp_path: Path) -> None:
    ran = run(
        """
        import os, sys
        import deltachain as dc
        from test_publisher import tensors

        pub = dc.Publisher(sys.argv[1])
        pub.publish(tensors(0))
        held = []
        # The child is made while a version is on its way.
        job = pub.publish_async(tensors(1))
        child = os.fork()
        if child == 0:
            code = 0
            for use in (lambda: pub.publish(tensors(2)), pub.wait, pub.close):
                try:
                    use()
                    code = 1
                except dc.ForkedError:
                    pass
            # Its own one works.
            own = dc.Publisher(sys.argv[1] + " of the child")
            code = code or int(own.publish(tensors(0)).version != 0)
            own.close()
            sys.exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert job.result().version == 1
        assert pub.publish(tensors(2)).version == 2
        pub.close()
        """,
        tmp_path / "chain",
    )
    assert ran.returncode == 0, ran.stderr
    assert_version(tmp_path / "chain", None, 2)


def test_the_interpreter_waits_for_what_is_under_way(tmp_path: Path) -> None:
    ran = run(
        """
        import sys
        import deltachain as dc
        from test_publisher import tensors

        pub = dc.Publisher(sys.argv[1])
        pub.publish_async(tensors(0, lanes=2_000_000))
        """,
        tmp_path / "chain",
    )
    # The model contains NaN, which causes a warning.
    others = [line for line in ran.stderr.splitlines() if "not finite" not in line]
    assert (ran.returncode, others) == (0, [])
    assert len(versions(tmp_path / "chain")) == 1


def test_an_error_that_nobody_heard_is_told_at_exit(tmp_path: Path) -> None:
    ran = run(
        """
        import sys
        import deltachain as dc
        from test_publisher import tensors

        def progress(*_):
            raise RuntimeError("no more")

        pub = dc.Publisher(sys.argv[1], progress=progress)
        pub.publish_async(tensors(0))
        """,
        tmp_path / "chain",
    )
    assert "not published: no more" in ran.stderr


@pytest.mark.parametrize("phase", ["compare", "upload"])
def test_a_trainer_that_is_killed_leaves_a_chain_that_goes_on(tmp_path: Path, phase: str) -> None:
    url = tmp_path / "chain"
    with dc.Publisher(url) as pub:
        pub.publish(tensors(0))
    ran = run(
        """
        import os, signal, sys
        import deltachain as dc
        from test_publisher import tensors

        def progress(phase, done, total):
            if phase == sys.argv[2] and count[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        count = [0]
        pub = dc.Publisher(sys.argv[1], progress=progress)
        pub.publish(tensors(1))
        count[0] = 1
        pub.publish(tensors(2))
        """,
        url,
        phase,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    # The last progress is reported when all links are stored; the commit follows.
    assert len(versions(url)) == 2
    with dc.Publisher(url) as pub:
        made = pub.publish(tensors(2))
        assert (made.version, made.snapshot) == (2, False)
    assert_version(url, None, 2)


@pytest.mark.parametrize("where", ["waiting", "beginning"])
def test_ctrl_c_ends_an_upload_that_stands_still_and_changes_nothing(
    tmp_path: Path, where: str
) -> None:
    ran = run(
        """
        import os, signal, sys, threading
        import deltachain as dc
        from stalling_store import StallingStore
        from test_publisher import tensors

        # Whatever started the tests may have had it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        with StallingStore() as store:
            pub = dc.Publisher(store.chain())
            store.stall = 3600

            def interrupt():
                store.stands.wait()
                os.kill(os.getpid(), signal.SIGINT)

            begin = threading.Thread.start

            def interrupted(thread):
                begin(thread)
                if thread.name == "deltachain-publish":
                    # As if the signal came now: the work has started, but nothing waits for it yet.
                    store.stands.wait()
                    raise KeyboardInterrupt

            if sys.argv[1] == "waiting":
                threading.Thread(target=interrupt).start()
            else:
                threading.Thread.start = interrupted
            try:
                pub.publish(tensors(0))
            except KeyboardInterrupt:
                threading.Thread.start = begin
            else:
                sys.exit("nothing was raised")
            assert not [name for name in store.objects if "/commits/" in name]
            store.stall = 0
            assert pub.publish(tensors(0)).version == 0
            pub.close()
        """,
        where,
    )
    assert ran.returncode == 0, ran.stderr


def test_buffers_of_python_are_tensors(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as pub:
        pub.publish({"w": array.array("f", [1.0, -0.0]), "b": b"xyz"})
    found = followed(tmp_path / "chain")
    assert (found["w"], found["b"]) == (struct.pack("<2f", 1.0, -0.0), b"xyz")


def test_files_beside_the_checkpoint_come_along(tmp_path: Path) -> None:
    like = tmp_path / "like"
    write_model(like / "model.safetensors", model(0))
    (like / "config.json").write_text('{"a": 1}')
    with dc.Publisher(tmp_path / "chain", like=like) as pub:
        pub.publish(tensors(0))
    assert followed(tmp_path / "chain")["files"] == b"config.json,model.safetensors"
    with dc.Publisher(tmp_path / "other", like=dc.Like(like, other_files=False)) as pub:
        pub.publish(tensors(0))
    assert followed(tmp_path / "other")["files"] == b"model.safetensors"


def test_training_state_and_patterns_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    like = tmp_path / "like"
    write_model(like / "model.safetensors", model(0))
    for name in ("config.json", "a.log", "optimizer.pt"):
        (like / name).write_text("{}")
    for exclude in ("*.log", ["*.log", "*.txt"]):
        caplog.clear()
        with dc.Publisher(tmp_path / "chain", like=dc.Like(like, exclude=exclude)) as pub:
            pub.publish(tensors(0))
        assert followed(tmp_path / "chain")["files"] == b"config.json,model.safetensors"
        assert "optimizer.pt (training state of transformers)" in caplog.text
        assert ('no file to leave out matches "*.txt"' in caplog.text) == (exclude != "*.log")
    with pytest.raises(dc.UsageError, match="cannot be used"):
        dc.Publisher(tmp_path / "chain", like=dc.Like(like, exclude="a["))


def test_a_pipeline_keeps_its_folders(tmp_path: Path) -> None:
    base, url, place = tmp_path / "base", tmp_path / "chain", tmp_path / "follower"
    weights = {"w": ("U8", (4,), b"abcd")}
    for part in ("text", "text 2", "checkpoint-1"):
        write_model(base / part / "model.safetensors", weights)
    (base / "model_index.json").write_text("{}")
    (base / "tokenizer").mkdir()
    (base / "tokenizer" / "vocab.txt").write_text("words")
    versions = [{"text/w": b"abcd", "text 2/w": b"ab%dd" % step} for step in range(3)]
    with dc.Publisher(url, like=base) as pub:
        for tensors in versions:
            pub.publish({name: dc.Tensor("U8", (4,), data) for name, data in tensors.items()})
        with pytest.raises(dc.UsageError, match="1 missing: text 2/w; 1 unexpected: w"):
            pub.publish(
                {"text/w": dc.Tensor("U8", (4,), b"abcd"), "w": dc.Tensor("U8", (4,), b"abcd")}
            )
    with dc.Subscriber(url, host_copy=place, kind="deltachain") as sub:
        copy = dc.HostCopy(place, kind="deltachain")
        for version, tensors in enumerate(versions):
            with sub.prepare(version).applying() as patches:
                assert {patch.name for patch in patches} <= set(tensors)
            assert {name: bytes(tensor.data) for name, tensor in copy.tensors().items()} == tensors
            with copy.applying() if version else contextlib.nullcontext(copy.full()) as patches:
                changed = [patch.name for patch in patches]
            assert sorted(changed) == (["text 2/w"] if version else sorted(tensors))
    found = sorted(
        path.relative_to(place / "current").as_posix() for path in (place / "current").rglob("*.*")
    )
    assert found == [
        "model_index.json",
        "text 2/model.safetensors",
        "text/model.safetensors",
        "tokenizer/vocab.txt",
    ]


def test_transformers_loads_what_was_pulled(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    transformers = pytest.importorskip(
        "transformers", reason="SKIPPED: transformers is not installed"
    )
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=100,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="auto")
    with dc.Publisher(tmp_path / "chain", like=tmp_path / "base", shards=5) as pub:
        for _ in range(3):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.view(-1)[::50] += 0.01
            pub.publish(model)
    ran = run(
        """
        import hashlib, os, sys
        import deltachain as dc

        with dc.Subscriber(sys.argv[1], host_copy=sys.argv[2]) as sub:
            sub.prepare().apply()
        from transformers import AutoModelForCausalLM
        import torch

        model = AutoModelForCausalLM.from_pretrained(sys.argv[2] + "/current", dtype="auto")
        print(hashlib.sha256(model(torch.arange(10)[None]).logits.float().detach().numpy().tobytes()).hexdigest())
        """,
        tmp_path / "chain",
        tmp_path / "home",
    )
    assert ran.returncode == 0, ran.stderr
    logits = model(torch.arange(10)[None]).logits.float().detach().numpy().tobytes()
    assert ran.stdout.strip() == hashlib.sha256(logits).hexdigest()
    assert sorted(path.name for path in (tmp_path / "home" / "current").iterdir()) == sorted(
        path.name for path in (tmp_path / "base").iterdir()
    )


def test_a_publisher_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    begun, done = threading.Event(), threading.Event()

    def progress(*_: object) -> None:
        begun.set()
        done.wait(60)

    pub = dc.Publisher(tmp_path / "chain", progress=progress)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(pub.publish, tensors(0))
        assert begun.wait(60)
        calls = (
            lambda: pub.publish(tensors(1)),
            lambda: pub.publish_async(tensors(1)),
            pub.wait,
            pub.close,
        )
        for call in (*calls, lambda: pub.head):
            with pytest.raises(dc.UsageError, match="another thread is using it: one at a time"):
                call()
        done.set()
        assert first.result().version == 0
    assert pub.publish(tensors(1)).version == 1
    pub.close()
    assert_version(tmp_path / "chain", 1, 1)
