"""Signed chains: a version without the signature of a trusted key reaches no reader, and errors
about a key do not contain it."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import shutil
import struct
import threading
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from conftest import model, tool, write_model
from test_publisher import tensors
from test_ranks import ran

import deltachain as dc

FIRST, SECOND, STRANGER = (dc.new_key(name) for name in ("first", "second", "stranger"))
OF_FIRST, OF_SECOND, OF_STRANGER = map(dc.public_key, (FIRST, SECOND, STRANGER))


def publish(url: Path, step: int, **settings: Any) -> dc.reports.PublishReport:
    with dc.Publisher(url, **settings) as pub:
        return pub.publish(tensors(step), metadata={"step": step})


def take(sub: dc.Subscriber) -> int | None:
    """Applies the newest version, if there is a new one, and returns the version held."""
    update = sub.poll(timeout=60)
    if update is not None:
        update.apply()
    return sub.version


def signed(secret: str, text: bytes) -> bytes:
    """Signs as in RFC 8032, section 5.1.6, with the code of its section 6."""
    p, q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
    d = -121665 * pow(121666, p - 2, p) % p

    def add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        k, m = (a[1] - a[0]) * (b[1] - b[0]) % p, (a[1] + a[0]) * (b[1] + b[0]) % p
        c, z = 2 * a[3] * b[3] * d % p, 2 * a[2] * b[2] % p
        e, f, g, h = m - k, z - c, z + c, m + k
        return e * f % p, g * h % p, f * g % p, e * h % p

    def times(s: int) -> bytes:
        y = 4 * pow(5, p - 2, p) % p
        x2 = (y * y - 1) * pow(d * y * y + 1, p - 2, p)
        x = pow(x2, (p + 3) // 8, p)
        x = x if (x * x - x2) % p == 0 else x * pow(2, (p - 1) // 4, p) % p
        x = p - x if x & 1 else x
        sum_, point = (0, 1, 1, 0), (x, y, 1, x * y % p)
        while s:
            sum_, point, s = add(sum_, point) if s & 1 else sum_, add(point, point), s >> 1
        x, y = (value * pow(sum_[2], p - 2, p) % p for value in sum_[:2])
        return (y | (x & 1) << 255).to_bytes(32, "little")

    def number(*parts: bytes) -> int:
        return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")

    seed = b64decode(secret.split("+", 4)[4])[1:]
    half = hashlib.sha512(seed).digest()
    a = int.from_bytes(half[:32], "little") & ((1 << 254) - 8) | 1 << 254
    r = number(half[32:], text) % q
    point = times(r)
    return point + ((r + number(point, times(a), text) * a) % q).to_bytes(32, "little")


def test_a_follower_with_trust_takes_what_is_signed_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = tmp_path / "chain"
    publish(url, 0, sign_key=FIRST)
    with dc.Subscriber(url, trust=OF_FIRST) as sub, dc.Subscriber(url) as other:
        assert take(sub) == 0
        publish(url, 1, sign_key=FIRST)
        # Versions without a signature, or signed with an untrusted key, are not applied: the held
        # version stays.
        assert take(sub) == 1
        publish(url, 2, unsigned=True)
        publish(url, 3, sign_key=STRANGER, vouch=commit_of(url))
        for _ in range(2):
            assert (take(sub), take(other)) == (1, 3)
        newest = "version 3 exists, but none of the trusted keys has signed it"
        # The model contains NaN, which causes a warning.
        assert [text for text in caplog.messages if "not finite" not in text] == [newest]
        with pytest.raises(dc.TimeoutError, match=f"the timeout has expired: {newest}"):
            sub.prepare(timeout=0)
        # A version that may still be signed is waited for.
        with pytest.raises(dc.TimeoutError):
            sub.prepare(2, timeout=0)
        assert sub.version == 1


def commit_of(url: Path) -> str:
    return dc.log(url)[0].commit


@pytest.mark.parametrize(
    ("trust", "why"),
    [
        ({"trust": OF_STRANGER}, "version 0 exists, but none of the trusted keys has signed it"),
        (
            {"trust": dc.Trust([OF_FIRST, OF_SECOND], 2)},
            "version 0 exists, but 1 of the trusted keys signed it, and the quorum is 2",
        ),
    ],
)
def test_nothing_signed_is_no_version_to_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trust: dict[str, Any], why: str
) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    with dc.Subscriber(url, **trust) as sub, dc.Subscriber(url, host_copy=copy, **trust) as files:
        publish(url, 0, sign_key=FIRST)
        for one in (sub, files):
            # A subscriber that waits with a wrong key is warned once.
            caplog.clear()
            assert take(one) is None
            for number in (None, 0):
                with pytest.raises(dc.TimeoutError, match=f"the timeout has expired: {why}"):
                    one.prepare(number, timeout=0)
            assert one.version is None
            assert [(row.levelname, row.message) for row in caplog.records] == [("WARNING", why)]


def test_trust_that_does_not_fit_what_is_held_is_named(tmp_path: Path) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    publish(url, 0, sign_key=FIRST)
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST) as sub:
        assert take(sub) == 0 and dc.status(copy).healthy
    with dc.Subscriber(url, host_copy=copy, trust=OF_SECOND) as sub:
        with pytest.raises(dc.ChainError, match="none of the trusted keys") as refused:
            take(sub)
        assert refused.value.rule == "R-CHN-14" and "`trust`" in refused.value.advice
        assert "rolled back" not in refused.value.advice
    (problem,) = dc.status(copy).problems
    assert (
        problem
        == "the held version is not known to be signed by the trusted keys (0 of 1 signatures)"
    )
    publish(url, 1, unsigned=True)
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST) as sub:
        assert take(sub) == 0
    status = dc.status(copy)
    assert status.healthy and status.trust is not None
    assert (
        status.trust["unsigned"] == "version 1 exists, but none of the trusted keys has signed it"
    )


def test_a_publisher_follows_no_stranger(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    publish(url, 0, sign_key=FIRST)
    stranger = publish(url, 1, unsigned=True)
    with pytest.raises(dc.ChainError) as refused:
        publish(url, 2, sign_key=FIRST)
    assert refused.value.rule == "R-SIG-03" and len(dc.log(url)) == 2
    assert publish(url, 2, sign_key=FIRST, vouch=stranger.commit).version == 2
    # A list of trusted keys without the publisher's own, and one with it.
    with pytest.raises(dc.UsageError, match="not among the keys that it trusts"):
        dc.Publisher(url, sign_key=FIRST, trust=OF_SECOND)
    assert publish(url, 3, sign_key=SECOND, trust=[OF_FIRST, OF_SECOND]).version == 3


@pytest.mark.parametrize("in_directory", [False, True])
def test_an_old_head_is_no_head(tmp_path: Path, in_directory: bool) -> None:
    url, old = tmp_path / "chain", tmp_path / "old"
    publish(url, 0, sign_key=FIRST)
    shutil.copytree(url, old)
    publish(url, 1, sign_key=FIRST)
    copy = {"host_copy": tmp_path / "copy"} if in_directory else {}
    with dc.Subscriber(url, trust=OF_FIRST, **copy) as sub:
        assert take(sub) == 1
        shutil.rmtree(url)
        shutil.copytree(old, url)
        with pytest.raises(dc.ChainError) as refused:
            take(sub)
        assert refused.value.rule == "R-CHN-14" and sub.version == 1


def test_a_key_that_is_no_longer_trusted_signs_nothing(tmp_path: Path) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    publish(url, 0, sign_key=[FIRST, SECOND])
    with dc.Subscriber(url, host_copy=copy, trust=[OF_FIRST, OF_SECOND]) as sub:
        assert take(sub) == 0
    publish(url, 1, sign_key=FIRST)
    with dc.Subscriber(url, host_copy=copy, trust=OF_SECOND) as sub:
        assert take(sub) == 0
    with dc.Subscriber(url, host_copy=copy, trust=[OF_FIRST, OF_SECOND]) as sub:
        assert take(sub) == 1


def test_notes_of_another_chain_do_not_count(tmp_path: Path) -> None:
    url, other = tmp_path / "chain", tmp_path / "other"
    publish(url, 0, sign_key=FIRST)
    publish(other, 5, sign_key=FIRST)
    with dc.Subscriber(url, trust=OF_FIRST) as sub:
        assert take(sub) == 0
        shutil.rmtree(url)
        shutil.copytree(other, url)
        with pytest.raises(dc.ChainError) as refused:
            take(sub)
        assert refused.value.rule == "R-CHN-13" and sub.version == 0


def test_trust_is_not_forgotten_at_a_restart(tmp_path: Path) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    publish(url, 0, sign_key=FIRST)
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST) as sub:
        assert take(sub) == 0
    publish(url, 1, unsigned=True)
    with pytest.raises(dc.UsageError, match="no keys are given"):
        dc.Subscriber(url, host_copy=copy)
    with dc.Subscriber(url, host_copy=copy, forget_trust=True) as sub:
        assert take(sub) == 1
    with dc.Subscriber(url, host_copy=copy) as sub:
        assert sub.version == 1


def test_a_quorum_is_of_different_keys(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    publish(url, 0, sign_key=[FIRST, SECOND])
    with dc.Subscriber(url, trust=dc.Trust([OF_FIRST, OF_SECOND], quorum=2)) as sub:
        assert take(sub) == 0
        publish(url, 1, sign_key=FIRST)
        assert take(sub) == 0
    with pytest.raises(dc.ChainError):
        publish(url, 2, sign_key=[FIRST, SECOND], trust=dc.Trust([OF_FIRST, OF_SECOND], quorum=2))
    for settings in (
        {"trust": 7},
        {"trust": dc.Trust(OF_FIRST, quorum=2)},
        {"trust": []},
        {"trust": [OF_FIRST] * 2},
    ):
        with pytest.raises(dc.UsageError):
            dc.Subscriber(url, **settings)


def test_keys_come_from_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, secret, public = tmp_path / "chain", tmp_path / "a+b key", tmp_path / "keys"
    secret.write_text(f"# of the trainer\n{FIRST}\n")
    public.write_text(f"# the trainer\n{OF_FIRST}\n\n  {OF_SECOND}\n")
    assert dc.public_key(secret) == OF_FIRST
    publish(url, 0, sign_key=str(secret))
    monkeypatch.setenv("DELTACHAIN_SIGNING_KEY", str(secret))
    publish(url, 1)
    monkeypatch.setenv("DELTACHAIN_SIGNING_KEY", f"{SECOND}\n")
    publish(url, 2, trust=public)
    with dc.Subscriber(url, trust=str(public)) as sub:
        assert take(sub) == 2
    with dc.Subscriber(url, trust=[public, OF_STRANGER]) as sub:
        assert take(sub) == 2
    monkeypatch.setenv("DELTACHAIN_SIGNING_KEY", "there is no such file")
    with pytest.raises(dc.UsageError, match="DELTACHAIN_SIGNING_KEY"):
        publish(url, 3)
    monkeypatch.setenv("DELTACHAIN_SIGNING_KEY", " ")
    with pytest.raises(dc.UsageError, match="DELTACHAIN_SIGNING_KEY is empty"):
        publish(url, 3)
    # An empty list means no key at all.
    publish(url, 3, sign_key=[], unsigned=True)
    for missing in ("none.pub", "keys/none", tmp_path / "a+b" / "none"):
        with pytest.raises(dc.UsageError, match=r"there is no such file.*none"):
            dc.Subscriber(url, trust=missing)


def test_a_key_is_trusted_for_its_chains(tmp_path: Path) -> None:
    url, other, file = tmp_path / "chain", tmp_path / "other", tmp_path / "keys"
    for chain in (url, other):
        publish(chain, 0, sign_key=FIRST)
    digest = dc.show(url, 0).parent
    file.write_text(f"{OF_FIRST} {digest} # this one\n")
    for trust in (f"{OF_FIRST} {digest}", file):
        with dc.Subscriber(url, trust=trust) as sub:
            assert take(sub) == 0
        with (
            dc.Subscriber(other, trust=trust, adopt=True) as sub,
            pytest.raises(dc.ChainError) as refused,
        ):
            take(sub)
        assert refused.value.rule == "R-SIG-05"
    with pytest.raises(dc.UsageError):
        dc.Subscriber(url, trust=f"{OF_FIRST}  {digest}")


def test_secrets_are_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    seed = FIRST.split("+", 4)[4]
    url = tmp_path / "chain"
    slips = [
        FIRST[:-4],
        FIRST.lower(),
        f" {FIRST} x",
        FIRST.removeprefix("PRIVATE+"),
        FIRST.replace("first", "other"),
    ]
    (tmp_path / "two").write_text(f"{FIRST}\n{SECOND}")
    shown: list[object] = []
    for slip in (*slips, tmp_path / "two", tmp_path / "none", 3):
        for call in (lambda key: dc.Publisher(url, sign_key=[key]), dc.public_key):
            with pytest.raises(dc.UsageError) as refused:
                call(slip)
            shown += [refused.value, repr(refused.value), refused.value.__cause__]
    for call in (
        lambda: dc.Subscriber(url, trust=FIRST),
        lambda: dc.Subscriber(url, trust=dc.Trust([OF_SECOND, FIRST], quorum=2)),
        lambda: dc.Publisher(url, trust=FIRST),
        lambda: dc.Publisher(url, sign_key=dc.SignWith(FIRST, bytes)),
    ):
        with pytest.raises(dc.UsageError, match="secret key") as refused:
            call()
        shown.append(refused.value)
    with dc.Publisher(url, sign_key=FIRST) as pub:
        pub.publish(tensors(0))
        with pytest.raises(TypeError):
            pickle.dumps(pub)
        shown += [repr(pub), vars(pub), caplog.text]
    assert seed.lower() not in "".join(map(str, shown)).lower()


def test_a_function_signs(tmp_path: Path) -> None:
    url, asked = tmp_path / "chain", []

    def sign(text: bytes) -> bytes:
        asked.append(text)
        return signed(FIRST, text)

    publish(url, 0, sign_key=[dc.SignWith(OF_FIRST, sign), SECOND])
    with dc.Subscriber(url, trust=dc.Trust([OF_FIRST, OF_SECOND], quorum=2)) as sub:
        assert take(sub) == 0
        assert [text.decode().split("\n")[2:] for text in asked] == [["0", sub.commit, ""]]


def test_a_missing_key_ends_no_signed_chain(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    publish(url, 0, sign_key=FIRST)
    with pytest.raises(dc.UsageError, match=r"version 0 is signed.*unsigned=True"):
        publish(url, 1)
    with pytest.raises(dc.UsageError, match="leave one of the two out"):
        publish(url, 1, sign_key=FIRST, unsigned=True)
    with dc.Publisher(url, unsigned=True) as pub:
        assert pub.publish(tensors(1)).version == 1
    # A chain that continues without signatures needs no setting.
    assert publish(url, 2).version == 2


def test_a_function_that_fails_ends_the_publish(tmp_path: Path) -> None:
    url = tmp_path / "chain"

    def raises(text: bytes) -> bytes:
        raise ConnectionError("the key service is away")

    refusals: list[Any] = [
        raises,
        lambda text: b"short",
        lambda text: None,
        lambda text: signed(SECOND, text),
        bytes,
    ]
    for step, function in enumerate(refusals):
        with dc.Publisher(url, sign_key=dc.SignWith(OF_FIRST, function)) as pub:
            with pytest.raises(dc.Error) as failed:
                pub.publish(tensors(step))
            assert not dc.log(url)
            assert (function is raises) == ("the key service is away" in str(failed.value))
    with pytest.raises(dc.UsageError):
        dc.Publisher(url, sign_key=dc.SignWith(OF_FIRST, 3))  # type: ignore[arg-type]
    # The files that they left do not prevent the next publisher from publishing.
    assert publish(url, 0, sign_key=FIRST).version == 0


def test_a_function_that_blocks_can_be_left(tmp_path: Path) -> None:
    url, is_asked, ends = tmp_path / "chain", threading.Event(), threading.Event()

    def sign(text: bytes) -> bytes:
        is_asked.set()
        assert ends.wait(60)
        return signed(FIRST, text)

    with dc.Publisher(url, sign_key=dc.SignWith(OF_FIRST, sign)) as pub:
        with pytest.raises(dc.CancelledError):
            pub.publish(tensors(0), stop=is_asked)
        assert not dc.log(url)
        ends.set()
        assert pub.publish(tensors(0)).version == 0
    with dc.Subscriber(url, trust=OF_FIRST) as sub:
        assert take(sub) == 0


def test_rank_0_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, like, key = tmp_path / "chain", tmp_path / "like", tmp_path / "key"
    write_model(like / "model.safetensors", model(0))
    key.write_text(FIRST)
    # The other ranks would fail if they tried to read the key.
    monkeypatch.setenv("TEST_KEY_OF_RANK_0", str(key))
    monkeypatch.setenv("DELTACHAIN_SIGNING_KEY", str(tmp_path / "there is no such file"))
    said = ran("sockets", 2, url, like, 0, 1)
    assert [[row.get("version") for row in rows] for rows in said] == [[0, 1], [0, 1]], said
    with dc.Subscriber(url, trust=OF_FIRST) as sub:
        assert take(sub) == 1


def test_no_credential_of_a_url_is_shown() -> None:
    store = dc.Store("http://me:hidden@127.0.0.1:1/chain?token=hidden", attempts=1)
    with dc.Subscriber(store) as sub:
        for one in (sub, store):
            assert "127.0.0.1" in repr(one) and "hidden" not in repr(one)
        with pytest.raises(dc.Error) as refused:
            sub.prepare()
        assert "hidden" not in f"{refused.value!r} {vars(refused.value)} {refused.value.__cause__}"


def set_routes(url: Path, generation: int, *links: Path) -> None:
    """Writes which files lead to version 0, as anyone with write access to the store can."""
    routes = []
    for link in sorted(links, key=lambda link: link.stat().st_size):
        (url / "files" / link.name).write_bytes(link.read_bytes())
        routes.append({"from": None, "files": [{"digest": link.stem, "size": link.stat().st_size}]})
    document = {
        "deltachain": 1,
        "version": 0,
        "generation": generation,
        "commit": dc.show(url, version=0).commit,
    }
    text = json.dumps({**document, "routes": routes, "metadata": {}}, separators=(",", ":"))
    (url / "routes").mkdir(exist_ok=True)
    (url / "routes" / f"{0:020}-{generation:010}.json").write_text(text)


def published(url: Path, model: Path) -> Path:
    """Publishes a directory as the first version, signed, and returns its link."""
    key = url.with_name("first.key")
    key.write_text(FIRST)
    key.chmod(0o600)
    tool("init", url)
    tool("publish", url, model, "--sign-key", key)
    (link,) = (url / "files").iterdir()
    return link


@pytest.mark.parametrize("trusts", [True, False])
def test_a_stranger_does_not_choose_the_files_of_a_model(tmp_path: Path, trusts: bool) -> None:
    url, tensors = tmp_path / "chain", model(1)
    mine = write_model(tmp_path / "mine" / "model.safetensors", tensors)
    own = published(url, mine.parent)
    theirs = tmp_path / "theirs"
    write_model(theirs / "adapter_model.safetensors", {"a.weight": tensors["a.weight"]})
    write_model(
        theirs / "model.safetensors",
        {name: tensors[name] for name in tensors if name != "a.weight"},
    )
    whole = published(tmp_path / "other chain", theirs)
    set_routes(url, 1, whole)
    copy = tmp_path / "copy"
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST if trusts else None) as sub:
        with pytest.raises(dc.StateMismatchError) as refused:
            take(sub)
        assert refused.value.rule == "R-LAY-03"
        assert sub.version is None
        set_routes(url, 2, whole, own)
        assert take(sub) == 0
    assert [path.name for path in (copy / "current").iterdir()] == ["model.safetensors"]
    assert dc.digest(copy / "current" / "model.safetensors") == dc.digest(mine)


def test_a_stranger_who_can_only_add_hides_no_version(tmp_path: Path) -> None:
    url = tmp_path / "chain"
    publish(url, 0, sign_key=FIRST)
    publish(url, 1, sign_key=FIRST)
    for number in range(64):
        (url / "signatures" / f"{1:020}-{commit_of(url)}-{number:064x}").write_bytes(b"x")
    with dc.Subscriber(url, trust=OF_FIRST) as sub:
        assert take(sub) == 1


def test_trust_that_comes_late_is_unhealthy_until_a_signed_version_is_held(tmp_path: Path) -> None:
    url, copy = tmp_path / "chain", tmp_path / "copy"
    publish(url, 0)
    with dc.Subscriber(url, host_copy=copy) as sub:
        assert take(sub) == 0
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST) as sub:
        with pytest.raises(dc.ChainError):
            take(sub)
        assert not dc.status(copy).healthy
        publish(url, 1, sign_key=FIRST, vouch=commit_of(url))
        assert take(sub) == 1 and dc.status(copy).healthy


def test_a_file_of_a_signed_commit_is_not_exchanged_for_a_part(tmp_path: Path) -> None:
    url, noise = tmp_path / "chain", random.Random(0).randbytes(9 << 20)
    tensors = {name: ("U8", (len(noise),), noise) for name in "ab"}
    mine = write_model(tmp_path / "mine" / "model.safetensors", tensors)
    own = published(url, mine.parent)
    right = own.read_bytes()
    theirs = write_model(tmp_path / "theirs" / "adapter_model.safetensors", tensors)
    dc.snapshot(theirs.parent, tmp_path / "other.dcf")
    other = bytearray((tmp_path / "other.dcf").read_bytes())
    # An unused extension area makes it as long as the right link.
    struct.pack_into("<Q", other, 112, len(right) - len(other))
    struct.pack_into("<I", other, 124, zlib.crc32(other[:124]))
    own.write_bytes(other.ljust(len(right), b"\0"))
    copy = tmp_path / "copy"
    with dc.Subscriber(url, host_copy=copy, trust=OF_FIRST, tensors=["a"]) as sub:
        with pytest.raises(dc.StateMismatchError) as refused:
            take(sub)
        assert refused.value.rule == "R-LAY-03"
        own.write_bytes(right)
        assert take(sub) == 0
    assert [path.name for path in (copy / "current").iterdir()] == ["model.safetensors"]
