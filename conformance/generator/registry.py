"""Where the vectors are collected, of all kinds. A function that is marked with `makes_vectors` yields `Vector`s; its
file and name become their `generator`."""
from dataclasses import dataclass, field

SINCE = "1.0"  # version of SPEC.md that new vectors come with
DRAFTS = ("23", "24")  # sections of texts that are drafts
NEXT = "1.1-draft"  # the version that is to take them in
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
    source: object = None  # what the file was made from, for those who make invalid ones of it
    generator: str = None

    def since(self):
        return NEXT if self.section.split(".")[0] in DRAFTS else SINCE

    def entry(self):
        """The entry of the index, but for the digests of files."""
        return {"id": self.id, "kind": self.kind, "file": f"vectors/{self.id}{self.suffix}", "section": self.section,
                "rules": sorted(set(self.rules)), "features": sorted(set(self.features)), "since": self.since(),
                "generator": self.generator, "reason": self.reason, "twin": self.twin, **self.members,
                "expect": self.expect}


def makes_vectors(function):
    FUNCTIONS.append(function)
    return function


def collect():
    """Runs all functions, in the order in which their modules were imported."""
    for function in FUNCTIONS:
        file = "conformance/" + function.__module__.replace(".", "/") + ".py"
        for vector in function():
            assert vector.id not in MADE, f"two vectors have the id {vector.id}"
            vector.generator = f"{file}:{function.__name__}"
            MADE[vector.id] = vector
    return sorted(MADE.values(), key=lambda vector: vector.id)
