//! Models of the protocols, explored by loom: `ci/loom.sh`.
//!
//! One file a protocol. Each test says which mutation of the code makes it fail; a model that cannot
//! fail proves nothing.

mod collect;
mod count;
mod managed;
mod remote_free;
mod safepoint;
mod tracked;
mod turn;

/// Explores `f`. `LOOM_MAX_PREEMPTIONS` bounds the search; the default is 2.
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(2);
    }
    builder.check(f);
}
