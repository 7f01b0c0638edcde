"""Settings of the backend for vLLM, without vLLM: the settings that requests may add to the
server's own configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import model, write_model

import deltachain as dc
from deltachain_integrations._engine_settings import Settings, fixed, merged

CHAIN = "s3://models/run7"
OF_FIRST = dc.public_key(dc.new_key("first"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A directory that a process manages."""
    base = write_model(tmp_path / "base" / "model.safetensors", model(0)).parent
    with dc.Publisher(tmp_path / "chain", like=base):
        pass
    with dc.Subscriber(tmp_path / "chain", host_copy=tmp_path / "copy"):
        pass
    return tmp_path / "copy"


def test_the_configuration_is_read() -> None:
    assert fixed({}) == fixed(None) == fixed({"other": 1}) == fixed({"deltachain": {}}) == {}
    given = {"chain": CHAIN, "start": "newest", "timeout": 5, "host_copy": None}
    # null means not given.
    assert fixed({"deltachain": given, "other": 1}) == {
        name: given[name] for name in list(given)[:-1]
    }
    expected = Settings(chain=CHAIN, start="newest", timeout=5)
    assert merged(fixed({"deltachain": given}), {}) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s3://models/run7", "must be an object"),
        ({"url": CHAIN}, "unknown in .*: url; the settings are chain, host_copy"),
        ({"chain": 7}, "chain must be a string"),
        ({"chain": ""}, "chain must be a string"),
        ({"mode": "fast"}, "mode must be one of auto, sparse, reload"),
        ({"kv": ["keep"]}, "kv must be one of"),
        ({"timeout": "600"}, "timeout must be a number"),
        ({"timeout": True}, "timeout must be a number"),
        ({"timeout": float("nan")}, "timeout must be a number"),
        ({"start": "now", "chain": CHAIN}, "start must be one of model, newest"),
        ({"trust": OF_FIRST}, '"trust" .* needs "chain"'),
        ({"chain": CHAIN, "trust": 7}, "neither a key nor a readable file"),
        ({"chain": CHAIN, "quorum": 2}, "quorum= needs trust="),
        ({"chain": CHAIN, "trust": [OF_FIRST], "quorum": 0}, "quorum= must be"),
        ({"start": "newest"}, 'needs "chain" or "host_copy"'),
    ],
)
def test_a_wrong_configuration_is_refused(given: Any, said: str) -> None:
    with pytest.raises(dc.UsageError, match=said):
        fixed({"deltachain": given})


def test_requests_only_repeat_the_configuration(tmp_path: Path, copy: Path) -> None:
    configured = fixed(
        {"deltachain": {"chain": CHAIN, "host_copy": str(copy), "mode": "reload", "timeout": 5.0}}
    )
    assert (
        merged(configured, {})
        == merged(configured, {**configured, "kv": None})
        == Settings(**configured)
    )
    for name, value in (
        ("chain", "s3://models/other"),
        ("chain", "http://169.254.169.254/latest"),
        ("host_copy", str(tmp_path / "other")),
        ("mode", "sparse"),
        ("timeout", 6.0),
    ):
        with pytest.raises(dc.UsageError, match=f"{name} is .* configuration .--additional-config"):
            merged(configured, {name: value})
    # Requests may set what the configuration leaves open.
    assert merged(configured, {"kv": "keep"}).kv == "keep"
    # Paths are compared as absolute paths.
    here = fixed({"deltachain": {"chain": "run7"}})
    assert merged(here, {"chain": os.path.abspath("run7")}).chain == "run7"


def test_a_request_opens_no_chain(copy: Path) -> None:
    for configured in ({}, {"host_copy": str(copy)}):
        for chain in (CHAIN, "http://10.0.0.1/x", "/etc", str(copy.parent / "chain")):
            with pytest.raises(
                dc.UsageError,
                match=r'set "chain" in .*--additional-config.*or run `deltachain follow',
            ):
                merged(configured, {"chain": chain})
    with pytest.raises(
        dc.UsageError, match='has no chain: set "chain" or "host_copy" in --additional-config'
    ):
        merged({}, {})
    # Nor a copy other than that of its own chain.
    with pytest.raises(dc.UsageError, match="downloads 's3://models/run7' itself"):
        merged({"chain": CHAIN}, {"host_copy": str(copy)})


def test_a_request_names_only_directories_that_are_managed(tmp_path: Path, copy: Path) -> None:
    assert merged({}, {"host_copy": str(copy), "mode": "reload"}) == Settings(
        host_copy=str(copy), mode="reload"
    )
    link, foreign = tmp_path / "link", tmp_path / "foreign"
    link.symlink_to(copy)
    foreign.mkdir()
    for path in (
        foreign,
        tmp_path / "missing",
        copy / "deltachain.directory",
        tmp_path / "chain",
        "/",
        "/etc",
    ):
        with pytest.raises(dc.UsageError, match="deltachain does not manage it") as raised:
            merged({}, {"host_copy": str(path)})
        assert raised.value.file == str(path)
    for path in (
        link,
        f"{tmp_path}/base/../copy",
        f"{copy}/",
        f"{link}/versions",
        os.path.relpath(copy),
        f"{copy}\0",
    ):
        with pytest.raises(dc.UsageError, match="not an absolute path without symbolic links"):
            merged({}, {"host_copy": str(path)})
    # The marker is not enough if it is a link, or if any user may have written it.
    (foreign / "deltachain.directory").symlink_to(copy / "deltachain.directory")
    with pytest.raises(dc.UsageError, match="deltachain does not manage it"):
        merged({}, {"host_copy": str(foreign)})
    copy.chmod(0o777)
    with pytest.raises(dc.UsageError, match="another user may have written to it"):
        merged({}, {"host_copy": str(copy)})
    # The configuration may name the directory all the same.
    assert merged({"host_copy": str(copy)}, {}).host_copy == str(copy)


def test_a_directory_of_another_user_is_not_read(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the server ran as another user.
    owner = copy.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        # Every server may read a directory that root has made.
        assert merged({}, {"host_copy": str(copy)}).host_copy == str(copy)
        os.chown(copy, 4711, -1)
    with pytest.raises(dc.UsageError, match="another user"):
        merged({}, {"host_copy": str(copy)})
