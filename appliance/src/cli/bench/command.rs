//! The command that gives a figure again.

use crate::bench::figure::{Bench, Figure};
use gradbox_protocol::Op;
use std::fmt::Display;

/// The command for this figure; the whole table's, where a line cannot be had alone.
pub(super) fn of(f: &Figure) -> String {
    let mut words = Words(String::from("gradbox bench"));
    match f.bench {
        Bench::Sum => {
            words.0 += " sum";
            words.option("dtype", f.dtype);
            words.option("op", f.op.filter(|op| *op != Op::Sum));
            words.option("workers", f.workers);
            words.option("working-set", f.working_set.map(|w| w.name()));
            words.option("isa", f.isa.as_deref());
        }
        Bench::Path => {
            words.0 += " path";
            words.option("dtype", f.dtype);
            words.option("workers", f.workers);
            words.option("mtu", f.mtu);
            words.option("working-set", f.working_set.map(|w| w.name()));
            words.option("arrival", f.arrival.map(|a| a.name()));
            words.option("reply", f.reply);
            words.option("cores", f.cores);
        }
        Bench::Wire => {
            words.0 += " wire";
            words.option("port", f.port.as_deref());
            words.option(
                "transmit",
                f.transmit.as_deref().filter(|_| f.mode.as_deref() != Some("udp")),
            );
            words.option("dtype", f.dtype);
            words.option("workers", f.workers);
            words.option("mtu", f.mtu);
            words.option("reply", f.reply);
        }
        Bench::Peers => {
            words.0 += " peers";
            // The lines in memory are always of four workers.
            words.option("workers", f.workers.filter(|_| f.working_set.is_none()));
        }
        Bench::Replay => words.0 += " replay",
    }
    words.0
}

struct Words(String);

impl Words {
    fn option(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.0 += &format!(" --{name} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::WorkingSet;
    use gradbox_protocol::DType;

    #[test]
    fn a_command_names_what_the_figure_is_of() {
        let mut figure = Figure::new(Bench::Sum);
        figure.dtype = Some(DType::Bf16);
        figure.op = Some(Op::Sum);
        figure.workers = Some(8);
        figure.working_set = Some(WorkingSet::Dram);
        assert_eq!(of(&figure), "gradbox bench sum --dtype bf16 --workers 8 --working-set dram");
    }
}
