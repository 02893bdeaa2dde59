//! Tests of points between devices of different APIs or drivers, and of points that never pass.

use crate::support::*;

device_bench::point_tests!(subject());
