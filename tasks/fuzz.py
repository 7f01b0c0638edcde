"""Builds the fuzzers of `fuzz/`, runs them, and prints how often each was executed.

    python -m tasks.fuzz CARGO-FUZZ SECONDS [TARGET ...]

With 0 seconds, only known inputs are replayed. Needs a nightly toolchain and a C++ compiler.
"""

import os
import re
import subprocess
import sys
import time

from tasks.steps import ROOT, TARGET, output

FUZZ = ROOT / "fuzz"


def build(cargo_fuzz):
    """Builds all targets, and returns the folder of the programs."""
    nightly = {name: value for name, value in os.environ.items() if name not in {"CARGO", "RUSTC", "CARGO_TARGET_DIR"}}
    # C code is built with AddressSanitizer, too. Without the option, GCC poisons a table of zstd's that it has made
    # static.
    nightly |= {"RUSTUP_TOOLCHAIN": "nightly", "CFLAGS": "-fno-sanitize-address-use-after-scope"}
    command = [cargo_fuzz, "build", "--fuzz-dir", FUZZ, "--target-dir", TARGET / "fuzz"]
    subprocess.run(command, cwd=FUZZ, env=nightly, check=True)
    return TARGET / "fuzz" / output("RUSTUP_TOOLCHAIN=nightly rustc --print host-tuple").strip() / "release"


def run(program, target, seconds):
    """Runs one target over its seeds and regressions, and inputs that it makes from them. Returns the number of
    executions, and whether all inputs passed."""
    corpus, artifacts, log = FUZZ / "corpus" / target, FUZZ / "artifacts" / target, FUZZ / f"artifacts/{target}.log"
    for folder in corpus, artifacts:
        folder.mkdir(parents=True, exist_ok=True)
    known = [folder for folder in (corpus, FUZZ / "regressions" / target) if folder.exists()]
    # Short inputs find the same faults, and are faster. Chains hold several links.
    most = 4096 if target == "chain" else 2048
    words = f"-print_final_stats=1 -timeout=20 -rss_limit_mb=4096 -max_len={most}".split()
    words += [f"-max_total_time={seconds}" if seconds else "-runs=0"]
    words += [f"-dict={FUZZ / 'dictionary'}", f"-artifact_prefix={artifacts}/"]
    with log.open("wb") as file:
        status = subprocess.run([program, *known, *words], stdout=file, stderr=file).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    if status:
        print(*text.splitlines()[-60:], f"{target} failed with status {status}; its output is in {log}", sep="\n")
    executions = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", text, re.MULTILINE)
    return int(executions[-1]) if executions else 0, status == 0


def main():
    cargo_fuzz, seconds, *chosen = sys.argv[1:]
    targets = sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))
    if unknown := set(chosen) - set(targets):
        sys.exit(f"there is no target {', '.join(unknown)}; there are {', '.join(targets)}")
    programs, begin = build(cargo_fuzz), time.monotonic()
    total, failed = 0, []
    for target in chosen or targets:
        start = time.monotonic()
        executions, passed = run(programs / target, target, int(seconds))
        speed = executions / max(1, time.monotonic() - start)
        verdict = "ok" if passed else "FAILED"
        print(f"{target:14} {executions:>12} executions, {speed:>8.0f} per second  {verdict}", flush=True)
        total += executions
        failed += [] if passed else [target]
    print(f"{'total':14} {total:>12} executions in {time.monotonic() - begin:.0f} s")
    return f"{', '.join(failed)} FAILED" if failed else 0


if __name__ == "__main__":
    sys.exit(main())
