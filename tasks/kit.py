"""The conformance kit as one archive, for people who have neither this repository nor Rust.

    python -m tasks.kit RUNNER   makes and unpacks it, and tests its example with its runner
"""

import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tasks.steps import ROOT, Failed, output

#: Files and folders; the content of `conformance` is at the top of the archive.
CONTENT = """
    LICENSE-APACHE LICENSE-MIT SPEC.md spec/signatures.md spec/in-place.md spec/layouts.md
    spec/publishing.md spec/registry.md spec/worked-files.md spec/rationale.md spec/questions.md spec/changes.md
    conformance/README.md conformance/protocol.md conformance/maintaining.md conformance/implementations.md
    conformance/example_testee.py conformance/fuzz_example.py conformance/index.json conformance/index.schema.json
    conformance/published.sha256 conformance/rules.json conformance/constants.json conformance/decoded.json
    conformance/deltachain.h conformance/functions.json conformance/registry.json conformance/vectors
    conformance/python/README.md conformance/python/deltachain_py conformance/python/requirements.txt
"""


def write(runner, folder):
    """Writes the archive with this runner into a folder, and returns its path. The same files give the same bytes."""
    version = subprocess.run([runner, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    name = f"deltachain-conformance-{version}-{output('rustc --print host-tuple').strip()}"
    files = {runner.name: runner}
    for place in map(ROOT.joinpath, CONTENT.split()):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.parent.name != "__pycache__":
                files[str(path.relative_to(ROOT)).removeprefix("conformance/")] = path
    archive = folder / f"{name}.tar.gz"
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed, format=tarfile.USTAR_FORMAT) as tar:
        for inside, path in sorted(files.items()):
            info = tarfile.TarInfo(f"{name}/{inside}")
            info.mode, content = 0o755 if path == runner else 0o644, path.read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return archive


def check(runner):
    with tempfile.TemporaryDirectory() as folder:
        archive = write(runner, Path(folder))
        content = archive.read_bytes()
        if write(runner, Path(folder)).read_bytes() != content:
            raise Failed("the same files give another archive")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        inside = Path(folder) / archive.name.removesuffix(".tar.gz")
        # Runs in another folder and without --vectors: the runner finds the vectors beside itself.
        testee = f"'{sys.executable}' '{inside}/example_testee.py'"
        words = ["run", "--only", "links/valid/", "--testee", testee]
        subprocess.run([inside / runner.name, *words], cwd=folder, check=True)


if __name__ == "__main__":
    check(Path(sys.argv[1]).resolve())
