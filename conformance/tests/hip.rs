//! Runs the suite through the HIP backend: on AMD GPUs, if there are any, and on a stand-in for AMD's driver.
//! The stand-in executes memory operations, queues, programs and every kernel on OpenCL devices.

#![allow(clippy::print_stdout)] // Skips must be visible.

mod support;

use ragtag_conformance::{Suite, Verdict};
use ragtag_devices::{Backends, Config};
use ragtag_hal::GemmChoice;
use test_drivers::{rocblas_kernels, with_hip_on_opencl};

#[test]
fn every_hip_device() {
    support::every_device_of("hip", "AMD device");
}

/// Runs the suite on a single device of the stand-in. That is enough, because the tests of the OpenCL backend
/// cover all OpenCL devices. Fails if OpenCL devices are required but there are none.
#[test]
fn the_stand_in_on_opencl() {
    with_hip_on_opencl(support::HIP_STAND_IN, &[("HIP_VISIBLE_DEVICES", "0")], || {
        let devices = support::every_device_of("hip", "OpenCL driver");
        assert!(devices == 1 || std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_none(), "no device");
    });
}

/// Checks the four matrix-unit products on a single device of the stand-in. The stand-in replaces
/// AMD's instructions with functions that follow the ISA documents, and executes everything else unchanged.
#[track_caller]
fn matrix_units(test: &str, architecture: &str, names: &str) {
    let variables = [("RAGTAG_FAKE_ARCH", architecture), ("HIP_VISIBLE_DEVICES", "0")];
    with_hip_on_opencl(test, &variables, || {
        let backends = Backends::new(&Config::default());
        let adapters = match support::adapters(&backends, "hip") {
            Ok(adapters) => adapters,
            Err(why) if std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_some() => panic!("{why}"),
            Err(why) => return test_support::skip!("OpenCL driver", "HIP on OpenCL: {why}"),
        };
        for adapter in adapters {
            let report = support::run_on(&backends, &adapter, Suite::new().only(names));
            for test in &report.tests {
                println!("{architecture}, {}: {}: {:?}", adapter.name, test.name, test.verdict);
                assert!(matches!(test.verdict, Verdict::Passed { .. }), "{}: {:?}", test.name, test.verdict);
            }
            // The four products have f16 or bf16 weights, and few rows or many.
            assert_eq!(report.tests.len(), 4, "{}", support::repeat());
        }
    });
}

/// Checks products that rocBLAS computes. The stand-in provides the library. The test covers the detection of
/// the library, its selection by `GemmChoice`, and the launch of its kernels.
#[test]
fn products_by_a_library() {
    let (variable, folder) = rocblas_kernels();
    let variables = [(variable, folder.as_str()), ("HIP_VISIBLE_DEVICES", "0")];
    with_hip_on_opencl("products_by_a_library", &variables, || {
        for (gemm, preferred) in [(GemmChoice::Own, None), (GemmChoice::Library, Some(true))] {
            let backends = Backends::new(&Config { gemm, ..Config::default() });
            let adapters = match support::adapters(&backends, "hip") {
                Ok(adapters) => adapters,
                Err(why) if std::env::var_os("RAGTAG_TEST_OPENCL_ADAPTERS").is_some() => panic!("{why}"),
                Err(why) => return test_support::skip!("OpenCL driver", "HIP on OpenCL: {why}"),
            };
            let found = adapters[0].caps.gemm.as_ref();
            assert_eq!(found.map(|library| library.preferred), preferred, "{found:?}");
            let suite = Suite::new().only("kernel/matmul/F16/f16/library");
            let report = support::run_on(&backends, &adapters[0], suite);
            let verdicts: Vec<_> = report.tests.iter().map(|test| &test.verdict).collect();
            println!("{gemm:?}: {verdicts:?}");
            match preferred {
                Some(_) => assert!(matches!(verdicts[..], [Verdict::Passed { .. }])),
                None => assert!(matches!(verdicts[..], [Verdict::Skipped { .. }])),
            }
        }
    });
}

#[test]
fn matrix_units_of_rdna_3() {
    matrix_units("matrix_units_of_rdna_3", "gfx1100", "hip-wmma");
}

#[test]
fn matrix_units_of_rdna_4() {
    matrix_units("matrix_units_of_rdna_4", "gfx1201", "hip-wmma");
}

#[test]
fn matrix_units_of_cdna() {
    matrix_units("matrix_units_of_cdna", "gfx90a", "hip-mfma");
}
