"""Files that are damaged on purpose, for `../interop.py`."""
