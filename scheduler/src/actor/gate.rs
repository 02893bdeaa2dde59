//! The gate before a device: holds submissions back until the device can take them.
//!
//! A device without foreign points cannot wait for another device, so a submission that would is held until that point
//! has passed. Its queue's later submissions stay behind it, and so does everything that waits for them. On a device
//! with foreign points nothing is ever held.

use ragtag_hal::{Device, DeviceId, Point, Result, Submission, Timeline, TimelineId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub(crate) struct Gate {
    device: DeviceId,
    /// Whether the device itself waits for neighbours.
    foreign_points: bool,
    neighbours: HashMap<TimelineId, Arc<Timeline>>,
    held: [VecDeque<Submission>; 3],
    /// For each queue the value of its last submission to the device.
    submitted: [u64; 3],
}

impl Gate {
    /// A gate before a device that takes points of these timelines, if it takes any.
    ///
    /// # Errors
    /// If the device does not import them though it says that it can.
    pub(crate) fn new(device: &mut dyn Device, neighbours: &[Arc<Timeline>]) -> Result<Self> {
        let foreign_points = device.adapter().caps.foreign_points;
        if foreign_points {
            neighbours.iter().try_for_each(|timeline| device.import_timeline(Arc::clone(timeline)))?;
        }
        Ok(Self {
            device: device.id(),
            foreign_points,
            neighbours: neighbours.iter().map(|t| (t.id(), Arc::clone(t))).collect(),
            held: Default::default(),
            submitted: [0; 3],
        })
    }

    /// Submits, now or when it can be.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn submit(&mut self, device: &mut dyn Device, submission: Submission) -> Result<()> {
        if self.foreign_points {
            return device.submit(submission);
        }
        self.held[submission.queue.index()].push_back(submission);
        self.retry(device)
    }

    /// Whether anything is held.
    pub(crate) fn holds(&self) -> bool {
        self.held.iter().any(|queue| !queue.is_empty())
    }

    /// Submits what can be submitted by now.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn retry(&mut self, device: &mut dyn Device) -> Result<()> {
        let mut moved = true;
        while moved {
            moved = false;
            for queue in 0..self.held.len() {
                while self.held[queue].front().is_some_and(|next| next.waits.iter().all(|&p| self.open(p))) {
                    let Some(mut next) = self.held[queue].pop_front() else { break };
                    next.waits.retain(|p| p.timeline.device == self.device);
                    self.submitted[queue] = next.signal.value;
                    device.submit(next)?;
                    moved = true;
                }
            }
        }
        Ok(())
    }

    /// Whether the device can take a submission that waits for this point.
    fn open(&self, point: Point) -> bool {
        if point.timeline.device == self.device {
            // Submitted is enough: the device waits itself.
            return self.submitted[point.timeline.queue.index()] >= point.value || point.value == 0;
        }
        self.neighbours.get(&point.timeline).is_some_and(|timeline| timeline.value() >= point.value)
    }
}
