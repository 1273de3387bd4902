//! A job of honest workers, and somebody who floods the box while it runs.

use crate::packets::open;
use crate::simulation::{Dice, SimBox, SimJob, SimWorker};
use gradbox::dataplane::counters::Counter;
use gradbox_protocol::{DType, ErrorCode, Header, Kind, Op};

/// Stamp of the flood's packets: it tells the answers to them from those to honest ones.
const STAMP: u64 = u64::MAX;

/// Packets of the flood that a siege takes at least.
const FLOOD: u64 = 400;

/// Turns after which a siege has to be over.
const TURNS: u32 = 50_000;

/// Ranks of the job.
pub const WORLD: u8 = 3;

/// Rounds of the job.
pub const ROUNDS: u32 = 6;

/// The job as the flood sees it: all its secrets.
pub struct Target<'a> {
    /// The job.
    pub job: &'a SimJob,
    /// Its workers, by rank.
    pub workers: &'a [SimWorker],
}

/// A packet in the making: what some worker could send now.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Rank whose envelope it has.
    pub from: u8,
    /// Queue that it comes to.
    pub queue: u16,
    /// The header; its length is that of the body.
    pub header: Header,
    /// The body.
    pub body: Vec<u8>,
}

impl Target<'_> {
    /// A PUSH that is right in every way. Nothing says that it is the flood's but its stamp.
    #[must_use]
    pub fn push(&self, dice: &mut Dice) -> Draft {
        let layout = &self.job.plan.layout;
        let chunk = dice.below(u64::from(layout.chunks())) as u32;
        let from = dice.below(self.workers.len() as u64) as u8;
        let tensors = layout.tensors();
        let tensor = tensors.iter().rposition(|t| t.first <= chunk && t.count > 0).unwrap_or(0);
        let round = self.workers[usize::from(from)].round_of(chunk);
        let (_, mut header, body) =
            open(&self.job.push(from, round, tensor as u16, chunk, 0)).expect("a PUSH");
        header.stamp = STAMP.into();
        Draft { from, queue: layout.place(chunk).0, header, body }
    }

    /// The packet of a draft, in the envelope of its sender.
    #[must_use]
    pub fn packet(&self, draft: &Draft) -> Vec<u8> {
        let sender = &self.job.senders[usize::from(draft.from)];
        sender.packet(draft.queue, draft.header, &draft.body)
    }
}

/// A box under siege.
pub struct Siege {
    /// The box.
    pub the_box: SimBox,
    job: SimJob,
    workers: Vec<SimWorker>,
    dice: Dice,
    /// Packets of the flood that the box has taken.
    sent: u64,
    /// Answers to them.
    answers: Vec<(Header, Vec<u8>)>,
}

impl Siege {
    /// The job of [`Siege::new`]: [`WORLD`] ranks in envelopes of three shapes (untagged IPv4,
    /// tagged IPv4, IPv6), five chunks in two tensors.
    #[must_use]
    pub fn job(seed: u64) -> SimJob {
        SimJob::new((5, seed), (DType::F32, Op::Avg), WORLD, vec![70, 40], (128, 2), true)
    }

    /// A box of two shards with that job.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let job = Self::job(seed);
        let mut the_box = SimBox::new(2, 512, 2048, 64);
        the_box.add(&job.plan);
        Self::of(the_box, job, seed)
    }

    /// A siege of a box that has `job` already.
    #[must_use]
    pub fn of(the_box: SimBox, job: SimJob, seed: u64) -> Self {
        let workers = (0..WORLD).map(|r| SimWorker::new(&job, r, ROUNDS)).collect();
        Self { the_box, job, workers, dice: Dice(seed), sent: 0, answers: Vec::new() }
    }

    /// Floods the box with what `make` makes, until the honest workers have finished, and compares
    /// every bit of their results. `make` returns the queue and the packet.
    ///
    /// # Panics
    /// Where it does not end, or a result is wrong.
    pub fn run(&mut self, mut make: impl FnMut(&Target<'_>, &mut Dice) -> (u16, Vec<u8>)) {
        for _ in 0..TURNS {
            if self.workers.iter().all(SimWorker::finished) && self.sent >= FLOOD {
                break;
            }
            for _ in 0..self.dice.below(12) {
                let target = Target { job: &self.job, workers: &self.workers };
                let (queue, packet) = make(&target, &mut self.dice);
                self.sent += u64::from(self.the_box.send(usize::from(queue), &packet));
            }
            for worker in &self.workers {
                if self.dice.percent(30)
                    && let Some((shard, packet)) = worker.send(&mut self.dice)
                {
                    // No room: lost, like on a wire.
                    self.the_box.send(usize::from(shard), &packet);
                }
            }
            self.turn();
        }
        // What is still in the rings.
        for _ in 0..20 {
            self.turn();
        }
        assert!(self.workers.iter().all(SimWorker::finished), "not finished");
        self.workers.iter().for_each(SimWorker::verify);
    }

    /// One step of the box; its answers go to who asked.
    fn turn(&mut self) {
        self.the_box.step();
        for packet in self.the_box.receive() {
            let (to, header, body) = open(&packet).expect("a packet of the protocol");
            if header.stamp.get() == STAMP {
                self.answers.push((header, body));
            } else {
                let worker = &mut self.workers[usize::from(header.rank)];
                assert_eq!(worker.address(), to);
                worker.receive(&header, &body);
            }
        }
    }

    /// Checks that the flood raised `counter` once for each packet and no other drop counter, and
    /// that each was answered with an ERROR of `code`, or with none.
    ///
    /// # Panics
    /// Where it did not.
    pub fn raised(&self, counter: Counter, code: Option<ErrorCode>) {
        assert_eq!(self.the_box.counter(counter), self.sent, "{}", counter.name());
        self.dropped_nothing_but(Some(counter));
        let errors = if code.is_some() { self.sent } else { 0 };
        assert_eq!(self.the_box.counter(Counter::Error), errors);
        if let Some(code) = code {
            self.answered(Kind::Error);
            for (_, body) in &self.answers {
                assert_eq!(*body, [code as u8, 0, 0, 0]);
            }
        }
    }

    /// Checks that all drop counters but one, or all, are zero.
    ///
    /// # Panics
    /// Where one is not.
    pub fn dropped_nothing_but(&self, counter: Option<Counter>) {
        for &c in Counter::ALL {
            if Some(c) != counter && c.name().starts_with("drop_") {
                assert_eq!(self.the_box.counter(c), 0, "{}", c.name());
            }
        }
    }

    /// Checks that every packet of the flood was answered by one packet of `kind`.
    ///
    /// # Panics
    /// Where one was not.
    pub fn answered(&self, kind: Kind) {
        assert_eq!(self.answers.len() as u64, self.sent);
        assert!(self.answers.iter().all(|(h, _)| h.kind() == Some(kind)));
    }

    /// Checks that nothing of the flood was answered.
    ///
    /// # Panics
    /// Where something was.
    pub fn silent(&self) {
        assert!(self.answers.is_empty());
    }
}
