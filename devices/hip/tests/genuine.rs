//! Test of AMD's own library, if it is installed. On a machine without AMD hardware, the probe must report
//! that there is no AMD device.

#![allow(clippy::print_stdout)] // a skip is visible

use ragtag_hal::{Backend, Unavailable};
use ragtag_hip::{HipBackend, HipConfig};

#[test]
fn the_probe_names_the_cause() {
    match HipBackend::new(HipConfig { cache_folder: None, ..HipConfig::default() }).probe() {
        Ok(adapters) => {
            test_support::skip!("machine without AMD devices", "{} found", adapters.len());
        }
        Err(Unavailable { tried, cause }) if cause.contains("not installed") => {
            assert!(tried.len() >= 3, "{tried:?}");
            test_support::skip!("AMD's HIP library", "{cause}");
        }
        Err(Unavailable { tried, cause }) => {
            println!("{cause} (tried {tried:?})");
            assert!(cause.contains("finds no AMD device") && cause.contains("hipErrorNoDevice"), "{cause}");
            assert!(matches!(&tried[..], [library] if library.contains("amdhip64")), "{tried:?}");
        }
    }
}
