//! Progress bars, on a terminal only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// A bar for a phase of `steps` steps. It vanishes when the phase is over.
pub fn bar(phase: &'static str, steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:>9} {wide_bar} {percent:>3}% {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps)
        .with_style(style)
        .with_message(phase)
        .with_finish(ProgressFinish::AndClear)
}
