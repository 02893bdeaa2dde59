//! Stages on other machines. A worker offers its devices and runs stages of plans with weights from its own files. The
//! coordinator plans over all devices, and connects to the workers for each run.
//!
//! | file | subject |
//! | --- | --- |
//! | `key.rs` | the key that a worker and its coordinators share |
//! | `tls.rs` | encrypted streams of bytes: authentication |
//! | `records.rs` | encrypted streams of bytes: records |
//! | `protocol.rs` | messages before a run |
//! | `client.rs` | the coordinator's side |
//! | `worker.rs` | the worker's side |
//! | `neighbour.rs` | streams between two workers |

mod client;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod figures;
mod key;
mod neighbour;
mod protocol;
mod records;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;
mod tls;
mod worker;

pub use client::WorkerAddress;
pub use key::WorkerKey;
pub use protocol::rewritten_frames;
pub use worker::{WorkerServer, WorkerSettings};
