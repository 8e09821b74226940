//! Every exported function, given a wrong pointer for each of its parameters in turn, in checked
//! mode.
//!
//! The functions are those of the header (`signatures`), so that a new one is covered when it is
//! declared. Each call runs in a process of its own, made by `fork`, with a fresh heap. Its result
//! must be the one in `expected.tsv`: a report of misuse, an error, or an answer that is right for
//! such an argument. A process that dies without a word, or hangs, is a crash, and no crash is
//! expected. The functions for traverse handlers are called in one.
//!
//! To write the table anew: `POINTERS_BLESS=1 cargo test -p standstill-capi --test pointers`. Then
//! review every line that changed.

#[path = "../library/mod.rs"]
mod library;

mod cast;
mod signatures;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use cast::{Cast, wrongs};
use library::{Library, Pointer};
use libtest_mimic::{Arguments, Failed, Trial};
use signatures::{Kind, Signature};
use standstill::dynamic::{RawObject, VisitProc};
use standstill_capi::errors::{standstill_misuse, standstill_unraisable};

/// As many arguments as any function takes; a callee looks at those it knows.
type Any = unsafe extern "C" fn(Pointer, Pointer, Pointer, Pointer) -> usize;

/// A call in a process of its own: a function by its place among the signatures.
const FUNCTION: &str = "POINTERS_FUNCTION";
const LIBRARY: &str = "POINTERS_LIBRARY";
/// Seconds after which a call counts as hanging.
const LIMIT: u32 = 20;

fn main() {
    let signatures = signatures::declared();
    if let Ok(name) = std::env::var(FUNCTION) {
        let path = PathBuf::from(std::env::var_os(LIBRARY).expect("where the library is"));
        return child(
            signatures.iter().find(|signature| signature.name == name).expect("declared"),
            &path,
        );
    }
    let path = Library::build();
    let expected = Arc::new(read());
    let found = Arc::new(Mutex::new(Table::new()));
    let bless = std::env::var_os("POINTERS_BLESS").is_some();
    let mut trials: Vec<_> = signatures
        .iter()
        .map(|signature| {
            let (name, path) = (signature.name.clone(), path.clone());
            let (expected, found) = (Arc::clone(&expected), Arc::clone(&found));
            Trial::test(signature.name.clone(), move || {
                let cells = run(&name, &path);
                let difference = if bless { None } else { difference(&expected, &name, &cells) };
                found.lock().unwrap().insert(name, cells);
                difference.map_or(Ok(()), |text| Err(Failed::from(text)))
            })
        })
        .collect();
    let declared: Vec<_> = signatures.iter().map(|signature| signature.name.clone()).collect();
    trials.push(Trial::test("the header declares what the library exports", move || {
        let mut exported = signatures::exported();
        exported.sort();
        if exported == declared {
            Ok(())
        } else {
            Err(format!("{exported:?}\n{declared:?}").into())
        }
    }));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    if bless {
        write(&found.lock().unwrap());
    }
    conclusion.exit();
}

// --------------------------------------------------------------------------------------- the table

/// For each function the outcome of each argument: (parameter, argument), outcome.
type Cells = Vec<((String, String), String)>;
type Table = BTreeMap<String, Cells>;

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pointers/expected.tsv")
}

fn read() -> Table {
    let mut all = Table::new();
    for line in std::fs::read_to_string(table())
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let mut parts = line.splitn(4, '\t').map(str::to_owned);
        let mut part = || parts.next().expect("four parts");
        let (function, parameter, given, outcome) = (part(), part(), part(), part());
        all.entry(function).or_default().push(((parameter, given), outcome));
    }
    all
}

fn write(found: &Table) {
    let mut all = read();
    all.extend(found.clone());
    let mut text = String::from(
        "# function, parameter, what it is given, what comes of it; made by POINTERS_BLESS=1\n",
    );
    for (function, cells) in &all {
        for ((parameter, given), outcome) in cells {
            let _ = writeln!(text, "{function}\t{parameter}\t{given}\t{outcome}");
        }
    }
    std::fs::write(table(), text).expect("the table is written");
}

fn difference(expected: &Table, name: &str, found: &Cells) -> Option<String> {
    let none = Cells::new();
    let expected = expected.get(name).unwrap_or(&none);
    let mut text = String::new();
    for (key, outcome) in found {
        let wanted = expected
            .iter()
            .find(|(known, _)| known == key)
            .map_or("nothing", |(_, outcome)| outcome);
        if wanted != outcome {
            let _ =
                writeln!(text, "{} = {}:\n  expected {wanted}\n  found    {outcome}", key.0, key.1);
        }
    }
    if expected.len() != found.len() {
        let _ = writeln!(
            text,
            "{} cells are expected, and {} were played",
            expected.len(),
            found.len()
        );
    }
    (!text.is_empty()).then_some(text)
}

// --------------------------------------------------------------------------------------- processes

/// Plays a function's cells, in a process that has no other threads, and forks for each.
fn run(name: &str, library: &Path) -> Cells {
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .env_remove("STANDSTILL_STRESS")
        .env(FUNCTION, name)
        .env(LIBRARY, library)
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let cell = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let mut part = || parts.next().expect("three parts");
        ((part(), part()), part())
    };
    text.lines().map(cell).collect()
}

fn child(signature: &Signature, library: &Path) {
    let cells = signature.parameters.iter().enumerate().flat_map(|(at, parameter)| {
        wrongs(parameter.kind).iter().map(move |&what| (Some(at), parameter.name.as_str(), what))
    });
    for (at, parameter, what) in std::iter::once((None, "", "the right arguments")).chain(cells) {
        println!("{parameter}\t{what}\t{}", forked(|| play(signature, at, what, library)));
    }
}

/// The result of `f` in a process of its own, or the end of that process.
fn forked(f: impl FnOnce() -> String) -> String {
    let mut ends = [0; 2];
    let mut errors = [0; 2];
    std::io::stdout().flush().expect("written");
    // SAFETY: this process has one thread; the pipes' ends are closed once each.
    unsafe {
        assert_eq!((libc::pipe(ends.as_mut_ptr()), libc::pipe(errors.as_mut_ptr())), (0, 0));
        let process = libc::fork();
        assert!(process >= 0, "no process can be made");
        if process == 0 {
            libc::alarm(LIMIT);
            libc::dup2(errors[1], 2);
            let text = f();
            let _ = std::fs::File::from_raw_fd(ends[1]).write_all(text.as_bytes());
            libc::_exit(0);
        }
        libc::close(ends[1]);
        libc::close(errors[1]);
        let read = |end| {
            let mut bytes = Vec::new();
            let _ = std::fs::File::from_raw_fd(end).read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).trim().to_owned()
        };
        let (said, complained) = (read(ends[0]), read(errors[0]));
        let mut status = 0;
        libc::waitpid(process, &mut status, 0);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 && !said.is_empty() {
            return said;
        }
        let words = complained.split_whitespace().collect::<Vec<_>>().join(" ");
        match libc::WTERMSIG(status) {
            libc::SIGALRM => "crash: hangs".into(),
            libc::SIGABRT if words.starts_with("standstill: ") => {
                format!("ends the process: {}", nameless(&words))
            }
            signal => format!("crash: signal {signal}, status {status}: {:.80}", nameless(&words)),
        }
    }
}

/// Without addresses.
fn nameless(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.find("0x") {
        Some(at) => format!("{}…", &word[..at]),
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

// ---------------------------------------------------------------------------------------- one call

/// The texts of the reports since the start.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(report: *const standstill_misuse, _: Pointer) {
    // SAFETY: a report, as the hook is given them.
    let code = unsafe { CStr::from_ptr((*report).code_name) }.to_string_lossy().into_owned();
    REPORTS.lock().unwrap().push(format!("misuse {code}"));
}

unsafe extern "C" fn ignore(report: *const standstill_unraisable, _: Pointer) {
    // SAFETY: a report, as the hook is given them.
    let text = unsafe { CStr::from_ptr((*report).message) }.to_string_lossy().into_owned();
    REPORTS.lock().unwrap().push(format!("unraisable {}", nameless(&text)));
}

/// The call that the traverse handler makes, once: a function of four arguments.
static CALL: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(null_mut());
static ARGUMENTS: [AtomicPtr<std::ffi::c_void>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];
static RESULT: AtomicUsize = AtomicUsize::new(0);

fn call() {
    let function = CALL.swap(null_mut(), SeqCst);
    if function.is_null() {
        return;
    }
    let [a, b, c, d] = ARGUMENTS.each_ref().map(|argument| argument.load(SeqCst));
    // SAFETY: none: the call passes a wrong pointer to a function of the library on purpose. It
    // happens in a process of its own, whose end the test examines.
    let result = unsafe { std::mem::transmute::<Pointer, Any>(function)(a, b, c, d) };
    RESULT.store(result, SeqCst);
}

unsafe extern "C" fn traverse(_: *mut RawObject, _: VisitProc, _: Pointer) -> c_int {
    call();
    0
}

/// Calls a function with one argument wrong, or none, and returns the outcome.
fn play(signature: &Signature, wrong: Option<usize>, what: &str, path: &Path) -> String {
    let cast = Cast::new(Library::load(path));
    let library = &cast.library;
    let symbol = format!("standstill_{}", signature.name);
    // SAFETY: the functions are of these types.
    unsafe {
        let set_misuse: unsafe extern "C" fn(
            unsafe extern "C" fn(*const standstill_misuse, Pointer),
            Pointer,
        ) = library.function("standstill_set_misuse_hook");
        let set_unraisable: unsafe extern "C" fn(
            unsafe extern "C" fn(*const standstill_unraisable, Pointer),
            Pointer,
        ) = library.function("standstill_set_unraisable_hook");
        let error: unsafe extern "C" fn() -> *const c_char =
            library.function("standstill_error_message");
        let clear: unsafe extern "C" fn() = library.function("standstill_PyErr_Clear");
        let collect: unsafe extern "C" fn(c_int) -> isize =
            library.function("standstill_gc_collect");
        let attached: unsafe extern "C" fn() -> c_int = library.function("standstill_is_attached");
        clear();
        if ["PyErr_WriteUnraisable", "PyErr_ExceptionMatches"].contains(&signature.name.as_str()) {
            let set: unsafe extern "C" fn(Pointer, *const c_char) =
                library.function("standstill_PyErr_SetString");
            set(cast.exception(), c"an error".as_ptr());
        }
        set_misuse(note, null_mut());
        set_unraisable(ignore, null_mut());
        let stack = [0usize; 64];
        for (at, parameter) in signature.parameters.iter().enumerate() {
            let value = match (wrong, parameter.kind) {
                (Some(wrong), Kind::Array) if wrong == at && what == "stack" => {
                    Box::leak(Box::new([stack.as_ptr()])).as_mut_ptr().cast()
                }
                (Some(wrong), _) if wrong == at && what == "stack" => {
                    stack.as_ptr().cast_mut().cast()
                }
                (Some(wrong), kind) if wrong == at => cast.wrong(kind, what),
                _ => cast.right(signature, at),
            };
            ARGUMENTS[at].store(value, SeqCst);
        }
        let inside =
            signature.name.ends_with("_DuringGC") || signature.name == "PyObject_VisitManagedDict";
        if inside {
            let ready: unsafe extern "C" fn(Pointer) -> c_int =
                library.function("standstill_PyType_Ready");
            let new: unsafe extern "C" fn(Pointer, isize) -> Pointer =
                library.function("standstill_PyType_GenericAlloc");
            let face = cast::nosy(traverse).cast();
            assert_eq!(ready(face), 0);
            let object = new(face, 0);
            assert!(!object.is_null());
            CALL.store(library.address(&symbol), SeqCst);
            collect(2);
        } else {
            CALL.store(library.address(&symbol), SeqCst);
            call();
        }
        assert!(CALL.load(SeqCst).is_null(), "the call was never made");
        let mut told = std::mem::take(&mut *REPORTS.lock().unwrap());
        let message = error();
        if !message.is_null() {
            let text = CStr::from_ptr(message).to_string_lossy().into_owned();
            let code =
                text.rsplit_once('[').map_or("Custom", |(_, code)| code.trim_end_matches(']'));
            told.push(format!("error {code}"));
        }
        if told.is_empty() || signature.returns != "void" {
            told.push(returned(&signature.returns, RESULT.load(SeqCst)));
        }
        let outcome = told.join(", ");
        // The heap still works.
        clear();
        if attached() != 0 {
            collect(2);
            let left = std::mem::take(&mut *REPORTS.lock().unwrap());
            if !left.is_empty() && wrong.is_some() {
                return format!("{outcome}; then {}", left.join(", "));
            }
        }
        outcome
    }
}

/// The text of a result, without its address.
fn returned(returns: &str, value: usize) -> String {
    match returns {
        "void" => "nothing happens".into(),
        "int" | "PyGILState_STATE" => format!("returns {}", value as c_int),
        "long" | "long long" | "Py_ssize_t" => format!("returns {}", value as isize),
        "unsigned" | "unsigned long" | "size_t" => format!("returns {value:#x}"),
        "const char *" if value != 0 => {
            // SAFETY: a text, as the header says.
            let text = unsafe { CStr::from_ptr(value as *const c_char) };
            format!("returns {:?}", CString::from(text))
        }
        _ if value == 0 => "returns NULL".into(),
        _ => "returns an address".into(),
    }
}
