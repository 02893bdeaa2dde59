//! Tests that every backend for a GPU API must pass on each of its devices.
//!
//! [`device_tests!`](crate::device_tests), [`point_tests!`](crate::point_tests) and
//! [`cache_tests!`](crate::cache_tests) generate the tests of a backend. The test in `lost.rs` runs on a
//! device that the backend's own tests open.

pub mod cache;
pub mod devices;
mod lost;
pub mod points;

pub use lost::{a_lost_device_reports_its_loss_and_closes, unplug};

use crate::{Bench, open};
use ragtag_hal::{Adapter, AdapterKind, Backend, Limits};

/// A backend under test.
pub trait Subject {
    /// Returns the name of the API in reports of skipped tests, such as `OpenCL`.
    fn api(&self) -> &'static str;

    /// Returns the backend, which must not cache programs on disk.
    fn backend(&self) -> &dyn Backend;

    /// Returns the backend's adapters. Records a skipped test if there are none.
    fn adapters(&self) -> Vec<Adapter>;

    /// Records a skipped test. `missing` names the missing requirement, and `why` gives the details.
    fn skip(&self, missing: &str, why: &str);

    /// Fails the test if the driver or a validation layer has raised an error.
    fn check(&self) {}
}

/// Opens each device and runs a test on it.
#[track_caller]
pub fn each(on: &dyn Subject, test: impl Fn(Bench)) {
    for adapter in on.adapters() {
        println!("{}: {}", adapter.label(), adapter.driver);
        test(Bench::new(open(on.backend(), &adapter, 0, &Limits::default())));
        on.check();
    }
}

/// Returns the discrete GPUs, for tests with a stray kernel. On a CPU device, a stray kernel would crash the
/// process. Records a skipped test if there are none.
pub fn cards(on: &dyn Subject) -> Vec<Adapter> {
    let cards = on.adapters().into_iter().filter(|adapter| adapter.kind == AdapterKind::Discrete);
    let cards: Vec<_> = cards.collect();
    if cards.is_empty() {
        on.skip("device memory of its own", on.api());
    }
    cards
}

/// Defines helpers for a backend's tests. `Tested` implements [`Subject`](crate::suite::Subject) for the
/// backend's type. `subject()` wraps the result of `backend()`, which the caller defines. `adapters()`
/// returns all adapters. If there are none, it records a skipped test whose missing requirement is
/// `$missing`. It fails if there are fewer than `$wanted` adapters. `$check` implements `Subject::check`.
#[macro_export]
macro_rules! tested {
    ($backend:ty, $language:ident, $api:literal, $missing:literal) => {
        $crate::tested!($backend, $language, $api, $missing, 0, |_| ());
    };
    ($backend:ty, $language:ident, $api:literal, $missing:literal, $wanted:expr, $check:expr) => {
        /// Returns `SCALE` in the backend's language.
        pub fn source() -> std::sync::Arc<str> {
            $crate::scale_text(ragtag_hal::KernelLanguage::$language).unwrap()
        }

        /// Returns a module that contains `SCALE` with the source `text`.
        pub fn module(text: std::sync::Arc<str>) -> ragtag_hal::Module {
            let language = ragtag_hal::KernelLanguage::$language;
            $crate::module_of(language, text, $crate::function("scale"))
        }

        /// Subject of the shared tests.
        pub struct Tested(pub $backend);

        /// Returns the subject of the shared tests.
        #[allow(dead_code)] // unused by tests of a backend's own behaviour
        pub fn subject() -> Tested {
            Tested(backend())
        }

        /// Returns the adapters of a backend. Records a skipped test if there are none.
        pub fn adapters(backend: &$backend) -> Vec<ragtag_hal::Adapter> {
            let found = ragtag_hal::Backend::probe(backend).map_err(|unavailable| unavailable.to_string());
            let wanted: usize = $wanted;
            match found.and_then($crate::some) {
                Ok(adapters) => {
                    assert!(adapters.len() >= wanted, "{} adapters, expected {wanted}", adapters.len());
                    adapters
                }
                Err(why) => {
                    assert_eq!(wanted, 0, "{why}");
                    test_support::skip!($missing, "{why}");
                    Vec::new()
                }
            }
        }

        impl $crate::suite::Subject for Tested {
            fn api(&self) -> &'static str {
                $api
            }

            fn backend(&self) -> &dyn ragtag_hal::Backend {
                &self.0
            }

            fn adapters(&self) -> Vec<ragtag_hal::Adapter> {
                adapters(&self.0)
            }

            fn skip(&self, missing: &str, why: &str) {
                test_support::skip!(missing, "{why}");
            }

            fn check(&self) {
                ($check)(&self.0);
            }
        }
    };
}

/// Generates tests from functions of the suite.
#[macro_export]
macro_rules! suite_tests {
    ($subject:expr, $module:ident: $($test:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            $crate::suite::$module::$test(&$subject);
        }
    )*};
}

/// Generates the tests of `suite::devices` for a [`Subject`].
#[macro_export]
macro_rules! device_tests {
    ($subject:expr) => {
        $crate::suite_tests! {
            $subject, devices:
            a_kernel_computes,
            bindings_may_start_inside_buffers,
            programs_replay,
            programs_of_many_launches_run_in_order,
            an_empty_grid_does_nothing,
            programs_of_a_module_are_compiled_in_parallel,
            smaller_allocations_work_after_running_out_of_memory,
            copies_of_leased_bytes_fail,
            regions_can_be_registered_and_released,
            timings_are_in_order_between_submission_and_completion,
            large_grids_are_launched_in_parts,
            commands_that_overlap_in_part_take_effect_in_order,
            a_build_failure_shows_the_log,
            a_missing_function_is_named,
        }
    };
}

/// Generates the tests of `suite::points` for a [`Subject`].
#[macro_export]
macro_rules! point_tests {
    ($subject:expr) => {
        $crate::suite_tests! {
            $subject, points:
            points_cross_to_the_cpu_and_back,
            points_cross_between_devices,
            submitting_does_not_wait_for_a_pending_point,
            points_that_pass_during_submission_are_not_missed,
            a_failure_of_another_device_reaches_all_waiting_work,
            closing_with_waits_that_never_end_does_not_hang,
        }
    };
}

/// Generates the tests of `suite::cache`. `$with` creates a backend from an optional cache folder.
#[macro_export]
macro_rules! cache_tests {
    ($with:expr) => {
        impl $crate::suite::cache::Cached for Tested {
            fn counters(&self) -> ragtag_hal::cache::CacheCounters {
                self.0.counters()
            }

            fn anew(&self, folder: Option<&std::path::Path>) -> Box<dyn $crate::suite::cache::Cached> {
                Box::new(Tested($with(folder.map(std::path::Path::to_path_buf))))
            }
        }

        $crate::suite_tests! {
            subject(), cache:
            programs_are_compiled_once,
            damaged_and_foreign_files_are_replaced,
            identical_devices_have_their_own_programs,
            everything_works_without_a_folder,
        }
    };
}
