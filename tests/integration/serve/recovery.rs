//! A server whose pipeline loses a device.

use super::{PATIENCE, Server, answer};
use crate::support::{Setup, devices};
use ragtag::{Engine, EngineOptions, Model, Planner, RecoveryNews};
use ragtag_hal::{Checked, Faults};
use ragtag_server::{Failure, Models, Offer, Options, Served};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Starts a server in this process, with a key if there is one.
fn serve(engine: Engine, model: &Model, key: Option<&str>) -> Server {
    let (sender, addresses) = channel();
    let nothing = Box::new(|| Err(Failure { message: "only once".into(), lacks_memory: false }));
    let models = Models::new(Offer::new("tale.gguf", nothing)).running(Served::new(model, engine));
    let mut options = Options::default();
    options.port = 0;
    options.keys.extend(key.map(str::to_owned));
    std::thread::spawn(move || {
        ragtag_server::serve(models, options, |url| {
            sender.send(url.strip_prefix("http://").unwrap().to_owned()).unwrap();
        })
    });
    Server { child: None, address: addresses.recv_timeout(PATIENCE).unwrap() }
}

/// Checks that streams pause while a recovery runs, and then go on, and what `/health` and the metrics say.
#[test]
fn streams_go_on_after_the_loss_of_a_device() {
    let model = Model::bundled().unwrap();
    let setup = Setup { cpu_devices: 2, ..Setup::default() };
    let planner = |devices: &_| Planner::new(&model).devices(devices).context(128).sequences(4);
    let split = |planner: Planner| planner.split("0-6=cpu:0,7-13=cpu:1".parse().unwrap());
    let lost = Mutex::new(Some(Faults { losing_submission: Some(120), ..Faults::default() }));
    let found = devices(&setup).checked_by(move |adapter, device| match adapter.label().as_str() {
        "cpu:1" if let Some(faults) = lost.lock().unwrap().take() => Checked::with_faults(device, faults),
        _ => Ok(Checked::new(device)),
    });
    let (go, wait) = channel::<()>();
    let mut options = EngineOptions::default();
    (options.max_recoveries, options.no_self_test) = (1, true);
    options.on_recovery = Some(Box::new(move |news| {
        if matches!(news, RecoveryNews::Lost { .. }) {
            let _ = wait.recv_timeout(PATIENCE);
        }
    }));
    let engine = Engine::start(&model, &found, &split(planner(&found)), options).unwrap();
    let server = serve(engine, &model, None);
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "stream": true });
    let start = || server.send("POST", "/v1/completions", "", body.to_string().as_bytes());
    let streams = [start(), start()];
    let since = Instant::now();
    let health = loop {
        let health = server.get("/health");
        if health.status == 503 || since.elapsed() > PATIENCE {
            break health;
        }
    };
    assert_eq!(health.status, 503);
    assert!(health.body.contains("recovering from a failure: stage 1 on cpu:1"), "{}", health.body);
    let late = start();
    go.send(()).unwrap();
    let text = |events: Vec<Value>| -> String {
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
    };
    let said: Vec<_> =
        streams.into_iter().chain([late]).map(|stream| text(answer(stream).events())).collect();
    let generation = ragtag::Generation { max_tokens: 60, ..ragtag::Generation::greedy() };
    let sound = devices(&setup);
    let sound = Engine::start(&model, &sound, &planner(&sound), EngineOptions::default()).unwrap();
    let expected =
        sound.session().generate("Once upon a time", &generation).unwrap().blocking_text().unwrap();
    assert_eq!(said, vec![expected; 3]);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.metric("ragtag_recoveries_total"), 1.0);
    assert_eq!(server.metric("ragtag_devices_lost_total"), 1.0);
    let again = server.post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 4 }));
    assert_eq!(again.status, 200, "{}", again.body);
}

/// Checks that only clients with a key change the devices, what they may ask for, and that streams go on.
#[test]
fn devices_change_on_request() {
    let model = Model::bundled().unwrap();
    let setup = Setup { cpu_devices: 2, ..Setup::default() };
    let start = || {
        let found = devices(&setup);
        let planner = Planner::new(&model).devices(&found).context(128).sequences(4);
        let mut options = EngineOptions::default();
        (options.max_recoveries, options.no_self_test) = (1, true);
        Engine::start(&model, &found, &planner.split("0-6=cpu:0,7-13=cpu:1".parse().unwrap()), options)
            .unwrap()
    };
    let open = serve(start(), &model, None);
    let refused = open.post("/admin/devices", &json!({ "replan": true }));
    assert!(refused.status == 403 && refused.body.contains("API key"), "{}", refused.body);

    let server = serve(start(), &model, Some("secret"));
    let key = "authorization: Bearer secret\r\n";
    let post = |path: &str, body: Value| server.send("POST", path, key, body.to_string().as_bytes());
    let change = |body: Value| answer(post("/admin/devices", body));
    assert_eq!(server.post("/admin/devices", &json!({ "replan": true })).status, 401);
    for (body, status, why) in [
        (json!({}), 400, "changes nothing"),
        (json!({ "remove": ["cuda:9"] }), 400, "cuda:9 is not selected"),
        (json!({ "add": ["cuda:9"] }), 400, "no device cuda:9"),
        (json!({ "remove": ["cpu:0", "cpu:1"] }), 400, "no device is left"),
        (json!({ "suspend": true, "resume": true }), 400, "exclude"),
        (json!({ "replan": true, "model": "other" }), 404, "other"),
        (json!({ "replan": true, "split": "0-13=cpu:0" }), 400, "split"),
    ] {
        let refused = change(body.clone());
        assert!(refused.status == status && refused.body.contains(why), "{body}: {}", refused.body);
    }
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "stream": true });
    let streams = [0; 2].map(|_| post("/v1/completions", body.clone()));
    let done = change(json!({ "remove": ["cpu:0"] }));
    assert_eq!((done.status, done.json()["devices"].clone()), (200, json!(["cpu:1"])), "{}", done.body);
    assert_eq!(change(json!({ "suspend": true })).json()["is_suspended"], true);
    assert!(server.get("/health").body.contains("suspended"));
    let late = post("/v1/completions", body);
    assert_eq!(change(json!({ "resume": true, "add": ["cpu:0"] })).status, 200);
    assert_eq!(server.get("/health").status, 200);
    let text = |events: Vec<Value>| -> String {
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
    };
    let said: Vec<_> =
        streams.into_iter().chain([late]).map(|stream| text(answer(stream).events())).collect();
    assert!(!said[0].is_empty() && said.iter().all(|text| *text == said[0]), "{said:?}");
}
