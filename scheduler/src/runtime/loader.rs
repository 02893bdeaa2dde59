//! Starts the actors' threads and waits until all of them have loaded their stages.

use crate::actor::{Actor, ActorSpec};
use crate::error::{Error, Result};
use crate::message::{DeviceAddress, DeviceUrgent, RunUrgent};
use crate::runtime::proxies::Proxies;
use crate::runtime::spec::LoadProgress;
use crate::runtime::threads::DeviceThread;
use crossbeam_channel::{Sender, bounded};
use ragtag_hal::QueueKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Starts the actors and waits until all have loaded their stages. `abort` ends loading early. After a failure, all threads have ended.
pub(super) fn start(
    (specs, proxies): (Vec<ActorSpec>, Proxies),
    addresses: &[DeviceAddress],
    total_bytes: u64,
    abort: Arc<AtomicBool>,
    progress: Arc<dyn Fn(LoadProgress) + Send + Sync>,
) -> Result<Vec<DeviceThread>> {
    let done = Arc::<AtomicU64>::default();
    let (ready, loaded) = bounded(specs.len() + proxies.hosts.len());
    let mut threads = Vec::new();
    let (mut outcome, mut expected) = (Ok(()), 0);
    for spec in specs {
        let (ready, aborted, progress) = (ready.clone(), Arc::clone(&abort), Arc::clone(&progress));
        let done = Arc::clone(&done);
        let label = spec.label.clone();
        let body = move || {
            let report = |stage: u32, bytes: u64| {
                let done_bytes = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                progress(LoadProgress { stage, done_bytes, total_bytes });
            };
            serve(spec, &aborted, &report, &ready);
        };
        outcome = outcome.and(begin(label, body, &mut threads).inspect(|()| expected += 1));
    }
    let Proxies { hosts, edges, relays, .. } = proxies;
    for host in hosts {
        let (ready, aborted, progress) = (ready.clone(), Arc::clone(&abort), Arc::clone(&progress));
        let done = Arc::clone(&done);
        let name = host.peer.name.clone();
        let body = move || {
            let report = |stage: u32, bytes: u64| {
                let done_bytes = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                progress(LoadProgress { stage, done_bytes, total_bytes });
            };
            host.serve(&aborted, &report, &ready);
        };
        outcome = outcome.and(begin(name, body, &mut threads).inspect(|()| expected += 1));
    }
    for edge in edges {
        outcome = outcome.and(begin(edge.peer.name.clone(), || edge.serve(), &mut threads));
    }
    for relay in relays {
        outcome = outcome.and(begin(relay.peers[0].name.clone(), || relay.serve(), &mut threads));
    }
    abort.fetch_or(outcome.is_err(), Ordering::Relaxed);
    // Each actor sends one result, whether or not loading succeeds.
    for result in loaded.iter().take(expected) {
        if let Err(error) = result {
            abort.store(true, Ordering::Relaxed);
            // Keep the first failure. Aborted stages, and stages whose neighbour has failed, report
            // [`Error::Stopped`].
            if matches!(outcome, Ok(()) | Err(Error::Stopped)) {
                outcome = Err(error);
            }
        }
    }
    if let Err(error) = outcome {
        addresses.iter().for_each(|address| address.send_urgent(DeviceUrgent::Stop));
        threads.into_iter().for_each(DeviceThread::end);
        return Err(error);
    }
    Ok(threads)
}

/// Starts a thread, and adds it to `threads`.
fn begin(label: String, body: impl FnOnce() + Send + 'static, threads: &mut Vec<DeviceThread>) -> Result<()> {
    threads.push(DeviceThread::spawn(label, body)?);
    Ok(())
}

/// Runs an actor's thread. A panic, for example in a weight source, ends the run like any other failure.
fn serve(
    spec: ActorSpec,
    abort: &AtomicBool,
    progress: &(dyn Fn(u32, u64) + Sync),
    ready: &Sender<Result<()>>,
) {
    let (label, run) = (spec.label.clone(), spec.run.clone());
    let timelines = QueueKind::ALL.map(|queue| spec.device.timeline(queue));
    let panicked = || Error::protocol(format!("the actor of {label} panicked"));
    let loaded = catch_unwind(AssertUnwindSafe(|| Actor::load(spec, abort, progress)));
    let actor = match loaded.unwrap_or_else(|_| Err(panicked())) {
        Ok(actor) => actor,
        Err(error) => {
            // Ignore a missing receiver.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    if catch_unwind(AssertUnwindSafe(|| actor.serve())).is_err() {
        run.send_urgent(RunUrgent::Failed(panicked()));
        let released = ragtag_hal::Error::Lost { cause: "its actor panicked".into() };
        timelines.iter().for_each(|timeline| timeline.fail(released.clone()));
    }
}
