"""Refused arguments: errors name the setting and the allowed values, or the tensor, and always give
advice."""

from __future__ import annotations

import builtins
import dataclasses
import logging
import math
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Chain, model, tool, write_model

import deltachain as dc
from deltachain._errors import CLASSES

NOTHING = {"w": b"abc"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "jax"}, r"kind= must be 'torch', 'numpy' or 'deltachain', not 'jax'"),
        ({"threads": -1}, "threads= must be a whole number from 1 to 1024, not -1"),
        ({"threads": True}, "threads= .* not True"),
        ({"threads": 1.0}, "threads= .* not 1.0"),
        ({"tensors": "a.*"}, "tensors= must be a list of patterns"),
        ({"tensors": [b"a"]}, "tensors= must be a list of patterns"),
        ({"into": [1]}, "into= must be a mapping"),
        ({"group": 1}, "group= is for the tensors of into="),
    ],
)
def test_settings_of_a_subscriber(chain: Chain, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        dc.Subscriber(chain.url, **settings)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"stall": 0}, "stall= must be a number from 0.001"),
        ({"stall": math.nan}, "stall= .* not nan"),
        ({"attempts": 0}, "attempts= must be a whole number from 1"),
        ({"attempts": True}, "attempts= .* not True"),
        ({"max_rate": -1}, "max_rate= must be a whole number from 1"),
        ({"max_rate": 1.5}, "max_rate= .* not 1.5"),
        ({"credentials": {"access_key_id": "x"}}, "credentials= must be a function"),
        (
            {"storage_options": {"region": "x"}},
            'in a directory, which has no settings of a store, such as "region"',
        ),
        ({"storage_options": ["region"]}, "storage_options= must be a mapping"),
        ({"storage_options": {"\udc80": "x"}}, "storage_options= .* not Unicode"),
    ],
)
def test_settings_of_a_store(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        dc.Store(tmp_path / "chain", **settings)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (dc.Guard, {"max_changed": 2}, "max_changed= must be a number from 0 to 1, not 2"),
        (dc.Guard, {"max_changed": -0.1}, "max_changed="),
        (dc.Guard, {"max_changed": True}, "max_changed= .* not True"),
        (
            dc.RoutePlan,
            {"snapshot_cost": True},
            "snapshot_cost= must be a number of 0 or more, not True",
        ),
        (dc.RoutePlan, {"snapshot_cost": -1.0}, "snapshot_cost="),
        (dc.RoutePlan, {"snapshot_cost": math.nan}, "snapshot_cost="),
        (
            dc.RoutePlan,
            {"snapshot_every": 0},
            "snapshot_every= must be a whole number of 1 or more, not 0",
        ),
        (dc.RoutePlan, {"snapshot_every": 2.0}, "snapshot_every= .* not 2.0"),
        (
            dc.RoutePlan,
            {"snapshot_every": 2, "snapshot_cost": 2.0},
            "snapshot_cost= or snapshot_every=, not both",
        ),
        (dc.RoutePlan, {"skips": [0]}, "skips="),
        (dc.Trust, {"keys": [], "quorum": 0}, "quorum= must be a whole number of 1 or more"),
        (dc.Group, {"processes": None, "timeout": 0}, "timeout= must be a number of 0.001 or more"),
    ],
)
def test_settings_that_stand_together(kind: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text) as caught:
        kind(**settings)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"profile": []}, "profile= must be"),
        ({"profile": "direct"}, "profile= must be 'compact' or 'local', not 'direct'"),
        ({"keep_last": 0}, "keep_last= must be a whole number of 1 or more"),
        ({"keep_last": True}, "keep_last="),
        ({"shards": 1.0}, "shards="),
        ({"threads": -1}, "threads= must be a whole number from 1 to 1024, not -1"),
    ],
)
def test_settings_of_a_publisher(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text):
        dc.Publisher(tmp_path / "chain", **settings)
    assert not (tmp_path / "chain").exists()


def test_when_there_are_snapshots(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"snapshot_every": 2},
        {"snapshot_cost": 0},
        {"snapshot_cost": math.inf},
    ]
    for number, (setting, wanted) in enumerate(
        zip(settings, ([0, 2, 4], [0, 1, 2, 3, 4], [0]), strict=True)
    ):
        with dc.Publisher(tmp_path / str(number), routes=dc.RoutePlan(**setting)) as pub:
            made = [pub.publish({"w": os.urandom(100)}) for _ in range(5)]
        assert [one.version for one in made if one.snapshot] == wanted, setting


@pytest.mark.parametrize(
    ("url", "options", "texts"),
    [
        ("s3://bucket/chain", {"regoin": "x"}, ['"regoin"', "region, endpoint"]),
        (
            "s3://bucket/chain",
            {"key": "k", "secret": "hidden"},
            ["access_key_id", "secret_access_key"],
        ),
        ("s3://bucket/chain", {"client_kwargs": {"region_name": "x"}}, ["region and endpoint"]),
        ("s3://bucket/chain", {"anon": True}, ["skip_signature"]),
        ("gs://bucket/chain", {"token": "hidden"}, ["service_account"]),
        ("gs://bucket/chain", {"endpoint_url": "x"}, ["base_url"]),
        ("az://bucket/chain", {"connection_string": "hidden"}, ["connection_string", "KEY=VALUE"]),
        ("az://bucket/chain", {"credential": "hidden"}, ["account_key, sas_token"]),
        ("https://example.invalid/chain", {"region": "x"}, ['"region"', "user_agent"]),
    ],
)
def test_settings_of_stores_are_named_with_ours(
    url: str, options: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(dc.UsageError) as caught:
        dc.Store(url, storage_options=options)
    message = str(caught.value)
    assert all(text in message for text in texts) and "hidden" not in message, message


def test_outputs_are_never_inputs(tmp_path: Path) -> None:
    old = write_model(tmp_path / "old" / "a.safetensors", {"t": ("U8", (1,), b"x")})
    new = write_model(tmp_path / "new", {"t": ("U8", (1,), b"y")})
    link = tmp_path / "1.dcf"
    dc.diff(old, new, link)
    before = old.read_bytes(), new.read_bytes(), link.read_bytes()
    for work in [
        lambda: dc.diff(old, new, new, replace=True),
        lambda: dc.diff(old.parent, new, old, replace=True),
        lambda: dc.diff({"t": b"x"}, new, new, replace=True),
        lambda: dc.snapshot(old.parent, old.parent / "link"),
        lambda: dc.apply(old, [link], link, replace=True),
    ]:
        with pytest.raises(dc.UsageError, match="the output is the input"):
            work()
        assert (old.read_bytes(), new.read_bytes(), link.read_bytes()) == before
    dc.apply(old, [link], old, replace=True)
    assert old.read_bytes() == new.read_bytes()


def test_what_is_no_model_or_no_chain_is_refused_by_name(chain: Chain, tmp_path: Path) -> None:
    chain.publish(model(0))
    followed = tmp_path / "followed"
    tool("pull", chain.url, followed)
    for work in [
        lambda: dc.digest(followed),
        lambda: dc.diff(None, followed, tmp_path / "out"),
        lambda: dc.apply(followed, [], tmp_path / "out"),
        lambda: dc.Publisher(tmp_path / "chain", like=followed),
    ]:
        with pytest.raises(dc.UsageError, match="the directory of a follower, not a model"):
            work()
    dc.digest(followed / "current")
    with pytest.raises(dc.UsageError, match="managed by a follower"):
        dc.Publisher(followed)
    assert not (followed / "chain.json").exists()
    with pytest.raises(dc.UsageError, match="this is a chain"):
        dc.digest(chain.url)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_are_no_inputs(chain: Chain, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for work in [
        lambda: dc.open(pipe),
        lambda: dc.digest(pipe),
        lambda: dc.apply(None, [pipe]),
        lambda: dc.apply(None, [pipe], tmp_path / "out"),
        lambda: dc.Subscriber(chain.url, trust=pipe),
        lambda: dc.Publisher(chain.url, sign_key=pipe),
    ]:
        with pytest.raises(dc.UsageError, match=r"not a (regular )?file"):
            work()


def test_threads_are_checked_wherever_they_are_given(chain: Chain) -> None:
    chain.publish(model(0))
    link = dc.diff(NOTHING, NOTHING)
    for threads in (-1, 0, 1025, 1 << 70, True, 2.0, "2"):
        given: Any = {"threads": threads}
        calls: list[Callable[[], object]] = [
            lambda given=given: dc.diff(NOTHING, NOTHING, **given),
            lambda given=given: dc.apply(NOTHING, [link], **given),
            lambda given=given: dc.digest(NOTHING, **given),
            lambda given=given: link.verify(**given),
        ]
        for call in calls:
            with pytest.raises(
                dc.UsageError, match="threads= must be a whole number from 1 to 1024"
            ):
                call()


BAD = [
    ({"the one": [1.0]}, "the one"),
    ({"the one": None}, "the one"),
    ({"the one": "text"}, "the one"),
    ({"the one": dc.Tensor("U8", (2,), b"a")}, "the one"),
    ({"the one": dc.Tensor("NONE", (1,), b"a")}, "the one"),
    ({"the one": dc.Tensor("U8", (-1,), b"a")}, "the one"),
    ({"the one": dc.Tensor("U8", ("x",), b"a")}, "the one"),  # type: ignore[arg-type]
    ({"the one": dc.Tensor(5, (1,), b"a")}, "the one"),  # type: ignore[arg-type]
    ({"the one": numpy.array([object()])}, "the one"),
    ({"\udc80": b"abc"}, "udc80"),
    ({1: b"abc"}, "1"),
    (3, "int"),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "name"), BAD)
def test_weights_are_refused_by_name(tmp_path: Path, weights: Any, name: str) -> None:
    with dc.Publisher(tmp_path / "chain") as pub:
        for call in (pub.publish, dc.digest):
            with pytest.raises(dc.UsageError, match=name) as caught:
                call(weights)
            assert caught.value.advice and (name != "the one" or caught.value.tensor == name)
        assert pub.publish(NOTHING).version == 0


@pytest.mark.parametrize(
    "weights", [[1, 2], ["ab"], [("w",)], ["w", b"abc"], b"abc", "model.safetensors"]
)
def test_a_stream_is_of_pairs(tmp_path: Path, weights: Any) -> None:
    with dc.Publisher(tmp_path / "chain") as pub:
        with pytest.raises(dc.UsageError, match="weights must be"):
            pub.publish(weights)
        with pytest.raises(dc.UsageError, match="metadata= has a text that is not Unicode"):
            pub.publish(NOTHING, metadata={"run": "\udc80"})
        with pytest.raises(dc.UsageError, match=r"'deltachain\.path-bytes': keys that begin"):
            pub.publish(NOTHING, metadata={"step": 1, "deltachain.path-bytes": 1})
        with pytest.raises(dc.UsageError, match="metadata= must be a mapping"):
            pub.publish(NOTHING, metadata=5)  # type: ignore[arg-type]


def test_a_name_that_files_cannot_hold_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {"__metadata__": b"abc"}
    with caplog.at_level(logging.WARNING), dc.Publisher(tmp_path / "chain") as pub:
        pub.publish(weights)
        pub.publish(weights)
    assert caplog.text.count("'__metadata__'") == 1
    with dc.Subscriber(tmp_path / "chain", kind="deltachain") as subscriber:
        subscriber.prepare().apply()
        assert [name for name, _ in subscriber.state()] == ["__metadata__"]
    with (
        dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy") as subscriber,
        pytest.raises(dc.Error) as caught,
    ):
        subscriber.prepare()
    assert "__metadata__" in str(caught.value)


def test_empty_shards_are_nothing_to_talk_about(
    tmp_path: Path, writer: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    like = writer(tmp_path / "like" / "model.safetensors", {"w": ("U8", (3,), b"abc")})
    with (
        caplog.at_level(logging.WARNING),
        dc.Publisher(tmp_path / "chain", like=like, shards=24) as pub,
    ):
        pub.publish(NOTHING)
    assert caplog.text == ""
    with dc.Publisher(tmp_path / "empty") as pub, pytest.raises(dc.UsageError, match="no tensors"):
        pub.publish({})


def test_a_star_import_replaces_nothing() -> None:
    assert not [name for name in dc.__all__ if hasattr(builtins, name)]
    missing = [name for name in dc.__all__ if not hasattr(dc, name)]
    assert not missing
    assert dc.open is not builtins.open and issubclass(dc.TimeoutError, builtins.TimeoutError)


def test_help_says_what_each_field_is() -> None:
    """Fields have no docstring at run time, so the class's docstring describes them."""
    missing = [
        f"{name}.{field.name}"
        for name in dc.__all__
        if dataclasses.is_dataclass(kind := getattr(dc, name))
        for field in dataclasses.fields(kind)
        if f" {field.name}: " not in (kind.__doc__ or "")
    ]
    assert not missing


# Calls are refused before anything changes.


@pytest.mark.parametrize("how", ["memory", "host_copy"])
def test_an_update_that_was_applied_tears_nothing(chain: Chain, tmp_path: Path, how: str) -> None:
    chain.publish(model(0))
    place = {"host_copy": tmp_path / "copy"} if how == "host_copy" else {}
    with dc.Subscriber(chain.url, **place) as subscriber:
        update = subscriber.prepare()
        with update.applying() as patches:
            list(patches)
        for _ in range(2):
            with pytest.raises(dc.UsageError, match="has been applied"), update.applying() as again:
                list(again)
            assert not subscriber.torn
        chain.publish(model(1))
        with subscriber.prepare().applying() as patches:
            assert {patch.name for patch in patches} == {"a.weight", "b.bias", "c.quantised"}
        assert not subscriber.torn and subscriber.version == 1


PACKED = {"w": dc.Tensor("F6_E2M3", (4,), b"abc"), "a": dc.Tensor("U8", (1,), b"a")}


@pytest.mark.parametrize("how", ["memory", "host_copy"])
def test_a_dtype_that_numpy_does_not_have_tears_nothing(tmp_path: Path, how: str) -> None:
    place = {"host_copy": tmp_path / "copy"} if how == "host_copy" else {}
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish(PACKED)
    with dc.Subscriber(tmp_path / "chain", kind="numpy", **place) as subscriber:
        update = subscriber.prepare()
        for begin in (update.applying, update.full):
            with (
                pytest.raises(dc.UsageError, match="numpy has no dtype F6_E2M3") as raised,
                begin(),
            ):
                pass
            assert raised.value.tensor == "w"
            assert not subscriber.torn and subscriber.version is None
    with (
        dc.Subscriber(tmp_path / "chain", kind="deltachain", **place) as subscriber,
        subscriber.prepare().applying() as patches,
    ):
        assert {patch.name for patch in patches} == {"w", "a"}


def test_a_host_copy_is_not_torn_by_what_it_refuses(tmp_path: Path) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        publisher.publish({"w": dc.Tensor("U8", (3,), b"abc")})
        with dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy") as subscriber:
            subscriber.prepare().apply()
            copy = dc.HostCopy(tmp_path / "copy", kind="numpy")
            list(copy.full())
            publisher.publish(PACKED)
            subscriber.prepare().apply()
        for threads, text in ((0, "threads="), (1, "no dtype F6_E2M3")):
            with pytest.raises(dc.UsageError, match=text), copy.applying(threads=threads) as given:
                list(given)
            assert not copy.torn
        with pytest.raises(dc.UsageError, match="no dtype F6_E2M3"):
            list(copy.full())
        assert not copy.torn


def test_nothing_is_proven_of_nothing(chain: Chain, tmp_path: Path) -> None:
    chain.publish(model(0))
    with dc.Subscriber(chain.url) as subscriber:
        for prove in (subscriber.check, subscriber.verify):
            with pytest.raises(dc.UsageError, match="no version is held yet"):
                prove()
        assert subscriber.proof is None
    for into in ({}, {"a.weight": []}):
        with pytest.raises(dc.UsageError, match="into= has no tensors"):
            dc.Subscriber(chain.url, into=into, strict=False)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"guard": {"max_changed": 0.1}}, "guard= must be a dc.Guard, not dict"),
        ({"routes": {}}, "routes= must be a dc.RoutePlan, not dict"),
        ({"progress": 5}, "progress= must be a function, not 5"),
    ],
)
def test_settings_of_the_wrong_class(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(dc.UsageError, match=text):
        dc.Publisher(tmp_path / "chain", **settings)


def test_a_path_that_is_not_unicode(tmp_path: Path) -> None:
    for call in (dc.Publisher, dc.Subscriber, dc.log, dc.Store):
        with pytest.raises(dc.UsageError, match="is not Unicode text"):
            call(f"{tmp_path}/\udc80")


class Lends:
    """An array of another library."""

    def __init__(self, *names: str) -> None:
        for name in names:
            setattr(self, name, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (numpy.zeros(3, ">f4"), r"another order \(dtype >f4\).*newbyteorder"),
        (Lends("__dlpack__", "__array__"), "numpy.from_dlpack or torch.from_dlpack"),
        (Lends("__array__"), "numpy.asarray"),
    ],
)
def test_arrays_of_others_say_what_to_call(tmp_path: Path, value: Any, text: str) -> None:
    with dc.Publisher(tmp_path / "chain") as publisher:
        with pytest.raises(dc.UsageError, match=text) as raised:
            publisher.publish({"w": value})
        assert raised.value.tensor == "w"
        assert publisher.publish(NOTHING).version == 0


def test_every_class_has_advice() -> None:
    for name, kind in CLASSES.items():
        assert kind("no").advice and kind("no", advice="other").advice == "other", name
    assert dc.Error("no").advice


def failures(
    chain: Chain, place: Path
) -> dict[str, tuple[type[dc.Error], str, Callable[[], object]]]:
    """Calls that fail, with the class of the error and a word of its advice."""
    old, new = {"w": bytes(100)}, {"w": bytes(99) + b"x"}
    link = bytes(dc.diff(old, new))
    damaged = bytearray(link)
    damaged[-1] ^= 1
    newer = bytearray(link)
    struct.pack_into("<H", newer, 4, 99)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    web = dc.Store(
        f"http://127.0.0.1:{port}/chain", storage_options={"allow_http": True}, attempts=1
    )
    bucket = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "x",
        "access_key_id": "x",
        "secret_access_key": "x",
    }
    full = place / "a file"
    full.write_text("x")
    dc.Publisher(place / "other").close()

    def adopted() -> None:
        copy = place / "copy"
        with dc.Subscriber(chain.url, host_copy=copy) as subscriber:
            subscriber.prepare().apply()
        with dc.Publisher(place / "other") as pub:
            pub.publish(NOTHING)
        with dc.Subscriber(place / "other", host_copy=copy) as subscriber:
            subscriber.prepare()

    def in_use() -> None:
        with dc.Subscriber(chain.url, host_copy=place / "used"):
            dc.Subscriber(chain.url, host_copy=place / "used")

    return {
        "no link": (dc.errors.NotDcfError, "give a .dcf file", lambda: dc.open(b"x" * 200)),
        "a short link": (dc.errors.TruncatedError, "again", lambda: dc.open(link[:-1])),
        "a damaged link": (dc.CorruptError, "again", lambda: dc.open(bytes(damaged)).verify()),
        "another base": (dc.WrongBaseError, "base", lambda: dc.apply(new, [dc.open(link)])),
        "no file": (dc.IoError, "path", lambda: dc.open(place / "missing")),
        "a file for a directory": (dc.Error, "", lambda: dc.Subscriber(chain.url, host_copy=full)),
        "a wrong port": (
            dc.IoError,
            "host and port",
            lambda: dc.Subscriber(web).poll(),
        ),
        "a wrong port of a bucket": (
            dc.IoError,
            "host and port",
            lambda: dc.Subscriber(
                dc.Store("s3://bucket/chain", storage_options=bucket, attempts=1)
            ).poll(),
        ),
        "another chain": (dc.ChainError, "adopt=True", adopted),
        "no version": (
            dc.TimeoutError,
            "time",
            lambda: dc.Subscriber(chain.url).prepare(9, timeout=0),
        ),
        "a directory in use": (dc.InUseError, "process", in_use),
        "a closed publisher": (
            dc.UsageError,
            "arguments",
            lambda: dc.Subscriber(chain.url, threads=0),
        ),
    }


def test_every_failure_has_advice(chain: Chain, tmp_path: Path) -> None:
    chain.publish(model(0))
    place = tmp_path / "place"
    place.mkdir()
    for name, (kind, word, call) in failures(chain, place).items():
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.advice and word in caught.value.advice, (
            f"{name}: {caught.value}: {caught.value.advice}"
        )
