//! Another host with stages of the pipeline, as the coordinator sees it. One thread receives what the host reports, and
//! another one sends it the micro-batches for the first stage.

use super::frame::{invalid, read_frame, write_frame};
use super::{FromHost, Peer, Stream, ToHost};
use crate::actor::StageReport;
use crate::core::{MicroBatchId, ResultRows, Return, StageEvent};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, Mailbox};
use crate::message::{DeviceMessage, DeviceUrgent, RunMessage};
use crate::results::ResultPlaces;
use crossbeam_channel::Sender;
use ragtag_hal::{Awaited, HostRegion, Point, Timeline};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The proxy of another host at the coordinator.
pub(crate) struct HostProxy {
    pub(crate) peer: Arc<Peer>,
    pub(crate) control: Stream,
    pub(crate) mailbox: Mailbox<DeviceMessage, DeviceUrgent>,
    /// Reports of all stages of the pipeline.
    pub(crate) reports: Vec<Arc<Mutex<StageReport>>>,
    /// Present if the host has the last stage.
    pub(crate) results: Option<Results>,
}

/// Host memory for results, and the timeline that stands for the download queue of the last stage.
pub(crate) struct Results {
    pub(crate) region: Arc<HostRegion>,
    pub(crate) places: ResultPlaces,
    pub(crate) credits: u32,
    pub(crate) mirror: Arc<Timeline>,
    /// Value that the timeline reaches next.
    pub(crate) next: u64,
}

impl HostProxy {
    /// Waits until the host has loaded its stages, and tells `ready`. Then serves it until the run or the connection ends.
    pub(crate) fn serve(
        self,
        abort: &AtomicBool,
        progress: &(dyn Fn(u32, u64) + Sync),
        ready: &Sender<Result<()>>,
    ) {
        let Self { peer, control: Stream { mut reader, mut writer, .. }, mailbox, reports, results } = self;
        let loaded = load(reader.as_mut(), &peer, abort, progress);
        let has_loaded = loaded.is_ok();
        if !has_loaded {
            peer.end();
        }
        let _ = ready.send(loaded);
        if !has_loaded {
            return;
        }
        let mut receiver = Receiver { peer: &peer, reports, results };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(cause) = receiver.serve(reader.as_mut()) {
                    peer.lose(&cause);
                }
            });
            match send(writer.as_mut(), &mailbox) {
                Ok(()) => peer.end(),
                Err(cause) => peer.lose(&cause),
            }
        });
    }
}

/// Waits until the host has loaded its stages.
fn load(
    reader: &mut dyn Read,
    peer: &Peer,
    abort: &AtomicBool,
    progress: &(dyn Fn(u32, u64) + Sync),
) -> Result<()> {
    loop {
        if abort.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        match read_frame(reader, 0).map(|(message, _)| message) {
            Ok(FromHost::Ping) => {}
            Ok(FromHost::Loading { stage, bytes }) => progress(stage, bytes),
            Ok(FromHost::Ready) => return Ok(()),
            Ok(FromHost::Failed(error)) => return Err(peer.named(error)),
            Ok(other) => return Err(peer.lost(&invalid(&format!("{other:?} before the stages are loaded")))),
            Err(cause) => return Err(peer.lost(&cause)),
        }
    }
}

/// Sends micro-batches to the first stage until the run ends.
fn send(writer: &mut dyn Write, mailbox: &Mailbox<DeviceMessage, DeviceUrgent>) -> io::Result<()> {
    loop {
        match mailbox.receive(None) {
            Awaited::Found(Envelope::Normal(DeviceMessage::Event {
                event: StageEvent::HandOff { micro_batch },
                ..
            })) => write_frame(writer, &ToHost::HandOff(micro_batch), &[])?,
            Awaited::Found(Envelope::Normal(_)) | Awaited::Nothing => {}
            Awaited::Found(Envelope::Urgent(_)) | Awaited::Gone => return Ok(()),
        }
    }
}

struct Receiver<'a> {
    peer: &'a Peer,
    reports: Vec<Arc<Mutex<StageReport>>>,
    results: Option<Results>,
}

impl Receiver<'_> {
    fn serve(&mut self, reader: &mut dyn Read) -> io::Result<()> {
        let most = self.results.as_ref().map_or(0, |results| results.places.part_bytes());
        loop {
            let (message, payload) = read_frame(reader, usize::try_from(most).unwrap_or(usize::MAX))?;
            match message {
                FromHost::Ping => {}
                FromHost::Returned { micro_batch, rows } => self.returned(micro_batch, rows, &payload)?,
                FromHost::Report { stage, report } if self.peer.stages.contains(&stage) => {
                    let own = &self.reports[stage as usize];
                    *own.lock().unwrap_or_else(PoisonError::into_inner) = *report;
                }
                FromHost::Failed(error) => {
                    self.peer.fail(self.peer.named(error));
                    return Ok(());
                }
                other => return Err(invalid(&format!("{other:?} from a host that runs"))),
            }
        }
    }

    /// Puts results where a device of this host would put them.
    fn returned(&mut self, micro_batch: MicroBatchId, rows: ResultRows, payload: &[u8]) -> io::Result<()> {
        let Some(results) = &mut self.results else {
            return Err(invalid("results from a host without the last stage"));
        };
        results.write(rows, payload)?;
        results.next += 1;
        let ready = Point { timeline: results.mirror.id(), value: results.next };
        // The coordinator must know the micro-batch before its point passes.
        let returned = RunMessage::Return(Return { micro_batch, ready, rows });
        self.peer.run.send_quietly(returned).map_err(|error| io::Error::other(error.to_string()))?;
        results.mirror.enqueue(results.next);
        results.mirror.advance(results.next);
        Ok(())
    }
}

impl Results {
    fn write(&self, rows: ResultRows, payload: &[u8]) -> io::Result<()> {
        if rows.whole > rows.all || rows.all > self.places.rows || rows.credit >= self.credits {
            return Err(invalid(&format!("invalid results: {rows:?}")));
        }
        let [whole, picks] = self.places.of(rows);
        let (first, second) = ((whole.end - whole.start) as usize, (picks.end - picks.start) as usize);
        if payload.len() != first + second {
            return Err(invalid(&format!("{} bytes of results for {rows:?}", payload.len())));
        }
        for (range, bytes) in [(whole, &payload[..first]), (picks, &payload[first..])] {
            if !bytes.is_empty() {
                let range = range.start as usize..range.end as usize;
                self.region.write(range).map_err(io::Error::other)?.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}
