"""Tensors: this package's class, which supports any dtype, and new tensors of the caller's
library."""

from __future__ import annotations

import importlib.util
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

from . import _native
from ._errors import UsageError
from ._settings import choice

__all__ = [
    "BITS",
    "PACKED",
    "SIGNED",
    "Kind",
    "Tensor",
    "allocator",
    "checked_kind",
    "kind_of",
    "known",
]

# The libraries of tensors.
Kind = Literal["torch", "numpy", "deltachain"]

# Bits of an element.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# Dtypes of which several elements share a byte. Their lanes are bytes.
PACKED = frozenset({"F4", "F6_E2M3", "F6_E3M2"})

# Dtypes whose highest bit is a sign.
SIGNED = frozenset(
    {"F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16", "BF16", "F32", "F64"}
)

# Names of torch and numpy (with ml_dtypes), which are the same except for F4.
_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


class Tensor:
    """A tensor of any dtype of the format, as raw bytes, even if no library supports the dtype.

    Args:
        dtype: its name in safetensors, such as `"BF16"` or `"F8_E4M3"`.
        shape: the dimensions, outermost first; empty for a scalar.
        data: the bytes, row-major and little-endian: an object with the buffer protocol, which is
            not copied. To publish or compare a tensor in other memory: a function of an offset and
            a length in bytes that returns such an object with these bytes. It is called from other
            threads, for up to 16 MiB at a time.

    `memoryview(tensor.data)` gives the bytes.

    >>> Tensor("BF16", (2,), b"\\x80\\x3f\\x00\\x80")  # 1 and -0
    Tensor('BF16', (2,))
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...] | list[int], data: Any) -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = data

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes, from dtype and shape."""
        bits = BITS[self.dtype]
        for dimension in self.shape:
            bits *= dimension
        return bits // 8

    def __repr__(self) -> str:
        return f"Tensor({self.dtype!r}, {self.shape!r})"


def checked_kind(kind: Kind | None) -> Kind | None:
    """Refuses a `kind=` that is invalid, or whose library is not installed."""
    if kind is not None:
        choice("kind", kind, get_args(Kind))
        if (
            kind != "deltachain"
            and kind not in sys.modules
            and importlib.util.find_spec(kind) is None
        ):
            raise UsageError(f"USAGE: kind={kind!r} needs {kind}, which is not installed")
    return kind


def note_written(tensors: Mapping[str, Any]) -> None:
    """Notes in torch that its tensors are written to: a backward pass that needs the old values
    then fails."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for tensor in tensors.values():
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def known(weights: Any) -> Mapping[Any, Any] | None:
    """Returns the weights as a mapping, if they are a mapping or a module of torch; None for a
    stream."""
    if isinstance(weights, Mapping):
        return weights
    is_module = hasattr(weights, "state_dict") and hasattr(weights, "named_parameters")
    # A class has these, too.
    if is_module and not isinstance(weights, type):
        state: Mapping[Any, Any] = weights.state_dict()
        return state
    return None


def kind_of(value: Any) -> Kind:
    """Returns the library of a tensor: `"torch"`, `"numpy"`, or `"deltachain"` for everything
    else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if numpy is not None and isinstance(value, numpy.ndarray):
        return "numpy"
    return "deltachain"


@cache
def numpy_dtype(name: str) -> Any:
    """Returns the numpy dtype for a dtype of the format; from `ml_dtypes` if numpy does not have
    it."""
    import numpy

    if name not in _NAMES:
        raise UsageError(f"USAGE: numpy has no dtype {name}: use kind='deltachain'")
    if name == "BF16" or name.startswith("F8_"):
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise UsageError(
                f"USAGE: numpy needs ml_dtypes for {name}: install it, or use kind='deltachain'"
            ) from None
        return numpy.dtype(getattr(ml_dtypes, _NAMES[name]))
    return numpy.dtype(_NAMES[name])


@cache
def torch_dtype(name: str) -> Any:
    """Returns the torch dtype for a dtype of the format."""
    import torch

    dtype = getattr(torch, _NAMES.get(name, "float4_e2m1fn_x2" if name == "F4" else ""), None)
    if dtype is None:
        raise UsageError(f"USAGE: torch has no dtype {name}: use kind='deltachain'")
    return dtype


def check_dtype(kind: Kind, dtype: str, name: str) -> None:
    """Refuses a dtype that the library of a kind does not have, for the tensor with this name.

    Raises:
        UsageError: if the library does not have it.
    """
    try:
        if kind == "torch":
            torch_dtype(dtype)
        elif kind == "numpy":
            numpy_dtype(dtype)
    except UsageError as error:
        raise UsageError(f"{error} (tensor {name!r})", tensor=name) from None


def name_of(value: Any) -> str:
    """Returns the format's name of a tensor's dtype."""
    return value.dtype if isinstance(value, Tensor) else dtype_name(value.dtype)


def dtype_name(dtype: Any) -> str:
    """Returns the format's name of a torch or numpy dtype, or its own name if the format does not
    have it. Numpy names a byte order, such as `>f4`, only if it is not the machine's."""
    text = str(dtype).removeprefix("torch.")
    return (
        "F4"
        if text == "float4_e2m1fn_x2"
        else next((name for name, own in _NAMES.items() if own == text), text)
    )


def zeros(kind: Kind, dtype: str, shape: list[int]) -> Any:
    """Returns a new tensor of zeros."""
    if kind == "torch":
        return _of_torch(dtype, shape)
    if kind == "numpy":
        import numpy

        return numpy.zeros(shape, dtype=numpy_dtype(dtype))
    tensor = Tensor(dtype, shape, b"")
    # Large tensors get zero pages lazily, in the threads that write them.
    tensor.data = (
        bytearray(tensor.nbytes) if tensor.nbytes < 1 << 20 else mmap.mmap(-1, tensor.nbytes)
    )
    return tensor


def allocator(base: Any, kind: Kind | None) -> Callable[[list[_native.TensorForm]], dict[str, Any]]:
    """Returns a function that makes tensors of `kind`; by default, of the same kind as in
    `base`."""
    like: Mapping[str, Any] = base if isinstance(base, Mapping) else {}
    usual = checked_kind(kind) or (kind_of(next(iter(like.values()))) if like else "deltachain")

    def allocate(forms: list[_native.TensorForm]) -> dict[str, Any]:
        return {
            one.name: zeros(
                kind or (kind_of(like[one.name]) if one.name in like else usual),
                one.dtype,
                one.shape,
            )
            for one in forms
        }

    return allocate


def shaped(kind: Kind, dtype: str, shape: tuple[int, ...] | list[int], data: Any) -> Any:
    """Returns a tensor of `kind` over existing bytes, without a copy: read-only, except in
    torch."""
    if kind == "torch":
        return _of_torch(dtype, shape, data)
    if kind == "numpy":
        import numpy

        return numpy.frombuffer(memoryview(data).toreadonly(), dtype=numpy_dtype(dtype)).reshape(
            tuple(shape)
        )
    return Tensor(dtype, shape, memoryview(data).toreadonly())


def _of_torch(dtype: str, shape: tuple[int, ...] | list[int], data: Any = b"") -> Any:
    """Returns a torch tensor over existing bytes; of zeros if there are none."""
    import torch

    own = Tensor(dtype, shape, b"")
    if memoryview(data).nbytes:
        flat = torch.frombuffer(writable(data), dtype=torch.uint8)
    else:
        flat = torch.zeros(own.nbytes, dtype=torch.uint8)
    if dtype != "F4":
        return flat.view(torch_dtype(dtype)).reshape(own.shape)
    # torch counts bytes of two elements of F4. Rows of odd length share bytes, so torch has such
    # tensors only as one row.
    if not shape or shape[-1] % 2:
        return flat.view(torch_dtype(dtype))
    return flat.view(torch_dtype(dtype)).reshape([*shape[:-1], shape[-1] // 2])


def writable(data: Any) -> Any:
    """Returns the bytes as a writable buffer, which torch needs."""
    return data.writable() if isinstance(data, _native.Buffer) else data


def piece_sums(pieces: Sequence[Any]) -> Any:
    """Computes the sums of pieces of memory (SPEC section 24), which show whether other code has
    written to it: always for a single element. They are computed together, on the device of the
    memory.

    Args:
        pieces: tensors of torch with one dimension, of one dtype, of one length and on one device,
            each of at most 16 MiB.

    Returns:
        A tensor of int64 on that device, with a row for each piece: its two sums.
    """
    from ._sums import of_pieces

    return of_pieces(pieces)


def usual_kind() -> Kind:
    """Returns the default kind of patches."""
    return (
        "torch" if "torch" in sys.modules else "numpy" if "numpy" in sys.modules else "deltachain"
    )
