#!/bin/bash -eu
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
#
# Builds all fuzzers into $OUT, each with its dictionary, options and seeds. OSS-Fuzz runs this script in its image,
# check.sh runs it without one.

shopt -s nullglob
cd "$SRC/deltachain"
programs="${CARGO_TARGET_DIR:-fuzz/target}/x86_64-unknown-linux-gnu/release"

# A program makes the seeds. It is built without sanitizers, which the host's macros and build scripts cannot use.
env -u RUSTFLAGS -u CFLAGS -u CXXFLAGS \
    cargo run --quiet --profile test --package deltachain-fuzz --example seeds -- . "$WORK/seeds"
cargo fuzz build -O --debug-assertions

for source in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    # As in tasks/fuzz.py: short inputs find the same faults, but a chain holds several links.
    max_len=2048
    [ "$target" != chain ] || max_len=4096
    cp "$programs/$target" "$OUT/"
    cp fuzz/dictionary "$OUT/$target.dict"
    printf '[libfuzzer]\nmax_len = %d\n' "$max_len" >"$OUT/$target.options"
    zip --quiet --junk-paths "$OUT/${target}_seed_corpus.zip" "$WORK/seeds/$target"/* "fuzz/regressions/$target"/*
done
