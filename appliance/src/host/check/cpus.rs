//! CPUs of the cores, and the interrupts that should come to them.

use super::{Card, Host};
use crate::host::{Area, Change, CpuList, Finding, HostError, Severity};

pub(super) fn check(host: &Host<'_>, card: Option<&Card<'_>>) -> Result<Vec<Finding>, HostError> {
    let cpus = &host.needs.cpus;
    let online = host.machine.cpus_online()?;
    if cpus.is_empty() {
        let free: Vec<_> = online.iter().skip(1).take(host.needs.queues as usize).collect();
        let shown: Vec<_> = free.iter().map(ToString::to_string).collect();
        let finding = Finding::new(
            (Severity::Warning, Area::Cpus),
            "data.cpus",
            "not set",
            "a CPU for each core",
            "the cores are not pinned, and share CPUs with everything else",
        );
        return Ok(vec![match free.len() == host.needs.queues as usize {
            true => finding.command(format!("cpus = [{}]", shown.join(", "))),
            false => finding,
        }]);
    }
    let mut found = vec![there(cpus, &online)];
    if let Some(card) = card
        && let Some(node) = card.link()?.numa_node
    {
        found.extend(numa(host, card, node)?);
    }
    found.push(isolated(cpus, &host.machine.cpus_isolated()?));
    Ok(found)
}

fn there(cpus: &[usize], online: &CpuList) -> Finding {
    let missing: CpuList = cpus.iter().copied().filter(|cpu| !online.contains(*cpu)).collect();
    let (thing, needed) = ("data.cpus", format!("some of {online}"));
    if missing == CpuList::default() {
        let set: CpuList = cpus.iter().copied().collect();
        return Finding::good(Area::Cpus, thing, set, needed);
    }
    let found = format!("with {missing}, which is not here");
    let why = "a core is pinned to its CPU; choose others in the configuration";
    let first: Vec<_> = online.iter().take(cpus.len()).map(|cpu| cpu.to_string()).collect();
    Finding::new((Severity::Fault, Area::Cpus), thing, found, needed, why)
        .command(format!("cpus = [{}]", first.join(", ")))
}

fn numa(host: &Host<'_>, card: &Card<'_>, node: u32) -> Result<Option<Finding>, HostError> {
    let near = host.machine.node_cpus(node)?;
    if near == CpuList::default() {
        return Ok(None);
    }
    let cpus = &host.needs.cpus;
    let thing = format!("NUMA node of {}", card.name());
    let needed = format!("CPUs of node {node}: {near}");
    let far: CpuList = cpus.iter().copied().filter(|cpu| !near.contains(*cpu)).collect();
    if far == CpuList::default() {
        return Ok(Some(Finding::good(Area::Cpus, thing, "that of data.cpus", needed)));
    }
    let found = format!("not that of CPUs {far}");
    let why = "every packet crosses to the other node; choose near CPUs in the configuration";
    let choice: Vec<_> = near.iter().take(cpus.len()).map(|cpu| cpu.to_string()).collect();
    Ok(Some(
        Finding::new((Severity::Warning, Area::Cpus), thing, found, needed, why)
            .command(format!("cpus = [{}]", choice.join(", "))),
    ))
}

/// Frequency governors of the cores' CPUs, where they have one.
pub(super) fn governors(host: &Host<'_>) -> Result<Vec<Finding>, HostError> {
    let mut found = Vec::new();
    for &cpu in &host.needs.cpus {
        let Some(was) = host.machine.governor(cpu)? else { continue };
        let (thing, needed) = (format!("frequency governor of CPU {cpu}"), "performance");
        if was == needed {
            found.push(Finding::good(Area::Governor, thing, was, needed));
            continue;
        }
        let why = "a core that waits for packets is taken for an idle one and slowed down";
        let change = Change::Governor { cpu, was: was.clone(), to: needed.to_owned() };
        found.push(
            Finding::new((Severity::Warning, Area::Governor), thing, was, needed, why)
                .change("", change),
        );
    }
    Ok(found)
}

fn isolated(cpus: &[usize], isolated: &CpuList) -> Finding {
    let shared: CpuList = cpus.iter().copied().filter(|cpu| !isolated.contains(*cpu)).collect();
    let (thing, needed) = ("isolation of data.cpus", "isolated ones for the shortest delays");
    if shared == CpuList::default() {
        return Finding::good(Area::Cpus, thing, "isolated", needed);
    }
    let found = format!("{shared} not isolated");
    let why = "other programs run there too; with idle = \"spin\" they wait for the core, and it \
               for them: on the kernel's command line";
    let all: CpuList = cpus.iter().copied().collect();
    Finding::new((Severity::Note, Area::Cpus), thing, found, needed, why)
        .command(format!("isolcpus={all} nohz_full={all}"))
}

/// Interrupts of each core's queue go to its CPU, where the card's ring is warm.
pub(super) fn interrupts(host: &Host<'_>, card: &Card<'_>) -> Result<Vec<Finding>, HostError> {
    let cpus = &host.needs.cpus;
    if cpus.is_empty() {
        return Ok(Vec::new());
    }
    let interrupts = card.nic.interrupts()?;
    let dev = card.name();
    let mut found = Vec::new();
    for (queue, cpu) in (0..).zip(cpus) {
        let wanted: CpuList = [*cpu].into_iter().collect();
        let needed = format!("CPU {cpu}");
        let Some(interrupt) = interrupts.iter().find(|i| i.queue == queue) else {
            found.push(Finding::new(
                (Severity::Note, Area::Interrupts),
                format!("interrupt of queue {queue} of {dev}"),
                "none",
                needed,
                "this driver has none to move",
            ));
            continue;
        };
        let irq = interrupt.irq;
        let thing = format!("interrupt {irq} (queue {queue} of {dev})");
        let at = format!("CPU {}", interrupt.cpus.trim());
        if interrupt.cpus.parse::<CpuList>().is_ok_and(|now| now == wanted) {
            found.push(Finding::good(Area::Interrupts, thing, at, needed));
            continue;
        }
        let why = "packets of this queue are taken in on another CPU than their core's";
        let was = interrupt.cpus.trim().to_owned();
        let to = cpu.to_string();
        found.push(
            Finding::new((Severity::Warning, Area::Interrupts), thing, at, needed, why)
                .change(dev, Change::Interrupt { irq, queue, was, to }),
        );
    }
    found.push(irqbalance(host, !interrupts.is_empty())?);
    Ok(found)
}

fn irqbalance(host: &Host<'_>, matters: bool) -> Result<Finding, HostError> {
    let (thing, needed) = ("irqbalance", "not running");
    Ok(match host.machine.process("irqbalance")? {
        Some(pid) if matters => {
            let why = "it may move the interrupts again";
            let found = format!("running as process {pid}");
            Finding::new((Severity::Warning, Area::Interrupts), thing, found, needed, why)
                .command("systemctl stop irqbalance")
        }
        Some(_) => Finding::good(Area::Interrupts, thing, "running, with nothing to move", needed),
        None => Finding::good(Area::Interrupts, thing, "not running", needed),
    })
}
