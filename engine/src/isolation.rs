//! Isolation of drivers in child processes. The program starts itself as a child, in which a driver may crash or hang
//! without harm to the program.

use crate::devices::DeviceOptions;
use crate::error::{Error, Result};
use ragtag_devices::{Backends, Config, ProbeChild};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;

/// First argument of a child process. The next argument names its work.
const CHILD: &str = "ragtag-child";
/// Work of a child that probes one backend, whose name is the last argument.
const PROBE: &str = "probe";
/// Work of a child that compiles HIP kernels.
const COMPILE_FOR_HIP: &str = "compile-for-hip";

/// Permission to start this program as a child process, for [`DeviceOptions::isolated`].
#[derive(Clone, Debug)]
pub struct Isolation {
    /// This program, if its path is known.
    program: Option<PathBuf>,
}

impl Isolation {
    /// Returns the permission to start this program as a child process. In such a child, does the child's work and
    /// ends the process. Call it first in `main`, because the code before it runs in each child, too.
    ///
    /// ```
    /// let isolation = ragtag_engine::Isolation::start();
    /// let options = ragtag_engine::DeviceOptions::default().isolated(&isolation);
    /// # assert!(options.probe_child.is_some());
    /// ```
    #[expect(clippy::disallowed_methods, reason = "a child holds no device and no mapped file")]
    pub fn start() -> Self {
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next().is_some_and(|first| first == CHILD) {
            let work = arguments.next().unwrap_or_default();
            let done = work_of_child(&work, &arguments.next().unwrap_or_default());
            if let Err(error) = &done {
                // The parent reads the message. The write fails if the parent has ended.
                let _ = writeln!(std::io::stderr(), "{error}");
            }
            std::process::exit(i32::from(done.is_err()));
        }
        Self { program: std::env::current_exe().ok() }
    }

    /// Returns the command line of a child with this work.
    fn child(&self, work: &str) -> Option<(PathBuf, Vec<OsString>)> {
        Some((self.program.clone()?, vec![CHILD.into(), work.into()]))
    }
}

impl DeviceOptions {
    /// Probes drivers and compiles HIP kernels in child processes, as the command `ragtag` does. A driver that crashes
    /// or hangs while it lists its devices is then reported as unavailable. If the path of this program is unknown,
    /// this process probes and compiles.
    #[must_use]
    pub fn isolated(self, isolation: &Isolation) -> Self {
        let probe = |(program, arguments)| ProbeChild { program, arguments, limit: ProbeChild::LIMIT };
        let compile = |(program, arguments): (PathBuf, Vec<OsString>)| {
            std::iter::once(program.into()).chain(arguments).collect()
        };
        Self {
            probe_child: isolation.child(PROBE).map(probe),
            hip_compiler: isolation.child(COMPILE_FOR_HIP).map(compile).unwrap_or_default(),
            ..self
        }
    }
}

/// Does the work of a child process and prints its result for the parent.
fn work_of_child(work: &OsStr, argument: &OsStr) -> Result<()> {
    if work == PROBE {
        // Names of backends are ASCII.
        let backend = argument.to_string_lossy();
        let answer = Backends::new(&Config::default()).answer(&backend);
        let answer = answer.ok_or_else(|| Error::Usage(format!("unknown backend {backend}")))?;
        return std::io::stdout().write_all(answer.as_bytes()).map_err(Error::Output);
    }
    #[cfg(feature = "hip")]
    if work == COMPILE_FOR_HIP {
        return ragtag_devices::compile_for_hip().map_err(Error::Output);
    }
    Err(Error::Usage(format!("unknown work of a child process: {}", work.display())))
}
