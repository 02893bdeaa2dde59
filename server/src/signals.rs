//! Signals that stop the server.

use std::io;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of Ctrl-C and SIGTERM.
pub(crate) struct Signals {
    #[cfg(unix)]
    both: [Signal; 2],
}

impl Signals {
    /// Registers the signals, so that they no longer end the process.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            both: [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?],
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        {
            let [interrupt, terminate] = &mut self.both;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
