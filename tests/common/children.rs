//! The children of this process. Apart from `mod.rs`: many tests forbid `unsafe`.

/// Ends the children of this process that run now, as the system does when memory runs out.
pub(crate) fn kill_children() {
    let me = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name, which may contain anything: the state, and then the parent.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent == Some(&me) {
            // SAFETY: it sends a signal.
            unsafe { libc::kill(id, libc::SIGKILL) };
        }
    }
}
