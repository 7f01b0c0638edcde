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
from ._chain import *  # noqa: F403
from ._chain import __all__ as _chain_all
from ._errors import *  # noqa: F403
from ._errors import TimeoutError as TimeoutError
from ._errors import __all__ as _errors_all
from ._files import *  # noqa: F403
from ._files import __all__ as _files_all
from ._files import open as open
from ._host_copy import FoundVersion, HostCopy, find_version
from ._keys import SignWith, Trust, new_key, public_key
from ._like import Like
from ._native import Servers, __version__, is_managed, misfit, version_name
from ._parts import Part, overlapping
from ._publisher import *  # noqa: F403
from ._publisher import __all__ as _publisher_all
from ._ranks import Group
from ._store import Store
from ._subscriber import *  # noqa: F403
from ._subscriber import __all__ as _subscriber_all
from ._tensors import Tensor, storage_sums

# Without `open` and `TimeoutError`, which are builtins, too.
__all__ = [  # noqa: PLE0604
    "FoundVersion",
    "Group",
    "HostCopy",
    "Like",
    "Part",
    "Servers",
    "SignWith",
    "Store",
    "Tensor",
    "Trust",
    "__version__",
    "find_version",
    "is_managed",
    "misfit",
    "new_key",
    "overlapping",
    "public_key",
    "storage_sums",
    "version_name",
    *_chain_all,
    *_errors_all,
    *_files_all,
    *_publisher_all,
    *_subscriber_all,
]

# Threads of this package must not run after the interpreter has ended.
_atexit.register(_native.leave)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_native.forked)
