//! Progress bars on standard error, for work that takes a while.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar for loading weights: told bytes done and bytes in all. Hidden when standard error is no terminal.
pub(super) fn loading() -> Box<dyn FnMut(u64, u64) + Send> {
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template(
            "loading {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    Box::new(move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if done == total {
            bar.finish_and_clear();
        }
    })
}

/// A bar that counts steps.
pub(super) fn steps(what: &'static str, total: u64) -> ProgressBar {
    ProgressBar::new(total).with_message(what).with_style(
        ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}
