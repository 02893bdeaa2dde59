//! Inputs of a stage: its parameters and its events.

use crate::core::MicroBatch;
use crate::core::passing::{Passed, PlaceRead};
use crate::core::stream::FileParts;
use ragtag_hal::QueueKind;
use ragtag_transfer::{Copy, Routes, ToReceiver, ToSender, TransferId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageShape {
    /// Number of slots, at least 1. It limits the number of micro-batches on the device.
    pub slots: u32,
    /// Bytes of one row of activations in the wire type.
    pub row_bytes: u64,
    /// Routes by which activations arrive. `None` on the first stage.
    pub incoming: Option<Routes>,
    /// Routes by which activations leave. `None` on the last stage.
    pub outgoing: Option<Routes>,
    /// Number of slots of the next stage. Unused on the last stage.
    pub next_slots: u32,
    /// Whether the transfers of both edges are verified.
    pub verified: bool,
    /// Arena of each part of the stage, in order. A part without an arena has resident weights. Empty if the
    /// stage has a single part with resident weights.
    pub parts: Vec<Option<usize>>,
    /// Parts whose weights are read from the model's file. `None` if there are none.
    #[serde(default)]
    pub from_file: Option<FileParts>,
    /// On a prefill stage: for each stage to which keys and values pass, the parts that compute its segments.
    /// Empty on other stages.
    #[serde(default)]
    pub passes: Vec<Vec<usize>>,
}

/// End of a stage at which activations arrive or leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Activations arrive from the previous stage, over the upload queue.
    Incoming,
    /// Activations leave for the next stage, over the download queue.
    Outgoing,
}

impl End {
    /// Returns the queue of the end's copies.
    pub(crate) fn queue(self) -> QueueKind {
        match self {
            End::Incoming => QueueKind::Upload,
            End::Outgoing => QueueKind::Download,
        }
    }
}

/// Inputs of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StageEvent {
    /// The previous stage hands over a micro-batch. On the first stage, the coordinator hands it over.
    HandOff {
        /// The micro-batch.
        micro_batch: Arc<MicroBatch>,
    },
    /// A message about activations from the previous stage.
    FromPrevious(ToReceiver),
    /// A message about activations from the next stage.
    FromNext(ToSender),
    /// The checksum that [`VerifyAction::Sum`](super::VerifyAction::Sum) requested.
    Summed {
        /// End of the stage whose transfer was summed.
        end: End,
        /// The transfer.
        transfer: TransferId,
        /// The checksum.
        sum: u64,
    },
    /// The prefill stage has submitted the copies of keys and values to host memory.
    Passed(Passed),
    /// A receiver of keys and values has submitted their copy from host memory.
    PlaceRead(PlaceRead),
    /// The checksum that [`PassingAction::Sum`](super::PassingAction::Sum) requested.
    SummedPassed {
        /// Receiver, as in the action.
        to: usize,
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// The checksum of keys and values on the prefill stage.
    PassedSum {
        /// The place.
        place: u32,
        /// The checksum.
        sum: u64,
    },
    /// The device has refused a copy over the peer route, and the transfers are not verified. A submission
    /// without work signals the point of the copy. The caller has not sent [`ToReceiver::Written`].
    Refused {
        /// The refused copy.
        copy: Copy,
    },
}
