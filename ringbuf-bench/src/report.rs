//! The table.

use crate::handover::{self, Way};
use crate::{ring, xsk};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};
use gradbox::bench::figure::{Arrival, WorkingSet};
use gradbox::bench::path::{self, PathError, Setup, cores};
use gradbox::bench::spread::Spread;
use gradbox_protocol::{DType, Reply};

/// Batch sizes of rings and hand-overs.
pub const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Enough for figures that mean something.
    Full,
    /// Enough to see that everything works.
    Quick,
}

/// A table that prints itself aligned.
fn table(title: &str, columns: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::MiddleIntersections)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header([&[title], columns].concat());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Median and spread.
fn cells(spread: Spread, digits: usize) -> [Cell; 2] {
    let Spread { low, median, high } = spread;
    [
        Cell::new(format!("{median:.digits$}")),
        Cell::new(format!("{low:.digits$} - {high:.digits$}")),
    ]
}

/// What `step()` takes for a PUSH and for a QUERY; `gradbox bench path` has more of the former.
///
/// # Errors
/// Where there is no memory, or a result is wrong.
pub fn steps(size: Size) -> Result<Table, PathError> {
    let mut table = table("step(), 4 ranks, f32, l3", &["ns/packet", "quarters"]);
    let setup = Setup::new(4, DType::F32, 1408, WorkingSet::L3, Arrival::InStep, Reply::Unicast);
    let (rounds, samples) = if size == Size::Quick { (2, 3) } else { (400, 301) };
    for outcome in cores::measure(setup, rounds, &[0])? {
        let mut row = vec![Cell::new("PUSH, sum and RESULT")];
        row.extend(cells(outcome.ns_per_packet, 1));
        table.add_row(row);
    }
    let mut row = vec![Cell::new("QUERY, STATUS of 512")];
    row.extend(cells(path::measure_status(setup, samples)?, 1));
    table.add_row(row);
    Ok(table)
}

/// Hand-overs between two cores.
///
/// # Panics
/// Where a value is lost.
#[must_use]
pub fn handovers(size: Size) -> Table {
    let (count, samples) = if size == Size::Quick { (2_000, 3) } else { (20_000, 301) };
    let mut table = table("hand-over between two cores", &["batch", "ns/value", "quarters"]);
    for way in Way::ALL {
        for batch in BATCHES {
            let mut row = vec![Cell::new(way.name()), Cell::new(batch)];
            row.extend(cells(handover::measure(way, u64::from(batch), count, samples), 1));
            table.add_row(row);
        }
    }
    table
}

/// AF_XDP's rings. Where there can be no socket, its lines say so.
///
/// # Panics
/// Where a descriptor is lost.
#[must_use]
pub fn rings(size: Size) -> Table {
    let samples = if size == Size::Quick { 3 } else { 201 };
    let mut table = table(
        "descriptors of AF_XDP rings",
        &["batch", "TX in, ns", "quarters", "completion out, ns", "quarters"],
    );
    let mut add = |name: &str, batch: u32, cost: ring::Cost| {
        let mut row = vec![Cell::new(name), Cell::new(batch)];
        row.extend(cells(cost.produce, 2));
        row.extend(cells(cost.consume, 2));
        table.add_row(row);
    };
    for batch in BATCHES {
        add("inline", batch, ring::measure(batch, samples));
    }
    match xsk::measure(&BATCHES, samples) {
        Ok(costs) => {
            for (batch, cost) in BATCHES.into_iter().zip(costs) {
                add("xsk-rs", batch, cost);
            }
        }
        Err(error) => {
            table.add_row([format!("xsk-rs: skipped: {error}")]);
        }
    }
    table
}
