"""The registry of vectors of all kinds. A function that is marked with `makes_vectors` yields `Vector`s; its file and
name become their `generator`."""
from dataclasses import dataclass, field

SPEC = "1.2"  # version of SPEC.md
SINCE = {"23": "1.1", "24": "1.1", "25": "1.2"}  # by the section of an addition, the version that included it
FUNCTIONS = []
MADE = {}  # id -> Vector, in the order in which they are made


@dataclass
class Vector:
    id: str
    file: bytes
    section: str
    reason: str
    expect: dict
    kind: str = "link"
    suffix: str = ".dcf"
    rules: list = field(default_factory=list)
    features: list = field(default_factory=list)
    twin: str = None
    members: dict = field(default_factory=dict)  # other members of the index's entry; a State stands for its path
    source: object = None  # the object that the file was made from, for vectors that damage it
    generator: str = None
    since: str = None  # the version of SPEC.md that added it

    def whole(self):
        """Returns the file that testees get."""
        grown = self.members.get("grown")
        if grown is None:
            return self.file
        at = grown["at"]
        return self.file[:at] + self.file[at:at + 1] * (grown["length"] - len(self.file)) + self.file[at:]

    def entry(self):
        """Returns the entry of the index, without the digests of files."""
        return {"id": self.id, "kind": self.kind, "file": f"vectors/{self.id}{self.suffix}", "section": self.section,
                "rules": sorted(set(self.rules)), "features": sorted(set(self.features)), "since": self.since,
                "generator": self.generator, "reason": self.reason, "twin": self.twin, **self.members,
                "expect": self.expect}


def makes_vectors(function):
    FUNCTIONS.append(function)
    return function


def makes_vectors_since(version):
    """Like `makes_vectors`, for vectors that were added after the text of their section."""
    def mark(function):
        function.since = version
        return makes_vectors(function)
    return mark


def collect():
    """Runs all functions, in the order in which their modules were imported."""
    for function in FUNCTIONS:
        file = "conformance/" + function.__module__.replace(".", "/") + ".py"
        for vector in function():
            assert vector.id not in MADE, f"two vectors have the id {vector.id}"
            vector.generator = f"{file}:{function.__name__}"
            since = SINCE.get(vector.section.split(".")[0], "1.0")
            vector.since = getattr(function, "since", since)
            MADE[vector.id] = vector
    return sorted(MADE.values(), key=lambda vector: vector.id)
