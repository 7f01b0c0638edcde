"""Lossless sparse deltas between model versions: make and apply links, publish and follow chains of
them.

    import deltachain as dc

    link = dc.diff(old_state_dict, new_state_dict)          # tensors in memory, or paths
    new_state_dict = dc.apply(old_state_dict, [link])       # bit for bit, or an error
    with dc.open("1.dcf") as link: print(link.header)

There are no dependencies. Tensors of torch and numpy are read without copies.
"""

import atexit as _atexit
import os as _os

from . import _native
from . import adapters as adapters
from . import errors as errors
from . import reports as reports
from ._chain import (
    DirectoryStatus,
    Version,
    compact,
    doctor,
    fsck,
    log,
    mirror,
    prune,
    show,
    status,
    undo_prune,
)
from ._errors import (
    CancelledError,
    ChainError,
    CorruptError,
    Error,
    ForkedError,
    InternalError,
    InUseError,
    IoError,
    LimitError,
    StateMismatchError,
    TornError,
    UnsupportedError,
    UsageError,
    WrongBaseError,
)
from ._errors import TimeoutError as TimeoutError
from ._files import Link, Patch, apply, diff, digest, snapshot
from ._files import open as open
from ._fleet import fleet
from ._host_copy import HostCopy
from ._keys import SignWith, Trust, new_key, public_key
from ._like import Like
from ._native import __version__
from ._parts import Part
from ._publisher import Guard, Publisher, PublishJob, RoutePlan
from ._ranks import Group
from ._store import Store
from ._subscriber import Subscriber, Update, pull
from ._tensors import Tensor

# Without `open` and `TimeoutError`, which are also builtins.
__all__ = [
    "CancelledError",
    "ChainError",
    "CorruptError",
    "DirectoryStatus",
    "Error",
    "ForkedError",
    "Group",
    "Guard",
    "HostCopy",
    "InUseError",
    "InternalError",
    "IoError",
    "Like",
    "LimitError",
    "Link",
    "Part",
    "Patch",
    "PublishJob",
    "Publisher",
    "RoutePlan",
    "SignWith",
    "StateMismatchError",
    "Store",
    "Subscriber",
    "Tensor",
    "TornError",
    "Trust",
    "UnsupportedError",
    "Update",
    "UsageError",
    "Version",
    "WrongBaseError",
    "__version__",
    "apply",
    "compact",
    "diff",
    "digest",
    "doctor",
    "fleet",
    "fsck",
    "log",
    "mirror",
    "new_key",
    "prune",
    "public_key",
    "pull",
    "show",
    "snapshot",
    "status",
    "undo_prune",
]

# Threads of this package must not run after the interpreter has ended.
_atexit.register(_native.leave)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_native.forked)
