"""A second, educational implementation of the delta chain link format (SPEC.md, version 0).

One file per group of sections of the specification; clear rather than fast. Only this package, `zstandard`
(RFC 8878) and `blake3` are needed. Reading order: errors, primitives, model, header, streams, index, segment,
codings, link; then writer.
"""
