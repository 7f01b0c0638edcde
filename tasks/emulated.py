"""Python for Linux on aarch64, with qemu's emulation of single processes: Debian's packages, unpacked into the target
folder. Nothing is installed on this machine."""

import shlex
import shutil

from tasks.steps import TARGET, Failed, has, run

#: Debian's Python and a library. Their dependencies are downloaded, too.
PACKAGES = "python3.11 libstdc++6"
#: Tests that fork a process with threads. qemu ends the child with an assertion failure.
FORKING = (
    "tests/test_processes.py::test_a_child_cannot_use_its_parents_handles_and_the_parent_goes_on",
    "tests/test_publisher.py::test_a_child_has_no_publisher",
)
PLATFORMS = " ".join(f"--platform {name}_aarch64" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"))


def check():
    """Fails unless such a Python can be made here."""
    if not has("qemu-aarch64 --version"):
        raise Failed("UNVERIFIED: no qemu-aarch64 (Debian's package qemu-user)")
    if not has("apt-get --version && dpkg-deb --version"):
        raise Failed("UNVERIFIED: no apt-get, which brings a Python for aarch64")


def python(programs, wheel, _):
    """Returns the folder of an interpreter with the wheel and the packages for its tests. `programs` are for this
    machine."""
    folder = TARGET / "aarch64"
    system, site, bin = folder / "root", folder / "site", folder / "root/usr/bin"
    if not (bin / "python3.11").exists():
        unpack(folder)
    shutil.rmtree(site, ignore_errors=True)
    options = f"--quiet --python-version 3.11 --only-binary :all: {PLATFORMS} --target {shlex.quote(str(site))}"
    wanted = f"--requirement python/requirements-test.txt {shlex.quote(str(wheel))}"
    run(f"{shlex.quote(str(programs))}/python -m pip install {options} {wanted}")
    # Wraps the interpreter in a program that tests can start, because it runs in qemu only.
    qemu = f'PYTHONPATH="{site}" exec qemu-aarch64 -L "{system}" -0 "$0" "{bin}/python3.11" "$@"'
    for name, line in ("python", qemu), ("python3", qemu), ("deltachain", f'exec "{bin}/python3" -m deltachain "$@"'):
        (bin / name).unlink(missing_ok=True)
        (bin / name).write_text(f"#!/bin/sh\n{line}\n")
        (bin / name).chmod(0o755)
    run(f"{bin}/python3 -c \"import deltachain, platform; assert platform.machine() == 'aarch64'\"")
    return bin


def unpack(folder):
    """Downloads Debian's packages for aarch64 with an apt configuration of its own, and unpacks them."""
    for part in "state/lists/partial", "cache/archives/partial", "root":
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "state/status").write_text("")
    apt = "apt-get --quiet -o APT::Architecture=arm64 -o APT::Architectures=arm64"
    for option, part in ("State", "state"), ("State::status", "state/status"), ("Cache", "cache"):
        apt += f" -o Dir::{option}={shlex.quote(str(folder / part))}"
    run(f"{apt} update && {apt} install --yes --download-only --no-install-recommends {PACKAGES}")
    for archive in (folder / "cache/archives").glob("*.deb"):
        run(f"dpkg-deb --extract {shlex.quote(str(archive))} {shlex.quote(str(folder / 'root'))}")
