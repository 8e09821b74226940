//! The machine on which the figures were measured.

use std::fs::read_to_string;

/// The machine in one line of Markdown: processor, cores, memory, kernel, huge pages. Facts that
/// the system does not report are left out.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = [
        Some(processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned())),
        Some(format!("{cores} core{}", if cores == 1 { "" } else { "s" })),
        memory().map(|gib| format!("{gib:.0} GiB")),
        kernel(),
        huge_pages().map(|setting| format!("huge pages: {setting}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The largest resident set of this process so far, in bytes, where the system says it.
pub fn peak_memory() -> Option<u64> {
    status("VmHWM")
}

/// The resident set of this process, in bytes, where the system says it.
pub fn resident_memory() -> Option<u64> {
    status("VmRSS")
}

fn status(name: &str) -> Option<u64> {
    let kib = field(&read_to_string("/proc/self/status").ok()?, name)?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Makes the largest resident set the present one. Where the system cannot, nothing happens.
pub fn forget_peak_memory() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Its name, and the numbers behind it: a virtual machine may tell a short name.
fn processor() -> Option<String> {
    let text = read_to_string("/proc/cpuinfo").ok()?;
    let name = field(&text, "model name")?;
    match field(&text, "cpu family").zip(field(&text, "model\t")) {
        Some((family, model)) => Some(format!("{name} (family {family}, model {model})")),
        None => Some(name),
    }
}

fn memory() -> Option<f64> {
    let kib = field(&read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    Some(kib.split_whitespace().next()?.parse::<f64>().ok()? / (1024.0 * 1024.0))
}

fn kernel() -> Option<String> {
    let release = read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("Linux {}", release.trim()))
}

/// The chosen word of `always [madvise] never`.
fn huge_pages() -> Option<String> {
    let text = read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let (_, chosen) = text.split_once('[')?;
    Some(chosen.split_once(']')?.0.to_owned())
}

/// The value behind `name:` in the first line that begins with it.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_one_line_and_names_the_cores() {
        let text = describe();
        assert!(text.contains(" core") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn fields_are_found_by_their_name() {
        let text = "VmPeak:\t  10 kB\nVmHWM:\t  2048 kB\n";
        assert_eq!(field(text, "VmHWM").as_deref(), Some("2048 kB"));
        assert_eq!(field(text, "VmRSS"), None);
    }
}
