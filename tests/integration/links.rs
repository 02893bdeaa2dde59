//! Tests probes of links: routes that keep data intact are timed and cached, calibration uses the fastest of
//! them, and routes that corrupt data are never used.

use crate::support::{
    self, Checkpoint, SMALL, Setup, block_on, greedy, last_vulkan, listen, model_path, ragtag,
    run_with_vulkan, within,
};
use ragtag::{
    Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, LinkOptions, LinkReport,
    Model, Planner, ProbedLink, Prompt,
};
use ragtag_hal::{Checked, CopyFault, CopyFaultKind, Faults, FaultyCopies, MemoryHandle, ShortCopies};
use ragtag_kernels::Activations;
use ragtag_transfer::{Route, Routes};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use test_drivers::{hip_on_opencl, library_path, with_level_zero_on_opencl};

const MODEL: &str = "tales-bitnet-tq2_0";
/// Arguments that select two CPU devices with one thread each.
const TWO: [&str; 4] = ["--cpu-devices", "2", "--threads", "1"];
/// Sizes of the timed transfers, in bytes.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Runs `ragtag` with a cache folder. Returns its exit code, standard output and standard error.
fn run(cache: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = ragtag().env("RAGTAG_CACHE_DIR", cache).args(arguments).args(TWO).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

/// Checks that a table in a pipe has the details, and a line for each row.
#[track_caller]
fn assert_whole(table: &str, detail: &str) {
    assert!(table.starts_with('|') && table.contains(detail) && !table.contains("\n|  "), "{table}");
}

/// Returns the links of a report in JSON. Asserts that all of them are verified and completely timed.
#[track_caller]
fn verified(json: &str, devices: usize) -> Vec<Value> {
    let report: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}:\n{json}"));
    let links = report["links"].as_array().unwrap();
    assert_eq!(
        (links.len(), &report["warnings"]),
        (devices * (devices - 1), &Value::from(Vec::<u32>::new()))
    );
    for link in links {
        assert!(!link["route"].is_null() && link["latency_us"].as_f64().unwrap() > 0.0, "{link}");
        let rates = link["rates"].as_array().unwrap();
        let sizes: Vec<_> = rates.iter().map(|rate| rate["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, SIZES);
        let figures = ["bytes_per_s", "both_bytes_per_s", "busy_bytes_per_s", "both_busy_bytes_per_s"];
        for figure in rates.iter().flat_map(|rate| figures.map(|name| &rate[name])) {
            assert!(figure.as_f64().unwrap() > 0.0, "{link}");
        }
        let tried = link["tried"].as_array().unwrap();
        assert_eq!(tried.len(), 3);
        // A driver may refuse to share memory, but every pair of devices can use host memory.
        assert!(tried[2]["route"]["host-staged"].is_object() && tried[2]["why"].is_null(), "{link}");
        let has_hops = |one: &Value| one["hops"].as_array().is_some_and(|hops| !hops.is_empty());
        assert!(tried.iter().all(|one| one["why"].is_string() != has_hops(one)), "{link}");
    }
    links.clone()
}

/// Checks the commands that probe links. They share a cache, because each probe takes seconds.
#[test]
fn commands_probe_links_once_unless_they_are_to_measure_again() {
    let cache = tempfile::tempdir().unwrap();
    let on_one = run(cache.path(), &["run", "-n", "2", "--strict", "--split", "0-13=cpu:0"]);
    assert_eq!(on_one.0, Some(0), "a single stage has no edge: {}", on_one.2);
    let cut = |command: &[&str]| {
        run(cache.path(), &[command, &["--strict", "--split", "0-6=cpu:0,7-13=cpu:1"]].concat())
    };
    let commands = [&["plan"][..], &["simulate"], &["run", "-n", "2"]];
    for command in commands {
        let (code, out, said) = cut(command);
        assert_eq!(code, Some(0), "host memory needs no probe: {said}");
        let edge = "edge cpu:0 -> cpu:1: route staged (not probed), latency 20.0 µs (assumed)";
        assert_eq!(out.contains(edge), command[0] == "plan", "{out}");
    }
    let shown = |options: &[&str]| {
        let (code, out, said) = run(cache.path(), &[&["devices", "--links"], options].concat());
        assert_eq!(code, Some(0), "{said}");
        out
    };
    let first = shown(&["--json"]);
    verified(&first, 2);
    for command in commands {
        let (code, out, said) = cut(command);
        assert_eq!(code, Some(0), "{said}");
        let is_measured = |line: &str| {
            line.starts_with("- edge cpu:0 -> cpu:1: route ")
                && line.contains(" (verified), latency ")
                && line.ends_with(" µs (measured)")
        };
        assert_eq!(out.lines().any(is_measured), command[0] == "plan", "{out}");
    }
    assert_eq!(shown(&["--json"]), first, "the results are cached");
    let anew: [&[&str]; 3] = [
        &["bench", "links", "-r", "1"],
        &["bench", "links", "-r", "1", "--json"],
        &["devices", "--links", "--reprobe"],
    ];
    for command in anew {
        let (code, out, said) = run(cache.path(), command);
        assert_eq!(code, Some(0), "{said}");
        if command.contains(&"--json") {
            assert_eq!(out, shown(&["--json"]));
        } else {
            assert_whole(&out, if command[0] == "bench" { " time " } else { " both ways " });
            let rows = if command[0] == "bench" { SIZES.len() } else { 1 };
            assert_eq!(out.lines().filter(|line| line.contains("cpu:1 → cpu:0")).count(), rows, "{out}");
        }
        assert_ne!(shown(&["--json"]), first, "{command:?} measures anew");
    }
    let links = verified(&shown(&["--json"]), 2);
    assert!(links.iter().all(|link| link["class"] == "host"), "{links:?}");
    // CPU devices share memory.
    assert!(links.iter().all(|link| link["tried"][0]["route"] == "peer"), "{links:?}");
    assert!(links.iter().all(|link| link["tried"][0]["why"].is_null()), "{links:?}");
    let table = shown(&[]);
    assert_whole(&table, " both ways ");
    let svg = cache.path().join("links.svg");
    assert_eq!(shown(&["--svg", support::text(&svg)]), table);
    let drawing = std::fs::read_to_string(&svg).unwrap();
    assert!(drawing.starts_with("<svg "));
    assert_eq!(shown(&["--svg", "-"]), drawing, "nothing else goes to standard output");
}

#[test]
fn a_link_needs_two_devices() {
    let output = ragtag().args(["devices", "--links", "--device", "cpu:0"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a link needs two devices"), "{said}");
}

#[test]
fn drawings_of_links_need_a_place() {
    let cache = tempfile::tempdir().unwrap();
    for (arguments, wanted) in [
        (&["devices", "--svg", "links.svg"][..], 2),
        (&["devices", "--links", "--svg", "-", "--json"], 2),
        (&["devices", "--links", "--svg", "missing/links.svg"], 7),
    ] {
        let (code, out, said) = run(cache.path(), arguments);
        assert_eq!((code, out.as_str()), (Some(wanted), ""), "{said}");
    }
}

/// Checks that the first plan over several APIs probes each pair, and that later plans probe nothing and print no
/// warning, also after a thorough probe.
#[test]
fn links_between_apis_are_verified() {
    let opencl = std::env::var_os("OCL_ICD_VENDORS");
    let vulkan = std::env::var_os("VK_DRIVER_FILES");
    within(900, move || {
        let found = Devices::probe(&DeviceOptions::default()).unwrap();
        let first = found.report().adapters().find(|adapter| adapter.backend == "opencl");
        let first = first.map(ragtag_hal::Adapter::label);
        let mut labels: Vec<_> = first.into_iter().chain(last_vulkan()).collect();
        labels.push("cpu:0".into());
        if labels.len() < 2 {
            return;
        }
        let cache = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            run_with_vulkan(vulkan.as_deref(), |command| {
                command.env("RAGTAG_CACHE_DIR", cache.path());
                command.env_remove("OCL_ICD_VENDORS").env_remove("RAGTAG_NO_CALIBRATION");
                command.envs(opencl.as_ref().map(|folder| ("OCL_ICD_VENDORS", folder)));
                command.args(arguments).args(["--device", &labels.join(",")]);
            })
        };
        let ends = |at: usize| if at + 1 < labels.len() { at.to_string() } else { format!("{at}-13") };
        let split: Vec<_> = (0..).zip(&labels).map(|(at, label)| format!("{}={label}", ends(at))).collect();
        let split = split.join(",");
        let plan = || {
            let (code, out, said) = run(&["plan", "--ctx", "64", "--chunk", "32", "--split", &split]);
            assert_eq!(code, Some(0), "{said}");
            let edges: Vec<_> = out.lines().filter(|line| line.starts_with("- edge ")).collect();
            assert_eq!(edges.len(), labels.len() - 1, "{out}");
            for edge in edges {
                assert!(edge.contains(" (verified), latency ") && edge.ends_with(" (measured)"), "{edge}");
            }
            let probed: Vec<_> =
                said.lines().filter(|line| line.starts_with("link ")).map(str::to_owned).collect();
            let is_warning = |line: &&str| line.contains("WARN") || line.contains("cache entry");
            assert_eq!(said.lines().find(is_warning), None, "{said}");
            probed
        };
        let first = plan();
        for (from, to) in labels.iter().flat_map(|from| labels.iter().map(move |to| (from, to))) {
            let start = format!("link {from} -> {to}: ");
            let lines: Vec<_> = first.iter().filter(|line| line.starts_with(&start)).collect();
            assert_eq!(lines.len(), usize::from(from != to), "{first:?}");
            let says = |line: &&String| {
                ["peer ", "import ", "staged verified ("].iter().all(|name| line.contains(name))
            };
            assert!(lines.iter().all(says), "{lines:?}");
        }
        assert_eq!(plan(), Vec::<String>::new(), "the probes are cached");
        let probe = |more: &[&str]| run(&[&["devices", "--links"], more].concat());
        let (code, table, said) = probe(&[]);
        assert_eq!(code, Some(0), "{said}");
        assert_whole(&table, " both ways ");
        println!("{table}");
        let (code, json, said) = probe(&["--json"]);
        assert_eq!(code, Some(0), "{said}");
        let imports_pages = |label: &Value| {
            let adapter = found.report().adapter(label.as_str().unwrap()).unwrap();
            adapter.caps.sharing.imports.contains(&MemoryHandle::HostPages)
        };
        for link in verified(&json, labels.len()) {
            // A device that imports the CPU's pages writes to them (peer) and reads them (import).
            let at = match (&link["from"], &link["to"]) {
                (from, to) if to == "cpu:0" && imports_pages(from) => 0,
                (from, to) if from == "cpu:0" && imports_pages(to) => 1,
                _ => continue,
            };
            assert!(link["tried"][at]["why"].is_null(), "{link}");
        }
    });
}

/// Checks that a kernel on the receiving device finds right bytes right, and wrong ones wrong. Large
/// downloads from the device are wrong, so a comparison on the host would find each transfer to it wrong.
#[test]
fn a_kernel_checks_transfers_to_a_device_with_kernels() {
    let found = Devices::probe(&DeviceOptions::default()).unwrap();
    let opencl = found.report().adapters().find(|adapter| adapter.backend == "opencl");
    let Some(label) = opencl.map(ragtag_hal::Adapter::label) else {
        test_support::skip!("OpenCL driver", "no device");
        return;
    };
    within(300, move || {
        let selected = format!("{label},cpu:0");
        let probed = |faults: Faults| {
            let folder = tempfile::tempdir().unwrap();
            let faulty = label.clone();
            let devices = support::devices(&Setup { devices: &selected, ..Setup::default() });
            let devices = devices.checked_by(move |adapter, device| {
                let faults = if adapter.label() == faulty { faults.clone() } else { Faults::default() };
                Checked::with_faults(device, faults)
            });
            let report = probe(&devices, folder.path());
            let to = report.links.into_iter().find(|link| link.to == label).unwrap();
            to.tried.into_iter().find(|tried| !tried.route.shares_memory()).unwrap()
        };
        let (kind, copies) = (CopyFaultKind::Flipped, FaultyCopies::Downloads);
        let flipped = |copies| CopyFault { kind, copies, least_bytes: 4096, after: 0, most: None };
        let faulty = |fault| Faults { copy_fault: Some(fault), ..Faults::default() };
        let staged = probed(faulty(flipped(copies)));
        assert_eq!((staged.why, staged.corrupt), (None, false));
        let short_copies = Some(ShortCopies::All);
        let staged = probed(Faults { short_copies, ..Faults::default() });
        assert!(staged.corrupt && staged.why.unwrap().contains(" bytes are wrong after a transfer"));
    });
}

/// Checks that devices of two APIs use a dma-buf after its probe, and only then. The stand-in for HIP imports
/// the memory of Level Zero's test driver. A file stands for the dma-buf.
#[test]
fn dma_bufs_between_apis_are_used_after_their_probe() {
    let test = "links::dma_bufs_between_apis_are_used_after_their_probe";
    let libraries = library_path(hip_on_opencl()).into_string().unwrap();
    let variables = [("LD_LIBRARY_PATH", libraries.as_str()), ("HIP_VISIBLE_DEVICES", "0")];
    let variables = [&variables[..], &[("RAGTAG_FAKE_DMA_BUFS", "1")]].concat();
    with_level_zero_on_opencl(test, &variables, || {
        within(900, || {
            let Checkpoint { models, ids, .. } = Checkpoint::open(SMALL);
            let model = &models[0];
            let split = "0-2=level-zero:0,3-5=hip:0";
            let setup = Setup {
                devices: "level-zero:0,hip:0",
                split: Some(split),
                activations: Activations::F32,
                ..Setup::default()
            };
            let devices = support::devices(&setup);
            let routes = |planner: Planner| {
                planner.split(split.parse().unwrap()).plan().unwrap().routes().first().cloned()
            };
            let planner = Planner::new(model).devices(&devices).context(128).chunk(32);
            let unprobed = routes(planner.clone()).unwrap();
            assert!(unprobed.iter().all(|route| !route.shares_memory()), "{unprobed:?}");

            let folder = tempfile::tempdir().unwrap();
            let report = probe(&devices, folder.path());
            let there = report.links.iter().find(|link| link.from == "level-zero:0").unwrap();
            let back = report.links.iter().find(|link| link.from == "hip:0").unwrap();
            // The device of HIP copies in both directions.
            for (link, route) in [(there, Route::Import), (back, Route::Peer)] {
                let tried = link.tried.iter().find(|tried| tried.route == route).unwrap();
                assert_eq!(tried.why, None, "{link:?}");
            }
            let calibration = calibrate(model, &devices, folder.path());
            assert_eq!(routes(planner.calibrated(&calibration)), there.routes());

            let tokens = |setup: &Setup<'_>| {
                let engine = support::engine(model, setup);
                let stream = engine.session().generate(Prompt::Tokens(&ids), &greedy(16)).unwrap();
                (block_on(listen(stream)).unwrap().ids, engine.routes())
            };
            let alone = Setup { devices: "cpu:0", split: None, ..setup };
            let (ids, used) = tokens(&Setup { route: Some(Route::Import), ..setup });
            assert_eq!(ids, tokens(&alone).0);
            assert_eq!(used, [Routes::or_staged(Route::Import)]);
        });
    });
}

/// Returns two CPU devices. `short` are the copies of `cpu:1` that leave out their last bytes.
fn two(short: Option<ShortCopies>) -> Devices {
    let devices = support::devices(&Setup { cpu_devices: 2, ..Setup::default() });
    devices.checked_by(move |adapter, device| {
        let short_copies = short.filter(|_| adapter.label() == "cpu:1");
        Checked::with_faults(device, Faults { short_copies, ..Faults::default() })
    })
}

/// Probes the links with the cache in `folder`.
fn probe(devices: &Devices, folder: &Path) -> LinkReport {
    let mut options = LinkOptions::default();
    (options.repetitions, options.limit, options.folder) = (1, Duration::ZERO, Some(folder.into()));
    let report = LinkReport::run(devices, &options, &|done, total| assert!(done <= total)).unwrap();
    assert_eq!((report.links.len(), &report.unkept), (2, &None));
    report
}

/// Returns the routes that are not verified. Asserts that each of them has corrupted a byte.
#[track_caller]
fn wrong(link: &ProbedLink) -> Vec<&'static str> {
    let wrong = link.tried.iter().filter(|tried| {
        let is_wrong = |why: &String| why.contains(" bytes are wrong after a transfer");
        assert_eq!(tried.why.as_ref().map(is_wrong), tried.corrupt.then_some(true), "{link:?}");
        tried.corrupt
    });
    wrong.map(|tried| tried.route.name()).collect()
}

#[test]
fn failures_without_wrong_bytes_are_not_cached() {
    let folder = tempfile::tempdir().unwrap();
    let devices = support::devices(&Setup { cpu_devices: 2, ..Setup::default() });
    let devices = devices.checked_by(|_, device| {
        Checked::with_faults(device, Faults { largest_allocation_bytes: Some(1 << 20), ..Faults::default() })
    });
    for link in probe(&devices, folder.path()).links {
        let failure = link.unverified().unwrap();
        assert!(failure.contains("staged: cpu:") && failure.contains("out of device memory"), "{failure}");
    }
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lock"]);
}

#[test]
fn a_silent_device_does_not_stop_the_probe() {
    const HOUR_US: u64 = 3_600_000_000;
    let folder = tempfile::tempdir().unwrap();
    let devices = support::devices(&Setup { cpu_devices: 3, ..Setup::default() });
    let devices = devices.checked_by(|adapter, device| {
        let delay_us = if adapter.label() == "cpu:1" { [0, HOUR_US, HOUR_US] } else { [0; 3] };
        Checked::with_faults(device, Faults { delay_us, ..Faults::default() })
    });
    let mut options = LinkOptions::default();
    (options.silence, options.folder) = (Duration::from_millis(200), Some(folder.path().into()));
    let report = within(300, move || LinkReport::run(&devices, &options, &|_, _| ()).unwrap());
    assert_eq!(report.links.len(), 6);
    for link in &report.links {
        let why = match (link.from.as_str(), link.to.as_str()) {
            ("cpu:0" | "cpu:1", "cpu:0" | "cpu:1") => "peer: no answer in 0.2 s",
            ("cpu:0", _) | (_, "cpu:0") => "peer: not probed, because cpu:0 does not answer",
            _ => "peer: not probed, because cpu:1 does not answer",
        };
        let failure = link.unverified().unwrap();
        assert!(failure.contains(why), "{failure}");
    }
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lock"], "the device may answer next time");
}

/// Times as little as possible with the cache in `folder`.
fn calibrate(model: &Model, devices: &Devices, folder: &Path) -> Calibration {
    let mut options = CalibrationOptions::default();
    (options.chunk, options.seconds, options.limit) = (32, 0.0, Some(Duration::ZERO));
    (options.folder, options.max_load) = (Some(folder.into()), 1.0);
    Calibration::run(model, devices, &options, &|_, _| ()).unwrap()
}

#[test]
fn routes_that_corrupt_data_are_not_used() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        // The source of a peer route and the destination of an import route execute its copies.
        let report = probe(&two(Some(ShortCopies::Shared)), folder.path());
        let [there, back] = &report.links[..] else { panic!("{report:?}") };
        assert_eq!((wrong(there), wrong(back)), (vec!["import"], vec!["peer"]));
        assert!(back.route.is_some() && back.route != Some(Route::Peer), "{back:?}");
        assert_eq!(back.unverified(), None);

        // A copy over the fastest route is correct even without the fault, so healthy devices do for timing.
        let calibration = calibrate(&model, &two(None), folder.path());
        let links = calibration.links.planned().known;
        let links: Vec<_> = links.iter().map(|(_, _, facts)| (&facts.routes, facts.verified)).collect();
        let routes = [there, back].map(|link| link.routes().unwrap());
        assert_eq!(links, [(&routes[0], true), (&routes[1], true)]);
        let planner = Planner::new(&model).devices(&two(None)).calibrated(&calibration);
        let plan = planner.split("0-6=cpu:1,7-13=cpu:0".parse().unwrap()).plan().unwrap();
        assert_eq!(plan.routes(), [routes[1].clone()]);

        // Without a probe, plans use only host memory.
        let devices = two(None);
        let plan = |planner: Planner| planner.split("0-6=cpu:1,7-13=cpu:0".parse().unwrap()).plan().unwrap();
        let planner = Planner::new(&model).devices(&devices);
        let unprobed = plan(planner.clone());
        assert_eq!(unprobed.routes(), [Route::HOST_STAGED.into()]);
        assert!(!unprobed.edges[0].verified, "{:?}", unprobed.edges);
        let kept = LinkReport::kept(&devices, Some(folder.path().into()));
        let planner = planner.probed(&kept);
        assert_eq!(plan(planner.clone()).routes(), [routes[1].clone()]);
        // A program can name another route, and the planner knows what the probe has found.
        let by_hand = plan(planner.clone().routes("cpu:1", "cpu:0", Routes::or_staged(Route::Peer)));
        assert!(!by_hand.edges[0].verified, "{:?}", by_hand.edges);
        let refusals = planner.refusals(&by_hand);
        let why = "the edge from cpu:1 to cpu:0 may take the peer route, which is not verified: 1 of ";
        assert!(refusals.len() == 1 && refusals[0].starts_with(why), "{refusals:?}");
        assert_eq!(kept.refusal("cpu:0", "cpu:1", Route::HOST_STAGED), None);
        assert!(kept.refusal("cpu:1", "cpu:0", Route::Peer).unwrap().contains("bytes are wrong"));
    });
}

/// Checks the first plan with a fresh cache: a route whose copies lie is named, and a run never uses it.
#[test]
fn the_first_plan_never_uses_a_route_that_lies() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let prompt = &support::golden(MODEL).cases[0].prompt_ids;
        for split in ["0-6=cpu:0,7-13=cpu:1", "0-6=cpu:1,7-13=cpu:0"] {
            let run = |lie: Option<ShortCopies>| {
                let (folder, devices) = (tempfile::tempdir().unwrap(), two(lie));
                let calibration = calibrate(&model, &devices, folder.path());
                let planner = Planner::new(&model).devices(&devices).calibrated(&calibration).context(64);
                let planner = planner.split(split.parse().unwrap());
                let engine = Engine::start(&model, &devices, &planner, EngineOptions::default()).unwrap();
                assert!(engine.plan().edges.iter().all(|edge| edge.verified), "{:?}", engine.plan().edges);
                let stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(8)).unwrap();
                let ids = block_on(listen(stream)).unwrap().ids;
                let lines: Vec<_> = calibration.links.links.iter().map(ProbedLink::summary).collect();
                (ids, engine.routes(), lines)
            };
            let (right, ..) = run(None);
            let (ids, used, lines) = run(Some(ShortCopies::Shared));
            assert_eq!(ids, right, "{split}");
            // The destination of an import route and the source of a peer route execute its copies.
            let (lying, from, to) = match split.starts_with("0-6=cpu:0") {
                true => (Route::Import, "cpu:0", "cpu:1"),
                false => (Route::Peer, "cpu:1", "cpu:0"),
            };
            assert!(used.iter().flat_map(Routes::iter).all(|route| route != lying), "{used:?}");
            let line = lines.iter().find(|line| line.starts_with(&format!("link {from} -> {to}: "))).unwrap();
            let why = format!("{} not used: 1 of 4096 bytes are wrong after a transfer", lying.name());
            assert!(line.contains(&why) && line.contains("staged verified ("), "{line}");
        }
    });
}

/// Checks that a plan file is refused if a probe of this machine has not verified its routes.
#[test]
fn a_plan_file_with_an_unverified_route_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let split = ["--split", "0-6=cpu:0,7-13=cpu:1"];
    let (code, json, said) = run(cache.path(), &[&["plan", "--json"], &split[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    let mut plan: Value = serde_json::from_str(&json).unwrap();
    let edge = &mut plan["edges"][0];
    assert_eq!((&edge["verified"], &edge["latency_us"]["source"]), (&false.into(), &"assumed".into()));
    edge["routes"][0]["route"] = "peer".into();
    let file = cache.path().join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let with_file =
        |command: &[&str]| run(cache.path(), &[command, &["--plan", support::text(&file)]].concat());
    let why = "the edge from cpu:0 to cpu:1 may take the peer route, which is not verified: it was never probed \
               (run `ragtag devices --links` with the same devices)";
    for command in [&["plan"][..], &["simulate"], &["run", "-n", "2"]] {
        let (code, _, said) = with_file(command);
        assert!(code == Some(4) && said.contains(why), "{code:?} {said}");
        let (code, _, said) = with_file(&[command, &["--strict"]].concat());
        assert!(code == Some(8) && said.contains(why), "{code:?} {said}");
    }
    probe(&two(None), &cache.path().join("profiles"));
    let (code, _, said) = with_file(&["run", "-n", "2"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_device_without_a_verified_route_is_left_out() {
    within(300, || {
        let model = Model::open(model_path(MODEL)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let report = probe(&two(Some(ShortCopies::All)), folder.path());
        for link in &report.links {
            assert_eq!(wrong(link), ["peer", "import", "staged"]);
            assert_eq!((link.route, link.latency_us, link.rates.len()), (None, None, 0));
            let failure = link.unverified().unwrap();
            let start = format!("no verified route from {} to {}: peer: 1 of 4096", link.from, link.to);
            assert!(failure.starts_with(&start), "{failure}");
        }
        let devices = two(None);
        let calibration = calibrate(&model, &devices, folder.path());
        assert_eq!((calibration.closed, calibration.timed), (vec!["cpu:1".into()], vec!["cpu:0".into()]));
        let [(label, why)] = &calibration.unrouted[..] else { panic!("{:?}", calibration.unrouted) };
        assert!(label == "cpu:1" && why.starts_with("no verified route from "), "{label}: {why}");
        let kept = LinkReport::kept(&devices, Some(folder.path().into()));
        let planner = Planner::new(&model).devices(&devices).probed(&kept);
        let split = planner.clone().split("0-6=cpu:0,7-13=cpu:1".parse().unwrap());
        assert!(split.plan().unwrap_err().to_string().contains("cpu:1"));
        assert!(planner.plan().unwrap().stages.iter().all(|stage| stage.device == "cpu:0"));
    });
}
