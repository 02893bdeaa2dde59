//! Compiles CUDA C++ to PTX with NVRTC, and compares PTX.

use super::nvrtc::Nvrtc;
use super::programs::Program;
use ragtag_kernels::artefacts;

/// Compiles a program for an architecture.
pub(super) fn compile(nvrtc: &Nvrtc, program: &Program, architecture: &str) -> Result<Vec<u8>, String> {
    let architecture = format!("--gpu-architecture=compute_{architecture}");
    let options = [&[architecture.as_str()][..], &artefacts::OPTIONS].concat();
    nvrtc.compile(&program.file_name(), &program.text, &options).map(String::into_bytes)
}

/// Checks that the deterministic lines of NVRTC's output equal those of the committed PTX.
pub(super) fn compare(committed: &[u8], built: &[u8]) -> Result<(), String> {
    let [committed, built] = [committed, built].map(String::from_utf8_lossy);
    if interface(&committed) == interface(&built) {
        Ok(())
    } else {
        Err(String::from("the committed PTX has another launch interface than NVRTC's output"))
    }
}

/// Returns the lines of PTX that do not depend on how NVRTC numbers or orders instructions. These lines state
/// the compiler, the target, the shared memory, and the entries with their parameters and launch bounds.
fn interface(ptx: &str) -> Vec<&str> {
    let starts =
        ["// Cuda", ".version", ".target", ".visible", ".param", ".maxntid", ".shared", ".minnctapersm"];
    ptx.lines().map(str::trim).filter(|line| starts.iter().any(|start| line.starts_with(start))).collect()
}

#[cfg(test)]
mod tests {
    use super::interface;

    #[test]
    fn an_interface_has_what_a_launch_relies_on() {
        let ptx = |register: &str, parameter: &str, items: u32| {
            format!(
                ".version 8.2\n.target sm_61\n.visible .entry add(\n\t.param {parameter} add_param_0\n)\n\
                 .maxntid {items}, 1, 1\n{{\n\tmov.u32 {register}, %tid.x;\n}}\n"
            )
        };
        let one = ptx("%r1", ".u64", 256);
        assert_eq!(interface(&one).len(), 5);
        assert_eq!(interface(&one), interface(&ptx("%r2", ".u64", 256)));
        assert_ne!(interface(&one), interface(&ptx("%r1", ".u32", 256)));
        assert_ne!(interface(&one), interface(&ptx("%r1", ".u64", 128)));
    }
}
