//! How much more memory the control group of the process may take.
//!
//! A container is a control group with a limit. If its processes take more, the system ends one of
//! them, or all. So what may take much memory, such as a child process whose pages are copied, asks
//! first. For example, the group has a limit of 1 GiB and uses 700 MiB, of which 100 MiB are files
//! that were not read for long, and that the system drops first. Then 424 MiB are left.
//!
//! Linux has two versions of these groups, with files of other names. Where memory runs out after
//! all, the system ends the process with the most points first, unless a group asks to be ended
//! whole.

#![forbid(unsafe_code)]

/// The bytes that are left below the lowest limit of the process's groups. `None`: no limit is
/// known.
pub(crate) fn memory_left() -> Option<usize> {
    if cfg!(not(any(target_os = "linux", target_os = "android"))) || cfg!(miri) {
        return None;
    }
    let mut least = None;
    each_group(|names, path| {
        least = [least, names.left(path)].into_iter().flatten().min();
    })?;
    least
}

/// Calls `f` with each group of the process, and those above. `None`: nothing is known.
fn each_group(mut f: impl FnMut(&GroupFiles, &str)) -> Option<()> {
    let mut groups = [0; 4096];
    let groups = read("/proc/self/cgroup", "", "", &mut groups)?;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next()?, fields.next()?);
        let names = match controllers {
            "" => &UNIFIED,
            _ if controllers.split(',').any(|name| name == "memory") => &MEMORY,
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            f(names, path);
            // The limits of the groups above hold too. In a container the path may be that of the
            // host, so that only its root leads to files.
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    Some(())
}

/// Whether the system ends a clone of this process that asks for it before the process itself,
/// where memory runs out. It does not if it ends the whole control group, if the process asks for
/// the same, or if the file belongs to root, as that of a process that has changed its user does.
pub(crate) fn is_clone_victim() -> bool {
    if cfg!(not(any(target_os = "linux", target_os = "android"))) || cfg!(miri) {
        return true;
    }
    let mut is_whole = false;
    _ = each_group(|names, path| {
        let mut text = [0; 64];
        is_whole |= read(names.mount, path, "/memory.oom.group", &mut text)
            .is_some_and(|text| text.trim() == "1");
    });
    let mut text = [0; 64];
    let own = read("/proc/self", ADJUSTMENT, "", &mut text).and_then(|own| own.trim().parse().ok());
    !is_whole
        && own.is_some_and(|own: i32| own < 1_000)
        && std::fs::File::options().write(true).open("/proc/self/oom_score_adj").is_ok()
}

/// The bytes that programs can get from the system before it runs out of memory.
pub(crate) fn available() -> Option<usize> {
    let mut text = [0; 4096];
    let text = read("/proc/meminfo", "", "", &mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

/// The file with the number by which a process asks to be ended sooner or later than others.
const ADJUSTMENT: &str = "/oom_score_adj";

/// The bytes of the process that are in memory.
pub(crate) fn resident() -> Option<usize> {
    let mut text = [0; 128];
    let pages: usize =
        read("/proc/self", "/statm", "", &mut text)?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * super::page_size())
}

/// Where a version of the groups tells what.
struct GroupFiles {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The line of the file `memory.stat` with the bytes of files that were not read for long.
    inactive: &'static str,
}

const UNIFIED: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup",
    limit: "/memory.max",
    usage: "/memory.current",
    inactive: "inactive_file ",
};
const MEMORY: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup/memory",
    limit: "/memory.limit_in_bytes",
    usage: "/memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};

impl GroupFiles {
    fn left(&self, group: &str) -> Option<usize> {
        let number = |name| {
            let mut text = [0; 64];
            // "max" is no number.
            read(self.mount, group, name, &mut text)?.trim().parse::<u64>().ok()
        };
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let mut text = [0; 4096];
        let inactive = read(self.mount, group, "/memory.stat", &mut text).and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix(self.inactive)?.trim().parse().ok())
        });
        left(limit, usage, inactive.unwrap_or(0))
    }
}

/// The first version shows a limit of almost 2^63 for none.
fn left(limit: u64, usage: u64, inactive: u64) -> Option<usize> {
    const NO_LIMIT: u64 = 1 << 62;
    let left = limit.saturating_sub(usage.saturating_sub(inactive));
    (limit < NO_LIMIT).then(|| usize::try_from(left).unwrap_or(usize::MAX))
}

/// The text of a file, as much as fits. It takes no memory, because a collection asks, which must
/// not end the process if there is none.
fn read<'t>(mount: &str, group: &str, name: &str, text: &'t mut [u8]) -> Option<&'t str> {
    use std::io::Read;

    let mut path = [0; 1024];
    let mut len = 0;
    for part in [mount, group, name] {
        path.get_mut(len..len + part.len())?.copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let mut file = std::fs::File::open(std::str::from_utf8(&path[..len]).ok()?).ok()?;
    let mut read = 0;
    while let Ok(more @ 1..) = file.read(&mut text[read..]) {
        read += more;
    }
    let valid = match std::str::from_utf8(&text[..read]) {
        Ok(_) => read,
        Err(error) => error.valid_up_to(),
    };
    std::str::from_utf8(&text[..valid]).ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_ignores_files_that_were_not_read_for_long() {
        assert_eq!(left(1_000, 700, 100), Some(400));
        assert_eq!(left(1_000, 2_000, 100), Some(0));
        assert_eq!(left(1_000, 50, 100), Some(1_000));
        assert_eq!(left(0x7fff_ffff_ffff_f000, 700, 0), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_knows_its_size_and_its_place_among_victims() {
        let before = resident().expect("a size");
        let memory = vec![1_u8; 64 << 20];
        assert!(resident().expect("a size") > before + (32 << 20), "{}", memory[1 << 20]);
        let mut text = [0; 64];
        let own = read("/proc/self", ADJUSTMENT, "", &mut text).map(str::trim);
        // Some groups are ended whole.
        assert!(!is_clone_victim() || own.is_some_and(|own| own != "1000"), "{own:?}");
        assert!(available().expect("a number") > 1 << 20);
    }

    #[test]
    fn long_paths_and_missing_files_are_no_text() {
        let mut text = [0; 8];
        assert_eq!(read("/proc", &"/long".repeat(300), "/name", &mut text), None);
        assert_eq!(read("/proc", "/no-such-file", "", &mut text), None);
        assert_eq!(read("/proc/self", "/status", "", &mut text).map(str::len), Some(8));
    }
}
