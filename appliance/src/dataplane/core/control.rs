//! The core's side of the control plane: commands, events and numbers.

use super::Core;
use crate::dataplane::handle::{Command, Event};
use crate::dataplane::job::JobTable;
use crate::dataplane::plan::MAX_JOBS;
use crate::dataplane::port::Port;

impl Core {
    /// Does what the control plane asks for. Returns how many commands there were.
    pub(super) fn commands(&mut self, port: &impl Port) -> usize {
        let mut done = 0;
        while let Some(command) = self.link.commands.pop() {
            done += 1;
            match command {
                Command::Add(table) => {
                    let id = usize::from(table.plan().id);
                    // `show` looks at all of them, so there are no more than needed.
                    if self.jobs.len() <= id && id < MAX_JOBS {
                        self.jobs.resize_with(id + 1, || None);
                    }
                    if let Some(place) = self.jobs.get_mut(id)
                        && let Some(old) = place.replace(table)
                    {
                        self.retire(old);
                    }
                }
                Command::Remove(job) => {
                    if let Some(table) = self.jobs.get_mut(usize::from(job)).and_then(Option::take)
                    {
                        self.retire(table);
                    }
                }
                Command::Credit { job, credit } => {
                    if let Some(Some(table)) = self.jobs.get_mut(usize::from(job)) {
                        table.credit = credit;
                    }
                }
                Command::Report(mut report) => {
                    report.latency_us.reset();
                    // The bounds of all reports are the same.
                    let added = report.latency_us.add(&self.report.latency_us);
                    debug_assert!(added.is_ok());
                    port.note_losses(&mut self.counters);
                    self.show(port);
                    self.event(Event::Report(report));
                }
                Command::Tap(mut tap) => {
                    // Answers that wait already belong to packets from before the capture.
                    tap.left(self.outbox.len());
                    if let Some(old) = self.tap.replace(tap) {
                        self.event(Event::Untapped(old));
                    }
                }
                Command::Untap => {
                    if let Some(tap) = self.tap.take() {
                        self.event(Event::Untapped(tap));
                    }
                }
            }
        }
        done
    }

    /// Frees the frames of a job and hands its table back.
    fn retire(&mut self, mut table: Box<JobTable>) {
        table.store_progress();
        table.clear(&mut self.pool);
        self.event(Event::Removed(table));
    }

    /// Tells the control plane. Where it does not listen, the event's memory is freed here.
    fn event(&self, event: Event) {
        drop(self.link.events.push(event));
    }

    /// Shows the numbers to the rest of the box.
    pub(super) fn show(&mut self, port: &impl Port) {
        for table in self.jobs.iter_mut().flatten().filter(|t| t.touched) {
            table.store_progress();
        }
        self.link.shown.publish(&self.counters, &self.frames(port), self.busy_ns);
    }
}
