//! The program `deltachain`. All of it is in the library, so that other packages can bring it
//! along.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    deltachain_cli::main(std::env::args_os()).into()
}
