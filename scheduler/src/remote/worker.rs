//! The stages of this host, for a coordinator on another one.

use super::frame::{invalid, read_frame, write_frame};
use super::limits::misfit;
use super::peer::has_closed;
use super::{FromHost, Stream, ToHost};
use crate::actor::StageReport;
use crate::capacity::Lanes;
use crate::core::{Return, RunShape, StageEvent};
use crate::error::{Error, Result};
use crate::mailbox::{Envelope, mailbox};
use crate::message::{DeviceAddress, DeviceMessage, RunAddress, RunMessage, RunUrgent};
use crate::runtime::{HostedStages, PipelineOptions, PipelineSpec};
use ragtag_hal::Awaited;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the host reports counts and times of its stages.
const REPORTS: Duration = Duration::from_millis(500);

type Writer = Arc<Mutex<Box<dyn Write + Send>>>;

/// Loads the stages of this host and runs them until the coordinator ends the run or a device fails. The only host of the
/// pipeline besides this one is the coordinator. A failure is reported to it.
///
/// # Errors
/// The errors of [`Pipeline::start`](crate::Pipeline::start), and the failure of a device or of the connection.
pub fn serve(mut pipeline: PipelineSpec, options: &PipelineOptions) -> Result<()> {
    let control = pipeline.remote.hosts.first_mut().and_then(|host| host.control.take());
    let Stream { mut reader, writer, close } = control.ok_or_else(|| Error::spec("no coordinator"))?;
    let writer: Writer = Arc::new(Mutex::new(writer));
    let served = load_and_run(pipeline, options, reader.as_mut(), &writer, &*close);
    close();
    served
}

fn send(writer: &Writer, message: &FromHost, payload: &[u8]) -> io::Result<()> {
    write_frame(writer.lock().unwrap_or_else(PoisonError::into_inner).as_mut(), message, payload)
}

/// Reports a failure to the coordinator, which may be gone.
fn report_failure(writer: &Writer, error: &Error) {
    let _ = send(writer, &FromHost::Failed(error.clone()), &[]);
}

fn load_and_run(
    pipeline: PipelineSpec,
    options: &PipelineOptions,
    reader: &mut (dyn Read + Send),
    writer: &Writer,
    close: &(dyn Fn() + Send + Sync),
) -> Result<()> {
    let (run, inbox) = mailbox::<RunMessage, RunUrgent>(Lanes::of_run(options.credits));
    let loading = Arc::clone(writer);
    let stages = HostedStages::load(pipeline, options, &run, move |stage, bytes| {
        // A lost connection ends the run when the stages are loaded.
        let _ = send(&loading, &FromHost::Loading { stage, bytes }, &[]);
    });
    let stages = stages.inspect_err(|error| report_failure(writer, error))?;
    let lost = |cause: io::Error| Error::spec(format!("connection to the coordinator: {cause}"));
    let outcome = match send(writer, &FromHost::Ready, &[]).map_err(lost) {
        Err(error) => Err(error),
        Ok(()) => std::thread::scope(|scope| {
            let entries = Entries { first: stages.first(), shape: stages.shape(), run: run.clone() };
            scope.spawn(move || entries.serve(reader));
            let results = Running { stages: &stages, writer, reported: Instant::now() }.serve(&inbox);
            let results = results.inspect_err(|error| report_failure(writer, error));
            // Ends the other thread.
            close();
            results
        }),
    };
    stages.end();
    outcome
}

/// Passes micro-batches from the coordinator to the first stage.
struct Entries {
    /// Address and index of the first stage, if this host has it.
    first: Option<(DeviceAddress, usize)>,
    shape: RunShape,
    run: RunAddress,
}

impl Entries {
    fn serve(&self, reader: &mut dyn Read) {
        let error = loop {
            match read_frame(reader, 0).and_then(|(message, _)| self.enter(message)) {
                Ok(()) => {}
                Err(cause) if has_closed(&cause) => break Error::Stopped,
                Err(cause) => break Error::spec(format!("connection to the coordinator: {cause}")),
            }
        };
        self.run.send_urgent(RunUrgent::Failed(error));
    }

    fn enter(&self, message: ToHost) -> io::Result<()> {
        let ToHost::HandOff(micro_batch) = message else { return Ok(()) };
        let Some((address, stage)) = &self.first else {
            return Err(invalid("a micro-batch for a host without the first stage"));
        };
        if let Some(why) = misfit(&micro_batch, &self.shape) {
            return Err(invalid(&format!("{} is invalid: {why}", micro_batch.id)));
        }
        let event = StageEvent::HandOff { micro_batch };
        let sent = address.send(DeviceMessage::Event { stage: *stage, event });
        sent.map_err(|error| io::Error::other(error.to_string()))
    }
}

/// Sends results and reports to the coordinator.
struct Running<'a> {
    stages: &'a HostedStages,
    writer: &'a Writer,
    reported: Instant,
}

impl Running<'_> {
    fn serve(mut self, inbox: &crate::mailbox::Mailbox<RunMessage, RunUrgent>) -> Result<()> {
        let lost = |cause: io::Error| Error::spec(format!("connection to the coordinator: {cause}"));
        loop {
            // Results are in the quiet queue. The progress of the last stage wakes this thread.
            let envelope = match inbox.poll() {
                Some(envelope) => Awaited::Found(envelope),
                None => match self.stages.last() {
                    Some(last) => {
                        last.notice.arm();
                        inbox.poll().map_or_else(|| inbox.receive(Some(REPORTS)), Awaited::Found)
                    }
                    None => inbox.receive(Some(REPORTS)),
                },
            };
            match envelope {
                Awaited::Found(Envelope::Normal(RunMessage::Return(returned))) => {
                    self.returned(returned)?.map_err(lost)?;
                }
                Awaited::Found(Envelope::Normal(RunMessage::Downloaded)) | Awaited::Nothing => {}
                Awaited::Found(Envelope::Urgent(RunUrgent::Failed(Error::Stopped))) | Awaited::Gone => {
                    return Ok(());
                }
                Awaited::Found(Envelope::Urgent(RunUrgent::Failed(error))) => return Err(error),
            }
            if self.reported.elapsed() >= REPORTS {
                self.report().map_err(lost)?;
            }
        }
    }

    /// Sends the results of a micro-batch once they are in host memory.
    fn returned(&self, returned: Return) -> Result<io::Result<()>> {
        let Return { micro_batch, ready, rows } = returned;
        let Some(last) = self.stages.last() else {
            return Err(Error::protocol("results without the last stage"));
        };
        if last.timeline.wait(ready.value, None).is_err() {
            // The actor of the device reports its failure.
            return Ok(Ok(()));
        }
        let payload = self.stages.results(rows)?;
        Ok(send(self.writer, &FromHost::Returned { micro_batch, rows }, &payload))
    }

    fn report(&mut self) -> io::Result<()> {
        self.reported = Instant::now();
        for (stage, report) in self.stages.reports() {
            let report: StageReport = report.lock().unwrap_or_else(PoisonError::into_inner).clone();
            send(self.writer, &FromHost::Report { stage, report: Box::new(report) }, &[])?;
        }
        Ok(())
    }
}
