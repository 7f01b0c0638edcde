"""Checks before a release, and the files of the release, side by side in `target/artefacts`: the built files,
`provenance.json` (a statement of in-toto in the layout of SLSA: the commit and the programs; not signed) and
`SHA256SUMS`. Publishing is for people (CONTRIBUTING.md).

    python -m tasks.release versions|address|npm         checks; `npm` reads what `npm pack --json` prints
"""

import hashlib
import json
import re
import shutil
import sys
import tomllib

from tasks.steps import ROOT, TARGET, Failed, has, output, say

#: The crates that are published, each after its dependencies.
CRATES = "deltachain", "deltachain-store", "deltachain-engines", "deltachain-cli", "deltachain-exchange"
#: The crates whose public interface is recorded. The other ones are a program, and code that it and the Python package
#: use.
LIBRARIES = "deltachain", "deltachain-exchange", "deltachain-store"
#: The maximum size of wheels and archives, which users download.
MOST_BYTES = 12 << 20
#: Files that fix the versions of all dependencies and build tools.
LOCKS = ["Cargo.lock", "js/package-lock.json"]
LOCKS += [f"python/requirements-{name}.txt" for name in ("build", "manylinux", "release")]
COMMAND = "./task release --dry-run"
INSTALLS = re.compile(r"(pip install|npm i(nstall)?|cargo (install( --locked)?|add)) (@deltachain/reader|deltachain)\b")


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def version():
    """Returns the version of the library, which is that of everything."""
    return tomllib.loads(text_of("Cargo.toml"))["package"]["version"]


def crates():
    """Returns Cargo's metadata of the workspace's crates."""
    return json.loads(output("cargo metadata --locked --no-deps --format-version 1"))["packages"]


def versions():
    said = {crate["name"]: crate["version"] for crate in crates() if crate["version"] != "0.0.0"}
    said["integrations/pyproject.toml"] = tomllib.loads(text_of("integrations/pyproject.toml"))["project"]["version"]
    said["js/package.json"] = json.loads(text_of("js/package.json"))["version"]
    said["CITATION.cff"] = re.search(r'^version: "?([^"\n]*)', text_of("CITATION.cff"), re.MULTILINE)[1]
    said["CHANGELOG.md"] = version() if f"\n## {version()}" in text_of("CHANGELOG.md") else "none"
    if wrong := {name: found for name, found in said.items() if found != version()}:
        raise Failed(f"Cargo.toml has version {version()}, others have {wrong}")


def address():
    """Checks that the project's address is the same in all metadata, or nowhere: then no page may install from a
    registry."""
    said = {f"Cargo.toml of {crate['name']}": crate["repository"] for crate in crates() if crate["publish"] is None}
    for name in "python/pyproject.toml", "integrations/pyproject.toml":
        said[name] = tomllib.loads(text_of(name))["project"].get("urls", {}).get("Repository")
    npm = json.loads(text_of("js/package.json"))
    said |= {"js/package.json": npm.get("repository", {}).get("url"), "its homepage": npm.get("homepage")}
    citation = re.search(r'^repository-code: "?([^"\n]*)', text_of("CITATION.cff"), re.MULTILINE)
    said["CITATION.cff"] = citation and citation[1]
    # npm writes "git+https://a.git" for "https://a".
    plain = {name: url and url.removeprefix("git+").removesuffix(".git") for name, url in said.items()}
    if len(set(plain.values())) > 1:
        raise Failed(f"not the same address everywhere: {plain}")
    pages = "README.md", "python/README.md", "js/README.md", "crates/deltachain-cli/README.md", "integrations/README.md"
    pages = [*map(ROOT.joinpath, pages), *(ROOT / "docs").glob("*.md"), *(ROOT / "integrations/docs").glob("*.md")]
    found = [f"{page}: {line}" for page in pages for line in page.read_text().splitlines() if INSTALLS.search(line)]
    if found and not any(plain.values()):
        raise Failed("nothing is published yet, but:\n" + "\n".join(found))


def npm():
    """Checks what npm would publish: sources, types, README and licences, and nothing else."""
    names = [file["path"] for file in json.load(sys.stdin)[0]["files"]]
    names = sorted(name for name in names if not name.startswith(("src/", "types/")))
    if names != ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json"]:
        raise Failed(f"beside sources and types, the npm package has {names}")
    for name in names[:2]:
        if text_of(f"js/{name}") != text_of(name):
            raise Failed(f"js/{name} is not the repository's")


def of_bearable_size(path):
    size = path.stat().st_size
    say(f"{path}: {size} bytes")
    if size > MOST_BYTES:
        raise Failed(f"{path} is longer than {MOST_BYTES} bytes")
    return path


class Files:
    """The files of a release, with the way each was tested, and the missing files."""

    def __init__(self):
        self.folder, self.tried, self.missing = TARGET / "artefacts", {}, {}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def add(self, what, path, tried):
        """Copies a built file, or notes that it could not be built."""
        if path:
            shutil.copy(path, self.folder)
            self.tried[path.name] = tried
        else:
            self.missing[what] = path if isinstance(path, str) else "see the steps"

    def finish(self):
        """Writes the provenance and the checksums, and lists the files."""
        programs = {name: output(f"{name} --version").splitlines()[0] if has(f"{name} --version") else "none"
                    for name in ("rustc", "cargo", "cc", "python3", "node", "npm")}
        digest = lambda path: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}  # noqa: E731
        used = [{"name": "commit", "digest": {"gitCommit": output("git rev-parse HEAD").strip()}}]
        used += [{"name": name, "digest": digest(ROOT / name)} for name in LOCKS]
        programs["uncommitted"] = output("git status --porcelain")
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": digest(self.folder / name), "annotations": {"tried": tried}}
                        for name, tried in sorted(self.tried.items())],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    # A URI if the project has an address. It has none yet.
                    "buildType": COMMAND,
                    "externalParameters": {"command": COMMAND},
                    "internalParameters": programs,
                    "resolvedDependencies": used,
                },
                "runDetails": {"builder": {"id": "the machine of whoever ran the command; nobody has signed this"}},
            },
        }
        (self.folder / "provenance.json").write_text(f"{json.dumps(statement, indent=2)}\n")
        paths = sorted(self.folder.iterdir())
        sums = [f"{digest(path)['sha256']}  {path.name}\n" for path in paths]
        (self.folder / "SHA256SUMS").write_text("".join(sums))
        lines = [f"{path.name}  {self.tried.get(path.name, '')}" for path in paths]
        lines += [f"MISSING: {what}: {why}" for what, why in self.missing.items()]
        say("\n".join([f"{self.folder}:", *lines]))


if __name__ == "__main__":
    try:
        {"versions": versions, "address": address, "npm": npm}[sys.argv[1]]()
    except Failed as error:
        sys.exit(str(error))
