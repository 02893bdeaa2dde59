//! Names of backends as users write them. Other programs use other names of the same APIs.

/// Names of the backends, each with its other names. All are in lower case, with hyphens.
const NAMES: [(&str, &[&str]); 7] = [
    ("cuda", &[]),
    ("hip", &["rocm"]),
    ("level-zero", &["levelzero", "oneapi", "ze", "l0"]),
    ("vulkan", &["vk"]),
    ("opencl", &["ocl", "cl"]),
    ("wgpu", &["webgpu"]),
    ("cpu", &[]),
];

/// APIs that Ragtag uses through another backend.
const THROUGH: [(&str, &str); 4] = [("metal", "wgpu"), ("mps", "wgpu"), ("d3d12", "wgpu"), ("dx12", "wgpu")];

/// Replaces the backend in `text`, which has the form `BACKEND` or `BACKEND:INDEX`, by its name in Ragtag: `ocl:1`
/// becomes `opencl:1`, and `Level_Zero` becomes `level-zero`. Returns any other text unchanged.
pub fn canonical(text: &str) -> String {
    let (backend, index) = text.split_at(text.find(':').unwrap_or(text.len()));
    let plain = plain(backend);
    let found = NAMES.iter().find(|(name, others)| *name == plain || others.contains(&plain.as_str()));
    found.map_or_else(|| text.to_owned(), |(name, _)| format!("{name}{index}"))
}

/// Returns the backend through which Ragtag uses the devices of the API `name`, if it has no backend for this API.
pub(crate) fn through(name: &str) -> Option<&'static str> {
    let plain = plain(name);
    THROUGH.iter().find(|(api, _)| *api == plain).map(|(_, backend)| *backend)
}

/// Returns a name in lower case, with hyphens.
pub(crate) fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Backends, Config};

    #[test]
    fn other_names_become_those_of_backends() {
        for (text, name) in [
            ("ocl", "opencl"),
            ("OpenCL:1", "opencl:1"),
            ("rocm:0", "hip:0"),
            ("oneAPI", "level-zero"),
            ("level_zero:2", "level-zero:2"),
            ("LEVEL-ZERO", "level-zero"),
            ("L0:1", "level-zero:1"),
            ("CUDA:3", "cuda:3"),
            ("CPU:0", "cpu:0"),
        ] {
            assert_eq!(canonical(text), name);
        }
        for text in ["", ":0", "My_Card:1", "metal", "cuda 0", "auto"] {
            assert_eq!(canonical(text), text, "is no backend");
        }
        assert_eq!((through("Metal"), through("cuda")), (Some("wgpu"), None));
    }

    #[test]
    fn every_backend_has_its_name() {
        let none = Backends::new(&Config::default()).probe_only(&[]);
        let names: Vec<_> = none.backends.iter().map(|backend| backend.name.as_str()).collect();
        assert_eq!(names, NAMES.map(|(name, _)| name));
    }
}
