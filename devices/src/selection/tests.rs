//! Tests of selections and their results.

use super::fakes::{absent, adapter, found, machine, pci};
use super::*;
use crate::table::{Backends, Config, Status};
use ragtag_hal::MemorySource;

fn choose_on(backends: &Backends, text: &str) -> Result<Vec<String>, SelectionError> {
    let choice = Requested::new(Some(text), None)?.choose(&backends.probe())?;
    Ok(choice.selected.iter().map(Adapter::label).collect())
}

fn choose(text: &str) -> Result<Vec<String>, SelectionError> {
    choose_on(&machine(), text)
}

fn cpu_only() -> Backends {
    Backends::of(vec![found("cpu", [0, 1].map(|index| adapter("cpu", index, AdapterKind::Cpu, 4)).to_vec())])
}

#[test]
fn words_select_classes_of_devices() {
    assert_eq!(choose("auto").unwrap(), ["cuda:0", "vulkan:0"]);
    assert_eq!(choose("gpu").unwrap(), ["cuda:0", "vulkan:0"]);
    assert_eq!(choose("cpu").unwrap(), ["cpu:0", "cpu:1"]);
    assert_eq!(choose("cpu,gpu").unwrap(), ["cpu:0", "cpu:1", "cuda:0", "vulkan:0"]);
    assert_eq!(choose_on(&cpu_only(), "auto").unwrap(), ["cpu:0", "cpu:1"]);
    let found = vec!["cpu:0".into(), "cpu:1".into()];
    assert_eq!(choose_on(&cpu_only(), "gpu"), Err(SelectionError::NoGpu { found, software: Vec::new() }));
}

#[test]
fn names_have_other_spellings() {
    assert_eq!(choose("GPU, CPU").unwrap(), choose("gpu,cpu").unwrap());
    assert_eq!(choose("Vulkan:0,VK:1").unwrap(), ["vulkan:0", "vulkan:1"]);
    assert!(choose("OCL").unwrap_err().to_string().starts_with("opencl cannot be used: "));
    assert_eq!(choose("rocm:0"), Err(SelectionError::NotCompiled { name: "hip".into() }));
    for text in ["metal", "Metal:0"] {
        let error = choose(text).unwrap_err().to_string();
        assert!(error.ends_with("devices through wgpu"), "{error}");
    }
    assert!(choose("CUDA0").unwrap_err().to_string().starts_with("unknown backend \"CUDA0\""));
}

/// Checks that a kind selects devices on its own and next to `cpu`, and filters the devices of other words.
#[test]
fn kinds_select_and_filter_devices() {
    for (text, labels) in [
        ("discrete", &["cuda:0"][..]),
        ("Software", &["vulkan:2"]),
        ("integrated,cpu", &["vulkan:0", "cpu:0", "cpu:1"]),
        ("software,discrete", &["vulkan:2", "cuda:0"]),
        ("gpu,discrete", &["cuda:0"]),
        ("vulkan,discrete", &["vulkan:1"]),
        ("vulkan,discrete,software,cpu:1", &["vulkan:1", "vulkan:2", "cpu:1"]),
    ] {
        assert_eq!(choose(text).unwrap(), labels, "{text}");
    }
    for text in ["gpu,software", "cuda:0,integrated"] {
        assert!(matches!(choose(text), Err(SelectionError::Nothing { .. })), "{text}");
    }
}

#[test]
fn devices_have_a_minimum_number_of_units() {
    let small = adapter("vulkan", 0, AdapterKind::Discrete, 8);
    let mut large = adapter("vulkan", 1, AdapterKind::Discrete, 8);
    large.caps.parallel_units = 64;
    let machine = Backends::of(vec![found("vulkan", vec![small, large])]);
    assert_eq!(choose_on(&machine, "units=2").unwrap(), ["vulkan:1"]);
    assert_eq!(choose_on(&machine, "gpu,units=0").unwrap(), ["vulkan:0", "vulkan:1"]);
    assert!(choose_on(&machine, "units=65").is_err());
}

#[test]
fn software_devices_are_no_gpus_and_the_error_says_how_to_use_them() {
    let software = |backend, index, name: &str| {
        let adapter = adapter(backend, index, AdapterKind::Software, 4);
        Adapter { name: name.into(), ..adapter }
    };
    let only = Backends::of(vec![
        found("vulkan", vec![software("vulkan", 0, "llvmpipe (LLVM 15.0.6, 256 bits)")]),
        found("opencl", vec![software("opencl", 0, "pthread-Intel Xeon"), software("opencl", 1, "Oclgrind")]),
        found("cpu", vec![adapter("cpu", 0, AdapterKind::Cpu, 4)]),
    ]);
    for text in ["gpu", "cpu,gpu", "gpu,vulkan:0"] {
        let error = choose_on(&only, text).unwrap_err().to_string();
        let expected = "no GPU found; software devices: vulkan:0 (llvmpipe (LLVM 15.0.6, 256 bits)), opencl:0 \
             (pthread-Intel Xeon), opencl:1 (Oclgrind)";
        assert_eq!(error, expected, "{text}");
    }
    assert_eq!(choose_on(&only, "auto").unwrap(), ["cpu:0"]);
    let error = choose_on(&cpu_only(), "gpu").unwrap_err().to_string();
    assert_eq!(error, "no GPU found; there are cpu:0, cpu:1");
}

#[test]
fn a_choice_knows_the_devices_that_its_selection_names() {
    let report = machine().probe();
    let names = |text: &str, label: &str| {
        let choice = Requested::new(Some(text), None).unwrap().choose(&report).unwrap();
        choice.names(report.adapter(label).unwrap())
    };
    for (text, label, named) in [
        ("vulkan:0,cpu", "vulkan:0", true),
        ("vulkan", "vulkan:1", true),
        ("vulkan:0,cpu", "vulkan:1", false),
        ("auto", "cuda:0", false),
        ("gpu,cpu", "cpu:0", false),
    ] {
        assert_eq!(names(text, label), named, "{label} in {text}");
    }
}

#[test]
fn devices_keep_the_requested_order() {
    assert_eq!(choose("cpu:1, vulkan:0,cpu:0").unwrap(), ["cpu:1", "vulkan:0", "cpu:0"]);
    assert_eq!(choose("cpu:1,cpu:1").unwrap(), ["cpu:1"]);
    assert_eq!(choose("vulkan:2").unwrap(), ["vulkan:2"], "software devices are selected by name only");
    assert_eq!(choose("cpu:1,cpu").unwrap(), ["cpu:1", "cpu:0"]);
}

#[test]
fn a_physical_device_is_used_once_through_the_named_api() {
    assert_eq!(choose("gpu,vulkan:1").unwrap(), ["vulkan:1", "vulkan:0"]);
    assert_eq!(choose("vulkan:1,auto").unwrap(), ["vulkan:1", "vulkan:0"]);
    assert_eq!(choose("vulkan:1").unwrap(), ["vulkan:1"], "not through the best API");
}

#[test]
fn a_device_is_used_through_its_preferred_api() {
    let mut report = machine().probe();
    report.prefer("vulkan:1");
    let chosen = |text: &str| {
        let choice = Requested::new(Some(text), None).unwrap().choose(&report).unwrap();
        choice.selected.iter().map(Adapter::label).collect::<Vec<_>>()
    };
    assert_eq!(chosen("auto"), ["vulkan:1", "vulkan:0"]);
    assert_eq!(chosen("cuda:0,gpu"), ["cuda:0", "vulkan:0"], "the selection names an API");
}

#[test]
fn a_backend_name_selects_all_of_its_devices() {
    assert_eq!(choose("cuda").unwrap(), ["cuda:0"]);
    assert_eq!(choose("vulkan").unwrap(), ["vulkan:0", "vulkan:1", "vulkan:2"]);
    assert_eq!(choose("vulkan:2,vulkan,cpu:1").unwrap(), ["vulkan:2", "vulkan:0", "vulkan:1", "cpu:1"]);
    assert_eq!(
        choose("vulkan,min-memory=10GiB").unwrap(),
        choose("vulkan:0,vulkan:1,vulkan:2,min-memory=10GiB").unwrap()
    );
    assert_eq!(choose("gpu,vulkan").unwrap(), choose("gpu,vulkan:0,vulkan:1,vulkan:2").unwrap());
    assert_eq!(choose("cuda,vulkan:1").unwrap(), ["cuda:0", "vulkan:1"]);
    let said = |error: SelectionError| error.to_string();
    assert_eq!(
        said(choose("gpus").unwrap_err()),
        "unknown backend \"gpus\"; there are cuda, hip, vulkan, opencl, cpu"
    );
    assert_eq!(choose("hip"), Err(SelectionError::NotCompiled { name: "hip".into() }));
    assert!(said(choose("opencl").unwrap_err()).starts_with("opencl cannot be used: "));
    let none =
        Backends::of(vec![found("cuda", vec![]), found("cpu", vec![adapter("cpu", 0, AdapterKind::Cpu, 4)])]);
    assert_eq!(said(choose_on(&none, "cpu,cuda").unwrap_err()), "cuda shows no device; there are cpu:0");
}

/// Checks that a card is selected through two APIs only if the selection names both.
#[test]
fn two_apis_of_one_device_are_used_if_both_are_named() {
    assert_eq!(choose("cuda:0,vulkan:1").unwrap(), ["cuda:0", "vulkan:1"]);
    assert_eq!(choose("vulkan:1,cuda:0,vulkan:1").unwrap(), ["vulkan:1", "cuda:0"]);
    assert_eq!(choose("gpu,vulkan:1,cuda:0").unwrap(), ["vulkan:1", "vulkan:0", "cuda:0"]);
    assert_eq!(choose("cuda:0,vulkan:1,gpu").unwrap(), ["cuda:0", "vulkan:1", "vulkan:0"]);
}

#[test]
fn filters_exclude_devices() {
    assert_eq!(choose("min-memory=10GiB").unwrap(), ["cuda:0"]);
    assert_eq!(choose("gpu,cpu,min-memory=8GiB").unwrap(), ["cuda:0", "vulkan:0"]);
    assert_eq!(choose("cpu,min-memory=4294967296").unwrap(), ["cpu:0", "cpu:1"]);
    let error = choose("cpu,min-memory=1TiB").unwrap_err();
    assert!(
        error.to_string().contains("cpu,min-memory=1TiB") && error.to_string().contains("cpu:1"),
        "{error}"
    );
    assert!(matches!(error, SelectionError::Nothing { .. }));
}

#[test]
fn errors_list_the_existing_devices() {
    let error = choose("tpu:0").unwrap_err();
    assert_eq!(error.to_string(), "unknown backend \"tpu\"; there are cuda, hip, vulkan, opencl, cpu");
    assert_eq!(choose("hip:0"), Err(SelectionError::NotCompiled { name: "hip".into() }));
    let error = choose("opencl:0").unwrap_err();
    assert!(
        error.to_string().contains("no such library") && error.to_string().contains("libopencl.so"),
        "{error}"
    );
    let error = choose("cuda:3").unwrap_err();
    assert_eq!(
        error.to_string(),
        "no device cuda:3; there are cuda:0, vulkan:0, vulkan:1, vulkan:2, cpu:0, cpu:1"
    );
    let nothing = Backends::of(vec![found("cpu", vec![])]);
    assert!(
        matches!(choose_on(&nothing, "auto"), Err(SelectionError::Nothing { found, .. }) if found.is_empty())
    );
}

#[test]
fn invalid_selections_are_refused() {
    for text in
        ["", "GPU:", "cuda:", ":0", "cuda:x", "cuda:-1", "cuda:+1", "cuda:99999999999", "cpu,", "cpu 0"]
    {
        assert!(matches!(choose(text), Err(SelectionError::Syntax { .. })), "{text:?}");
    }
    let sizes =
        ["min-memory=", "min-memory=8GB", "min-memory=-1", "max-memory=1GiB", "min-memory=16777216TiB"];
    for text in sizes.into_iter().chain(["units=", "units=+1", "units=few", "a=b"]) {
        assert!(matches!(choose(text), Err(SelectionError::FilterSyntax { .. })), "{text:?}");
    }
    assert_eq!(size_bytes("3KiB"), Some(3072));
    assert_eq!(size_bytes("16777215TiB"), Some(16_777_215 << 40));
}

#[test]
fn the_flag_precedes_the_environment_and_auto() {
    let of = |flag, environment| {
        let requested = Requested::new(flag, environment).unwrap();
        (requested.selection.to_string(), requested.source)
    };
    assert_eq!(of(Some("cpu"), Some("gpu")), ("cpu".into(), SelectionOrigin::Flag));
    assert_eq!(of(None, Some("gpu")), ("gpu".into(), SelectionOrigin::Environment));
    assert_eq!(of(None, Some("  ")), ("auto".into(), SelectionOrigin::Default));
    assert_eq!(of(None, None), ("auto".into(), SelectionOrigin::Default));
    assert!(Requested::new(Some("cpu"), Some("no sense")).is_ok(), "the overridden value is not parsed");
    assert!(Requested::new(None, Some("no sense")).is_err());
}

#[test]
fn a_choice_is_one_line() {
    let choice = Requested::new(None, None).unwrap().choose(&cpu_only().probe()).unwrap();
    assert_eq!(choice.to_string(), "requested=auto detected=[cpu:0, cpu:1] selected=[cpu:0, cpu:1]");
}

#[test]
fn a_device_is_listed_once_with_all_its_apis() {
    let report = machine().probe();
    let choice = Requested::new(None, None).unwrap().choose(&report).unwrap();
    let start = "requested=auto detected=[cuda:0 = vulkan:1, vulkan:0, vulkan:2, cpu:0, cpu:1] selected=[";
    assert_eq!(choice.to_string(), format!("{start}cuda:0, vulkan:0]"));
    assert_eq!(report.device("vulkan:1").unwrap().adapters[0], "cuda:0");
    assert_eq!(report.device("vulkan:9"), None);
}

#[test]
fn memory_figures_of_another_api_are_in_the_report() {
    let mut cuda = adapter("cuda", 0, AdapterKind::Discrete, 24);
    let mut opencl = [0, 1].map(|index| adapter("opencl", index, AdapterKind::Discrete, 24));
    (cuda.identity.pci, opencl[0].identity.pci, opencl[1].identity.pci) = (pci(2), pci(1), pci(2));
    cuda.memory[0].free_bytes = Some(5 << 30);
    let report = Backends::of(vec![found("cuda", vec![cuda]), found("opencl", opencl.to_vec())]).probe();
    let memory = |label: &str| report.adapter(label).unwrap().memory[0];
    assert_eq!(memory("cuda:0").source, MemorySource::Api);
    assert_eq!((memory("opencl:0").free_bytes, memory("opencl:0").source), (None, MemorySource::Api));
    let (free_bytes, source) = (memory("opencl:1").free_bytes, memory("opencl:1").source);
    assert_eq!((free_bytes, source), (Some(5 << 30), MemorySource::OtherApi));
}

/// Checks that the backends of this build are in order of preference, whichever features the build enables.
#[test]
fn backends_are_in_order_of_preference() {
    const ORDER: [&str; 7] = ["cuda", "hip", "level-zero", "vulkan", "opencl", "wgpu", "cpu"];
    let report = Backends::new(&Config::default()).probe();
    let places = report.backends.iter().map(|backend| ORDER.iter().position(|name| *name == backend.name));
    let places: Option<Vec<_>> = places.collect();
    assert!(places.as_ref().is_some_and(|places| places.is_sorted()), "{places:?}");
}

#[test]
fn reports_survive_json() {
    let report = machine().probe();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["backends"][1], serde_json::json!({ "name": "hip", "status": "not-compiled" }));
    assert_eq!(json["backends"][3]["cause"], "no such library");
    assert_eq!(json["backends"][0]["adapters"][0]["name"], "cuda:0");
    assert_eq!(json["devices"][0]["adapters"], serde_json::json!(["cuda:0", "vulkan:1"]));
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[cfg(feature = "cpu")]
#[test]
fn this_machine_opens_its_cpu_devices_in_the_requested_order() {
    use ragtag_hal::{Device as _, DeviceId, Limits};
    let backends = Backends::new(&Config { cpu_devices: 2, cpu_threads: Some(1), ..Config::default() });
    let choice = Requested::new(Some("cpu:1,cpu:0"), None).unwrap().choose(&backends.probe()).unwrap();
    let adapters: Vec<_> = choice.selected.into_iter().zip([DeviceId(4), DeviceId(2)]).collect();
    let devices = backends.open(&adapters, &Limits::default()).unwrap();
    let opened: Vec<_> = devices.iter().map(|device| (device.adapter().label(), device.id())).collect();
    assert_eq!(opened, [("cpu:1".into(), DeviceId(4)), ("cpu:0".into(), DeviceId(2))]);
    let stranger = (adapter("cuda", 0, AdapterKind::Discrete, 8), DeviceId(9));
    assert!(backends.open(&[stranger], &Limits::default()).is_err());
}

#[cfg(not(feature = "cpu"))]
#[test]
fn a_build_without_backends_reports_it() {
    let report = Backends::new(&Config::default()).probe();
    assert!(report.backends.iter().all(|backend| backend.status == Status::NotCompiled));
}

#[test]
fn only_the_backends_that_a_selection_needs_are_probed() {
    let needed = |flag: &str| {
        let requested = Requested::new(Some(flag), None).unwrap();
        requested.backends().map(|names| names.join(" "))
    };
    assert_eq!(needed("cuda:1,vulkan,min-memory=8GiB").unwrap(), "cuda vulkan cpu");
    assert_eq!(needed("cpu").unwrap(), "cpu cpu");
    for flag in ["auto", "gpu", "cuda:0,gpu", "min-memory=8GiB", "discrete", "software,cpu"] {
        assert_eq!(needed(flag), None, "{flag}");
    }
    let gpu = |backend| found(backend, vec![adapter(backend, 0, AdapterKind::Discrete, 8)]);
    let backends = Backends::of(vec![gpu("cuda"), gpu("vulkan"), absent("wgpu")]);
    let report = backends.probe_only(&["vulkan"]);
    let statuses: Vec<_> = report.backends.iter().map(|backend| &backend.status).collect();
    assert_eq!((statuses[0], statuses[2]), (&Status::NotProbed, &Status::NotCompiled));
    assert_eq!(report.adapters().map(Adapter::label).collect::<Vec<_>>(), ["vulkan:0"]);
    assert_eq!(backends.probe_rest(&report), backends.probe());
}
