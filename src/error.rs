//! What can go wrong for a user of Ragtag, with what to do about it; each kind has its exit code.

use std::path::PathBuf;

/// Result of Ragtag's public API.
pub type Result<T> = std::result::Result<T, Error>;

/// Anything that can go wrong. [`Error::exit_code`] is what the command ends with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that makes no sense with the others or with the model.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {cause}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's word.
        cause: std::io::Error,
    },
    /// Standard output, if it cannot be written for another reason than that nobody reads it.
    #[error("cannot write standard output: {0}")]
    Output(std::io::Error),
    /// What was measured of devices, and cannot be written.
    #[error("what was measured is not kept: {0}")]
    Unkept(String),
    /// A model file that is damaged, or of a kind that Ragtag does not run.
    #[error("{}", about(name, cause))]
    Model {
        /// The file, or the bundled model.
        name: String,
        /// What is wrong with it.
        cause: ragtag_graph::ModelError,
    },
    /// The model's tokenizer.
    #[error("{}", about(name, cause))]
    Tokenizer {
        /// The file, or the bundled model.
        name: String,
        /// What is wrong with it.
        cause: ragtag_graph::TokenizerError,
    },
    /// The choice of devices.
    #[error(transparent)]
    Devices(#[from] ragtag_devices::SelectionError),
    /// The choice of devices that the environment makes.
    #[error("RAGTAG_DEVICES: {0}")]
    DevicesOfEnvironment(ragtag_devices::SelectionError),
    /// Something that cannot be slowed on purpose.
    #[error(transparent)]
    Handicap(#[from] ragtag_devices::HandicapError),
    /// A placement that cannot be had.
    #[error(transparent)]
    Planner(#[from] ragtag_planner::PlanError),
    /// A split that cannot be read.
    #[error("--split: {0}")]
    Split(#[from] ragtag_planner::split::SplitError),
    /// A pin that cannot be read.
    #[error("--pin: {0}")]
    Pin(ragtag_planner::split::SplitError),
    /// A device that a placement names, and that is not selected.
    #[error("{device} is detected and not selected; --device {},{device} selects it", selected.join(","))]
    NotSelected {
        /// The device.
        device: String,
        /// Those that are selected.
        selected: Vec<String>,
    },
    /// A plan for another model, other devices, or damaged.
    #[error("{}: {cause}", path.display())]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Box<ragtag_planner::plan::InvalidPlan>,
    },
    /// A plan whose devices exist only with other options.
    #[error("{}: the plan needs {}; run it with {flags}", path.display(), missing.join(", "))]
    PlanDevices {
        /// The file.
        path: PathBuf,
        /// Its devices that are not selected.
        missing: Vec<String>,
        /// The options that it was made with, as flags of the command.
        flags: String,
    },
    /// A plan that was given, and a device that has too little memory for it.
    #[error("{}: {cause}; a plan from a file is not changed: make one for what is free, or leave out --plan", path.display())]
    PlanMemory {
        /// The file.
        path: PathBuf,
        /// What the device said, with sizes.
        cause: Box<ragtag_scheduler::Error>,
    },
    /// A load that makes no sense.
    #[error("the load: {0}")]
    Load(#[from] ragtag_scheduler::sim::LoadError),
    /// A file of requests that cannot be understood.
    #[error("{}: {cause}", path.display())]
    RequestFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: ragtag_scheduler::sim::LoadError,
    },
    /// A plan that cannot be simulated.
    #[error(transparent)]
    Simulation(#[from] ragtag_scheduler::sim::SimPlanError),
    /// A simulation that found a promise of the scheduler broken.
    #[error("internal: the simulation found a defect: {0}")]
    Simulated(#[from] ragtag_scheduler::sim::SimFailure),
    /// A fleet that cannot be.
    #[error("{of}: {cause}")]
    Fleet {
        /// The file, or the option.
        of: String,
        /// What is wrong with it.
        cause: ragtag_planner::InvalidFleet,
    },
    /// Segments that a device cannot run.
    #[error("{device}: {cause}")]
    Compile {
        /// The device.
        device: String,
        /// Why.
        cause: ragtag_graph::CompileError,
    },
    /// A device that does not open.
    #[error(
        "{device} does not open: {cause}; `ragtag devices --doctor` says what it knows of the driver, and \
         --device leaves it out"
    )]
    Device {
        /// The device.
        device: String,
        /// What its driver said.
        cause: ragtag_hal::Error,
    },
    /// The pipeline failed, or refused a request.
    #[error(transparent)]
    Run(#[from] ragtag_scheduler::Error),
    /// Devices that do not do what they owe.
    #[error("{failed} of {tests} tests failed")]
    SelfTest {
        /// How many tests failed.
        failed: usize,
        /// Of how many.
        tests: usize,
    },
    /// `--strict` found something.
    #[error("refused by --strict: {}", findings.join("; "))]
    Strict {
        /// What it found.
        findings: Vec<String>,
    },
}

/// What is wrong with a model. Errors of its files name it already, with the whole path.
fn about(name: &str, cause: &impl std::fmt::Display) -> String {
    let cause = cause.to_string();
    if cause.contains(name) { cause } else { format!("{name}: {cause}") }
}

impl Error {
    /// The exit code of the command.
    pub fn exit_code(&self) -> u8 {
        use ragtag_planner::PlanError;
        match self {
            Error::Usage(_) | Error::Handicap(_) | Error::Run(ragtag_scheduler::Error::Refused(_)) => 2,
            Error::Load(_) | Error::RequestFile { .. } => 2,
            Error::Model { .. } | Error::Tokenizer { .. } => 3,
            Error::Planner(PlanError::DoesNotFit(_) | PlanError::HostMemory(_))
            | Error::PlanMemory { .. } => 6,
            Error::Planner(_) | Error::Split(_) | Error::Pin(_) | Error::PlanFile { .. } => 4,
            Error::PlanDevices { .. } => 4,
            Error::Simulation(_) | Error::Fleet { .. } | Error::NotSelected { .. } => 4,
            Error::Devices(_) | Error::DevicesOfEnvironment(_) => 5,
            Error::File { .. } | Error::Output(_) | Error::Unkept(_) => 7,
            Error::Strict { .. } => 8,
            Error::Device { cause, .. }
            | Error::Run(
                ragtag_scheduler::Error::Stage { cause, .. } | ragtag_scheduler::Error::Memory { cause, .. },
            ) if cause.is_out_of_memory() => 6,
            Error::Compile { .. } | Error::Device { .. } | Error::Run(_) | Error::SelfTest { .. } => 1,
            Error::Simulated(_) => 1,
        }
    }
}
