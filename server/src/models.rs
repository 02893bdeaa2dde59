//! Models by name. A request loads the model that it names. A model is unloaded if it idles, if another one needs its
//! memory, and after its pipeline has failed.

use crate::Error;
use crate::refusal::{Kind, Refusal};
use crate::served::Served;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex as Turn;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Interval in which a load looks for a model that can be unloaded.
const STEP: Duration = Duration::from_millis(20);
/// Time between attempts to load a model again whose pipeline has failed.
const RETRY: Duration = Duration::from_secs(10);

/// Reason why a model cannot be loaded.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The error, with its advice.
    pub message: String,
    /// Whether the model may fit after another one is unloaded.
    pub lacks_memory: bool,
}

/// Loads a model and starts its pipeline. Blocks until it can answer.
pub type Start = Box<dyn Fn() -> Result<Served, Failure> + Send + Sync>;

/// A model that the server can load.
pub struct Offer {
    names: Vec<String>,
    start: Start,
}

impl Offer {
    /// Offers the model that `start` loads. Clients may call it `name`, with and without the extension `.gguf`.
    pub fn new(name: &str, start: Start) -> Self {
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        let mut names = vec![stem.to_owned(), name.to_owned()];
        names.dedup();
        Self { names, start }
    }

    /// Adds a name. The last added one is in the answers.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.names.insert(0, name.to_owned());
        self
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The models of a server.
#[derive(Debug)]
pub struct Models {
    entries: Vec<Arc<Entry>>,
    /// Held while a model loads. Each plan needs to know the memory that is left, so models load one after another.
    turn: Arc<Turn<()>>,
    /// Number of loads that wait for models to become idle.
    waiting: AtomicUsize,
    idle: Option<Duration>,
    is_exclusive: bool,
}

#[derive(Debug)]
struct Entry {
    offer: Offer,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    served: Option<Arc<Served>>,
    /// Time of the last use.
    used: Instant,
    /// Reason why the model was not loaded again after its pipeline had failed, and the time.
    failure: Option<(String, Instant)>,
}

/// A loaded model in use.
#[derive(Debug)]
pub(crate) struct InUse {
    served: Arc<Served>,
    entry: Arc<Entry>,
}

impl Deref for InUse {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.entry.state().used = Instant::now();
    }
}

/// A load that waits for a model to become idle.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Entry {
    fn new(offer: Offer) -> Arc<Self> {
        let state = State { served: None, used: Instant::now(), failure: None };
        Arc::new(Self { offer, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self) -> &str {
        &self.offer.names[0]
    }

    /// Returns the model if it is loaded. This does not count as use.
    fn loaded(&self) -> Option<Arc<Served>> {
        self.state().served.clone()
    }

    fn get(self: &Arc<Self>) -> Option<InUse> {
        Some(InUse { served: self.loaded()?, entry: Arc::clone(self) })
    }

    /// Loads the model.
    fn start(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let served = (self.offer.start)()?;
        tracing::info!(model = self.name(), s = begun.elapsed().as_secs_f64(), "loaded");
        *self.state() = State { served: Some(Arc::new(served)), used: Instant::now(), failure: None };
        Ok(())
    }

    /// Takes the model out if no request uses it and `may` agrees.
    fn take(&self, may: impl FnOnce(&State, &Served) -> bool) -> Option<Arc<Served>> {
        let mut state = self.state();
        let served = state.served.as_ref().filter(|served| Arc::strong_count(served) == 1)?;
        if may(&state, served) { state.served.take() } else { None }
    }

    /// Returns why the model cannot answer, if it has failed or recovers from a failure.
    fn outage(&self) -> Option<String> {
        let state = self.state();
        match &state.served {
            Some(served) => served.outage(),
            None => state.failure.as_ref().map(|(reason, _)| reason.clone()),
        }
    }
}

impl Models {
    /// Offers the model that answers requests without the name of a model.
    pub fn new(offer: Offer) -> Self {
        Self {
            entries: vec![Entry::new(offer)],
            turn: Arc::default(),
            waiting: AtomicUsize::new(0),
            idle: None,
            is_exclusive: false,
        }
    }

    /// Adds a model, which the first request for it loads.
    ///
    /// # Errors
    /// [`Error::Names`] if another model has one of its names.
    pub fn offering(mut self, offer: Offer) -> Result<Self, Error> {
        let is_taken = |name: &&String| self.entries.iter().any(|entry| entry.offer.names.contains(name));
        if let Some(name) = offer.names.iter().find(is_taken) {
            return Err(Error::Names { name: name.clone() });
        }
        self.entries.push(Entry::new(offer));
        Ok(self)
    }

    /// Sets the running pipeline of the first model.
    #[must_use]
    pub fn running(self, served: Served) -> Self {
        self.entries[0].state().served = Some(Arc::new(served));
        self
    }

    /// Unloads models after this time without a request.
    #[must_use]
    pub fn unloading_after(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Unloads the other models before it loads one, for plans that use all memory.
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self.is_exclusive = true;
        self
    }

    fn find(&self, name: Option<&str>) -> Result<&Arc<Entry>, Refusal> {
        let Some(name) = name else { return Ok(&self.entries[0]) };
        let named = self.entries.iter().find(|entry| entry.offer.names.iter().any(|own| own == name));
        named.ok_or_else(|| {
            let names: Vec<_> = self.entries.iter().map(|entry| format!("{:?}", entry.name())).collect();
            let message = format!("there is no model {name:?}; this server has {}", names.join(", "));
            let refusal = Refusal { param: Some("model".into()), ..Refusal::new(Kind::NotFound, message) };
            refusal.code("model_not_found")
        })
    }

    /// Returns the first name of the model with this name, or of the first model.
    pub(crate) fn name(&self, name: Option<&str>) -> Result<&str, Refusal> {
        self.find(name).map(|entry| entry.name())
    }

    /// Returns the model with this name, or the first one, if it is loaded.
    pub(crate) fn loaded(&self, name: Option<&str>) -> Result<InUse, Refusal> {
        let entry = self.find(name)?;
        let not_loaded = || Refusal::new(Kind::NotFound, format!("{} is not loaded", entry.name()));
        entry.get().ok_or_else(not_loaded)
    }

    /// Returns the names of all models, each with the model if it is loaded.
    pub(crate) fn all(&self) -> Vec<(&str, Option<Arc<Served>>)> {
        self.entries.iter().map(|entry| (entry.name(), entry.loaded())).collect()
    }

    /// Returns the loaded model that was used last.
    pub(crate) fn latest(&self) -> Option<(&str, Arc<Served>)> {
        let loaded = self.entries.iter().filter_map(|entry| {
            let state = entry.state();
            Some((state.used, entry.name(), Arc::clone(state.served.as_ref()?)))
        });
        loaded.max_by_key(|(used, ..)| *used).map(|(_, name, served)| (name, served))
    }

    /// Returns why no model can answer, if all that were tried have failed or recover from a failure.
    pub(crate) fn outage(&self) -> Option<String> {
        let is_well = |entry: &Arc<Entry>| entry.loaded().is_some_and(|served| served.outage().is_none());
        if self.entries.iter().any(is_well) {
            return None;
        }
        self.entries.iter().find_map(|entry| entry.outage())
    }

    /// Returns the model with this name, or the first one. Loads it if necessary, and waits for memory until models that
    /// have to be unloaded have answered.
    pub(crate) async fn get(&self, name: Option<&str>) -> Result<InUse, Refusal> {
        let entry = self.find(name)?;
        // Otherwise, a busy model would never become idle for a load that waits.
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(served) = entry.get().filter(|served| served.failure().is_none())
        {
            return Ok(served);
        }
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        release(entry.take(|_, served| served.failure().is_some())).await;
        loop {
            if let Some(served) = entry.get() {
                return Ok(served);
            }
            let others = || self.entries.iter().any(|entry| entry.state().served.is_some());
            if self.is_exclusive && others() {
                self.make_room().await;
                continue;
            }
            let starting = Arc::clone(entry);
            // The thread has the turn, because it goes on loading if the request is cancelled.
            let started = spawn_blocking(move || {
                let failure = starting.start().err();
                (turn, failure)
            });
            let Ok((back, failure)) = started.await else {
                return Err(Refusal::new(Kind::Internal, "loading the model failed"));
            };
            turn = back;
            match failure {
                Some(failure) if failure.lacks_memory && others() => self.make_room().await,
                Some(failure) => {
                    let message = format!("cannot load {}: {}", entry.name(), failure.message);
                    return Err(Refusal::new(Kind::Unavailable, message));
                }
                None => {}
            }
        }
    }

    /// Unloads the idle model that was used least recently. Waits until there is one.
    async fn make_room(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        loop {
            let mut idlest: Vec<_> = self.entries.iter().filter(|entry| entry.loaded().is_some()).collect();
            if idlest.is_empty() {
                return;
            }
            idlest.sort_by_key(|entry| entry.state().used);
            if let Some(served) = idlest.into_iter().find_map(|entry| entry.take(|_, _| true)) {
                return release(Some(served)).await;
            }
            sleep(STEP).await;
        }
    }

    /// Unloads models that idle, and loads those again whose pipeline has failed.
    pub(crate) async fn tend(&self) {
        for entry in &self.entries {
            let is_idle =
                |state: &State, _: &Served| self.idle.is_some_and(|idle| state.used.elapsed() >= idle);
            release(entry.take(is_idle)).await;
            let has_failed = match &*entry.state() {
                State { served: Some(served), .. } => served.failure().is_some(),
                State { failure, .. } => failure.as_ref().is_some_and(|(_, at)| at.elapsed() >= RETRY),
            };
            if has_failed && let Err(refusal) = self.get(Some(entry.name())).await {
                tracing::warn!(cause = refusal.message, "a model is not loaded again");
                entry.state().failure = Some((refusal.message, Instant::now()));
            }
        }
    }
}

/// Stops the pipeline of a model that was taken out. This may block for seconds.
async fn release(served: Option<Arc<Served>>) {
    if let Some(served) = served {
        tracing::info!("unloading a model");
        // The thread goes on if the request is cancelled.
        let _ = spawn_blocking(move || drop(served)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_engine::{DeviceOptions, Devices, Engine, EngineOptions, Model, Planner};
    use std::sync::atomic::AtomicBool;

    fn served() -> Result<Served, ragtag_engine::Error> {
        let model = Model::bundled()?;
        let devices = Devices::probe_all(&DeviceOptions::selecting("cpu"))?;
        let planner = Planner::new(&model).devices(&devices);
        Ok(Served::new(&model, Engine::start(&model, &devices, &planner, EngineOptions::default())?))
    }

    /// Returns a model that `loads` counts. Its loads fail while `is_lost`.
    fn models(loads: &Arc<AtomicUsize>, is_lost: &Arc<AtomicBool>) -> Models {
        let (loads, is_lost) = (Arc::clone(loads), Arc::clone(is_lost));
        let start = move || {
            loads.fetch_add(1, Ordering::Relaxed);
            if is_lost.load(Ordering::Relaxed) {
                return Err(Failure { message: "no device".into(), lacks_memory: false });
            }
            served().map_err(|error| Failure { message: error.to_string(), lacks_memory: false })
        };
        Models::new(Offer::new("tale.gguf", Box::new(start)))
    }

    #[test]
    fn a_model_whose_pipeline_has_failed_is_loaded_again() {
        let (loads, is_lost) = (Arc::default(), Arc::default());
        let models = models(&loads, &is_lost);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(models.get(Some("other")).await.is_err_and(|refusal| refusal.kind == Kind::NotFound));
            let used = models.get(Some("tale")).await.unwrap();
            used.failed(&Refusal::new(Kind::Unavailable, "lost"));
            // A failed pipeline is kept while an answer uses it.
            assert_eq!(models.get(None).await.unwrap().failure(), Some("lost"));
            assert_eq!(models.outage().as_deref(), Some("lost"));
            drop(used);
            is_lost.store(true, Ordering::Relaxed);
            models.tend().await;
            assert!(models.outage().unwrap().contains("cannot load tale: no device"));
            // The next attempt without a request comes later; a request tries at once.
            models.tend().await;
            assert_eq!(loads.load(Ordering::Relaxed), 2);
            is_lost.store(false, Ordering::Relaxed);
            assert_eq!(models.get(Some("tale.gguf")).await.unwrap().failure(), None);
            assert_eq!(models.outage(), None);
        });
    }

    #[test]
    fn requests_for_one_model_load_it_once() {
        let loads = Arc::default();
        let models = Arc::new(models(&loads, &Arc::default()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cancelled = models.get(None);
            let _ = tokio::time::timeout(Duration::from_millis(1), cancelled).await;
            let all: Vec<_> = (0..4)
                .map(|_| Arc::clone(&models))
                .map(|models| tokio::spawn(async move { models.get(None).await.is_ok() }))
                .collect();
            for one in all {
                assert!(one.await.unwrap());
            }
        });
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }
}
