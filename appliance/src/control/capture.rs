//! `GET /v1/capture`: the packets of the cores, as a stream of [records](crate::capture::record)
//! until the reader goes or the box stops. One capture at a time.

use super::http::Shared;
use super::plane::CoreSide;
use super::refused::Refused;
use super::registry::Registry;
use crate::capture::record::{self, Begin};
use crate::dataplane::handle::Command;
use crate::dataplane::tap::{Copies, Tap, Wanted};
use axum::body::{Body, Bytes};
use futures_core::Stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tracing::info;

/// Time between two looks at the copies where there were none.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Time between two records of what was missed: a reader that is gone is noticed by them.
const BEAT: Duration = Duration::from_millis(200);

/// A reader that takes nothing for so long loses its capture.
const STALLED: Duration = Duration::from_secs(5);

/// Bytes that are sent at once, about.
const PIECE: usize = 256 << 10;

/// Pieces that may wait for the connection.
const PIECES: usize = 4;

/// The query of the request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Every so many chunks; 1 where it is absent.
    sample: Option<NonZeroU32>,
    /// Name of a job, which need not be there yet.
    job: Option<String>,
    /// Bytes to keep of each packet; all where it is absent.
    bytes: Option<u16>,
}

/// The capture that is on, if one is.
#[derive(Debug, Default)]
pub(super) struct Captures {
    running: Option<Running>,
    begun: u64,
}

#[derive(Debug)]
struct Running {
    number: u64,
    job: Option<String>,
    cores: Vec<Arc<Copies>>,
    ending: Arc<AtomicBool>,
}

/// A capture that has begun, for its task.
pub(super) struct Capture {
    number: u64,
    begin: Begin,
    cores: Vec<Arc<Copies>>,
    ending: Arc<AtomicBool>,
}

impl Captures {
    /// Has all cores copy what is asked for.
    ///
    /// # Errors
    /// Where another capture is on, or none or too few bytes are asked for.
    pub(super) fn begin(
        &mut self,
        cores: &mut [CoreSide],
        registry: &Registry,
        asked: Asked,
    ) -> Result<Capture, Refused> {
        if self.running.is_some() {
            return Err(Refused::CaptureRunning);
        }
        if asked.bytes == Some(0) {
            let reason = "bytes: 0 is out of range: use 1 to 65535".to_owned();
            return Err(Refused::BadQuery { reason });
        }
        let frame_bytes = cores.first().map_or(0, |core| core.handle.frame_bytes);
        let most = asked.bytes.map_or(frame_bytes, u64::from).min(frame_bytes);
        let sample = asked.sample.unwrap_or(NonZeroU32::MIN);
        let wanted = wanted(asked.job.as_deref(), registry);
        let copies: Vec<_> =
            cores.iter().map(|_| Arc::new(Copies::new(wanted, most as usize))).collect();
        for (core, copies) in cores.iter_mut().zip(&copies) {
            core.send(Command::Tap(Box::new(Tap::new(copies.clone(), sample))));
        }
        self.begun += 1;
        let (number, ending) = (self.begun, Arc::new(AtomicBool::new(false)));
        info!(number, sample, job = asked.job, bytes = most, "capture begins");
        self.running =
            Some(Running { number, job: asked.job, cores: copies.clone(), ending: ending.clone() });
        let begin = Begin {
            shards: cores.len() as u16,
            frame_bytes: frame_bytes as u32,
            kept: most as u16,
        };
        Ok(Capture { number, begin, cores: copies, ending })
    }

    /// Keeps up with the wanted job, whose id is another in each generation.
    pub(super) fn follow(&self, registry: &Registry) {
        let Some(running) = self.running.as_ref().filter(|r| r.job.is_some()) else { return };
        let wanted = wanted(running.job.as_deref(), registry);
        running.cores.iter().for_each(|core| core.want(wanted));
    }

    /// Whether there is one.
    pub(super) const fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Has all cores copy no more, unless another capture has begun since.
    pub(super) fn end(&mut self, cores: &mut [CoreSide], number: u64) {
        let Some(running) = self.running.take_if(|r| r.number == number) else { return };
        cores.iter_mut().for_each(|core| core.send(Command::Untap));
        let missed: u64 = running.cores.iter().map(|core| core.missed()).sum();
        info!(number, missed, "capture ends");
    }

    /// Tells the reader, when it has all that there is, that the box stops.
    pub(super) fn stop(&self) {
        if let Some(running) = &self.running {
            running.ending.store(true, Ordering::Relaxed);
        }
    }
}

fn wanted(job: Option<&str>, registry: &Registry) -> Wanted {
    match job {
        None => Wanted::All,
        Some(name) => registry.id_of(name).map_or(Wanted::None, Wanted::Job),
    }
}

/// Ends the capture when it is dropped, however its task or its request ends.
pub(super) struct Guard {
    plane: Shared,
    number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut plane = self.plane.lock();
        let plane = &mut *plane;
        plane.captures.end(&mut plane.cores, self.number);
    }
}

impl Capture {
    /// What ends it.
    pub(super) const fn guard(&self, plane: Shared) -> Guard {
        Guard { plane, number: self.number }
    }

    /// The body of the answer, filled by a task of its own that ends with the reader.
    pub(super) fn into_body(self, guard: Guard) -> Body {
        let (to, pieces) = mpsc::channel(PIECES);
        tokio::spawn(async move {
            let _guard = guard;
            self.run(to).await;
        });
        Body::from_stream(Pieces(pieces))
    }

    /// Sends pieces until the reader is gone, takes nothing any more, or has all when the box
    /// stops.
    async fn run(self, to: mpsc::Sender<Bytes>) {
        let mut piece = Vec::new();
        record::write_begin(&mut piece, self.begin);
        let mut beat = Instant::now();
        loop {
            // Before the copies are taken, so that none comes after the end.
            let ending = self.ending.load(Ordering::Relaxed);
            let more = self.take(&mut piece);
            let last = ending && !more;
            if last || beat.elapsed() >= BEAT {
                beat = Instant::now();
                let missed = self.cores.iter().map(|core| core.missed()).sum();
                record::write_missed(&mut piece, missed, last);
            }
            if !piece.is_empty() {
                let sent = to.send(std::mem::take(&mut piece).into());
                if !matches!(tokio::time::timeout(STALLED, sent).await, Ok(Ok(()))) {
                    info!("the capture's reader is gone, or took nothing for {STALLED:?}");
                    return;
                }
            }
            if last {
                return;
            }
            if !more {
                tokio::select! {
                    () = to.closed() => return,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        }
    }

    /// Appends copies to a piece until it is large enough; returns whether there may be more.
    fn take(&self, piece: &mut Vec<u8>) -> bool {
        let mut any = false;
        for (shard, core) in (0u16..).zip(&self.cores) {
            // Each core gets its share of a piece.
            let room = piece.len() + PIECE / self.cores.len();
            while piece.len() < room
                && core.take(|copied| record::write_packet(piece, shard, copied)).is_some()
            {
                any = true;
            }
        }
        any
    }
}

/// The pieces, as a stream for axum.
struct Pieces(mpsc::Receiver<Bytes>);

impl Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|piece| piece.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::record::{Record, read, read_begin};

    fn capture() -> Capture {
        let begin = Begin { shards: 1, frame_bytes: 2048, kept: 64 };
        let cores = vec![Arc::new(Copies::new(Wanted::All, 64))];
        Capture { number: 1, begin, cores, ending: Arc::default() }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_reader_that_takes_nothing_loses_its_capture() {
        let (to, pieces) = mpsc::channel(PIECES);
        // Returns, though the reader is there.
        runtime().block_on(capture().run(to));
        assert_eq!(pieces.len(), PIECES);
    }

    #[test]
    fn when_the_box_stops_the_reader_is_told() {
        let (to, mut pieces) = mpsc::channel(PIECES);
        let capture = capture();
        capture.ending.store(true, Ordering::Relaxed);
        runtime().block_on(capture.run(to));
        let piece = pieces.try_recv().unwrap();
        let mut stream = &piece[..];
        assert_eq!(read_begin(&mut stream).unwrap().frame_bytes, 2048);
        assert_eq!(read(&mut stream).unwrap(), Record::End(0));
        assert!(stream.is_empty() && pieces.try_recv().is_err());
    }
}
