//! Submissions to the simulated devices: their start, their end, and failures.

use super::mailboxes::Message;
use super::queue::Event;
use super::{World, hung, lost};
use crate::core::{End, Nanoseconds, RunEvent, StageEvent};
use crate::error::Error;
use crate::sim::SimSpan;
use crate::sim::device::{Job, Submitted};
use crate::sim::spec::Fault;
use ragtag_hal::QueueKind;
use ragtag_transfer::{Copy, OtherEnd};

/// Time until a run notices that a device hangs.
const HANG_NS: Nanoseconds = 500_000;

impl World<'_> {
    pub(super) fn submit(&mut self, submitted: Submitted) {
        let stage = submitted.stage;
        let device = &mut self.devices[self.topology.hosts[stage]];
        device.submitted += 1;
        let nth = device.submitted;
        if self.spec.faults.contains(&Fault::SubmissionRefused { stage: stage as u32, nth }) {
            self.fail(stage, ragtag_hal::Error::Api { call: "submit".into(), code: -1 });
        } else {
            device.submit(submitted);
        }
    }

    /// Starts all submissions that can start after a change on device `changed`. These submissions are on
    /// `changed`, or on devices that wait for its points.
    pub(super) fn start_around(&mut self, changed: usize) -> Result<(), String> {
        for at in 0..self.topology.around[changed].len() {
            let device = self.topology.around[changed][at];
            for hardware in 0..QueueKind::ALL.len() {
                let devices = &self.devices;
                let passed = |p: ragtag_hal::Point| {
                    devices[p.timeline.device.0 as usize].value(p.timeline.queue) >= p.value
                };
                let Some(next) = devices[device].next(hardware, passed) else { continue };
                let stage = next.stage;
                let duration = devices[device].duration(next);
                let late = devices[device].hand_over(hardware, next, self.queue.now);
                let nth = devices[device].started + 1;
                if self.spec.faults.contains(&Fault::LostAtCommand { stage: stage as u32, nth }) {
                    self.fail(stage, lost());
                    break;
                }
                self.devices[device].started = nth;
                if self.spec.faults.contains(&Fault::HungAtCommand { stage: stage as u32, nth }) {
                    let submitted = self.devices[device].start(hardware)?;
                    self.memory.start(submitted)?;
                    let noticed_ns = self.queue.now + HANG_NS;
                    self.queue.at(noticed_ns, Event::Fail { stage, cause: hung() });
                    continue;
                }
                let more = duration * self.queue.draw(self.spec.jitter_percent) / 100;
                let while_ns = self.devices[device].unsteady_ns;
                let more = more + if while_ns > 0 { self.queue.draw(while_ns) } else { 0 };
                let submitted = self.devices[device].start(hardware)?;
                self.memory.start(submitted)?;
                self.started(device, hardware, late, duration.saturating_add(more));
            }
        }
        Ok(())
    }

    /// Records the start of a submission on a hardware queue and schedules its end. `late` delays the start.
    /// A copy waits until the shared links that it uses have finished earlier copies.
    fn started(&mut self, device: usize, hardware: usize, late: Nanoseconds, duration: Nanoseconds) {
        let Some(submitted) = self.devices[device].running(hardware) else { return };
        let stage = submitted.stage;
        let (queue, start_ns) = (submitted.queue, self.queue.now.saturating_add(late));
        let mut end_ns = start_ns.saturating_add(duration);
        if matches!(submitted.job, Job::Read { .. }) {
            return self.queue.at(end_ns, Event::Done { device, hardware, start_ns });
        }
        let observations = &mut self.report.observations;
        observations.stages[stage].queues[queue.index()].start(start_ns);
        if let Job::Copy { end, copy, .. } = &submitted.job {
            let at = edge_of(*end, stage);
            let edge = &mut observations.edges[at];
            edge.work.start(start_ns);
            if crosses(*end, copy) {
                edge.crossings += u64::from(copy.offset == 0);
                edge.bytes += copy.bytes;
                for (link, shared) in self.spec.shared_links.iter().enumerate() {
                    if shared.edges.contains(&at) {
                        let busy_ns = (copy.bytes as f64 * shared.byte_ns).round() as Nanoseconds;
                        let free_ns = self.shared_free[link].max(start_ns).saturating_add(busy_ns);
                        self.shared_free[link] = free_ns;
                        let all_ns = &mut observations.shared_busy_ns[link];
                        *all_ns = all_ns.saturating_add(busy_ns);
                        end_ns = end_ns.max(free_ns);
                    }
                }
            }
        }
        self.queue.at(end_ns, Event::Done { device, hardware, start_ns });
    }

    /// Records the end of a submission that started at `start_ns`.
    fn ended(&mut self, submitted: &Submitted, start_ns: Nanoseconds) {
        let (now, stage, job) = (self.queue.now, submitted.stage, &submitted.job);
        let observations = &mut self.report.observations;
        let work = &mut observations.stages[stage];
        work.queues[submitted.queue.index()].end(now);
        match job {
            Job::Copy { end, copy, .. } => {
                if *end == End::Incoming && copy.offset == 0 {
                    work.waiting.add(now);
                }
                observations.edges[edge_of(*end, stage)].work.end(now);
            }
            Job::Compute { micro_batch, ends, .. } => {
                let computed = if micro_batch.decodes_only() { &mut work.decode } else { &mut work.prefill };
                computed.busy_ns += now - start_ns;
                if *ends {
                    work.waiting.take(now);
                    computed.micro_batches += 1;
                    computed.rows += u64::from(micro_batch.rows());
                }
            }
            _ => {}
        }
        if self.report.spans.len() == self.spec.max_spans {
            self.report.dropped_spans += 1;
            return;
        }
        self.report.spans.push(SimSpan {
            stage: stage as u32,
            queue: submitted.queue,
            kind: job.kind(),
            micro_batch: job.micro_batch(),
            rows: job.rows(),
            start_ns,
            end_ns: now,
        });
    }

    pub(super) fn done(
        &mut self,
        device: usize,
        hardware: usize,
        start_ns: Nanoseconds,
    ) -> Result<(), String> {
        if self.devices[device].failure.is_some() {
            return Ok(());
        }
        let Some(stage) = self.devices[device].running(hardware).map(|submitted| submitted.stage) else {
            return Err("the end of work that never began".into());
        };
        let submitted = self.devices[device].end(hardware, self.queue.now)?;
        self.memory.end(&submitted)?;
        if matches!(submitted.job, Job::Read { .. }) {
            return self.start_around(device);
        }
        self.ended(&submitted, start_ns);
        if let (Job::Logits { micro_batch, .. }, Some(invariants)) = (&submitted.job, &mut self.invariants) {
            invariants.copied(micro_batch)?;
        }
        let summed = match &submitted.job {
            Job::Sum(summed) => {
                let sum = self.memory.take_sum(stage, summed)?;
                Some(StageEvent::Summed { end: summed.end, transfer: summed.transfer, sum })
            }
            Job::SumPassed(to, passing) => {
                let sum = self.memory.take_passed_sum(stage, passing)?;
                Some(StageEvent::SummedPassed { to: *to, place: passing.place, sum })
            }
            _ => None,
        };
        if let Some(event) = summed {
            self.arrives(device, Message::Stage(stage, event));
        }
        let downloaded = submitted.queue == QueueKind::Download;
        // Other devices do not wait for their other queues.
        let others = !self.cores[device].computes_ahead() || self.spec.verified;
        let own = (downloaded || others).then_some(device);
        let ends_path = stage + 1 >= self.spec.stages.len();
        let run = (downloaded && ends_path).then_some(self.cores.len());
        own.into_iter().chain(run).try_for_each(|to| self.mailboxes.notify(&mut self.queue, to))?;
        self.start_around(device)
    }

    /// Marks the device of a stage as failed and notifies the coordinator.
    pub(super) fn fail(&mut self, stage: usize, cause: ragtag_hal::Error) {
        if self.devices[self.topology.hosts[stage]].failure.is_none() {
            let (device, number) = (self.topology.label(stage), stage as u32);
            self.fail_with(stage, cause.clone(), Error::Stage { stage: number, device, cause });
        }
    }

    /// Ends the run with an error of a stage.
    pub(super) fn end_run(&mut self, stage: usize, error: Error) {
        self.fail_with(stage, ragtag_hal::Error::invalid("no route"), error);
    }

    /// Ends the work of a stage's device with `failure`, and the run with `error`.
    fn fail_with(&mut self, stage: usize, failure: ragtag_hal::Error, error: Error) {
        self.devices[self.topology.hosts[stage]].failure = Some(failure);
        self.arrives(self.cores.len(), Message::Run(RunEvent::Failed { error }));
    }
}

/// Returns the index of the edge at one end of a stage.
fn edge_of(end: End, stage: usize) -> usize {
    match end {
        End::Incoming => stage - 1,
        End::Outgoing => stage,
    }
}

/// Returns whether a copy brings activations to another device, or to a ring on the way there.
fn crosses(end: End, copy: &Copy) -> bool {
    match copy.other {
        OtherEnd::Ring { .. } => end == End::Outgoing,
        OtherEnd::Slot(_) => true,
        OtherEnd::None => false,
    }
}
