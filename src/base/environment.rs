//! Floor 0: what the environment says about heaps: `STANDSTILL_CHECKED` and `STANDSTILL_STRESS`.
//!
//! Both are read once in a process, when the first [`HeapBuilder`](crate::HeapBuilder) is made: a
//! C program may change its environment later, which is no safe moment to read it. In a process
//! that runs with more rights than its caller has (setuid, setgid, file capabilities) neither is
//! read, since the caller chose the environment.
//!
//! A variable that makes no sense is ignored as a whole, and one line on standard error says so:
//! no heap fails for it.

use std::sync::OnceLock;

use crate::base::event;
use crate::base::stress::{STRESS_VARIABLE, Stress};

/// Switches checked mode for all heaps that do not say otherwise.
const CHECKED_VARIABLE: &str = "STANDSTILL_CHECKED";

/// What the environment says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Whether checked mode is on where a program does not say; `None`: the build decides.
    pub(crate) checked: Option<bool>,
    /// Modes for every heap.
    pub(crate) stress: Stress,
}

impl Environment {
    /// What this process's environment said when it was first asked for.
    pub(crate) fn get() -> &'static Self {
        static READ: OnceLock<Environment> = OnceLock::new();
        READ.get_or_init(|| {
            if has_more_rights_than_its_caller() {
                return Self::default();
            }
            let value =
                |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
            let (this, complaints) =
                Self::of(value(CHECKED_VARIABLE).as_deref(), value(STRESS_VARIABLE).as_deref());
            for complaint in complaints {
                event::line(format_args!("standstill: {complaint}"));
            }
            this
        })
    }

    /// What these values of the two variables say, and what is wrong with them.
    fn of(checked: Option<&str>, stress: Option<&str>) -> (Self, Vec<String>) {
        let (mut this, mut complaints) = (Self::default(), Vec::new());
        match checked.map(str::to_ascii_lowercase).as_deref() {
            None | Some("") => {}
            Some("1" | "true" | "yes" | "on") => this.checked = Some(true),
            Some("0" | "false" | "no" | "off") => this.checked = Some(false),
            Some(other) => {
                complaints.push(format!("{CHECKED_VARIABLE} is `{other}`, not 0 or 1, and ignored"))
            }
        }
        match stress.unwrap_or("").parse() {
            Ok(stress) => this.stress = stress,
            Err(error) => complaints.push(format!("{error}; {STRESS_VARIABLE} is ignored")),
        }
        (this, complaints)
    }
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn has_more_rights_than_its_caller() -> bool {
    use std::ffi::c_ulong;
    /// The kernel's word on it, which covers file capabilities.
    const AT_SECURE: c_ulong = 23;
    // SAFETY: rule B: the C library's own function, of this type, which only reads.
    unsafe extern "C" {
        safe fn getauxval(kind: c_ulong) -> c_ulong;
    }
    getauxval(AT_SECURE) != 0
}

#[cfg(all(not(any(target_os = "linux", target_os = "android")), not(miri)))]
fn has_more_rights_than_its_caller() -> bool {
    use std::ffi::c_int;
    // SAFETY: rule B: the C library's own function, of this type, which only reads.
    unsafe extern "C" {
        safe fn issetugid() -> c_int;
    }
    issetugid() != 0
}

#[cfg(miri)]
fn has_more_rights_than_its_caller() -> bool {
    false
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_makes_no_sense_is_ignored_with_a_complaint() {
        let checked = |value| {
            let (read, complaints) = Environment::of(value, None);
            assert!(read.stress.is_none());
            (read.checked, complaints.len())
        };
        assert_eq!((checked(None), checked(Some(""))), ((None, 0), (None, 0)));
        for yes in ["1", "true", "TRUE", "yes", "on"] {
            assert_eq!(checked(Some(yes)), (Some(true), 0), "{yes}");
        }
        for no in ["0", "false", "False", "no", "off"] {
            assert_eq!(checked(Some(no)), (Some(false), 0), "{no}");
        }
        for odd in ["2", "-1", "ture", " 1"] {
            assert_eq!(checked(Some(odd)), (None, 1), "{odd}");
        }
        let (read, complaints) = Environment::of(Some("1"), Some("verify,poisn"));
        assert_eq!((read.checked, read.stress), (Some(true), Stress::none()));
        assert!(complaints[0].contains("poisn") && complaints[0].contains(STRESS_VARIABLE));
        let (read, complaints) = Environment::of(None, Some("verify"));
        assert_eq!((read.stress, complaints.len()), (Stress::none().verify(true), 0));
    }
}
