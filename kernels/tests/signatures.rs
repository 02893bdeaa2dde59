//! Checks that every kernel function has the parameters of its ABI. A driver would not report a mismatch.

use ragtag_hal::{Access, EntryAbi, KernelLanguage};
use ragtag_kernels::{Code, variants};
use ragtag_signatures::{AddressSpace, KernelArg, KernelSignature, validate_kernel_source};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A kernel function that a variant launches, with its ABI.
struct Launch {
    label: String,
    function: &'static str,
    work_group: [u32; 3],
    abi: &'static EntryAbi,
}

/// Returns every program, along with the functions that variants launch. Variants with equal sources in the
/// same language share a program.
fn programs() -> BTreeMap<(KernelLanguage, Arc<str>), Vec<Launch>> {
    let mut programs = BTreeMap::<_, Vec<Launch>>::new();
    for variant in variants() {
        if let Code::Text(text) = variant.code {
            let label = format!("{} ({})", variant.kernel, variant.name);
            programs.entry((text.language, text.text())).or_default().push(Launch {
                label,
                function: text.function,
                work_group: text.work_group,
                abi: variant.abi,
            });
        }
    }
    programs
}

/// Returns an error if the source of a program has a defect, or if it defines a kernel that no variant
/// launches.
fn check(source: &str, launches: &[Launch]) -> Result<(), String> {
    let functions: BTreeSet<_> = launches.iter().map(|launch| launch.function).collect();
    let kernels = validate_kernel_source(source, functions.len()).map_err(|e| e.to_string())?;
    for launch in launches {
        let kernel = kernels.iter().find(|kernel| kernel.name == launch.function);
        let kernel = kernel.ok_or_else(|| format!("{}: there is no {}", launch.label, launch.function))?;
        check_launch(kernel, launch).map_err(|e| format!("{}: {}: {e}", launch.label, launch.function))?;
    }
    Ok(())
}

/// Checks that the parameters of `kernel` match the ABI. Bindings must be global pointers, and `const` if
/// they are read-only. The constants must follow as `uint` parameters.
fn check_launch(kernel: &KernelSignature, launch: &Launch) -> Result<(), String> {
    let (bindings, constants) = (launch.abi.bindings, launch.abi.constants);
    if kernel.args.len() != bindings.len() + constants {
        return Err(format!("{} parameters, not {} + {constants}", kernel.args.len(), bindings.len()));
    }
    if kernel.work_group != Some(launch.work_group) {
        return Err(format!("groups of {:?}, not {:?}", kernel.work_group, launch.work_group));
    }
    let is_binding = |arg: &KernelArg, access: Access| {
        arg.is_pointer && arg.qualifier == AddressSpace::Global && arg.is_const == (access == Access::Read)
    };
    let is_constant = |arg: &KernelArg| {
        !arg.is_pointer && arg.qualifier == AddressSpace::Private && arg.type_name == "uint"
    };
    for (i, arg) in kernel.args.iter().enumerate() {
        match bindings.get(i) {
            Some(&access) if !is_binding(arg, access) => {
                return Err(format!("binding {i} is {arg:?}, which is not a global pointer for {access:?}"));
            }
            None if !is_constant(arg) => return Err(format!("constant {} is {arg:?}", i - bindings.len())),
            _ => {}
        }
    }
    Ok(())
}

/// Returns definitions of the macros that a compiler for the language predefines.
fn predefined(language: KernelLanguage) -> &'static str {
    match language {
        KernelLanguage::HipC => {
            "#define __AMDGCN__ 1\n#define __global__ __global__\n#define __launch_bounds__ __launch_bounds__\n"
        }
        _ => "",
    }
}

#[test]
fn kernel_functions_match_their_abis() {
    let programs = programs();
    for language in [KernelLanguage::OpenClC, KernelLanguage::CudaC, KernelLanguage::HipC] {
        let of_language = programs.iter().filter(|((l, _), _)| *l == language);
        let wrong: Vec<_> = of_language
            .clone()
            .filter_map(|((_, text), launches)| check(&[predefined(language), text].concat(), launches).err())
            .collect();
        assert!(wrong.is_empty(), "{language:?}: {wrong:#?}");
        assert!(of_language.count() > 0, "no variant is in {language:?}");
    }
}

/// Source of a correct kernel.
const RIGHT: &str = "#define KERNEL(n) __kernel __attribute__((reqd_work_group_size(n, 1, 1))) void
KERNEL(64) f(const __global uint *params, __global const float *x, __global float *y, uint rows, const uint width) {}
";

fn check_made_up(source: &str) -> Result<(), String> {
    static ABI: EntryAbi = EntryAbi {
        name: "f",
        bindings: &[Access::Read, Access::Read, Access::ReadWrite],
        constants: 2,
        extents: |_, _| {},
    };
    let launch = || Launch { label: "made up".into(), function: "f", work_group: [64, 1, 1], abi: &ABI };
    check(source, &[launch(), launch()])
}

#[test]
fn detects_wrong_sources() {
    assert_eq!(check_made_up(RIGHT), Ok(()));
    for (right, wrong, why) in [
        ("KERNEL(64)", "void", "defines no kernel"),
        ("KERNEL(64)", "KERNEL(32)", "groups of Some([32, 1, 1])"),
        ("KERNEL(64)", "__kernel void", "groups of None"),
        ("KERNEL(64) f", "KERNEL(64) g", "there is no f"),
        ("uint width) {}", "uint width) {} KERNEL(64) f(uint a) {}", "defined twice"),
        ("uint width) {}", "uint width) {} KERNEL(64) g(uint a) {}", "has 2: f, g"),
        ("uint width) {}", "uint width);", "defines no kernel"),
        (", const uint width", "", "4 parameters, not 3 + 2"),
        ("const uint width", "const uint width, uint k", "6 parameters"),
        ("const uint width", "float width", "constant 1"),
        ("const uint width", "int width", "constant 1"),
        ("uint rows", "__global uint *rows", "constant 0"),
        ("__global float *y", "__global const float *y", "binding 2"),
        ("__global float *y", "__local float *y", "binding 2"),
        ("__global float *y", "float *y", "binding 2"),
        ("__global float *y", "uint y", "binding 2"),
        ("__global const float *x", "__global float *x", "binding 1"),
        ("__global const float *x", "__global float *const x", "binding 1"),
        ("const __global uint *params", "__constant uint *params", "binding 0"),
    ] {
        assert!(RIGHT.contains(right), "{right}");
        let found = check_made_up(&RIGHT.replacen(right, wrong, 1));
        assert!(found.as_ref().is_err_and(|e| e.contains(why)), "{wrong}: {found:?}");
    }
}

/// Source of a correct kernel in CUDA C++.
const RIGHT_CPP: &str = "#define KERNEL(n) extern \"C\" __global__ void __launch_bounds__(n)
KERNEL(64) f(const uint *__restrict__ params, const float *__restrict__ x, float *y, uint rows, const uint width) {}
";

#[test]
fn detects_wrong_sources_in_cpp() {
    assert_eq!(check_made_up(RIGHT_CPP), Ok(()));
    for (right, wrong, why) in [
        ("extern \"C\" __global__", "__global__", "defines no kernel"),
        ("extern \"C\" __global__", "extern \"C\" __device__", "defines no kernel"),
        (" __launch_bounds__(n)", "", "groups of None"),
        ("__launch_bounds__(n)", "__launch_bounds__(32)", "groups of Some([32, 1, 1])"),
        ("float *y", "const float *y", "binding 2"),
        ("float *y", "float y", "binding 2"),
        ("const float *__restrict__ x", "float *__restrict__ x", "binding 1"),
        ("const uint width", "ulong width", "constant 1"),
    ] {
        assert!(RIGHT_CPP.contains(right), "{right}");
        let found = check_made_up(&RIGHT_CPP.replacen(right, wrong, 1));
        assert!(found.as_ref().is_err_and(|e| e.contains(why)), "{wrong}: {found:?}");
    }
}
