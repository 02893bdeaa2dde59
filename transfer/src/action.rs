//! Actions of senders and receivers.

use crate::error::Error;
use crate::message::TransferId;
use crate::route::Route;
use ragtag_hal::{BufferId, BufferRange, Command, Point, RegionId};
use serde::{Deserialize, Serialize};

/// Action that one end of an edge requests. `M` is the type of its messages to the other end. The caller must
/// execute the actions in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action<M> {
    /// Submit a copy to the end's queue: the download queue of a source, or the upload queue of a
    /// destination.
    Copy(Copy),
    /// Send a message to the other end.
    Message(M),
    /// All copies of a transfer have been requested. Once `at` has passed, the source may reuse its slot, or
    /// the destination may read its slot. `at` is on the timeline of the end's queue.
    Done {
        /// The transfer.
        transfer: TransferId,
        /// The end's own slot that holds the transfer.
        slot: u32,
        /// Point that passes when the transfer is complete at this end.
        at: Point,
    },
    /// Only if transfers are verified: compute the checksum of the first bytes of the end's own slot once
    /// `after` has passed. The caller answers with the event `Summed` of the end.
    Sum {
        /// The transfer.
        transfer: TransferId,
        /// The end's own slot that holds the transfer.
        slot: u32,
        /// Size of the transfer in bytes.
        bytes: u64,
        /// Point that passes when the bytes are in the slot.
        after: Point,
    },
    /// The sender sends a transfer again, because it arrived with wrong bytes or its copy was refused. Wrong
    /// bytes are found only if transfers are verified. The caller only reports this.
    Resent {
        /// The transfer.
        transfer: TransferId,
        /// Route of the previous attempt.
        wrong: Route,
        /// Route that the transfer takes now. If it differs from `wrong`, it replaces that route for the rest
        /// of the run.
        over: Route,
    },
}

/// A copy between a slot of the end's own stage and memory of the edge or of the other end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// The transfer.
    pub transfer: TransferId,
    /// The end's own slot.
    pub slot: u32,
    /// Memory at the other end of the copy.
    pub other: OtherEnd,
    /// Offset in bytes of the copy from the start of the transfer.
    pub offset: u64,
    /// Number of bytes to copy.
    pub bytes: u64,
    /// Points that the copy waits for.
    pub waits: Vec<Point>,
    /// Point that the copy signals.
    pub signal: Point,
}

impl Copy {
    /// Returns the command of the copy, or `None` if the submission only waits and signals. `own` is the range
    /// of the end's own slot, `ring` is the region of the edge's rings, and `slots` are the imported slots of
    /// the other end.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the copy uses a slot that was not imported, or a ring that is not registered.
    pub fn command(
        &self,
        is_outgoing: bool,
        own: BufferRange,
        ring: Option<RegionId>,
        slots: &[BufferId],
    ) -> Result<Option<Command>, Error> {
        let region = || ring.ok_or_else(|| Error::protocol("a copy through a ring that is not registered"));
        Ok(Some(match (self.other, is_outgoing) {
            (OtherEnd::None, _) => return Ok(None),
            (OtherEnd::Ring { start: offset }, false) => {
                Command::Upload { region: region()?, offset, to: own }
            }
            (OtherEnd::Ring { start: offset }, true) => {
                Command::Download { from: own, region: region()?, offset }
            }
            (OtherEnd::Slot(slot), is_outgoing) => {
                let buffer = slots.get(slot as usize).copied();
                let buffer = buffer.ok_or_else(|| Error::protocol(format!("slot {slot} is not imported")))?;
                let other = BufferRange { buffer, ..own };
                let (from, to) = if is_outgoing { (own, other) } else { (other, own) };
                Command::Copy { from, to }
            }
        }))
    }
}

/// Memory that a copy connects with the end's own slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtherEnd {
    /// Host memory of the edge, from this byte on.
    Ring {
        /// First byte.
        start: u64,
    },
    /// A slot of the neighbouring stage, whose memory this end's device has imported. The copy has the same
    /// offset in both slots.
    Slot(u32),
    /// None: the submission only waits and signals, because the other end copies.
    None,
}
