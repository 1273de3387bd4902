//! What tells figures apart, in words, and the commands that give them again.

use crate::bench::figure::{Arrival, Bench, Figure};
use std::fmt::Display;

/// One thing that tells figures apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    System,
    Model,
    Port,
    DType,
    Op,
    Workers,
    Mtu,
    WorkingSet,
    Arrival,
    Reply,
    Cores,
    Isa,
    Offloads,
    Congestion,
    Link,
}

impl Term {
    pub(super) const ALL: [Self; 15] = [
        Self::System,
        Self::Model,
        Self::Port,
        Self::DType,
        Self::Op,
        Self::Workers,
        Self::Mtu,
        Self::WorkingSet,
        Self::Arrival,
        Self::Reply,
        Self::Cores,
        Self::Isa,
        Self::Offloads,
        Self::Congestion,
        Self::Link,
    ];

    /// What the figure says of it, to be read without its name.
    pub(super) fn words(self, f: &Figure) -> Option<String> {
        fn with(name: &str, value: Option<impl Display>) -> Option<String> {
            value.map(|v| format!("{name} {v}"))
        }
        match self {
            Self::System => f.system.clone(),
            Self::Model => f.model.clone(),
            Self::Port => match (&f.port, &f.mode) {
                (Some(port), Some(mode)) if port != mode => Some(format!("{port} ({mode})")),
                (port, mode) => port.clone().or_else(|| mode.clone()),
            },
            Self::DType => f.dtype.map(|d| d.name().to_owned()),
            Self::Op => f.op.map(|o| o.name().to_owned()),
            Self::Workers => f.workers.map(|w| plural(w, "worker")),
            Self::Mtu => with("MTU", f.mtu),
            Self::WorkingSet => f.working_set.map(|w| w.name().to_uppercase()),
            Self::Arrival => f.arrival.map(|a| {
                let words = match a {
                    Arrival::InStep => "workers in step",
                    Arrival::Async => "whole gradients in turn",
                };
                words.to_owned()
            }),
            Self::Reply => f.reply.map(|r| format!("{r} replies")),
            Self::Cores => f.cores.map(|c| plural(c, "core")),
            Self::Isa => f.isa.clone(),
            Self::Offloads => {
                f.offloads.map(|on| format!("offloads {}", if on { "on" } else { "off" }))
            }
            Self::Congestion => f.congestion_control.clone(),
            Self::Link => f.link_gbps.map(|l| format!("{l} Gbit/s links")),
        }
    }

    /// Its place on the axis of a chart: in which order, and by which name.
    pub(super) fn place(self, f: &Figure) -> Option<(u32, String)> {
        let number = |value: Option<u32>| value.map(|v| (v, v.to_string()));
        match self {
            Self::Workers => number(f.workers),
            Self::Mtu => number(f.mtu),
            Self::Cores => number(f.cores),
            Self::WorkingSet => f.working_set.map(|w| (w as u32, w.name().to_uppercase())),
            Self::DType => f.dtype.map(|d| (d as u32, d.name().to_owned())),
            _ => None,
        }
    }

    /// Its option of `gradbox bench`, and what to say there.
    fn option(self, f: &Figure) -> Option<(&'static str, String)> {
        match self {
            Self::DType => f.dtype.map(|v| ("--dtype", v.name().to_owned())),
            Self::Op => f.op.map(|v| ("--op", v.name().to_owned())),
            Self::Workers => f.workers.map(|v| ("--workers", v.to_string())),
            Self::Mtu => f.mtu.map(|v| ("--mtu", v.to_string())),
            Self::WorkingSet => f.working_set.map(|v| ("--working-set", v.name().to_owned())),
            Self::Arrival => f.arrival.map(|v| ("--arrival", v.name().to_owned())),
            Self::Reply => f.reply.map(|v| ("--reply", v.name().to_owned())),
            Self::Cores => f.cores.map(|v| ("--cores", v.to_string())),
            Self::Isa => f.isa.clone().map(|v| ("--isa", v)),
            Self::System
            | Self::Model
            | Self::Port
            | Self::Offloads
            | Self::Congestion
            | Self::Link => None,
        }
    }
}

fn plural(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Everything that tells a figure apart, but for `without`.
pub(super) fn key(f: &Figure, without: &[Term]) -> Vec<(Term, String)> {
    let terms = Term::ALL.into_iter().filter(|t| !without.contains(t));
    terms.filter_map(|t| Some((t, t.words(f)?))).collect()
}

/// What all keys have in common, and for each what only it has, as words.
pub(super) fn apart(keys: &[Vec<(Term, String)>]) -> (String, Vec<String>) {
    let common = |t: &(Term, String)| keys.iter().all(|key| key.contains(t));
    let words = |key: &Vec<(Term, String)>, of_all: bool| {
        let chosen: Vec<_> = key.iter().filter(|t| common(t) == of_all).collect();
        chosen.into_iter().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join(", ")
    };
    let all = keys.first().map(|key| words(key, true)).unwrap_or_default();
    (all, keys.iter().map(|key| words(key, false)).collect())
}

/// In how many things a figure differs from the setup that the sweeps start from.
pub(super) fn distance(f: &Figure) -> usize {
    const USUAL: [(&str, &str); 9] = [
        ("--dtype", "f32"),
        ("--op", "sum"),
        ("--workers", "4"),
        ("--mtu", "1500"),
        ("--working-set", "l3"),
        ("--arrival", "in_step"),
        ("--reply", "unicast"),
        ("--cores", "1"),
        ("--isa", ""),
    ];
    let options = Term::ALL.into_iter().filter_map(|t| t.option(f));
    let differs = |(name, value): &(&str, String)| {
        USUAL.iter().any(|(n, usual)| n == name && !usual.is_empty() && usual != value)
    };
    options.filter(differs).count()
}

/// The commands that give these figures again, as few as there can be.
pub(super) fn commands(figures: &[&Figure]) -> Vec<String> {
    let mut own: Vec<String> = Vec::new();
    let mut made: Vec<Command> = Vec::new();
    for f in figures {
        let command = match &f.command {
            None => Command::of(f),
            Some(text) => match Command::parse(text) {
                Some(command) => command,
                None if own.contains(text) => continue,
                None => {
                    own.push(text.clone());
                    continue;
                }
            },
        };
        if !made.contains(&command) {
            made.push(command);
        }
    }
    while let Some((i, j)) = mergeable(&made) {
        let other = made.remove(j);
        made[i].merge(other);
    }
    own.extend(made.iter().map(Command::line));
    own
}

/// A command of `gradbox bench`, with values for its options.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Command {
    bench: String,
    options: Vec<(String, Vec<String>)>,
}

impl Command {
    fn of(f: &Figure) -> Self {
        let bench = match f.bench {
            Bench::Sum => "sum",
            Bench::Path => "path",
            Bench::Wire => "wire",
            Bench::Peers => "peers",
            Bench::Replay => "replay",
        };
        let bench = bench.to_owned();
        // The others say their commands themselves: their options are not those of their figures.
        let options = match f.bench {
            Bench::Sum | Bench::Path => Term::ALL.into_iter().filter_map(|t| t.option(f)),
            Bench::Wire | Bench::Peers | Bench::Replay => return Self { bench, options: vec![] },
        };
        let options = options.map(|(name, value)| (name.to_owned(), vec![value])).collect();
        Self { bench, options }
    }

    /// The command of a text, where it is one whose options take lists.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("gradbox bench ")?.split(' ');
        let bench = words.next().filter(|b| ["sum", "path", "wire", "peers"].contains(b))?;
        let mut options = Vec::new();
        while let Some(name) = words.next() {
            let value = words.next().filter(|_| name.starts_with("--"))?;
            options.push((name.to_owned(), vec![value.to_owned()]));
        }
        Some(Self { bench: bench.to_owned(), options })
    }

    /// Whether it differs from `other` in the values of one option and nothing else.
    fn differs_in_one(&self, other: &Self) -> bool {
        let names = |c: &Self| c.options.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let pairs = self.options.iter().zip(&other.options);
        self.bench == other.bench
            && names(self) == names(other)
            && pairs.filter(|(a, b)| a.1 != b.1).count() == 1
    }

    /// Does the work of both, which differ in one option.
    fn merge(&mut self, other: Self) {
        for ((_, values), (_, more)) in self.options.iter_mut().zip(other.options) {
            let new: Vec<_> = more.into_iter().filter(|v| !values.contains(v)).collect();
            values.extend(new);
        }
    }

    fn line(&self) -> String {
        let mut line = format!("gradbox bench {}", self.bench);
        for (name, values) in &self.options {
            line += &format!(" {name} {}", values.join(","));
        }
        line
    }
}

/// Two commands that one can stand for.
fn mergeable(commands: &[Command]) -> Option<(usize, usize)> {
    let mut pairs = (0..commands.len()).flat_map(|i| (i + 1..commands.len()).map(move |j| (i, j)));
    pairs.find(|&(i, j)| commands[i].differs_in_one(&commands[j]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::WorkingSet;

    fn path(workers: u32, memory: WorkingSet) -> Figure {
        let mut f = Figure::new(Bench::Path);
        f.workers = Some(workers);
        f.working_set = Some(memory);
        f
    }

    #[test]
    fn commands_give_what_is_shown_and_nothing_else() {
        let (two, four) = (path(2, WorkingSet::L3), path(4, WorkingSet::L3));
        let (both, other) = (path(2, WorkingSet::Dram), path(8, WorkingSet::Dram));
        assert_eq!(
            commands(&[&two, &four, &two, &other]),
            [
                "gradbox bench path --workers 2,4 --working-set l3",
                "gradbox bench path --workers 8 --working-set dram",
            ]
        );
        let four_dram = path(4, WorkingSet::Dram);
        assert_eq!(
            commands(&[&two, &both, &four, &four_dram]),
            ["gradbox bench path --workers 2,4 --working-set l3,dram"]
        );
        let mut own = two.clone();
        own.command = Some("gradbox bench path --mine".to_owned());
        assert_eq!(commands(&[&own, &own]), ["gradbox bench path --mine"]);
        let told = ["1500", "3434"].map(|mtu| {
            let mut f = Figure::new(Bench::Wire);
            f.command = Some(format!("gradbox bench wire --port xdp --mtu {mtu}"));
            f
        });
        assert_eq!(
            commands(&[&told[0], &told[1]]),
            ["gradbox bench wire --port xdp --mtu 1500,3434"]
        );
        assert!(commands(&[]).is_empty());
    }

    #[test]
    fn what_is_common_is_said_once() {
        let figures = [path(2, WorkingSet::L3), path(4, WorkingSet::L3)];
        let keys = figures.each_ref().map(|f| key(f, &[]));
        let (common, rest) = apart(&keys);
        assert_eq!((common.as_str(), rest), ("L3", vec!["2 workers".into(), "4 workers".into()]));
        assert_eq!(figures.each_ref().map(distance), [1, 0]);
    }
}
