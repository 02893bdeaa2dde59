//! The error type of the public API. Each kind of error has an exit code.

use std::path::PathBuf;

/// Result type of Ragtag's public API.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of Ragtag's public API. [`Error::exit_code`] returns the exit code of the command.
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
    /// Failure to save calibration results.
    #[error("cannot save the calibration: {0}")]
    Unkept(String),
    /// A damaged or unsupported model file.
    #[error("{}", about(name, cause))]
    Model {
        /// Name of the model's file or directory, or of the bundled model.
        name: String,
        /// Reason why the model cannot be opened.
        cause: ragtag_graph::ModelError,
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
    #[error("{name} has no {wanted} ({})", known_templates(known))]
    NoTemplate {
        /// Name of the model.
        name: String,
        /// Description of the requested template.
        wanted: String,
        /// Names of the model's templates.
        known: Vec<String>,
    },
    /// Messages, tools or documents that are not lists of JSON objects.
    #[error("{}: {cause} (expected a JSON list of objects)", path.display())]
    Conversation {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be parsed.
        cause: String,
    },
    /// A device selection that is malformed or that matches no device.
    #[error(transparent)]
    Devices(#[from] ragtag_devices::SelectionError),
    /// A device selection in `RAGTAG_DEVICES` that is malformed or that matches no device.
    #[error("RAGTAG_DEVICES: {0}")]
    DevicesOfEnvironment(ragtag_devices::SelectionError),
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
    Planner(#[from] ragtag_planner::PlanError),
    /// A split that cannot be parsed.
    #[error("--split: {0}")]
    Split(#[from] ragtag_planner::split::SplitError),
    /// A pin that cannot be parsed.
    #[error("--pin: {0}")]
    Pin(ragtag_planner::split::SplitError),
    /// A placement that uses a device that is present but not selected.
    #[error("{device} is not selected (to select it, use --device {},{device})", selected.join(","))]
    NotSelected {
        /// Label of the device.
        device: String,
        /// Labels of the selected devices.
        selected: Vec<String>,
    },
    /// A plan file that is damaged, or made for another model or other devices.
    #[error("{}: {cause}", path.display())]
    PlanFile {
        /// Path of the plan file.
        path: PathBuf,
        /// Reason why the plan is invalid.
        cause: Box<ragtag_planner::plan::InvalidPlan>,
    },
    /// A plan file that requires devices that the current device options do not select.
    #[error("{}: the plan needs {}; run it with {flags}", path.display(), missing.join(", "))]
    PlanDevices {
        /// Path of the plan file.
        path: PathBuf,
        /// Labels of the plan's devices that are not selected.
        missing: Vec<String>,
        /// Command-line flags that select the plan's devices.
        flags: String,
    },
    /// A plan file with routes that no probe on this machine has verified.
    #[error("{}: {}", path.display(), findings.join("; "))]
    PlanRoutes {
        /// Path of the plan file.
        path: PathBuf,
        /// Reason for each route.
        findings: Vec<String>,
    },
    /// A plan from a file that needs more memory than a device has.
    #[error(
        "{}: {cause} (a plan from a file is not changed; make a new plan for the free memory, or omit --plan)",
        path.display()
    )]
    PlanMemory {
        /// Path of the plan file.
        path: PathBuf,
        /// The device's error, which gives the size of the failed allocation.
        cause: Box<ragtag_scheduler::Error>,
    },
    /// An invalid load of requests.
    #[error("invalid load: {0}")]
    Load(#[from] ragtag_scheduler::sim::LoadError),
    /// A requests file that cannot be parsed.
    #[error("{}: {cause}", path.display())]
    RequestFile {
        /// Path of the requests file.
        path: PathBuf,
        /// Reason why the file cannot be parsed.
        cause: ragtag_scheduler::sim::LoadError,
    },
    /// A plan that cannot be simulated.
    #[error(transparent)]
    Simulation(Box<ragtag_scheduler::sim::SimPlanError>),
    /// A simulation that violated an invariant of the scheduler.
    #[error("internal error: the simulation violated an invariant: {0}")]
    Simulated(#[from] ragtag_scheduler::sim::SimFailure),
    /// An invalid fleet.
    #[error("{of}: {cause}")]
    Fleet {
        /// Origin of the fleet, such as the path of its file or `--fleet`.
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
    #[error(
        "cannot open {device}: {cause} (run `ragtag devices --doctor` to check the driver, or leave the device out with \
         --device)"
    )]
    Device {
        /// Label of the device.
        device: String,
        /// The driver's error.
        cause: ragtag_hal::Error,
    },
    /// A device that fails the self-test of its kernels at its first use.
    #[error(
        "{device} ({driver}) fails its self-test: {kernel} (update the driver, leave the device out with --exclude or \
         --device, or run `ragtag selftest --device {device}` for all tests; --no-self-test uses it anyway)"
    )]
    Untrusted {
        /// Label of the device.
        device: String,
        /// Name of the device, and name and version of its driver.
        driver: String,
        /// The failed kernel with its error and the allowed error, and the number of other failed kernels.
        kernel: String,
    },
    /// A conversation that fills the context, in a chat that drops no turns.
    #[error(
        "the conversation fills the context of {context} tokens (--ctx sets a larger one, and --context-full drop drops \
         the oldest turns)"
    )]
    ContextFull {
        /// Size of the context in tokens.
        context: u32,
    },
    /// A failed pipeline, or a request that the pipeline rejected.
    #[error(transparent)]
    Run(#[from] ragtag_scheduler::Error),
    /// A self-test in which tests failed.
    #[error("{failed} of {tests} tests failed")]
    SelfTest {
        /// Number of failed tests.
        failed: usize,
        /// Number of tests in total.
        tests: usize,
    },
    /// A device that computes a block differently from the CPU.
    #[error(
        "stage {stage} on {device} ({route}): its first block differs from the CPU's by {error:.1e}, at most \
         {bound:.0e} is allowed (run `ragtag selftest --device {device}`, or leave the device out with --exclude)"
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
    /// A run that `--strict` rejected.
    #[error("refused by --strict: {}", findings.join("; "))]
    Strict {
        /// Reasons for the rejection, one per finding.
        findings: Vec<String>,
    },
}

/// Formats `cause`. Prepends `name`, unless the message already contains it.
fn about(name: &str, cause: &impl std::fmt::Display) -> String {
    let cause = cause.to_string();
    if cause.contains(name) { cause } else { format!("{name}: {cause}") }
}

fn known_templates(known: &[String]) -> String {
    match known {
        [] => "give one with --template FILE".into(),
        names => format!("it has {}; choose one with --name", names.join(", ")),
    }
}

impl From<ragtag_scheduler::sim::SimPlanError> for Error {
    fn from(cause: ragtag_scheduler::sim::SimPlanError) -> Self {
        Error::Simulation(Box::new(cause))
    }
}

impl Error {
    /// Returns the exit code of the command if it fails with this error.
    pub fn exit_code(&self) -> u8 {
        use ragtag_planner::PlanError;
        match self {
            Error::Usage(_) | Error::ThrottleSpec(_) | Error::Run(ragtag_scheduler::Error::Refused(_)) => 2,
            Error::Load(_) | Error::RequestFile { .. } | Error::Conversation { .. } => 2,
            Error::ContextFull { .. } => 2,
            Error::Model { cause, .. } if cause.is_unreadable() => 7,
            Error::Tokenizer { cause, .. } if cause.is_unreadable() => 7,
            Error::Run(ragtag_scheduler::Error::Weight { .. }) => 7,
            Error::Model { .. } | Error::Tokenizer { .. } => 3,
            Error::Template { .. } | Error::NoTemplate { .. } => 3,
            Error::Planner(PlanError::DoesNotFit(_) | PlanError::HostMemory(_))
            | Error::PlanMemory { .. } => 6,
            Error::Planner(_) | Error::Split(_) | Error::Pin(_) | Error::PlanFile { .. } => 4,
            Error::PlanDevices { .. } | Error::PlanRoutes { .. } => 4,
            Error::Simulation(_) | Error::Fleet { .. } | Error::NotSelected { .. } => 4,
            Error::Devices(_) | Error::DevicesOfEnvironment(_) => 5,
            Error::MemoryCap(_) | Error::MemoryCapOfEnvironment(_) => 5,
            Error::File { .. } | Error::Output(_) | Error::Unkept(_) => 7,
            Error::Strict { .. } => 8,
            Error::Device { cause, .. }
            | Error::Run(
                ragtag_scheduler::Error::Stage { cause, .. }
                | ragtag_scheduler::Error::Device { cause, .. }
                | ragtag_scheduler::Error::Memory { cause, .. },
            ) if cause.is_out_of_memory() => 6,
            Error::Compile { .. } | Error::Device { .. } | Error::Run(_) | Error::SelfTest { .. } => 1,
            Error::Simulated(_) | Error::Canary { .. } | Error::Untrusted { .. } => 1,
        }
    }
}
