//! Runs async code, such as one generation on the terminal: shows the progress of the prompt, and cancels on Ctrl-C.

use super::error::{Error, Result};
use super::progress::Prefill;
use crate::{Engine, Event, Generation, Prompt, Summary};
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

/// Interval between updates of the progress bar for the prompt.
const PROGRESS_STEP: Duration = Duration::from_millis(100);

/// Generates text and passes each event to `each`. The generation is cancelled by Ctrl-C if `stops_on_ctrl_c` is set,
/// and by `each` if it returns false. A cancelled generation still finishes normally.
pub(super) async fn events(
    engine: &Engine,
    ids: &[u32],
    generation: &Generation,
    stops_on_ctrl_c: bool,
    mut each: impl FnMut(&Event) -> Result<bool>,
) -> Result<Summary> {
    // A single future for all events: dropping it could lose a signal that has arrived. The first poll registers
    // it, before the generation begins.
    let interrupt = async {
        match stops_on_ctrl_c {
            true => tokio::signal::ctrl_c().await,
            false => pending().await,
        }
    };
    tokio::pin!(interrupt);
    let mut is_interrupted =
        poll_fn(|context| Poll::Ready(interrupt.as_mut().poll(context).is_ready())).await;
    // The progress must not count the prompts of earlier generations.
    let before = engine.stats().prompt_tokens;
    let mut stream = engine.session().generate(Prompt::Tokens(ids), generation)?;
    let mut prefill = Some(Prefill::of(ids.len()));
    loop {
        let event = tokio::select! {
            event = stream.next_event() => event,
            _ = &mut interrupt, if !is_interrupted => {
                is_interrupted = true;
                stream.cancel();
                continue;
            }
            () = tokio::time::sleep(PROGRESS_STEP), if prefill.is_some() => {
                prefill.iter_mut().for_each(|bar| bar.set(engine.stats().prompt_tokens - before));
                continue;
            }
        };
        let event = event?;
        drop(prefill.take());
        if !each(&event)? {
            stream.cancel();
        }
        if let Event::Finished(summary) = event {
            return Ok(summary);
        }
    }
}

/// Runs `future` to completion on this thread.
pub(super) fn block_on<T, E>(future: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
where
    Error: From<E>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Usage(format!("cannot start the async runtime: {e}")))?;
    Ok(runtime.block_on(future)?)
}
