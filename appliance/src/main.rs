//! The `gradbox` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    match gradbox::cli::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gradbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}
