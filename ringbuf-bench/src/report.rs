//! The table.

use crate::handover::{self, Way};
use crate::path::{self, Order, Setup, WorkingSet};
use crate::samples::Spread;
use crate::{ring, xsk};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};
use gradbox_protocol::DType;

/// Batch sizes of rings and hand-overs.
pub const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// The measurements of `step()`: the design's case, and then one thing changed at a time.
pub const STEPS: [(usize, DType, u16, WorkingSet, Order); 13] = [
    (4, DType::F32, 1408, WorkingSet::L3, Order::InStep),
    (4, DType::F32, 1408, WorkingSet::L2, Order::InStep),
    (4, DType::F32, 1408, WorkingSet::Dram, Order::InStep),
    (4, DType::F32, 1408, WorkingSet::L3, Order::Async),
    (4, DType::F32, 1408, WorkingSet::Dram, Order::Async),
    (2, DType::F32, 1408, WorkingSet::L3, Order::InStep),
    (8, DType::F32, 1408, WorkingSet::L3, Order::InStep),
    (16, DType::F32, 1408, WorkingSet::L3, Order::InStep),
    (4, DType::F32, 3392, WorkingSet::L3, Order::InStep),
    (4, DType::F32, 3392, WorkingSet::Dram, Order::Async),
    (4, DType::Bf16, 1408, WorkingSet::L3, Order::InStep),
    (4, DType::Bf16, 1408, WorkingSet::Dram, Order::Async),
    (8, DType::F32, 1408, WorkingSet::Dram, Order::Async),
];

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

/// `step()`, and the building of a STATUS.
///
/// # Panics
/// Where a result is wrong.
#[must_use]
pub fn steps(size: Size) -> Table {
    let mut table = table(
        "step(), one core",
        &[
            "ranks",
            "type",
            "payload",
            "memory",
            "order",
            "ns/packet",
            "quarters",
            "Gbps",
            "checked",
        ],
    );
    for (world, dtype, chunk_bytes, memory, order) in STEPS {
        let mut setup = Setup::new(world, dtype, chunk_bytes, memory, order);
        if size == Size::Quick {
            // The same code over a corner of the memory.
            setup.chunks = setup.chunks.min(512);
            setup.window = setup.window.min(512);
            setup.ring = setup.ring.min(1024);
        }
        let rounds = match size {
            Size::Quick => 2,
            // About as many packets for each line, and samples enough for quarters.
            Size::Full => (4_000_000 / (setup.chunks * world as u32)).clamp(9, 400),
        };
        let outcome = path::measure(setup, rounds);
        let mut row = vec![
            Cell::new("PUSH"),
            Cell::new(world),
            Cell::new(dtype.name()),
            Cell::new(chunk_bytes),
            Cell::new(memory.name()),
            Cell::new(order.name()),
        ];
        row.extend(cells(outcome.ns_per_packet, 1));
        row.push(Cell::new(format!("{:.0}", outcome.gbps)));
        row.push(Cell::new(outcome.verified));
        table.add_row(row);
    }
    let status = path::measure_status(if size == Size::Quick { 3 } else { 301 });
    let mut row = vec![Cell::new("QUERY, STATUS of 512")];
    row.extend([4.to_string().as_str(), "", "", "l3", ""].map(Cell::new));
    row.extend(cells(status, 1));
    table.add_row(row);
    table
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
