//! Tests of submissions that wait for devices of other APIs or drivers, or for points that never pass.

use crate::support::*;

device_bench::point_tests!(subject());
