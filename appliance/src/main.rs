//! The `gradbox` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    match gradbox::cli::main() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("gradbox: {}", words(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without those whose words it has already.
fn words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        match (said.is_empty(), said.contains(&cause)) {
            (true, _) => cause,
            (false, true) => said,
            (false, false) => format!("{said}: {cause}"),
        }
    })
}
