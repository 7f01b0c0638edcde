"""Reads and writes one plain safetensors file, as far as states need it: no shards, no `__metadata__` (section 12)."""
import json
from pathlib import Path

from .errors import DcfError
from .model import BY_NAME, Tensor, elements


def bad(message, error_class="IO"):
    raise DcfError(error_class, None, f"safetensors: {message}")


def members(pairs):
    """Returns the object of a JSON text, in which no member may be repeated."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a member is repeated")
    return dict(pairs)


def read(path):
    data = Path(path).read_bytes()
    body = 8 + int.from_bytes(data[:8], "little")
    if body > len(data):
        bad("header is cut off")
    try:
        header = json.loads(data[8:body].decode("utf-8"), object_pairs_hook=members)
        header.pop("__metadata__", None)
        return {name: _tensor(name, entry, data[body:]) for name, entry in header.items()}
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
        if name == "__metadata__" or tensor.dtype.name not in BY_NAME:
            bad(f"{name!r} of dtype {tensor.dtype.name} cannot be written", "USAGE")
        header[name] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape),
                        "data_offsets": [len(body), len(body) + len(tensor.data)]}
        body += tensor.data
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + bytes(body)


def write(path, state):
    """Writes the file. It is complete before it is visible (section 9, step 5)."""
    temporary = Path(f"{path}.tmp")
    temporary.write_bytes(encode(state))
    temporary.replace(path)
