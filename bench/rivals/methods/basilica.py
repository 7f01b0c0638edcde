"""PULSEPT1 of basilica-sdk."""

import os

from method import Facts, Method, torch_tensors


class Basilica(Method):
    """PULSEPT1 of basilica-sdk. Both sides hold a snapshot of its own type, which is made before a step."""

    facts = Facts(
        what="package basilica-sdk",
        checks="XXH3-128 of every target tensor, both ways",
        proof="every byte, XXH3-128",
        base="XXH3-128 of every tensor, if the patch has it",
        place="the only copy, before it is verified",
        bf16_only=True,
    )
    version = 1

    def setup(self) -> None:
        from basilica._pulse.codec import ModelMeta, Snapshot

        # The package has a pool for encoding; decoding uses threads within a tensor (version 3 only).
        os.environ["BASILICA_PULSE_EXPCTX_THREADS"] = str(self.threads)
        self.snapshot_of = lambda: Snapshot(torch_tensors(self.base))
        self.publisher = self.snapshot_of()
        self.model = ModelMeta("model", self.publisher.digest(), self.publisher.param_count())
        self.update = list(torch_tensors(self.target).items())

    def encode(self) -> bytes:
        patch, _ = self.publisher.encode_step(
            self.update, step=1, base_step=0, model=self.model, workers=self.threads, format_version=self.version
        )
        self.publisher.rollback_last_encode()
        return patch

    def prepare(self) -> None:
        self.follower = self.snapshot_of()

    def decode(self, blob: bytes) -> object:
        from basilica._pulse.codec import parse_patch

        self.follower.apply_patch(parse_patch(blob))
        return dict(self.follower.named_tensors())


class Basilica2(Basilica):
    version = 2


class Basilica3(Basilica):
    version = 3


METHODS = {
    "basilica-sdk PULSEPT1 v1": Basilica,
    "basilica-sdk PULSEPT1 v2": Basilica2,
    "basilica-sdk PULSEPT1 v3": Basilica3,
}
