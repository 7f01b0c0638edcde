//! Tasks of the repository: `cargo xtask TASK`. `cargo xtask help` lists them.
//!
//! A task is a file of this crate with a `run` function, and a variant of [`Task`].

mod address;
mod artefacts;
mod bench;
mod bundle;
mod check;
mod ci;
mod conformance;
mod coverage;
mod deny;
mod differential;
mod directions;
mod dist;
mod emulated;
mod endurance;
mod engines;
mod exchange;
mod fuzz;
mod js;
mod lint;
mod memory;
mod mutants;
mod node;
mod python;
mod release;
mod result;
mod rivals;
mod site;
mod sources;
mod steps;
mod synthetic;
mod test;
mod tools;
mod trainers;
mod wheel;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use result::Result;

/// Tasks of this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// What finds most mistakes in two minutes: format, clippy, tests of the library, its conformance
    Check,
    /// What tells whether a build can be trusted: tests of library, store, tool, Python package and JavaScript reader
    ///
    /// Rust unit, integration and documentation tests of the library, the exchange, the store and the tool with its
    /// engines; the wheel and its tests; the JavaScript reader's tests; and the vectors against all three.
    Test,
    /// Format, clippy, documentation, circles of modules, packages; Python's and JavaScript's linters
    Lint,
    /// Everything that a change has to pass: lint, test, and whatever proves the conformance kit and this repository
    Ci,
    /// The vectors against both readers and their generator, and against readers that are wrong on purpose
    Conformance {
        /// Also JavaScript readers and libraries that are wrong
        #[arg(long)]
        long: bool,
    },
    /// Write the vectors, their index, and the figures of conformance/README.md
    Vectors,
    /// Write the conformance kit as one archive into the target folder, usable without Rust
    Bundle,
    /// Damaged zstd frames through two decoders; damaged links, documents and chains through three readers
    Differential {
        /// Many more of them, which takes an hour
        #[arg(long)]
        long: bool,
    },
    /// The JavaScript reader against everything that tests it; needs Node 20 or later
    ///
    /// Types, tests, conformance, `inspect` against the tool, damaged files against the other readers, wrong readers, and
    /// the inspector's page in a browser.
    Js,
    /// Build the Python package's wheel and run its tests and the conformance suite through it
    Wheel {
        /// For every Linux with glibc 2.28, not only for systems like this machine's
        #[arg(long)]
        manylinux: bool,
        /// The same for aarch64; tested in qemu, if it is installed
        #[arg(long, conflicts_with = "manylinux")]
        aarch64: bool,
    },
    /// The store under kills, faults, a bad network and rivals, for an hour
    Endurance(endurance::Arguments),
    /// How much memory the tool needs to make and to apply links; fails if that is above its bound
    Memory(memory::Arguments),
    /// Time kernels and whole operations; writes docs/benchmarks.md
    Bench(bench::Arguments),
    /// Compare with other tools on the same pairs of checkpoints; writes bench/rivals/RESULTS.md and tables
    Rivals(rivals::Arguments),
    /// The Python package with the real vLLM on the CPU: 6 GB and half an hour; writes tables of docs/engines.md
    Engines {
        /// A few minutes, and writes nothing
        #[arg(long)]
        short: bool,
    },
    /// The Python package with torch, transformers, TRL and verl on the CPU; installs 5 GB
    Trainers,
    /// Import and export against the real packages of other systems, with generated states
    Exchange(exchange::Arguments),
    /// Build the fuzzers and run them
    Fuzz(fuzz::Arguments),
    /// Which lines of src/format and src/codec the tests reach; fails if they are too few
    Coverage,
    /// Change src/format and src/codec in every small way and see whether tests notice; hours
    Mutants {
        /// This part of them only, such as 0/8
        #[arg(long, value_name = "K/N")]
        shard: Option<String>,
    },
    /// The tool as one static program for Linux, in an archive; needs a C compiler for musl
    Dist,
    /// What can be known before a release; publishes nothing
    Release(release::Arguments),
    /// The documentation as a site in target/site, and a check of its links
    Site,
    /// Licences, sources and banned crates among the dependencies
    Deny,
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Check => check::run(),
        Task::Test => test::run(),
        Task::Lint => lint::run(),
        Task::Ci => ci::run(),
        Task::Conformance { long } => conformance::run(long),
        Task::Vectors => conformance::write_vectors(),
        Task::Bundle => bundle::run(),
        Task::Differential { long } => differential::run(long),
        Task::Js => js::run(),
        Task::Wheel { manylinux, aarch64 } => wheel::run(manylinux, aarch64),
        Task::Endurance(arguments) => endurance::run(&arguments),
        Task::Memory(arguments) => memory::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Rivals(arguments) => rivals::run(&arguments),
        Task::Engines { short } => engines::run(short),
        Task::Trainers => trainers::run(),
        Task::Exchange(arguments) => exchange::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Coverage => coverage::run(),
        Task::Mutants { shard } => mutants::run(shard.as_deref()),
        Task::Dist => dist::run(),
        Task::Release(arguments) => release::run(&arguments),
        Task::Site => site::run(),
        Task::Deny => deny::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_checked() {
        Task::command().debug_assert();
        let parse = |text: &str| Task::try_parse_from(["cargo xtask"].into_iter().chain(text.split_whitespace()));
        for right in [
            "ci",
            "fuzz link --seconds 5",
            "bench data --mebibytes 64,128",
            "release --record",
            "endurance kill",
            "rivals --method own.py --only own --only compact --rounds 1",
        ] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            "tests",
            "test x",
            "memory --mebibytes 0",
            "memory --mebibytes 16777216",
            "bench --mebibytes 1,x",
            "bench --long --mebibytes 1",
            "rivals --rounds 0",
            "rivals a b",
            "rivals --method",
            "wheel --manylinux --aarch64",
            "fuzz --seconds 0",
            "fuzz --seeds link",
            "release",
            "release --dry-run --record",
            "endurance kills",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
