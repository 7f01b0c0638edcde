"""The layout of safetensors files that a link may carry (section 12): which file holds which tensors."""
from itertools import chain

from blake3 import blake3

from . import documents
from .errors import check
from .names import ascending, distinct, folder, folders, is_path

KEY = "deltachain.layout"
FORM = {"files": [{"name": (None, ".*"), "metadata": (None, documents.METADATA), "tensors": (None, [".*", 0])}, 1]}

ONE_FILE = [{"name": None, "metadata": None, "tensors": None}]


def parse(text, tensors):
    """Returns the files of the layout (R-LAY-01); `tensors` are the names of the target's tensors."""
    layout = documents.one_form(text.encode("utf-8"), FORM)
    check(layout, "R-LAY-01", "not the one form of a layout", KEY)
    files = layout["files"]
    names, lists = [file["name"] for file in files], [file["tensors"] for file in files]
    if len(files) == 1:
        check(lists == [None], "R-LAY-01", "one file has all tensors and lists none", KEY)
    else:
        check(None not in names and None not in lists, "R-LAY-01", "a file without a name or a list", KEY)
        check(ascending(names) and all(map(ascending, lists)), "R-LAY-01", "not in ascending order", KEY)
        listed = [name for names in lists for name in names]
        check(sorted(listed) == sorted(tensors), "R-LAY-01", "not each tensor exactly once", KEY)
    named = {name: tensors if among is None else among for name, among in zip(names, lists) if name is not None}
    good = distinct(named) and all(is_path(name) and name.endswith(".safetensors") for name in named)
    check(good, "R-LAY-01", "file names are not path names and distinct", KEY)
    check(distinct(set(chain(*map(folders, named)))), "R-LAY-01", "folders that differ in case only", KEY)
    inside = all(tensor.startswith(folder(name)) for name, among in named.items() for tensor in among)
    check(inside, "R-LAY-01", "a tensor's name does not begin with the folder of its file", KEY)
    return files


def carried(files, before, after):
    """Returns the files of a target without the key: those of its base. `before` and `after` are the tables of both."""
    named = [folder(file["name"] or "") for file in files]
    lists = [[name for name in file["tensors"] or [] if name in after] for file in files]
    for name in after.keys() - before.keys():
        fitting = [(len(begin), place) for place, begin in enumerate(named) if name.startswith(begin)]
        check(fitting, "R-LAY-01", f"no file for {name!r}", KEY)
        lists[max(fitting)[1]].append(name)
    return files if len(files) == 1 else [file | {"tensors": sorted(names)} for file, names in zip(files, lists)]


def digest(files):
    return blake3(documents.encode({"files": files})).hexdigest()
