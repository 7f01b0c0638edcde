"""Makes every conformance vector: `python -m generator` in the folder above writes vectors/ and index.json.

Nothing here imports deltachain_py or calls the Rust library: this is a third implementation of SPEC.md, so that an
error in one of them does not hide in the vectors.
"""
