"""A second, educational implementation of the delta chain format (SPEC.md, version 1): clear rather than fast.

Reading order: errors, primitives, model, header, streams, index, segment, codings, link, in_place, writer;
documents, chain.
"""
