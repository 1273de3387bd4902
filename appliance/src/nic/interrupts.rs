//! Interrupts of a card's queues, of sysfs and procfs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::Interrupt;

/// How the names of RX queues' interrupts end before the queue's number, in small letters:
/// `mlx5_comp0@pci:...`, `ice-eth1-TxRx-0`, `eth1-Tx-Rx-0`, `eth1-rx-0`, `virtio1-input.0`.
const ENDINGS: [&str; 3] = ["comp", "rx-", "input."];

/// Interrupts of the card at `bus`, by queue.
pub(super) fn list(bus: &str) -> io::Result<Vec<Interrupt>> {
    let own = own(&Path::new("/sys/bus/pci/devices").join(bus).join("msi_irqs"))?;
    let of_queues = of_queues(&fs::read_to_string("/proc/interrupts")?, &own);
    let mut interrupts = Vec::new();
    for (queue, irq) in of_queues {
        let cpus = fs::read_to_string(affinity(irq))?.trim().to_owned();
        interrupts.push(Interrupt { queue, irq, cpus });
    }
    Ok(interrupts)
}

/// Sends an interrupt to these CPUs.
pub(super) fn set_cpus(irq: u32, cpus: &str) -> io::Result<()> {
    fs::write(affinity(irq), cpus)
}

fn affinity(irq: u32) -> PathBuf {
    PathBuf::from(format!("/proc/irq/{irq}/smp_affinity_list"))
}

/// Numbers of the card's interrupts: none where it has no such directory, as on buses other than
/// PCI.
fn own(directory: &Path) -> io::Result<BTreeSet<u32>> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    let mut own = BTreeSet::new();
    for entry in entries {
        own.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(own)
}

/// Queue and number of the interrupts in `table` (`/proc/interrupts`) that are among `own` and
/// serve RX queues, by queue.
fn of_queues(table: &str, own: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.strip_suffix(':')?.parse().ok());
        let queue = words.next_back().and_then(queue_of);
        if let (Some(irq), Some(queue)) = (number, queue)
            && own.contains(&irq)
        {
            found.push((queue, irq));
        }
    }
    found.sort_unstable();
    found
}

/// The RX queue that an interrupt of this name serves.
fn queue_of(name: &str) -> Option<u32> {
    let name = name.split('@').next().unwrap_or_default();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let queue = name[stem.len()..].parse().ok()?;
    let stem = stem.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| stem.ends_with(ending)).then_some(queue)
}

#[cfg(test)]
mod tests {
    use super::{of_queues, queue_of};

    #[test]
    fn names_of_all_drivers_are_understood() {
        for (name, queue) in [
            ("mlx5_comp0@pci:0000:3b:00.0", Some(0)),
            ("mlx5_comp17@pci:0000:3b:00.1", Some(17)),
            ("ice-eth1-TxRx-0", Some(0)),
            ("i40e-eth1-TxRx-12", Some(12)),
            ("eth1-TxRx-3", Some(3)),
            ("eth1-Tx-Rx-4", Some(4)),
            ("eth1-rx-5", Some(5)),
            ("virtio1-input.6", Some(6)),
            // What serves no RX queue.
            ("mlx5_async0@pci:0000:3b:00.0", None),
            ("ice-0000:3b:00.0:misc", None),
            ("eth1-tx-0", None),
            ("eth1", None),
            ("virtio1-output.0", None),
            ("virtio1-config", None),
            ("virtio4-input", None),
            ("12", None),
            ("eth1-rx-99999999999", None),
            ("", None),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }

    #[test]
    fn the_cards_own_interrupts_are_found_by_queue() {
        let table = "           CPU0       CPU1
  9:          0          0   IO-APIC   9-fasteoi   acpi
 40:          1          0  PCI-MSIX-0000:3b:00.0   0-edge      mlx5_async0@pci:0000:3b:00.0
 41:          7          0  PCI-MSIX-0000:3b:00.0   2-edge      mlx5_comp1@pci:0000:3b:00.0
 42:          0          9  PCI-MSIX-0000:3b:00.0   1-edge      mlx5_comp0@pci:0000:3b:00.0
 43:          0          0  PCI-MSIX-0000:3b:00.1   1-edge      mlx5_comp0@pci:0000:3b:00.1
NMI:          0          0   Non-maskable interrupts
ERR:          0
";
        assert_eq!(of_queues(table, &[40, 41, 42].into()), [(0, 42), (1, 41)]);
        assert_eq!(of_queues(table, &[9].into()), []);
        assert_eq!(of_queues("", &[40].into()), []);
    }
}
