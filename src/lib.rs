//! Ragtag runs one language model as a pipeline over the GPUs and CPUs of a machine.
//!
//! Open a [`Model`] and probe [`Devices`]. A [`Planner`] assigns the model's segments to devices, and an
//! [`Engine`] loads the weights and runs the pipeline. A [`Session`] turns prompts into streams of tokens:
//!
//! ```
//! use ragtag::{
//!     Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, Generation, Model, Planner,
//! };
//!
//! # fn main() -> ragtag::Result<()> {
//! let model = Model::bundled()?;
//! let mut options = DeviceOptions::default();
//! options.cpu_devices = 2;
//! let devices = Devices::probe(&options)?;
//! let options = CalibrationOptions::default();
//! # let folder = tempfile::tempdir().unwrap();
//! # let mut options = options;
//! # options.folder = Some(folder.path().into());
//! let calibration = Calibration::run(&model, &devices, &options, &|_, _| ())?;
//! let planner = Planner::new(&model).devices(&devices).calibrated(&calibration);
//! let engine = Engine::start(&model, &devices, &planner, EngineOptions::default())?;
//!
//! let generation = Generation { max_tokens: 8, ..Generation::greedy() };
//! let text = engine.session().generate("Once upon a time", &generation)?.blocking_text()?;
//! assert!(!text.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! The crates that this crate builds on can also be used on their own. `ragtag-engine` is this library without the
//! command and its pictures. `ragtag-graph` reads model files and builds operator graphs, `ragtag-planner` plans
//! without devices, and `ragtag-hal` defines the traits that a new backend implements.

#[cfg(feature = "cli")]
pub mod cli;
pub mod doctor;
#[cfg(feature = "pictures")]
pub mod pictures;
#[cfg(feature = "cli")]
mod selftest;

/// Runs single operators on any device.
pub use ragtag_compute as compute;
#[cfg(feature = "cli")]
pub use ragtag_conformance::Shapes;
#[doc(inline)]
pub use ragtag_engine::*;
#[cfg(feature = "cli")]
pub use selftest::{FailedTests, SELFTEST_VERSION, SelfTest};
