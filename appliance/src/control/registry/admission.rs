//! Admission by memory.

use super::super::refused::Refused;
use super::Registry;
use super::job::{Job, Spec};
use gradbox_protocol::control::JoinRequest;
use gradbox_protocol::layout::{Layout, LayoutError};

/// A generation that is not refused.
pub(super) enum Admission {
    /// It fits now.
    Fits(Layout),
    /// It fits when the cores have freed the frames of a job that has ended.
    FitsSoon,
}

impl Registry {
    /// Whether a generation of `name` as `request` describes it fits beside the other jobs. What
    /// the job itself holds counts as available: the old generation goes before the new comes.
    pub(super) fn admit(&self, name: &str, request: &JoinRequest) -> Result<Admission, Refused> {
        let s = &self.settings;
        let layout = match Spec::of(request).layout(s.chunk_bytes, s.capacity.len() as u16) {
            Ok(layout) => layout,
            Err(LayoutError::TooLarge { .. }) => {
                let chunks = chunks(request, s.chunk_bytes);
                return Err(self.too_large(
                    name,
                    chunks.div_ceil(s.capacity.len() as u64),
                    request,
                ));
            }
            Err(error) => return Err(Refused::BadTensors(error)),
        };
        // Shard 0 has as many slots as any.
        let slots = u64::from(layout.slots(0));
        let needed = slots * (u64::from(request.world) + 1);
        if needed > self.free(name, Job::reserved_for_long) {
            return Err(self.too_large(name, slots, request));
        }
        if needed > self.free(name, Job::reserved) {
            return Ok(Admission::FitsSoon);
        }
        Ok(Admission::Fits(layout))
    }

    /// Frames of the fullest core that are not reserved by others than `name`.
    fn free(&self, name: &str, reserved: impl Fn(&Job, usize) -> u64) -> u64 {
        let on = |(core, capacity): (usize, &u64)| {
            let others = self.jobs.iter().filter(|(other, _)| *other != name);
            capacity.saturating_sub(others.map(|(_, job)| reserved(job, core)).sum())
        };
        self.settings.capacity.iter().enumerate().map(on).min().unwrap_or(0)
    }

    /// The refusal of a job with so many slots on its fullest core. Chunks are dealt evenly, so
    /// that core times the number of cores is what the job needs, and what there is for it.
    fn too_large(&self, name: &str, slots: u64, request: &JoinRequest) -> Refused {
        let s = &self.settings;
        let bytes = |frames: u64| {
            frames.saturating_mul(s.frame_bytes).saturating_mul(s.capacity.len() as u64)
        };
        Refused::TooLarge {
            job: name.to_owned(),
            needed: bytes(slots.saturating_mul(u64::from(request.world) + 1)),
            available: bytes(self.free(name, Job::reserved_for_long)),
            total: bytes(s.capacity.iter().copied().min().unwrap_or(0)),
        }
    }
}

/// Chunks of a table that is too large for a layout.
fn chunks(request: &JoinRequest, chunk_bytes: u16) -> u64 {
    let size = request.dtype.size() as u64;
    let of = |elements: u64| elements.saturating_mul(size).div_ceil(u64::from(chunk_bytes));
    request.tensors.iter().fold(0, |sum: u64, t| sum.saturating_add(of(t.elements)))
}
