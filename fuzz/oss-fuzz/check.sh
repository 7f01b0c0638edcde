#!/bin/bash -eu
# Runs build.sh without Docker, with this machine's nightly toolchain and C compiler, and then each fuzzer over its
# seeds. It does not show whether OSS-Fuzz's image has all tools. Needs 7 GB and a few minutes.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/src" "$place/out" "$place/work"
ln -s "$root" "$place/src/deltachain"

export SRC=$place/src OUT=$place/out WORK=$place/work
export RUSTUP_TOOLCHAIN=nightly CARGO_TARGET_DIR=$place/target CARGO_INCREMENTAL=0
# `./task fuzz` has installed cargo-fuzz there.
export PATH=$root/target/cargo-fuzz/bin:$PATH
# GCC poisons a table of zstd that is static; OSS-Fuzz uses clang.
export CFLAGS=-fno-sanitize-address-use-after-scope
bash -eu "$root/fuzz/oss-fuzz/build.sh"

checked=0
for dictionary in "$OUT"/*.dict; do
    fuzzer=${dictionary%.dict}
    rm -rf "$place/corpus"
    unzip -q "${fuzzer}_seed_corpus.zip" -d "$place/corpus"
    grep -q '^max_len = [1-9]' "$fuzzer.options"
    "$fuzzer" -runs=0 "-dict=$dictionary" "-artifact_prefix=$place/" "$place/corpus" >"$place/log" 2>&1 || {
        cat "$place/log"
        exit 1
    }
    echo "$(basename "$fuzzer"): $(find "$place/corpus" -type f | wc -l) seeds"
    checked=$((checked + 1))
done
[ "$checked" -eq "$(find fuzz/fuzz_targets -name '*.rs' | wc -l)" ]
du -sh "$OUT" "$CARGO_TARGET_DIR"
