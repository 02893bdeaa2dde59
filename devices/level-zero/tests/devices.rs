//! Tests on every Level Zero device of the machine: kernels, programs, memory, leases and errors.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use support::*;

device_bench::device_tests!(subject());
