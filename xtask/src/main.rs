//! Tasks of the repository: `cargo xtask TASK`. `cargo xtask help` lists them.
//!
//! A task is a file of this crate with a `run` function, and a row in [`TASKS`].

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
mod endurance;
mod engines;
mod exchange;
mod fuzz;
mod js;
mod lint;
mod memory;
mod mutants;
mod python;
mod release;
mod rivals;
mod sources;
mod steps;
mod synthetic;
mod test;
mod tools;
mod trainers;
mod wheel;
mod workspace;

use std::error::Error;
use std::process::ExitCode;

/// Result of everything that a task does.
type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A task of `cargo xtask`.
struct Task {
    name: &'static str,
    /// The arguments that it takes.
    arguments: &'static str,
    /// What it does, in a line or more.
    about: &'static [&'static str],
    run: fn(&[String]) -> Result,
}

const TASKS: &[Task] = &[
    Task {
        name: "check",
        arguments: "",
        about: &["what finds most mistakes in two minutes: format, clippy, tests of the library, its conformance"],
        run: check::run,
    },
    Task {
        name: "test",
        arguments: "",
        about: &[
            "run every test: Rust unit, integration and documentation tests, those of the Python",
            "reader, of the Python package and of the JavaScript reader, the conformance kit, the interop",
            "checks between readers, and the memory check",
        ],
        run: test::run,
    },
    Task {
        name: "lint",
        arguments: "",
        about: &["check formatting, clippy, documentation, which module uses which, and that packages can be made"],
        run: lint::run,
    },
    Task { name: "ci", arguments: "", about: &["lint, then test"], run: ci::run },
    Task {
        name: "conformance",
        arguments: conformance::ARGUMENTS,
        about: &[
            "the vectors against both readers, against their generator, and against readers that",
            "leave out a rule or are wrong on purpose; --long for JavaScript readers and libraries that are wrong, too",
        ],
        run: conformance::run,
    },
    Task {
        name: "vectors",
        arguments: "",
        about: &["write the vectors, their index, and the figures of conformance/README.md"],
        run: conformance::write_vectors,
    },
    Task {
        name: "bundle",
        arguments: "",
        about: &["write the conformance kit as one archive into the target folder, usable without Rust"],
        run: bundle::run,
    },
    Task {
        name: "differential",
        arguments: differential::ARGUMENTS,
        about: &[
            "damaged zstd frames through two decoders; damaged links, documents and chains through three readers;",
            "--long for many more of them, which takes an hour",
        ],
        run: differential::run,
    },
    Task {
        name: "js",
        arguments: "",
        about: &[
            "the JavaScript reader: types, tests, conformance, `inspect` against the tool, damaged files",
            "against the other readers; needs Node 20 or later",
        ],
        run: js::run,
    },
    Task {
        name: "wheel",
        arguments: "[--manylinux]",
        about: &[
            "the Python package: build its wheel, install it in an empty environment, run its tests and the",
            "conformance suite through it; a wheel for this machine, or one for every Linux with glibc 2.28",
        ],
        run: wheel::run,
    },
    Task {
        name: "endurance",
        arguments: endurance::ARGUMENTS,
        about: &[
            "the store under kills, faults, a bad network and rivals, for long: all orders of operations",
            "one by one, hundreds of kills, thousands of faults; an hour",
        ],
        run: endurance::run,
    },
    Task {
        name: "memory",
        arguments: memory::ARGUMENTS,
        about: &[
            "diff synthetic files of N MiB (512) and apply 1 and 16 links with T threads (all), and fail",
            "if the tool needs more memory than its bound; --dense changes every element, not 1 %",
        ],
        run: memory::run,
    },
    Task {
        name: "bench",
        arguments: bench::ARGUMENTS,
        about: &[
            "time kernels and whole operations on real pairs (excerpts, or those of a directory) and on",
            "synthetic ones; writes BENCHMARKS.md; --long goes up to 8 GiB instead of 1",
        ],
        run: bench::run,
    },
    Task {
        name: "rivals",
        arguments: rivals::ARGUMENTS,
        about: &[
            "encode and decode pairs of checkpoints by this project and by its rivals, in N rounds (5);",
            "writes bench/rivals/RESULTS.md and rivals.svg",
        ],
        run: rivals::run,
    },
    Task {
        name: "engines",
        arguments: engines::ARGUMENTS,
        about: &[
            "the Python package with the real vLLM on the CPU, about 6 GB and half an hour; writes the",
            "tables of docs/integrations.md. --short is a few minutes and writes nothing",
        ],
        run: engines::run,
    },
    Task {
        name: "trainers",
        arguments: "",
        about: &["the Python package with torch, transformers, TRL and verl on the CPU; installs 5 GB"],
        run: trainers::run,
    },
    Task {
        name: "exchange",
        arguments: exchange::ARGUMENTS,
        about: &[
            "import and export against the real packages of other systems, with generated states and",
            "the pairs NAME_step0.safetensors and NAME_step1.safetensors of DIRECTORY",
        ],
        run: exchange::run,
    },
    Task {
        name: "fuzz",
        arguments: fuzz::ARGUMENTS,
        about: &[
            "build the fuzzers and run all of them, or those named, for N seconds each (60);",
            "--seeds only collects their seeds, --regressions only replays what is known",
        ],
        run: fuzz::run,
    },
    Task {
        name: "coverage",
        arguments: "",
        about: &["which lines of src/format and src/codec the tests reach; fails if they are too few"],
        run: coverage::run,
    },
    Task {
        name: "mutants",
        arguments: mutants::ARGUMENTS,
        about: &["change src/format and src/codec in every small way and see whether tests notice; hours"],
        run: mutants::run,
    },
    Task {
        name: "dist",
        arguments: "",
        about: &["the tool as one static program for Linux, in an archive; needs a C compiler for musl"],
        run: dist::run,
    },
    Task {
        name: "release",
        arguments: release::ARGUMENTS,
        about: &[
            "what can be known before a release: versions agree, packages build from what is in them, the",
            "public interface is as recorded; --record records it. Publishes nothing",
        ],
        run: release::run,
    },
    Task {
        name: "deny",
        arguments: "",
        about: &["licences, sources and banned crates among the dependencies"],
        run: deny::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        None => ("help", [].as_slice()),
        Some((name, rest)) => (name.as_str(), rest),
    };
    if matches!(name, "help" | "--help" | "-h") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("there is no task `{name}`\n\n{}", help());
        return ExitCode::FAILURE;
    };
    match (task.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("cargo xtask TASK\n");
    for task in TASKS {
        let usage = format!("{} {}", task.name, task.arguments);
        text.extend(["\n  ", usage.trim_end(), "\n"]);
        for line in task.about {
            text.extend(["      ", line, "\n"]);
        }
    }
    text + "\n  help\n      show this text\n"
}

/// Refuses arguments of a task that takes none.
fn no_arguments(arguments: &[String]) -> Result {
    match arguments.first() {
        None => Ok(()),
        Some(argument) => Err(format!("unexpected argument `{argument}`").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_task() {
        let help = help();
        assert!(TASKS.iter().all(|task| help.contains(&format!("\n  {}", task.name))));
    }
}
