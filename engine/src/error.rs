//! The error type of the public API, and the advice that an error gives.

use crate::advice::Advice;
use ragtag_devices::SelectionError;
use ragtag_graph::ModelError;
use ragtag_planner::PlanError;
use ragtag_scheduler::sim::LoadError;
use std::path::PathBuf;

/// Result type of Ragtag's public API.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of Ragtag's public API. Its text says what failed. [`Error::advice`] says what may help, so that each
/// program can word it for its own interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid argument, or an argument that conflicts with other arguments or with the model.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {cause}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// A failed write to standard output. A write to a closed pipe is not an error.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    /// A damaged or unsupported model file.
    #[error("{}", about(name, cause))]
    Model {
        /// Name of the model's file or directory, or of the bundled model.
        name: String,
        /// Reason why the model cannot be opened.
        cause: ModelError,
    },
    /// A missing, damaged or unsupported tokenizer, or a text that the tokenizer cannot encode.
    #[error("{}", about(name, cause))]
    Tokenizer {
        /// Name of the model's file or directory, or of the bundled model.
        name: String,
        /// Reason why the tokenizer cannot be used.
        cause: ragtag_graph::TokenizerError,
    },
    /// A chat template that is invalid, fails, or rejects the conversation.
    #[error("{name}: {cause}")]
    Template {
        /// Name of the model or of the template's file.
        name: String,
        /// The error of the template.
        cause: ragtag_chat::Error,
    },
    /// A model without the requested chat template.
    #[error("{name} has no {wanted}")]
    NoTemplate {
        /// Name of the model.
        name: String,
        /// Description of the requested template.
        wanted: String,
        /// Names of the model's templates.
        known: Vec<String>,
    },
    /// A device selection that is malformed or that matches no device.
    #[error(transparent)]
    Devices(#[from] SelectionError),
    /// A device selection in `RAGTAG_DEVICES` that is malformed or that matches no device.
    #[error("RAGTAG_DEVICES: {0}")]
    DevicesOfEnvironment(SelectionError),
    /// Memory caps that are malformed or that name a device that is not selected.
    #[error(transparent)]
    MemoryCap(#[from] ragtag_devices::MemoryCapError),
    /// Memory caps in `RAGTAG_MEMORY` that are malformed or that name a device that is not selected.
    #[error("RAGTAG_MEMORY: {0}")]
    MemoryCapOfEnvironment(ragtag_devices::MemoryCapError),
    /// A device or link that cannot be throttled as requested.
    #[error(transparent)]
    ThrottleSpec(#[from] ragtag_devices::ThrottleError),
    /// A placement that is invalid or does not fit in memory.
    #[error(transparent)]
    Planner(#[from] PlanError),
    /// A split that cannot be parsed.
    #[error("invalid split: {0}")]
    Split(#[from] ragtag_planner::split::SplitError),
    /// A probe of links with fewer than two devices.
    #[error("a link needs two devices")]
    NoLink,
    /// A placement that uses a device that is present but not selected.
    #[error("{device} is not selected")]
    NotSelected {
        /// Label of the device.
        device: String,
        /// Labels of the selected devices.
        selected: Vec<String>,
    },
    /// A device that was not found.
    #[error("there is no device {device} (found: {})", known.join(", "))]
    UnknownDevice {
        /// Label of the device.
        device: String,
        /// Labels of the devices that were found.
        known: Vec<String>,
    },
    /// An invalid load of requests.
    #[error("invalid load: {0}")]
    Load(#[from] LoadError),
    /// A plan that cannot be simulated.
    #[error(transparent)]
    Simulation(Box<ragtag_scheduler::sim::SimPlanError>),
    /// A simulation that violated an invariant of the scheduler.
    #[error("internal error: the simulation violated an invariant: {0}")]
    Simulated(#[from] ragtag_scheduler::sim::SimFailure),
    /// An invalid fleet.
    #[error("{of}: {cause}")]
    Fleet {
        /// Origin of the fleet, such as the path of its file.
        of: String,
        /// Reason why the fleet is invalid.
        cause: ragtag_planner::InvalidFleet,
    },
    /// Segments that a device cannot run.
    #[error("{device}: {cause}")]
    Compile {
        /// Label of the device.
        device: String,
        /// Reason why the device cannot run the segments.
        cause: ragtag_graph::CompileError,
    },
    /// A device that cannot be opened.
    #[error("cannot open {device}: {cause}")]
    Device {
        /// Label of the device.
        device: String,
        /// The driver's error.
        cause: ragtag_hal::Error,
    },
    /// A device that fails the self-test of its kernels at its first use.
    #[error("{device} ({driver}) fails its self-test: {kernel}")]
    Untrusted {
        /// Label of the device.
        device: String,
        /// Name of the device, and name and version of its driver.
        driver: String,
        /// The failed kernel with its error and the allowed error, and the number of other failed kernels.
        kernel: String,
    },
    /// A worker that cannot be used, or that cannot listen.
    #[error("worker {address}: {cause}")]
    Worker {
        /// Address of the worker.
        address: String,
        /// Reason, in words.
        cause: String,
    },
    /// A failed pipeline, or a request that the pipeline rejected.
    #[error(transparent)]
    Run(#[from] ragtag_scheduler::Error),
    /// A log of events that cannot be replayed.
    #[error("{}: {cause}", path.display())]
    EventLog {
        /// Path of the log.
        path: PathBuf,
        /// Reason why it cannot be replayed.
        cause: crate::event_log::ReplayError,
    },
    /// A device that computes a block differently from the CPU.
    #[error(
        "stage {stage} on {device} ({route}): its first block differs from the CPU's by {error:.1e}, at most \
         {bound:.0e} is allowed"
    )]
    Canary {
        /// Index of the stage.
        stage: usize,
        /// Label of the stage's device.
        device: String,
        /// Description of the route by which the stage's rows arrive.
        route: String,
        /// Relative error.
        error: f64,
        /// Maximum relative error of the numerics class.
        bound: f64,
    },
}

/// Formats `cause`. Prepends `name`, unless the message already contains it.
fn about(name: &str, cause: &impl std::fmt::Display) -> String {
    let cause = cause.to_string();
    if cause.contains(name) { cause } else { format!("{name}: {cause}") }
}

impl From<ragtag_scheduler::sim::SimPlanError> for Error {
    fn from(cause: ragtag_scheduler::sim::SimPlanError) -> Self {
        Error::Simulation(Box::new(cause))
    }
}

impl Error {
    /// Returns what may help against this error.
    pub fn advice(&self) -> Option<Advice<'_>> {
        use ragtag_scheduler::Error as RunError;
        Some(match self {
            Error::Devices(cause) | Error::DevicesOfEnvironment(cause) => return selection(cause),
            Error::Model { cause: ModelError::UntypedMatrices { .. }, .. } => Advice::AssumeType,
            Error::NoTemplate { known, .. } if known.is_empty() => Advice::GiveTemplate,
            Error::NoTemplate { known, .. } => Advice::ChooseTemplate { known },
            Error::NoLink => Advice::SelectTwoDevices,
            Error::NotSelected { device, selected } => Advice::SelectDevice { device, selected },
            Error::Planner(PlanError::DoesNotFit(cause)) => Advice::Replan(&cause.remedies),
            Error::Planner(PlanError::ExactBoundary { .. }) => Advice::SelectInt8Activations,
            Error::Load(LoadError::Lengths { of, .. }) => Advice::CorrectLengths { of: *of },
            Error::Device { .. } => Advice::CheckDriver,
            Error::Untrusted { device, .. } => Advice::UpdateDriver { device },
            Error::Canary { device, .. } => Advice::TestDevice { device },
            Error::Run(RunError::Corrupted { .. }) => Advice::ProbeLink,
            Error::Run(RunError::WrongKeysAndValues { .. }) => Advice::ProbeLinks,
            Error::Run(RunError::KeysAndValues { .. }) => Advice::AvoidPrefillStage,
            Error::Run(
                RunError::Stalled { .. } | RunError::StalledCopy { .. } | RunError::StalledRead { .. },
            ) => Advice::SetStallTimeout,
            Error::Run(RunError::StalledCompute { device, .. }) => Advice::ResetDriver { device },
            _ => return None,
        })
    }
}

fn selection(cause: &SelectionError) -> Option<Advice<'_>> {
    match cause {
        SelectionError::Through { through, .. } => Some(Advice::SelectBackend { backend: through }),
        SelectionError::NoGpu { software, .. } => Some(match software.first() {
            Some((device, _)) => Advice::SelectSoftwareDevice { device },
            None => Advice::FindDevices,
        }),
        _ => None,
    }
}
