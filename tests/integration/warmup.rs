//! Tests of `Session::warmup`: it runs programs of all stages, and changes no result.

use crate::streaming::{start, tokens};
use crate::support::{Setup, block_on, devices, golden, model_path, with_prefill, within};
use ragtag::{Activations, Devices, KvType, Model, Plan, Planner, Span, SpanKind};
use std::pin::pin;
use std::task::{Context, Waker};

const MODEL: &str = "tales-q8_0";
const NEW_TOKENS: u32 = 12;

fn plan(model: &Model, found: &Devices, split: &str) -> Plan {
    let planner = Planner::new(model).devices(found).context(128).chunk(64).activations(Activations::F32);
    planner.kv(KvType::F32).split(split.parse().unwrap()).plan().unwrap()
}

#[test]
fn a_warm_up_runs_all_stages_and_changes_no_token() {
    let model = Model::open(model_path(MODEL)).unwrap();
    let found = devices(&Setup { cpu_devices: 2, ..Setup::default() });
    let plan = plan(&model, &found, "0-6=cpu:1,7-13=cpu:0");
    let case = &golden(MODEL).cases[0];
    // In the second plan, prompts from 40 tokens on go to a prefill stage.
    for plan in [plan.clone(), with_prefill(plan, "cpu:1", 40)] {
        let engine = start(&model, &found, &plan, false);
        let session = engine.session();
        block_on(session.warmup(20)).unwrap();
        let out = tokens(&session, &case.prompt_ids, NEW_TOKENS);
        assert_eq!(out, case.greedy_ids[..NEW_TOKENS as usize]);
        drop(session);
        let trace = engine.shutdown().trace;
        let is_prefill = plan.prefill_stage.is_some();
        let steps = vec![1; plan.slots as usize * if is_prefill { 2 } else { 1 }];
        let mut expected = vec![[&[20], &steps[..]].concat(); 2];
        expected.extend(is_prefill.then(|| vec![40]));
        for (stage, expected) in expected.iter().enumerate() {
            let is_own = |span: &&Span| span.stage as usize == stage && span.kind == SpanKind::Compute;
            let rows: Vec<u32> = trace.spans().iter().filter(is_own).map(|span| span.rows).collect();
            assert!(rows.starts_with(expected), "stage {stage}: {rows:?}, {expected:?}");
        }
    }
}

#[test]
fn a_cancelled_warm_up_harms_no_request() {
    let model = Model::open(model_path(MODEL)).unwrap();
    let found = devices(&Setup::default());
    let plan = plan(&model, &found, "0-13=cpu:0");
    let engine = start(&model, &found, &plan, false);
    let (session, case) = (engine.session(), &golden(MODEL).cases[0]);
    for _ in 0..8 {
        // The first poll submits the prompt. The future is then dropped.
        let mut warmup = pin!(session.warmup(100));
        assert!(warmup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let out = tokens(&session, &case.prompt_ids, NEW_TOKENS);
    assert_eq!(out, case.greedy_ids[..NEW_TOKENS as usize]);
    // The coordinator may count a cancelled prompt as active until its micro-batch returns.
    within(60, move || {
        while (engine.stats().counts.waiting, engine.stats().counts.active) != (0, 0) {
            std::thread::yield_now();
        }
    });
}
