"""Makes files that are damaged on purpose, for `../interop.py`."""
