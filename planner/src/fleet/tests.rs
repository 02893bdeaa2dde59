//! Tests of the fleet format, the card library, and the path of every error.

use super::*;
use crate::cost::{Figure, FigureSource, LinkFacts, SharedLink, WeightSharing};
use crate::search::HostFacts;
use std::collections::HashSet;

fn fails(text: &str) -> String {
    Fleet::from_json(text).expect_err(text).to_string()
}

/// Returns the JSON of a fleet with these devices. `more` is the JSON of further fields.
fn fleet(devices: &str, more: &str) -> String {
    format!("{{\"ragtag_fleet\": 1, \"devices\": [{devices}]{more}}}")
}

fn facts(text: &str) -> (Vec<DeviceFacts>, Links) {
    Fleet::from_json(text).and_then(|fleet| fleet.facts()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

const SMALL: &str = r#"{"label": "small", "memory_gib": 8, "bandwidth_gb_per_s": 448, "f32_tflop_per_s": 10, "int8_top_per_s": 40}"#;

#[test]
fn user_values_are_used_unchanged() {
    let (devices, _) = facts(&fleet(SMALL, ""));
    let [device] = &devices[..] else { panic!("{devices:?}") };
    let user = |value| Figure { value, source: FigureSource::User };
    assert_eq!((device.label.as_str(), device.memory_bytes), ("small", 8 << 30));
    assert_eq!(device.bandwidth_bytes_per_s, user(448e9));
    assert_eq!((device.exact_flops_per_s, device.fast_flops_per_s), (user(10e12), user(40e12)));
    assert!(!device.f16_products);
    assert_eq!(device.nonsense(), None);
}

#[test]
fn weights_are_shared_through_apis_that_pin_host_memory() {
    let of = |through: &str| {
        let device = SMALL.replacen('{', &format!(r#"{{"through": "{through}", "#), 1);
        facts(&fleet(&device, "")).0[0].weight_sharing
    };
    let expected = [WeightSharing::Owner, WeightSharing::Blocks, WeightSharing::Blocks, WeightSharing::None];
    assert_eq!(["cpu", "cuda", "hip", "vulkan"].map(of), expected);
}

#[test]
fn datasheet_values_are_scaled_to_the_reachable_share() {
    let bandwidth_of = |figure: &str| {
        let device = format!(
            r#"{{"label": "a", "through": "cuda", "memory_gib": 10, "bandwidth_gb_per_s": {figure}, "f32_tflop_per_s": 1}}"#
        );
        facts(&fleet(&device, "")).0[0].bandwidth_bytes_per_s
    };
    let cuda = &reached()["cuda"];
    let source = FigureSource::Datasheet;
    let sheet = bandwidth_of(r#"{"value": 1000, "source": "datasheet"}"#);
    assert_eq!(sheet, Figure { value: 1000.0 * cuda.bandwidth * 1e9, source });
    let measured = bandwidth_of(r#"{"value": 1000, "source": "measured"}"#);
    assert_eq!(measured, Figure { value: 1e12, source: FigureSource::Measured });
}

#[test]
fn a_line_of_cards_is_a_fleet() {
    let line = Fleet::from_line("2x-arc-a770+rx7900xtx+arc-a770").unwrap();
    let (devices, links) = line.facts().unwrap();
    let labels: Vec<_> = devices.iter().map(|d| d.label.as_str()).collect();
    assert_eq!(labels, ["arc-a770:0", "arc-a770:1", "rx7900xtx:0", "arc-a770:2"]);
    assert_eq!(links.known.len(), 4 * 3);
    // 24 GiB minus the driver's share, and PCIe 4.0 x16.
    assert_eq!(devices[2].memory_bytes, (24.0 * 0.95 * GIB) as u64);
    let bus = 1.969 * 16.0 * 0.8 * 1e9;
    assert!(
        (links.between("arc-a770:0", "rx7900xtx:0").bandwidth_bytes_per_s.value / bus - 1.0).abs() < 1e-12
    );
    assert_eq!(Fleet::from_line("2xrtx3090").unwrap().facts().unwrap().0[1].label, "rtx3090:1");
    assert_eq!(Fleet::from_line("epyc-9654").unwrap().facts().unwrap().0.len(), 1);
}

const GIB: f64 = (1u64 << 30) as f64;

#[test]
fn mistakes_in_a_line_are_named() {
    let fails = |line: &str| Fleet::from_line(line).expect_err(line).to_string();
    let unknown = fails("2x-arc-a777+rtx3090");
    assert!(
        unknown.contains("\"2x-arc-a777\": unknown card \"arc-a777\"; similar cards are arc-a7"),
        "{unknown}"
    );
    assert!(fails("RTX-3090").contains("similar cards are rtx3090"), "{}", fails("RTX-3090"));
    assert!(fails("").contains("names no card"));
    assert!(fails("rtx3090++l4").contains("names no card"));
    assert!(fails("0x-l4").contains("a count is 1 to 64"));
    assert!(fails("99999999999x-l4").contains("a count is 1 to 64"));
    assert!(fails("40x-l4+40x-t4").contains("the line: has 80 devices; a fleet has 1 to 64 in all"));
    assert!(fails("64x-l4+t4").contains("the line: has 65 devices"));
    assert!(fails(&"l4+".repeat(100_000)).contains("more than 64 parts"));
    let hostile = fails(&format!("\u{1b}[2J{}", "z".repeat(100_000)));
    assert!(hostile.len() < 1500 && !hostile.contains(char::is_control), "{hostile}");
}

#[test]
fn versions_and_forms_are_checked_before_meaning() {
    let newer = fleet(SMALL, ", \"novelty\": 1").replacen("\"ragtag_fleet\": 1", "\"ragtag_fleet\": 2", 1);
    assert_eq!(Fleet::from_json(&newer), Err(InvalidFleet::Version { found: 2 }));
    for text in ["", "{}", "[]", "GGUF", "{\"ragtag_fleet\": -1}", "{\"ragtag_fleet\": 1}"] {
        assert!(matches!(Fleet::from_json(text), Err(InvalidFleet::NotAFleet { .. })), "{text}");
    }
    let form = |device: &str| fails(&fleet(&format!("{SMALL}, {device}"), ""));
    assert!(form(r#"{"bandwith": 1}"#).contains("devices[1].bandwith: unknown field `bandwith`"));
    assert!(
        form(r#"{"bandwidth_gb_per_s": "fast"}"#).contains("devices[1].bandwidth_gb_per_s: invalid type")
    );
    let source = form(r#"{"memory_gib": {"value": 1, "source": "rumour"}}"#);
    assert!(source.contains("devices[1].memory_gib.source: unknown variant `rumour`"), "{source}");
    assert!(
        form(r#"{"memory_gib": {"value": 1, "source": "user", "x": 1}}"#).contains("devices[1].memory_gib.x")
    );
    assert!(form(r#"{"label": "a", "label": "b"}"#).contains("duplicate field `label`"));
    assert!(form(r#"{"memory_gib": 1e999}"#).contains("devices[1].memory_gib: number out of range"));
    assert!(form(r#"{"memory_gib": NaN}"#).contains("devices[1].memory_gib"));
    assert!(form(r#"{"count": 1.5}"#).contains("devices[1].count: invalid type: floating point"));
}

#[test]
fn impossible_values_are_named_with_their_path() {
    let with = |field: &str| {
        let device = format!(
            r#"{{"label": "b", "memory_gib": 8, "bandwidth_gb_per_s": 448, "f32_tflop_per_s": 10, {field}}}"#
        );
        fails(&fleet(&format!("{SMALL}, {device}"), "")).replace("devices[1].", "")
    };
    // A duplicate field is an error of its own, so each case changes a different field.
    assert_eq!(with(r#""int8_top_per_s": -5"#), "int8_top_per_s: is -5, must be at least 0.0001");
    assert_eq!(with(r#""launch_us": -0.5"#), "launch_us: is -0.5, must be at least 0");
    assert_eq!(with(r#""stage_us": 1e300"#), "stage_us: is 1e300, must be at most 1000000");
    assert_eq!(
        with(r#""host_bandwidth_gb_per_s": 448000000000"#),
        "host_bandwidth_gb_per_s: is 448000000000, must be at most 20000; that looks like bytes per second"
    );
    assert!(with(r#""host_bandwidth_gb_per_s": 32000"#).contains("that looks like MB/s"));
    assert!(with(r#""host_bandwidth_gb_per_s": 0"#).contains("is 0, must be at least 0.001"));
    assert!(with(r#""int8_top_per_s": 4e13"#).contains("that looks like operations per second"));
    assert!(with(r#""memory_bytes": 17179869184"#).contains("memory_bytes: conflicts with memory_gib"));
    assert!(
        with(r#""pcie": {"generation": 4, "lanes": 12}"#)
            .contains("pcie: generation 4 with 12 lanes does not exist")
    );
    assert!(with(r#""pcie": {"generation": 0, "lanes": 16}"#).contains("pcie: generation 0 with 16 lanes"));
    assert!(
        with(r#""host_bandwidth_gb_per_s": 9, "pcie": {"generation": 4, "lanes": 8}"#)
            .contains("pcie: conflicts with")
    );
    let alone = |field: &str| fails(&fleet(&format!(r#"{{"label": "b", {field}}}"#), ""));
    assert!(alone(r#""memory_bytes": 16"#).contains("must be at least 67108864; that looks like GiB"));
    assert!(alone(r#""memory_gib": 17179869184"#).contains("that looks like bytes (memory_bytes)"));
    assert!(alone(r#""memory_gib": 8"#).contains("devices[0].bandwidth_gb_per_s: is missing"));
    // JSON cannot express NaN, but a program can set it.
    let mut nan = Fleet::from_json(&fleet(SMALL, "")).unwrap();
    nan.devices[0].bandwidth_gb_per_s = Some(f64::NAN.into());
    let error = nan.facts().expect_err("NaN").to_string();
    assert_eq!(error, "devices[0].bandwidth_gb_per_s: is NaN, must be at least 0.001");
}

#[test]
fn devices_are_distinct_limited_and_not_self_referential() {
    assert!(fails(&fleet("", "")).contains("devices: is empty"));
    assert!(fails(&fleet("{}", "")).contains("devices[0]: has neither label nor card"));
    let twice = fails(&fleet(&format!("{SMALL}, {SMALL}"), ""));
    assert_eq!(twice, "devices[1].label: \"small\" is used twice; first by devices[0]");
    assert!(
        fails(&fleet(r#"{"label": "a b", "card": "l4"}"#, ""))
            .contains("devices[0].label: \"a b\" is not a valid label")
    );
    assert!(fails(&fleet(r#"{"card": "l4", "count": 65}"#, "")).contains("devices[0].count: is 65"));
    assert!(fails(&fleet(r#"{"card": "l4", "count": 0}"#, "")).contains("devices[0].count: is 0"));
    let many = fails(&fleet(&vec![r#"{"card": "l4"}"#; 100].join(", "), ""));
    assert!(many.contains("devices: are 100, counts included; a fleet has 1 to 64 in all"), "{many}");
    let more = fails(&fleet(r#"{"card": "l4", "count": 40}, {"card": "t4", "count": 40}"#, ""));
    assert!(more.contains("devices: are 80, counts included"), "{more}");
    assert!(
        fails(&fleet(r#"{"card": "l44"}"#, ""))
            .contains("devices[0].card: unknown card \"l44\"; similar cards are l4")
    );
    assert!(
        fails(&fleet(r#"{"card": "l4", "through": "abacus"}"#, ""))
            .contains("devices[0].through: unknown API")
    );
    let sheet = r#"{"label": "a", "memory_gib": {"value": 8, "source": "datasheet"}, "f32_tflop_per_s": 1,
        "bandwidth_gb_per_s": {"value": 9, "source": "datasheet"}}"#;
    assert!(
        fails(&fleet(sheet, "")).contains("devices[0].through: is missing, but datasheet values need an API")
    );

    let like = |to: &str| format!(r#"{{"label": "{to}", "like": "{}"}}"#, if to == "a" { "b" } else { "a" });
    let circle = fails(&fleet(&[like("a"), like("b")].join(","), ""));
    assert!(
        circle
            .contains("devices[1].like: refers to itself: devices[0] is like devices[1] is like devices[0]"),
        "{circle}"
    );
    assert!(
        fails(&fleet(r#"{"label": "a", "like": "a"}"#, "")).contains("devices[0].like: refers to itself")
    );
    assert!(
        fails(&fleet(r#"{"label": "a", "like": "c"}"#, "")).contains("devices[0].like: there is no device")
    );
    assert!(
        fails(&fleet(r#"{"label": "a", "like": "a", "card": "l4"}"#, ""))
            .contains("devices[0].like: conflicts with card")
    );

    let more = r#"{"label": "half", "like": "small", "memory_gib": 4, "count": 2}"#;
    let (devices, _) = facts(&fleet(&format!("{more}, {SMALL}"), ""));
    assert_eq!(devices.iter().map(|d| d.label.as_str()).collect::<Vec<_>>(), ["half:0", "half:1", "small"]);
    assert_eq!((devices[0].memory_bytes, devices[2].memory_bytes), (4 << 30, 8 << 30));
    assert_eq!(devices[0].bandwidth_bytes_per_s, devices[2].bandwidth_bytes_per_s);
}

#[test]
fn links_join_two_devices_once() {
    let two = r#"{"label": "a", "card": "l4"}, {"label": "b", "card": "l4"}"#;
    let link = |links: &str| fleet(two, &format!(", \"links\": [{links}]"));
    let (_, links) = facts(&link(r#"{"from": "a", "to": "b", "latency_us": 3, "bandwidth_gb_per_s": 50}"#));
    let user = |value| Figure { value, source: FigureSource::User };
    assert_eq!(links.between("a", "b").bandwidth_bytes_per_s, user(50e9));
    assert_eq!(links.between("a", "b"), links.between("b", "a"));
    let one_way = r#"{"from": "a", "to": "b", "both_ways": false, "bandwidth_gb_per_s": 50}"#;
    let (_, links) = facts(&link(one_way));
    assert_eq!(links.between("b", "a").bandwidth_bytes_per_s.source, FigureSource::Datasheet);
    assert_ne!(links.between("a", "b"), &LinkFacts::assumed());

    let back = one_way.replace("\"a\"", "\"c\"").replace("\"b\"", "\"a\"").replace("\"c\"", "\"b\"");
    facts(&link(&format!("{one_way}, {back}")));
    let twice = fails(&link(&format!("{one_way}, {one_way}")));
    assert_eq!(twice, "links[1]: the link from a to b is given twice; first in links[0]");
    assert!(
        fails(&link(r#"{"from": "a", "to": "a", "bandwidth_gb_per_s": 1}"#))
            .contains("links[0]: links a to itself")
    );
    let unknown = fails(&link(r#"{"from": "a", "to": "c", "bandwidth_gb_per_s": 1}"#));
    assert_eq!(unknown, "links[0].to: there is no device \"c\"; there are a, b");
    assert!(
        fails(&link(r#"{"from": "a", "to": "b", "bandwidth_gb_per_s": 0}"#))
            .contains("links[0].bandwidth_gb_per_s: is 0")
    );
    assert!(fails(&link(r#"{"from": "a", "to": "b"}"#)).contains("links[0].bandwidth_gb_per_s: is missing"));

    let shared = |users: &str| {
        fleet(
            two,
            &format!(r#", "shared_links": [{{"name": "bus", "bandwidth_gb_per_s": 9, "users": [{users}]}}]"#),
        )
    };
    let (_, links) = facts(&shared(r#"["a", "b"], ["b", "a"]"#));
    assert_eq!(links.shared[0].users.len(), 2);
    assert!(fails(&shared("")).contains("shared_links[0].users: is empty"));
    assert!(
        fails(&shared(r#"["a", "x"]"#)).contains("shared_links[0].users[0][1]: there is no device \"x\"")
    );
    assert!(
        fails(&shared(r#"["a", "b"], ["a", "b"]"#))
            .contains("shared_links[0].users[1]: the link from a to b")
    );
    for (users, count) in [(r#"["a", "b", "c"]"#, 3), (r#"["a"]"#, 1), (r#"[]"#, 0)] {
        let message = fails(&shared(&format!(r#"["a", "b"], {users}"#)));
        let words = format!(
            "shared_links[0].users[1]: a user is a pair of labels, from and to; here are {count} at line 1"
        );
        assert!(message.contains(&words), "{message}");
    }
    assert!(fails(&shared(r#"["a", "a"]"#)).contains("shared_links[0].users[0]: links a to itself"));
}

/// Returns a fleet of two measured devices, one of them with a profile.
fn measured() -> Fleet {
    let profile = r#"{"ragtag_profile": 5, "measured_unix_s": 9, "timed_for": {"chunk": 128, "sequences": 1}, "stage_us": 1.1,
        "identity": {"device": "cpu", "name": "x", "driver": "", "units": 2, "together": 2, "kernels": "k", "shape": "s",
            "activations": "int8", "kv": "f16"}, "hand_over_us": 0, "host_latency_us": 0.3, "roofline": null,
        "host_bandwidth_bytes_per_s": 1e9, "token_return": {"latency_us": 7, "row_us": 0.1}, "kinds": [{"samples": [{"at":
            {"rows": 1, "sequences": 1, "positions": 32.5}, "median_us": 100.7, "spread_us": 1.3, "count": 9}], "key":
            {"kind": "block", "flops_per_row": 2, "flops_per_row_position": 1, "read_bytes": 7, "read_bytes_per_row": 1,
            "kv_bytes_per_position": 4}}]}"#;
    let profile = std::sync::Arc::new(crate::Profile::from_json(profile).unwrap());
    let assumed =
        |label| DeviceFacts::assumed(label, AdapterKind::Cpu, 3, (1 << 30) + 1, FigureSource::Reported);
    let devices = [assumed("cpu:0").with_profile(profile), assumed("cpu:1")];
    let facts = LinkFacts::fitted(ragtag_transfer::Route::Peer.into(), &[(4096, 3.3), (65536, 17.1)]);
    let (_, links) = facts_of_switch();
    let known = vec![("cpu:0".into(), "cpu:1".into(), facts)];
    let users = vec![("cpu:1".into(), "cpu:0".into())];
    let shared = links.shared.into_iter().map(|link| SharedLink { users: users.clone(), ..link }).collect();
    Fleet::of(&devices, &Links { known, shared, ..Links::default() }, Some(5 << 30))
}

fn facts_of_switch() -> (Vec<DeviceFacts>, Links) {
    facts(include_str!("../../../examples/fleets/switch.json"))
}

#[test]
fn measurements_are_read_back_unchanged() {
    let fleet = measured();
    let text = fleet.to_json();
    assert!(!text.contains("null"), "{text}");
    let read = Fleet::from_json(&text).unwrap();
    assert_eq!(read, fleet);
    let (devices, links) = read.facts().unwrap();
    let stated: Vec<_> = fleet.devices.iter().filter_map(|device| device.measured.clone()).collect();
    assert_eq!(devices, stated);
    assert_eq!(links.between("cpu:0", "cpu:1"), fleet.links[0].measured.as_ref().unwrap());
    assert_eq!(links.between("cpu:1", "cpu:0"), &LinkFacts::assumed());
    let (_, switch) = facts_of_switch();
    let rate = |links: &Links| links.shared[0].bandwidth_bytes_per_s;
    assert_eq!(rate(&links).source, rate(&switch).source);
    assert!((rate(&links).value / rate(&switch).value - 1.0).abs() < 1e-12, "{links:?}");
}

#[test]
fn values_of_the_entry_override_measurements() {
    let with = |change: &dyn Fn(&mut FleetDevice)| {
        let mut fleet = measured();
        change(&mut fleet.devices[0]);
        Fleet::from_json(&fleet.to_json()).unwrap().facts().unwrap().0.swap_remove(0)
    };
    let before = with(&|_| ());
    let half = with(&|device| device.memory_gib = Some(0.5.into()));
    let memory = (512 << 20, FigureSource::User);
    assert_eq!(half, DeviceFacts { memory_bytes: memory.0, memory_source: memory.1, ..before.clone() });
    let slow = with(&|device| device.stage_us = Some(8.0.into()));
    assert_eq!((slow.stage_us.value, &slow.profile), (8.0, &before.profile));
    // The measured times would hide these values.
    let slow = with(&|device| device.int8_top_per_s = Some(0.001.into()));
    assert_eq!((slow.fast_flops_per_s.value, &slow.profile), (1e9, &None));
    assert_eq!(slow.exact_flops_per_s, before.exact_flops_per_s);

    let mut fleet = measured();
    fleet.links[0].bandwidth_gb_per_s = Some(2.0.into());
    let (_, links) = fleet.facts().unwrap();
    let (link, measured) = (links.between("cpu:0", "cpu:1"), fleet.links[0].measured.as_ref().unwrap());
    assert_eq!((link.bandwidth_bytes_per_s.value, &link.routes), (2e9, &measured.routes));
    assert_eq!(link.latency_us, measured.latency_us);
    // Another device may be like a measured one.
    let like = FleetDevice { label: Some("b".into()), like: Some("cpu:0".into()), ..FleetDevice::default() };
    fleet.devices.push(like);
    assert_eq!(fleet.facts().unwrap().0[2].profile, before.profile);
}

#[test]
fn measurements_are_checked() {
    let text = measured().to_json();
    for (from, to, message) in [
        ("\"stage_us\": 1.1", "\"stage_us\": -1", "devices[0].measured.profile.stage_us: is out of range"),
        ("\"rows\": 1", "\"rows\": 0", "devices[0].measured.profile.kinds[0].samples[0].at: is out of range"),
        ("\"ragtag_profile\": 5", "\"ragtag_profile\": 4", "devices[0].measured.profile.ragtag_profile: is"),
        (
            "\"memory_bytes\": 1073741825",
            "\"memory_bytes\": 1073741825000000",
            "measured.memory_bytes: is out",
        ),
        ("\"route\": \"peer\"", "\"route\": {\"host-staged\": {\"depth\": 0}}", "links[0].measured.routes: "),
        ("5368709120", "536870912000000000", "host_memory_bytes: is 536870912000000000, must be at most"),
        ("\"label\": \"cpu:1\"", "\"label\": \"cpu 1\"", "devices[1].label: \"cpu 1\" is not a valid label"),
        ("\"in_host_memory\"", "\"in_host_memori\"", "devices[0].measured.in_host_memori: unknown field"),
        ("\"measured\": {", "\"card\": \"l4\", \"measured\": {", "devices[0].measured: conflicts with card"),
    ] {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(damaged, text, "{from}");
        assert!(fails(&damaged).contains(message), "{message}: {}", fails(&damaged));
    }
    let mut slow = measured();
    slow.devices[1].measured.as_mut().unwrap().bandwidth_bytes_per_s.value = f64::NAN;
    let error = slow.facts().unwrap_err().to_string();
    assert_eq!(error, "devices[1].measured.bandwidth_bytes_per_s: is out of range");
    slow = measured();
    slow.links[1].measured.as_mut().unwrap().latency_us.value = 1e300;
    assert_eq!(slow.facts().unwrap_err().to_string(), "links[1].measured.latency_us: is out of range");
    // Such a fleet would be slow to plan for.
    let mut many = measured();
    let facts = many.devices[0].measured.as_mut().unwrap();
    let mut profile = (**facts.profile.as_ref().unwrap()).clone();
    profile.kinds = vec![profile.kinds[0].clone(); (1 << 14) + 1];
    facts.profile = Some(profile.into());
    assert!(
        many.facts().unwrap_err().to_string().contains("profile.kinds (their number of samples): is out")
    );
}

#[test]
fn messages_are_short_and_without_control_characters() {
    let long = "\\u001b[2J\\\\".repeat(1000);
    for text in [
        fleet(&format!(r#"{{"{long}": 1}}"#), ""),
        fleet(&format!(r#"{{"label": "{long}", "card": "l4"}}"#), ""),
        fleet(&format!(r#"{{"card": "{long}"}}"#), ""),
        fleet(&format!(r#"{{"label": "a", "like": "{long}"}}"#), ""),
        fleet(&format!(r#"{{"card": "l4", "through": "{long}"}}"#), ""),
        fleet(
            r#"{"card": "l4"}"#,
            &format!(r#", "links": [{{"from": "{long}", "to": "a", "bandwidth_gb_per_s": 1}}]"#),
        ),
    ] {
        let message = fails(&text);
        assert!(message.len() < 1500 && !message.contains(char::is_control), "{message}");
    }
}

#[test]
fn the_library_is_sound() {
    assert!(cards().len() >= 40);
    let names: HashSet<_> = cards().iter().map(|card| card.name.as_str()).collect();
    assert_eq!(names.len(), cards().len());
    for card in cards() {
        assert!(source(&card.source).is_some(), "{}", card.name);
        assert_eq!(card.pcie.is_some(), card.kind == AdapterKind::Discrete, "{}", card.name);
        let fields = serde_json::to_value(card).unwrap();
        assert!(
            card.assumed.iter().all(|field| fields[field].is_number()),
            "{}: {:?}",
            card.name,
            card.assumed
        );
        let (devices, _) = Fleet::from_line(&card.name).and_then(|fleet| fleet.facts()).unwrap();
        let [device] = &devices[..] else { panic!("{}", card.name) };
        assert_eq!(device.nonsense(), None, "{}", card.name);
        // Values used for planning never exceed the values of the datasheet.
        assert!(device.bandwidth_bytes_per_s.value < card.bandwidth_gb_per_s * 1e9, "{}", card.name);
        assert!(device.exact_flops_per_s.value <= device.fast_flops_per_s.value, "{}", card.name);
        // A four-way dot product is eight operations. An f32 multiply-add is two.
        assert!(card.int8_top_per_s.unwrap_or(0.0) <= 4.1 * card.f32_tflop_per_s, "{}", card.name);
    }
    for (name, reached) in reached() {
        let shares = [reached.bandwidth, reached.f32, reached.int8, reached.f16_matrix.unwrap_or(0.5)];
        assert!(shares.iter().all(|share| (0.01..1.0).contains(share)), "{name}");
        assert!(!reached.why.is_empty());
    }
}

#[test]
fn truncated_files_are_refused_and_odd_lines_do_not_panic() {
    let text = include_str!("../../../examples/fleets/switch.json").trim_end();
    facts(text);
    for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
        assert!(Fleet::from_json(&text[..cut]).is_err(), "cut at {cut}");
    }
    for line in ["x", "xx", "2x", "2x-", "-x-", "+", "2x-+", "é2x-l4", "2é-l4", "١x-l4", "l4 + l4", " l4 "]
    {
        match Fleet::from_line(line) {
            Ok(fleet) => assert!(line.contains("l4") && fleet.facts().is_ok(), "{line}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

#[test]
fn names_of_adapters_find_their_cards_and_no_others() {
    let found = |name: &str, gib: u64| card_named(name, gib << 30).map(|card| card.name.as_str());
    for (name, gib, card) in [
        ("NVIDIA H200", 140, "h200"),
        ("NVIDIA H100 80GB HBM3", 79, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79, "h100-pcie"),
        ("NVIDIA A100-PCIE-40GB", 39, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 79, "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", 23, "rtx4090"),
        ("NVIDIA GeForce RTX 4090/PCIe/SSE2", 23, "rtx4090"),
        ("NVIDIA GeForce RTX 3060", 11, "rtx3060"),
        ("NVIDIA GeForce RTX 4060 Ti", 15, "rtx4060ti-16gb"),
        ("NVIDIA GeForce GTX 1060 6GB", 5, "gtx1060-6gb"),
        ("Tesla T4", 14, "t4"),
        ("NVIDIA GB10", 110, "gb10"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 24, "rx7900xtx"),
        ("AMD Radeon RX 580 Series (RADV POLARIS10)", 8, "rx580"),
        ("AMD Radeon VII (RADV VEGA20)", 16, "radeon-vii"),
        ("AMD Instinct MI250X / MI250", 64, "mi250x-die"),
        ("Intel(R) Arc(TM) A770 Graphics (DG2)", 16, "arc-a770"),
        ("Intel(R) Arc(tm) Pro B60 Graphics", 24, "arc-pro-b60"),
        ("Intel(R) UHD Graphics 770 (ADL-S GT1)", 16, "uhd-770"),
    ] {
        assert_eq!(found(name, gib), Some(card), "{name}");
    }
    for name in [
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 3060 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 2060 with Max-Q Design",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A10G",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Radeon RX 7900 GRE",
        "AMD Radeon RX 7600M XT",
        "AMD Radeon Graphics (RADV PHOENIX)",
        "Intel(R) Arc(TM) A770M Graphics (DG2)",
        "Intel(R) Arc(TM) Graphics",
        "AMD Ryzen 9 5950X 16-Core Processor",
        "llvmpipe (LLVM 15.0.7, 256 bits)",
        "gfx1100",
        "",
        "(((",
    ] {
        assert_eq!(found(name, 16), None, "{name}");
    }
}

#[test]
fn datasheet_values_are_scaled_by_api() {
    use ragtag_hal::AdapterKind;
    let facts = DeviceFacts::assumed("cuda:0", AdapterKind::Discrete, 1, 1 << 30, FigureSource::Reported);
    let facts = DeviceFacts { f16_products: true, ..facts };
    let card = card_named("NVIDIA H200", 140 << 30).unwrap();
    let scaled = with_datasheet(facts.clone(), card, "cuda");
    let figure = |value: f64| Figure { value, source: FigureSource::Datasheet };
    let near = |a: Figure, b: Figure| (a.value / b.value - 1.0).abs() < 1e-9 && a.source == b.source;
    assert!(near(scaled.bandwidth_bytes_per_s, figure(0.85 * 4800e9)), "{scaled:?}");
    assert!(near(scaled.fast_flops_per_s, figure(0.45 * 989e12)), "{scaled:?}");
    assert_eq!((scaled.label.as_str(), scaled.memory_bytes), ("cuda:0", 1 << 30));
    let without = with_datasheet(DeviceFacts { f16_products: false, ..facts.clone() }, card, "cuda");
    assert!(without.fast_flops_per_s.value < scaled.fast_flops_per_s.value, "no matrix units");
    assert_eq!(with_datasheet(facts.clone(), card, "abacus"), facts);
}

#[test]
fn reported_peaks_are_scaled_and_other_values_stay_assumed() {
    use ragtag_hal::AdapterKind;
    let facts = DeviceFacts::assumed("cuda:0", AdapterKind::Discrete, 1, 1 << 30, FigureSource::Reported);
    let with = |bandwidth, flops| with_reported_rates(facts.clone(), bandwidth, flops, true, "cuda");
    let both = with(Some(1e12), Some(1e13));
    let is = |figure: Figure, value: f64, source: FigureSource| {
        (figure.value / value - 1.0).abs() < 1e-9 && figure.source == source
    };
    assert!(is(both.bandwidth_bytes_per_s, 0.85e12, FigureSource::Reported), "{both:?}");
    assert!(is(both.exact_flops_per_s, 0.4e13, FigureSource::Reported), "{both:?}");
    assert!(is(both.fast_flops_per_s, 0.33 * 4e13, FigureSource::Reported), "{both:?}");
    let one = with(None, Some(1e13));
    assert_eq!(one.bandwidth_bytes_per_s, facts.bandwidth_bytes_per_s);
    let other = with(Some(1e12), None);
    assert_eq!(other.exact_flops_per_s, facts.exact_flops_per_s);
    assert!(is(other.fast_flops_per_s, facts.fast_flops_per_s.value, FigureSource::Assumed), "{other:?}");
    assert_eq!(with(None, None), facts);
}

/// Returns a fleet of two hosts besides the coordinator's, with one device each.
fn hosted(hosts: &str) -> Result<Fleet, InvalidFleet> {
    let device = r#""memory_gib": 8, "bandwidth_gb_per_s": 100, "f32_tflop_per_s": 1"#;
    Fleet::from_json(&format!(
        r#"{{"ragtag_fleet": 1, "devices": [
            {{"label": "own:0", {device}}}, {{"host": "a", "label": "gpu:0", {device}}},
            {{"host": "b", "label": "cpu:0", "kind": "cpu", "count": 2, {device}}}
        ], "hosts": [{hosts}]}}"#
    ))
}

#[test]
fn devices_of_other_hosts_are_linked_by_the_network() {
    let network = |to: &str, us: u32| format!(r#"{{{to} "latency_us": {us}, "bandwidth_gb_per_s": 1}}"#);
    let a = format!(r#"{{"name": "a", "networks": [{}]}}"#, network("", 100));
    let both = format!("{}, {}", network("", 200), network(r#""to": "a","#, 300));
    let fleet = hosted(&format!(r#"{a}, {{"name": "b", "memory_gib": 10, "networks": [{both}]}}"#)).unwrap();
    let (devices, links) = fleet.facts().unwrap();
    let labels: Vec<_> = devices.iter().map(|device| device.label.as_str()).collect();
    assert_eq!(labels, ["own:0", "a/gpu:0", "b/cpu:0:0", "b/cpu:0:1"]);
    // The two devices share the memory of their host.
    assert_eq!(devices[2].memory_bytes, 5 << 30);
    assert!(devices.iter().all(|device| !device.in_host_memory));
    let hosts = fleet.host_facts().unwrap();
    let of = |name: &str, memory_bytes, labels: &[&str]| HostFacts {
        name: name.into(),
        memory_bytes,
        in_host_memory: labels.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(hosts, [of("a", None, &[]), of("b", Some(10 << 30), &["b/cpu:0:0", "b/cpu:0:1"])]);
    let link = |from: &str, to: &str| links.between(from, to);
    let own_us = 2.0 * devices[0].host_latency_us.value;
    for (from, to, network_us) in [("own:0", "a/gpu:0", 100.0), ("b/cpu:0:0", "a/gpu:0", 300.0)] {
        for facts in [link(from, to), link(to, from)] {
            assert!(
                facts.latency_us.value > network_us && facts.latency_us.value <= network_us + 2.0 * own_us
            );
            assert_eq!(facts.bandwidth_bytes_per_s.value, 1e9);
        }
    }
    assert!(link("b/cpu:0:0", "b/cpu:0:1").latency_us.value < 100.0);
    // An exported fleet has the same devices and links.
    let exported = Fleet::of(&devices, &links, None);
    assert_eq!(Fleet::from_json(&exported.to_json()).unwrap().facts().unwrap(), (devices, links));
}

#[test]
fn hosts_without_a_network_or_a_name_are_errors() {
    let network = r#"{"latency_us": 1, "bandwidth_gb_per_s": 1}"#;
    let named = |name: &str| format!(r#"{{"name": "{name}", "networks": [{network}]}}"#);
    let error = |hosts: String| hosted(&hosts).unwrap_err().to_string();
    let missing = error(format!("{}, {}", named("a"), named("b")));
    assert!(missing.contains("there is no network between a and b"), "{missing}");
    assert!(error(named("a")).starts_with("devices[2].host: there is no host"), "{}", error(named("a")));
    assert!(
        error(format!("{}, {}", named("a"), named("a"))).starts_with("hosts[1].name: \"a\" is used twice")
    );
    assert!(error(named("a/b")).starts_with("hosts[0].name"));
    let far = r#"{"name": "a", "networks": [{"to": "c", "latency_us": 1, "bandwidth_gb_per_s": 1}]}"#;
    assert!(error(far.into()).starts_with("hosts[0].networks[0].to: \"c\" is not another host"));
}
