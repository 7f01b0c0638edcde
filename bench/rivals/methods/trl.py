"""The layouts that TRL proposed, written here."""

import numpy as np
from checkpoint import Tensor, parse, write
from method import Facts, Layout


class Trl(Layout):
    """Positions and new values, by tensor, as the asynchronous GRPO trainer of TRL proposed them."""

    facts = Facts(what="layout, written here", place="the only copy", bf16_only=True)
    gaps = False

    def encode(self) -> bytes:
        def one(name: str):
            new = self.target[name].data.view(np.uint16)
            places = np.flatnonzero(new != self.base[name].data.view(np.uint16))
            if not self.gaps:
                return places.astype(np.int32), new[places], "I32"
            gaps = np.diff(places, prepend=-1) - 1
            wide = gaps.size > 0 and gaps.max() > 0xFFFF
            return gaps.astype(np.uint32 if wide else np.uint16), new[places], "U32" if wide else "U16"

        tensors = {}
        for name, (places, values, dtype) in zip(self.target, self.each(one, self.target)):
            tensors[f"{name}.idx"] = Tensor(dtype, [places.size], places.view(np.uint8))
            tensors[f"{name}.val"] = Tensor("BF16", [values.size], values.view(np.uint8))
        return write(tensors, {"encoding": "gap_delta" if self.gaps else "raw"})

    def decode(self, blob: bytes) -> object:
        tensors, metadata = parse(blob)
        types = {"I32": np.int32, "U32": np.uint32, "U16": np.uint16}

        def one(name: str) -> None:
            places = tensors[f"{name}.idx"]
            places = places.data.view(types[places.dtype])
            if metadata["encoding"] == "gap_delta":
                places = np.cumsum(places.astype(np.int64) + 1) - 1
            self.state[name].view(np.uint16)[places] = tensors[f"{name}.val"].data.view(np.uint16)

        self.each(one, self.state)
        return self.state


class TrlGaps(Trl):
    gaps = True


METHODS = {
    "TRL gap_delta": TrlGaps,
    "TRL raw": Trl,
}
