//! Prints what rings, hand-overs and `step()` cost on this machine.

use clap::Parser;
use gradbox::bench::path::PathError;
use ringbuf_bench::report::{self, Size};

/// Measures rings, hand-overs between cores and the data plane's step.
#[derive(Parser)]
struct Arguments {
    /// Tiny sizes: shows that everything works, the figures mean nothing.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<(), PathError> {
    let size = if Arguments::parse().quick { Size::Quick } else { Size::Full };
    println!("{}\n", report::rings(size));
    println!("{}\n", report::handovers(size));
    println!("{}", report::steps(size)?);
    println!("medians; half of the samples lie between the quarters");
    Ok(())
}
