//! Tests calibration. Checks that profiles are cached and reused, that devices with damaged profiles are
//! measured again, and that predicted times are close to measured times.

use crate::support::{self, Setup, block_on, greedy, listen, model_path, ragtag, text, within};
use ragtag::{
    Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, Model, Planner, Prompt,
};
use ragtag_devices::{Physical, Report};
use ragtag_planner::FigureSource;
use ragtag_planner::cost::Profile;
use ragtag_scheduler::StageReport;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns a small model, which is quick to time.
fn model() -> Model {
    Model::open(test_support::golden("tiny-llama3").join("model.gguf")).unwrap()
}

/// Returns a model with many layers.
fn bundled() -> Model {
    Model::open(model_path("tales-bitnet-tq2_0")).unwrap()
}

fn two() -> Devices {
    support::devices(&Setup { cpu_devices: 2, ..Setup::default() })
}

/// Returns options for the shortest possible calibration, with the cache in `folder`.
fn quick(folder: &Path) -> CalibrationOptions {
    let mut options = CalibrationOptions::default();
    (options.chunk, options.seconds, options.limit) = (32, 0.0, None);
    // Other tests use the CPUs.
    options.max_load = 1.0;
    options.folder = Some(folder.into());
    options
}

/// Calibrates the devices. Returns the calibration and the number of steps that it completed.
fn calibrate(model: &Model, devices: &Devices, options: &CalibrationOptions) -> (Calibration, u64) {
    let steps = AtomicU64::new(0);
    let progress = |done: u64, total: u64| {
        assert!(done <= total, "step {done} of {total}");
        steps.fetch_max(done, Ordering::Relaxed);
    };
    let calibration = Calibration::run(model, devices, options, &progress).unwrap();
    assert_eq!(calibration.profiles.len(), devices.selected().len(), "{:?}", calibration.warnings);
    (calibration, steps.into_inner())
}

/// Asserts that two calibrations are equal, except for rounding in JSON.
fn assert_same(one: &Calibration, other: &Calibration) {
    let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} {b}");
    for ((label, a), (other_label, b)) in one.profiles.iter().zip(&other.profiles) {
        assert_eq!((label, &a.identity, a.kinds.len()), (other_label, &b.identity, b.kinds.len()));
        near(a.stage_us, b.stage_us);
        near(a.hand_over_us, b.hand_over_us);
        near(a.token_return.latency_us, b.token_return.latency_us);
        for (a, b) in a.kinds.iter().zip(&b.kinds) {
            assert_eq!((a.key, a.samples.len()), (b.key, b.samples.len()));
            for (a, b) in a.samples.iter().zip(&b.samples) {
                assert_eq!((a.at, a.count), (b.at, b.count));
                near(a.median_us, b.median_us);
            }
        }
    }
    let [one, other] = [one, other].map(|calibration| calibration.links.planned().known);
    for ((from, to, a), (other_from, other_to, b)) in one.iter().zip(&other) {
        assert_eq!((from, to, &a.routes), (other_from, other_to, &b.routes));
        near(a.latency_us.value, b.latency_us.value);
        near(a.bandwidth_bytes_per_s.value, b.bandwidth_bytes_per_s.value);
    }
}

fn files(folder: &Path, of: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(of)).collect();
    files.sort();
    files
}

#[test]
fn profiles_are_cached_and_damaged_ones_are_measured_again() {
    within(300, || {
        let (model, devices) = (model(), two());
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep").join("profiles");
        let options = quick(&folder);
        let (first, steps) = calibrate(&model, &devices, &options);
        assert_eq!((first.timed.len(), first.links.links.len()), (2, 2));
        assert!(steps > 10, "{steps}");
        // Identical CPU devices share a profile. The fourth file is the lock.
        let names = [files(&folder, "profile-"), files(&folder, "probe-")].map(|files| files.len());
        assert_eq!((names, std::fs::read_dir(&folder).unwrap().count()), ([1, 2], 4));
        assert_eq!(first.profiles[0].1, first.profiles[1].1);

        let (again, steps) = calibrate(&model, &devices, &options);
        assert_eq!((again.timed.len(), steps), (0, 0));
        assert_same(&again, &first);

        // With more sequences, calibration measures only the missing kinds.
        let mut more = options.clone();
        more.sequences = 4;
        let (wider, _) = calibrate(&model, &devices, &more);
        assert_eq!(wider.timed.len(), 2);
        let (again, steps) = calibrate(&model, &devices, &options);
        assert_eq!((again.timed.len(), steps), (0, 0));

        // Each case has one defect: a truncated file, a different version, a different device, an old date,
        // or a future date.
        let profiles = files(&folder, "profile-");
        let whole = std::fs::read_to_string(&profiles[0]).unwrap();
        let changed = |change: &dyn Fn(&mut Profile)| {
            let mut profile = Profile::from_json(&whole).unwrap();
            change(&mut profile);
            serde_json::to_string(&profile).unwrap()
        };
        const DAYS: u64 = 24 * 3600;
        let corrupt = [
            whole[..whole.len() / 2].to_owned(),
            changed(&|profile| profile.ragtag_profile = 3),
            changed(&|profile| profile.identity.units += 1),
            changed(&|profile| profile.measured_unix_s -= 31 * DAYS),
            changed(&|profile| profile.measured_unix_s += 31 * DAYS),
        ];
        for content in corrupt {
            assert_ne!(content, whole);
            std::fs::write(&profiles[0], content).unwrap();
            let (anew, _) = calibrate(&model, &devices, &options);
            assert_eq!(anew.timed.len(), 2, "both devices are of the same CPU");
            assert!(Profile::from_json(&std::fs::read_to_string(&profiles[0]).unwrap()).is_ok());
        }
        let links = files(&folder, "probe-");
        let whole = std::fs::read_to_string(&links[0]).unwrap();
        let changed = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut link = serde_json::from_str(&whole).unwrap();
            change(&mut link);
            link.to_string()
        };
        let of_ring = |chunk_bytes: u64, depth: u32| {
            let ring = serde_json::json!({"chunk_bytes": chunk_bytes, "depth": depth});
            changed(&|probe| probe["link"]["tried"][2]["route"] = serde_json::json!({"host-staged": &ring}))
        };
        let of_hop = |us: f64| changed(&|probe| probe["link"]["tried"][2]["hops"][0]["us"] = us.into());
        let corrupt = [
            "{}".into(),
            of_ring(0, 4),
            of_ring(256 << 10, 0),
            of_ring(1 << 62, 4),
            of_hop(-1.0),
            of_hop(0.0),
            changed(&|probe| probe["ragtag_probe"] = 5.into()),
            changed(&|probe| probe["link"]["route"] = "same-device".into()),
            changed(&|probe| probe["link"]["latency_us"] = 0.0.into()),
            changed(&|probe| probe["link"]["more"] = 1.into()),
            changed(&|probe| probe["link"]["measured_unix_s"] = 1.into()),
        ];
        for content in corrupt {
            std::fs::write(&links[0], &content).unwrap();
            let (anew, steps) = calibrate(&model, &devices, &options);
            assert_eq!((anew.timed.len(), anew.links.probed.len(), steps), (0, 2, 13), "{content}");
            assert!(anew.links.links.iter().all(|link| link.unverified().is_none()), "{content}");
        }
        without_end(&links[0], || {
            let (anew, steps) = calibrate(&model, &devices, &options);
            assert_eq!((anew.timed.len(), steps), (0, 13));
        });

        let mut forcing = options;
        forcing.force = true;
        let (forced, _) = calibrate(&model, &devices, &forcing);
        assert_eq!(forced.timed.len(), 2);
    });
}

/// Checks a profile whose calibration reached the time limit. The planner must be able to plan with it, and
/// it must be cached and reused. A later calibration without a limit must complete it.
#[test]
fn calibrate_completes_a_profile_cut_short_by_its_time_limit() {
    within(120, || {
        let (model, devices) = (model(), support::devices(&Setup::default()));
        let folder = tempfile::tempdir().unwrap();
        let whole = quick(folder.path());
        let mut limited = whole.clone();
        limited.limit = Some(Duration::ZERO);
        let (first, _) = calibrate(&model, &devices, &limited);
        assert_eq!((first.timed.len(), first.profiles[0].1.kinds.len()), (1, 1), "only blocks");
        let plan = Planner::new(&model).devices(&devices).calibrated(&first).plan().unwrap();
        assert!(plan.predicted.decode_tokens_per_s > 0.0);
        let (again, steps) = calibrate(&model, &devices, &limited);
        assert_eq!((again.timed.len(), steps), (0, 0));
        assert_same(&again, &first);
        let kept = Calibration::kept(&model, &devices, &whole).unwrap();
        assert_same(&kept, &first);

        let (completed, _) = calibrate(&model, &devices, &whole);
        assert_eq!((completed.timed.len(), completed.profiles[0].1.kinds.len()), (1, 3));
        let (again, _) = calibrate(&model, &devices, &limited);
        assert_same(&again, &completed);
        // The limit does not apply to links, because no plan may use a link without a probe.
        let (first, _) = calibrate(&model, &two(), &limited);
        let (again, steps) = calibrate(&model, &two(), &limited);
        assert_eq!((first.links.links.len(), again.links.links.len(), steps), (2, 2, 0));
        // Larger sizes require another measurement.
        limited.sequences = 4;
        let (more, _) = calibrate(&model, &devices, &limited);
        assert_eq!(more.timed.len(), 1);
    });
}

/// Calibrates as if other processes took more CPU time than is acceptable. Checks that nothing is cached, and that the
/// last reliable profile is used, even if it has expired.
#[test]
fn a_calibration_on_a_busy_machine_is_doubtful() {
    within(120, || {
        let (model, devices) = (model(), support::devices(&Setup::default()));
        let folder = tempfile::tempdir().unwrap();
        let quiet = quick(folder.path());
        let mut busy = quiet.clone();
        busy.max_load = -1.0;
        let (doubtful, _) = calibrate(&model, &devices, &busy);
        assert_eq!((&doubtful.doubtful, &doubtful.timed), (&vec!["cpu:0".into()], &vec!["cpu:0".to_owned()]));
        let start = "the calibration of cpu:0 is doubtful, using its speeds for this run only: ";
        assert!(
            doubtful.warnings.iter().any(|warning| warning.starts_with(start)),
            "{:?}",
            doubtful.warnings
        );
        assert_eq!((files(folder.path(), "profile-").len(), &doubtful.unkept), (0, &None));
        assert!(Calibration::kept(&model, &devices, &quiet).unwrap().profiles.is_empty());

        // A reliable profile that has expired.
        let (good, _) = calibrate(&model, &devices, &quiet);
        assert!(good.doubtful.is_empty());
        let path = &files(folder.path(), "profile-")[0];
        let mut old = Profile::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
        old.measured_unix_s -= 40 * 24 * 3600;
        old.stage_us = 77.0;
        let content = serde_json::to_string(&old).unwrap();
        std::fs::write(path, &content).unwrap();
        let (last, _) = calibrate(&model, &devices, &busy);
        assert_eq!((&last.doubtful, last.profiles[0].1.stage_us), (&vec!["cpu:0".into()], 77.0));
        let start = "the calibration of cpu:0 is doubtful, using the speeds measured 40 days ago: ";
        assert!(last.warnings.iter().any(|warning| warning.starts_with(start)), "{:?}", last.warnings);
        assert_eq!(std::fs::read_to_string(path).unwrap(), content);
        let kept = Calibration::kept(&model, &devices, &quiet).unwrap();
        assert_eq!(kept.profiles[0].1.stage_us, 77.0);
        let (anew, _) = calibrate(&model, &devices, &quiet);
        assert!(anew.doubtful.is_empty() && anew.profiles[0].1.stage_us != 77.0);
    });
}

/// Replaces `file` with a link to an endless file and runs `test`. Checks that `test` replaces the link with
/// a regular file. Does nothing on systems without endless files.
fn without_end(file: &Path, test: impl FnOnce()) {
    #[cfg(unix)]
    {
        std::fs::remove_file(file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", file).unwrap();
        test();
        assert!(std::fs::symlink_metadata(file).unwrap().is_file(), "the file was rewritten");
    }
    #[cfg(not(unix))]
    let _ = (file, test);
}

#[test]
fn another_driver_or_number_of_threads_is_another_profile() {
    within(120, || {
        let model = model();
        let folder = tempfile::tempdir().unwrap();
        let options = quick(folder.path());
        let other = Setup { cpu_devices: 2, threads: 2, ..Setup::default() };
        calibrate(&model, &two(), &options);
        let (second, _) = calibrate(&model, &support::devices(&other), &options);
        assert_eq!(second.timed.len(), 2);
        assert_eq!(files(folder.path(), "profile-").len(), 2);
        // Calibration ignores a profile made with a different driver, regardless of the file's name.
        for path in files(folder.path(), "profile-") {
            let mut profile = Profile::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
            profile.identity.driver.push_str(" of yesterday");
            std::fs::write(&path, serde_json::to_string(&profile).unwrap()).unwrap();
        }
        let (third, _) = calibrate(&model, &two(), &options);
        assert_eq!(third.timed.len(), 2);
    });
}

#[test]
fn an_unwritable_cache_folder_is_harmless() {
    within(120, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        std::fs::write(&file, "not a folder").unwrap();
        let (calibration, _) = calibrate(&model(), &two(), &quick(&file));
        assert_eq!(calibration.timed.len(), 2);
        let cause = calibration.unkept.unwrap();
        assert!(cause.starts_with(&file.display().to_string()), "{cause}");
        // The cause appears once. Warnings about drifting times may appear as well.
        assert!(!calibration.warnings.iter().any(|warning| warning.contains(&cause)));
    });
}

/// Checks that `calibrate` fails if it cannot save a profile, and that the other commands only print a
/// warning.
#[test]
fn commands_report_that_nothing_is_cached() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "not a folder").unwrap();
    let command = |arguments: &[&str]| {
        let mut command = ragtag();
        command.env_remove("RAGTAG_NO_CALIBRATION").env("RAGTAG_CACHE_DIR", text(&file));
        let devices = ["--cpu-devices", "2", "--threads", "1", "--chunk", "32"];
        let output = command.args(arguments).args(devices).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, table, said) = command(&["calibrate", "--seconds", "0", "--wide"]);
    assert!(code == 7 && table.contains("of roofline"), "{code}: {said}");
    let (planned, _, warned) = command(&["plan", "--ctx", "64"]);
    assert_eq!(planned, 0, "{warned}");
    for said in [said, warned] {
        assert_eq!(said.matches("cannot save the calibration").count(), 1, "{said}");
        let cause = format!("cannot save the calibration: {}", file.display());
        assert!(said.contains(&cause) && !said.contains("unusable cache entry"), "{said}");
    }
}

/// Runs `parallel` sequences on two CPU devices with one thread each. Returns the engine and the reports of
/// its stages.
fn run(model: &Model, devices: &Devices, planner: &Planner, parallel: u32) -> (Engine, Vec<StageReport>) {
    let plan = planner.plan().unwrap();
    let engine = Engine::start_exact(model, devices, &plan, EngineOptions::default()).unwrap();
    let session = engine.session();
    let prompts: Vec<Vec<u32>> =
        (0..parallel).map(|s| (0..64).map(|at| (at * 31 + s * 97 + 7) % 500 + 1).collect()).collect();
    block_on(async {
        let streams = prompts.iter().map(|ids| session.generate(Prompt::Tokens(ids), &greedy(48)));
        let streams: Vec<_> = streams.collect::<ragtag::Result<_>>().unwrap();
        for stream in streams {
            listen(stream).await.unwrap();
        }
    });
    // The reports may lag by a few micro-batches.
    let reports = engine.stage_reports();
    (engine, reports)
}

#[test]
fn predicted_stage_times_have_the_unit_of_measured_ones() {
    within(240, || {
        let (model, devices) = (bundled(), two());
        let folder = tempfile::tempdir().unwrap();
        for parallel in [1, 4] {
            let mut options = quick(folder.path());
            (options.sequences, options.chunk, options.seconds) = (parallel, 64, 1.0);
            let (calibration, _) = calibrate(&model, &devices, &options);
            calibration.warnings.iter().for_each(|warning| println!("{warning}"));
            let planner = Planner::new(&model)
                .devices(&devices)
                .calibrated(&calibration)
                .context(128)
                .chunk(64)
                .sequences(parallel)
                .split("0-6=cpu:0,7-13=cpu:1".parse().unwrap());
            let (engine, reports) = run(&model, &devices, &planner, parallel);
            for (at, (stage, report)) in engine.stages().iter().zip(&reports).enumerate() {
                let decode = &report.decode;
                assert!(decode.micro_batches > 16, "{report:?}");
                let rows = (decode.rows as f64 / decode.micro_batches as f64).round() as u32;
                let predicted_us = predicted_us(&model, &calibration, stage.segments.clone(), at, rows);
                let measured_us = decode.busy_ns as f64 / 1e3 / decode.micro_batches as f64;
                let ratio = predicted_us / measured_us;
                println!(
                    "--parallel {parallel}: {} decodes {rows} rows in {measured_us:.0} µs, predicted {predicted_us:.0} µs: {ratio:.2}",
                    stage.adapter.label()
                );
                // Other tests delay a run by any factor. A wrong unit would be wrong by 1000.
                assert!((0.01..=100.0).contains(&ratio), "{ratio}");
            }
        }
    });
}

/// Returns the predicted time of one decode step of stage `at`, in µs, when each sequence has generated half
/// of its tokens.
fn predicted_us(
    model: &Model,
    calibration: &Calibration,
    segments: std::ops::Range<usize>,
    at: usize,
    rows: u32,
) -> f64 {
    let devices = two();
    let facts = &calibration.apply(devices.facts())[at];
    assert_eq!(facts.stage_us.source, FigureSource::Measured);
    let lowering = ragtag_graph::Lowering {
        activations: ragtag::Activations::Int8,
        kv: ragtag::KvType::F16,
        context: 128,
        sequences: rows,
        kv_blocks: None,
        chunk: 64,
        logit_rows: rows,
        wire_type: ragtag::WireType::F32,
    };
    let batch =
        ragtag_planner::cost::BatchShape { rows, logit_rows: rows, sequences: rows, positions: 64.0 + 24.0 };
    let all = model.graph().segments(&lowering).unwrap();
    let times = all[segments].iter().map(|segment| {
        let key = ragtag_planner::cost::SegmentKey::from(segment);
        let time = ragtag_planner::cost::kind_time(&key, facts, lowering.activations, &batch);
        assert!(matches!(time.source, FigureSource::Measured | FigureSource::Fitted), "{time:?}");
        time.value
    });
    facts.stage_us.value + times.sum::<f64>()
}

#[test]
fn commands_calibrate_missing_figures_and_report_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let command = |arguments: &[&str]| {
        let mut command = ragtag();
        command.env_remove("RAGTAG_NO_CALIBRATION").env("RAGTAG_CACHE_DIR", text(folder.path()));
        let output = command.args(arguments).assert().success().get_output().clone();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let two = ["--cpu-devices", "2", "--threads", "1", "--chunk", "32"];
    let with = |first: &[&'static str]| [first, &two[..]].concat();
    let calibrates = |said: &str| said.contains("calibrating");
    // On a busy machine the measurement is sometimes rejected.
    let kept = |arguments: &[&str]| (0..10).any(|_| !calibrates(&command(arguments).1));
    let (_, said) = command(&with(&["plan", "--ctx", "64", "--no-calibration"]));
    assert!(!calibrates(&said), "{said}");
    // A single device is timed as well, to choose its prefill chunk. All commands use the same profile
    // regardless of their chunk.
    let one = ["plan", "--ctx", "64", "--cpu-devices", "1", "--chunk", "32"];
    let (_, said) = command(&one);
    assert!(calibrates(&said), "{said}");
    assert!(kept(&one));
    let (table, _) = command(&one);
    assert!(table.contains(" measured"), "{table}");
    for arguments in [&["run", "-n", "2"][..], &["bench", "-p", "8", "-n", "2", "-r", "1"]] {
        let (_, said) = command(&[arguments, &["--cpu-devices", "1"]].concat());
        assert!(!calibrates(&said), "{said}");
    }
    let (_, said) = command(&with(&["plan", "--ctx", "64"]));
    assert!(calibrates(&said), "{said}");
    assert!(kept(&with(&["plan", "--ctx", "64"])));
    let (_, said) = command(&with(&["run", "-n", "2", "--temp", "0"]));
    assert!(!calibrates(&said), "{said}");
    // Without calibration, the cached speeds do not count.
    let (_, said) = command(&with(&["plan", "--ctx", "64", "--no-calibration"]));
    assert!(!said.contains("using the speeds") && !calibrates(&said), "{said}");

    // `calibrate` may time more than other commands time on first use.
    let calibrate = with(&["calibrate", "--json", "--seconds", "0"]);
    assert!(kept(&calibrate));
    let (json, _) = command(&calibrate);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["profiles"].as_array().unwrap().len(), 2);
    assert_eq!(json["profiles"][0]["ragtag_profile"], 5);
    assert_eq!(json["links"]["known"].as_array().unwrap().len(), 2);
    let (table, said) = command(&with(&["calibrate", "--force", "--seconds", "0"]));
    assert!(calibrates(&said), "{said}");
    for word in ["of roofline", "embedding", "block", "head", "cpu:1", "per stage", "latency"] {
        assert!(table.contains(word), "{word} in {table}");
    }
}

/// Calibrates a device through both of its APIs, and makes one of the two cached profiles slower.
#[test]
fn a_device_is_used_through_the_api_that_is_measured_fastest() {
    let report = Devices::survey(&DeviceOptions::default());
    let has_two = |device: &&Physical| device.adapters.len() == 2 && is_fast(&report, &device.adapters[0]);
    let Some(device) = report.devices.iter().find(has_two) else {
        return test_support::skip!(test_support::driver("vulkan"), "no device has two APIs");
    };
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let mut options = quick(folder.path());
    options.chunk = 4;
    let one = Devices::probe_all(&DeviceOptions::selecting(device.adapters[0].as_str())).unwrap();
    assert_eq!(one.labels_of_every_api(), device.adapters);
    // Software devices that are timed together have other profiles than those that are timed alone.
    for adapter in &device.adapters {
        calibrate(&model, &Devices::probe(&DeviceOptions::selecting(adapter.as_str())).unwrap(), &options);
    }
    let both = DeviceOptions::selecting(device.adapters.join(","));
    let first_of = || {
        let found = Devices::probe_for(&both, &model, &options).unwrap();
        found.report().device(&device.adapters[0]).unwrap().adapters[0].clone()
    };
    for (slow, fast) in [(0, 1), (1, 0)] {
        for path in files(folder.path(), "profile") {
            let mut profile = Profile::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let is_slow = device.adapters[slow].starts_with(&profile.identity.device);
            let us = if is_slow { 900.0 } else { 100.0 };
            let samples = profile.kinds.iter_mut().flat_map(|kind| &mut kind.samples);
            samples.for_each(|sample| sample.median_us = us);
            std::fs::write(&path, serde_json::to_string(&profile).unwrap()).unwrap();
        }
        assert_eq!(first_of(), device.adapters[fast]);
    }
    std::fs::remove_file(&files(folder.path(), "profile")[0]).unwrap();
    assert_eq!(first_of(), device.adapters[0], "one API was not measured");
}

/// Returns whether a device is a GPU or a fast software device.
fn is_fast(report: &Report, label: &str) -> bool {
    report.adapter(label).is_some_and(|adapter| !adapter.name.contains("SwiftShader"))
}

/// Checks that calibration measures the model's file if and only if host memory may be short, and that the planner
/// uses the rate.
#[test]
fn the_rate_of_the_models_file_is_measured_if_host_memory_is_short() {
    within(120, || {
        let (model, folder) = (bundled(), tempfile::tempdir().unwrap());
        let planner = |devices: &Devices| Planner::new(&model).devices(devices).context(64).chunk(32);
        let all = Devices::probe(&DeviceOptions::selecting("cpu:0")).unwrap();
        let options = quick(folder.path());
        let (calibration, _) = calibrate(&model, &all, &options);
        assert_eq!(calibration.file_rates, []);

        let total = planner(&all).plan().unwrap().host_memory_bytes.total;
        let capped = DeviceOptions::selecting("cpu:0").capping_memory(format!("host={}", total / 5 * 4));
        let devices = Devices::probe(&capped).unwrap();
        let (calibration, steps) = calibrate(&model, &devices, &options);
        assert_eq!(steps, 0, "the profile is cached");
        let [(label, rate)] = &calibration.file_rates[..] else { panic!("{:?}", calibration.file_rates) };
        assert_eq!((label.as_str(), rate.source), ("cpu:0", FigureSource::Measured));
        let plan = planner(&devices).calibrated(&calibration).plan().unwrap();
        let words = format!(" per step at {:.1} GB/s (measured)", rate.value / 1e9);
        assert!(plan.reasons.iter().any(|reason| reason.contains(&words)), "{words}: {:?}", plan.reasons);
    });
}
