"""Reads and writes one plain safetensors file. Only what states need: no shards, no `__metadata__` (section 12)."""
import json

from .errors import DcfError
from .model import BY_NAME, Tensor, elements


def bad(message):
    raise DcfError("IO", None, f"safetensors: {message}")


def _unique(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        bad("duplicate key")
    return dict(pairs)


def read(path):
    with open(path, "rb") as file:
        return decode(file.read())


def decode(data):
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        bad("header is cut off")
    try:
        header = json.loads(data[8:8 + length].decode("utf-8"), object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        return {name: _tensor(name, entry, data[8 + length:]) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        bad(f"bad header: {error!r}")


def _tensor(name, entry, body):
    name.encode("utf-8")  # JSON can hold lone surrogates, a state cannot
    dtype, shape, (start, end) = BY_NAME[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(n) is int and 0 <= n < 2**64 for n in (*shape, start, end)):
        bad(f"bad number in {name!r}")
    if not start <= end <= len(body) or elements(shape) * dtype.bits != 8 * (end - start):
        bad(f"bad offsets of {name!r}")
    return Tensor(dtype, shape, body[start:end])


def encode(state):
    header, body = {}, bytearray()
    # Widest lanes first, so that every tensor is aligned.
    for name, tensor in sorted(state.items(), key=lambda item: (-item[1].dtype.lane_bytes, item[0].encode())):
        if name == "__metadata__":
            bad("the tensor name __metadata__ cannot be written")
        header[name] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(tensor.data)]}
        body += tensor.data
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + bytes(body)


def write(path, state):
    with open(path, "wb") as file:
        file.write(encode(state))
