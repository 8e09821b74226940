//! Tests that run in a process of their own, because they end it, use up its resources, or hang.
//!
//! Such a test calls [`role`] first. Without a role it is the parent: it starts this program again
//! with [`Process::start`], which runs the same test alone, and checks how that ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Says which role a child process plays.
const ROLE: &str = "STANDSTILL_TEST_ROLE";
/// No child should take longer to say something, or to end.
fn limit() -> Duration {
    let is_long = std::env::var_os("STANDSTILL_STRESS_SECS").is_some();
    Duration::from_secs(if is_long { 600 } else { 120 })
}

/// The role of this process, if it is such a child.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs `test` in a process of its own. Returns whether this is that process.
///
/// A test that forks needs this: other tests make and end heaps at the same time, and the child
/// could inherit a lock that one of their threads holds.
pub(crate) fn is_alone(test: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let status = Process::start(test, "alone", |_| ()).ends();
    assert!(status.success(), "'{test}' in a process of its own: {status}");
    false
}

/// This program in a process of its own, which runs one test in a role. Killed when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    what: String,
    /// Prints once whether the child has found the test.
    found: mpsc::Receiver<bool>,
    since: Instant,
}

impl Process {
    /// Starts `test`, by its full name. `prepare` changes the command before that.
    pub(crate) fn start(test: &str, role: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        prepare(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, found) = mpsc::channel();
        // Ends with the child's standard output.
        std::thread::spawn(move || {
            for line in
                output.lines().map_while(Result::ok).filter(|line| line.starts_with("running "))
            {
                let _ = tell.send(line == "running 1 test");
            }
        });
        Self { child, what: format!("'{test}' in the role '{role}'"), found, since: Instant::now() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error, if `prepare` has made that a pipe.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("piped")
    }

    /// How long it may still take.
    pub(crate) fn left(&self) -> Duration {
        limit().saturating_sub(self.since.elapsed())
    }

    /// How it ends. Panics if it hangs, or if there is no such test.
    pub(crate) fn ends(mut self) -> ExitStatus {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(!self.left().is_zero(), "{} hangs", self.what);
            std::thread::sleep(Duration::from_millis(2));
        };
        let found = self.found.recv_timeout(self.left());
        assert_eq!(found, Ok(true), "{} has not run: is this its full name?", self.what);
        status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
