//! The program `deltachain`. All of its code is in the library, so that other packages can include
//! it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    deltachain_cli::main(std::env::args_os()).into()
}
