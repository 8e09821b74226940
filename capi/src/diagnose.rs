//! What a heap holds, who holds it, how long its collections take, and which threads delay them.
//!
//! Each answer is made first, in one stop or in none. Then C gets it row by row, while the world
//! runs, so that the program's function may use the library.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use standstill::diagnose::{Census, NoSnapshot};
use standstill::words;
use standstill::{Code, Distribution, Fault, Mutator};

use crate::call::{self, export};
use crate::errors::Text;
use crate::gc::Bound;
use crate::layout::PyObject;
use crate::{errors, thread, world};

/// `standstill_census_row` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_census_row {
    pub size: usize,
    pub r#type: *const c_char,
    pub objects: usize,
    pub bytes: usize,
    pub external_bytes: usize,
    pub old: usize,
    pub held: usize,
    pub outside: usize,
}

/// `standstill_holder` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_holder {
    pub size: usize,
    pub r#type: *const c_char,
    pub object: *const c_void,
    pub outside: usize,
    pub retained_bytes: usize,
    pub retained_objects: usize,
}

/// `standstill_path_step` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_path_step {
    pub size: usize,
    pub field: *const c_char,
    pub r#type: *const c_char,
    pub object: *const c_void,
    pub outside: usize,
}

/// `standstill_gc_times` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_gc_times {
    pub size: usize,
    pub name: *const c_char,
    pub count: u64,
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl standstill_gc_times {
    fn new(name: &Text, times: &Distribution) -> Self {
        let Distribution { count, mean, p50, p99, p999, max, .. } = *times;
        let [mean_ns, p50_ns, p99_ns, p999_ns, max_ns] =
            [mean, p50, p99, p999, max].map(|time| time.as_nanos() as u64);
        let (size, name) = (size_of::<Self>(), name.as_ptr());
        Self { size, name, count, mean_ns, p50_ns, p99_ns, p999_ns, max_ns }
    }
}

/// `standstill_thread_times` of the header.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the header describes the fields")]
pub struct standstill_thread_times {
    pub size: usize,
    pub thread: *const c_char,
    pub os_thread: u64,
    pub mark: *const c_char,
    pub attached: c_int,
    pub time_to_stop: *const standstill_gc_times,
}

/// A function of C that receives one row of an answer.
type Row<T> = unsafe extern "C" fn(*const T, *mut c_void);

impl<T> Bound<Row<T>> {
    fn pass(&self, row: &T) {
        // SAFETY: rule *argument*: the program has passed the function for this call.
        unsafe { (self.function)(row, self.arg) };
    }
}

/// Runs a function that returns a number, or -1 after a fault.
fn counted(function: &'static str, f: impl FnOnce() -> Result<usize, Fault>) -> isize {
    call::outside(function, -1, || match f() {
        Ok(count) => count as isize,
        Err(mut fault) => {
            fault.function = function;
            errors::set_fault(&fault);
            -1
        }
    })
}

/// Makes an answer by `ask`, and passes its rows on by `tell`, which returns the function's result.
fn rows<T, A>(
    function: &'static str,
    row: Option<Row<T>>,
    arg: *mut c_void,
    ask: impl FnOnce() -> Result<A, Fault>,
    tell: impl FnOnce(&Bound<Row<T>>, A) -> usize,
) -> isize {
    counted(function, || {
        let row = row.ok_or_else(|| Fault::new(Code::NullArgument, function))?;
        let answer = ask()?;
        Ok(tell(&Bound { function: row, arg }, answer))
    })
}

/// The fault of a file that could not be written. It has the words of the error's kind, because
/// std's words for the error itself need memory that may be refused.
fn unwritten(error: &io::Error) -> Fault {
    let (kind, errno) = (error.kind(), error.raw_os_error().unwrap_or_default());
    let code = if kind == io::ErrorKind::OutOfMemory { Code::Memory } else { Code::Custom };
    let text = words!("the file cannot be written: {kind} (errno {errno})");
    Fault::new(code, "standstill_snapshot").because(text)
}

export! {
    /// Counts objects and bytes by type.
    fn standstill_census(
        row: Option<unsafe extern "C" fn(*const standstill_census_row, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_census";
        let ask = || thread::exclusively(FUNCTION, Mutator::try_census)?;
        rows(FUNCTION, row, arg, ask, |row, Census { types, .. }| {
            for found in &types {
                let name = Text::new(&found.type_name);
                row.pass(&standstill_census_row {
                    size: size_of::<standstill_census_row>(),
                    r#type: name.as_ptr(),
                    objects: found.objects,
                    bytes: found.bytes,
                    external_bytes: found.external_bytes,
                    old: found.old,
                    held: found.held,
                    outside: found.outside,
                });
            }
            types.len()
        })
    }

    /// Lists the objects that are held from outside.
    fn standstill_holders(
        most: isize,
        row: Option<unsafe extern "C" fn(*const standstill_holder, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_holders";
        let ask = || {
            let most = usize::try_from(most).map_err(|_| {
                let text = words!("the largest number of holders is {most}");
                Fault::new(Code::BadSize, FUNCTION).because(text)
            })?;
            let graph = thread::exclusively(FUNCTION, Mutator::try_graph)??;
            Ok((most, graph.try_holders()?))
        };
        rows(FUNCTION, row, arg, ask, |row, (most, holders)| {
            for holder in holders.iter().take(most) {
                let name = Text::new(&holder.type_name);
                row.pass(&standstill_holder {
                    size: size_of::<standstill_holder>(),
                    r#type: name.as_ptr(),
                    object: std::ptr::without_provenance(holder.address),
                    outside: holder.outside,
                    retained_bytes: holder.retained_bytes,
                    retained_objects: holder.retained_objects,
                });
            }
            holders.len()
        })
    }

    /// Finds the shortest path to an object from one that is held from outside.
    #[given(object)]
    fn standstill_why_alive(
        object: *mut PyObject,
        step: Option<unsafe extern "C" fn(*const standstill_path_step, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_why_alive";
        let ask = || {
            let graph = thread::exclusively(FUNCTION, |m| {
                object.object(m)?;
                m.try_graph()
            })??;
            Ok(graph.try_why_alive(object.raw() as usize)?)
        };
        rows(FUNCTION, step, arg, ask, |step, path| {
            let (outside, steps) =
                path.map_or((0, Vec::new()), |path| (path.outside, path.steps));
            for (at, found) in steps.iter().enumerate() {
                let (field, name) = (Text::new(&found.field), Text::new(&found.type_name));
                let is_named = !found.field.is_empty();
                step.pass(&standstill_path_step {
                    size: size_of::<standstill_path_step>(),
                    field: if is_named { field.as_ptr() } else { std::ptr::null() },
                    r#type: name.as_ptr(),
                    object: std::ptr::without_provenance(found.address),
                    outside: if at == 0 { outside } else { 0 },
                });
            }
            steps.len()
        })
    }

    /// Passes on how long collections took.
    fn standstill_gc_get_times(
        generation: c_int,
        row: Option<unsafe extern "C" fn(*const standstill_gc_times, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_gc_get_times";
        let ask = || {
            let stats = Mutator::with_current(|m| m.heap().try_stats());
            let stats = stats.ok_or_else(|| Fault::new(Code::NotAttached, FUNCTION))??;
            match generation {
                0 | 1 => Ok(stats.young),
                2 => Ok(stats.full),
                _ => {
                    let text = words!("there is no generation {generation}");
                    Err(Fault::new(Code::BadGeneration, FUNCTION).because(text))
                }
            }
        };
        rows(FUNCTION, row, arg, ask, |row, times| {
            let tell = |name: &Text, times| row.pass(&standstill_gc_times::new(name, times));
            let named = [
                ("pause", &times.pause),
                ("time_to_stop", &times.time_to_stop),
                ("waited", &times.waited),
                ("duration", &times.duration),
            ];
            named.iter().for_each(|(name, times)| tell(&Text::new(name), times));
            for (phase, times) in &times.phases {
                tell(&Text::new(format_args!("{phase:?}")), times);
            }
            named.len() + times.phases.len()
        })
    }

    /// Passes on how late the threads were at stops.
    fn standstill_threads(
        row: Option<unsafe extern "C" fn(*const standstill_thread_times, *mut c_void)>,
        arg: *mut c_void,
    ) -> isize {
        const FUNCTION: &str = "standstill_threads";
        let ask = || {
            let threads = Mutator::with_current(|m| m.heap().try_threads());
            Ok(threads.ok_or_else(|| Fault::new(Code::NotAttached, FUNCTION))??)
        };
        rows(FUNCTION, row, arg, ask, |row, threads| {
            let time_to_stop = Text::new("time_to_stop");
            for found in &threads {
                let info = &found.thread;
                // From the system, because std has no name for a thread that C has started.
                let of_system = || errors::system_name(info.os_thread?).map(Text::new);
                let thread = info.name.as_ref().map(Text::new).or_else(of_system);
                let mark = info.mark.map(Text::new);
                let or_null = |text: &Option<Text>| {
                    text.as_ref().map_or(std::ptr::null(), Text::as_ptr)
                };
                row.pass(&standstill_thread_times {
                    size: size_of::<standstill_thread_times>(),
                    thread: or_null(&thread),
                    os_thread: info.os_thread.unwrap_or_default(),
                    mark: or_null(&mark),
                    attached: c_int::from(found.is_attached),
                    time_to_stop: &standstill_gc_times::new(&time_to_stop, &found.time_to_stop),
                });
            }
            threads.len()
        })
    }

    /// Notes what the thread is about to do.
    fn standstill_mark(at: *const c_char) {
        call::reported("standstill_mark", (), |m| {
            // SAFETY: rule *argument*: the header wants a text that lives as long as the process.
            let at: Option<&'static str> = unsafe { call::text(at)? };
            m.mark(at.unwrap_or_default());
            Ok(())
        });
    }

    /// Writes all objects and references into a file that viewers open.
    #[given(path)]
    fn standstill_snapshot(path: *const c_char) -> isize {
        const FUNCTION: &str = "standstill_snapshot";
        counted(FUNCTION, || {
            let path = path.text().ok_or_else(|| Fault::new(Code::NullArgument, FUNCTION))?;
            thread::exclusively(FUNCTION, |m| {
                let path = Path::new(OsStr::from_bytes(path.to_bytes()));
                m.try_snapshot(path).map_err(|failed| match failed {
                    NoSnapshot::Heap(fault) => fault,
                    NoSnapshot::File(error) => unwritten(&error),
                })
            })?
        })
    }

    /// Writes what lies at an address to standard error.
    fn standstill_PyObject_Dump(object: *mut PyObject) {
        // SAFETY: rule *argument*, except that the address may be no object.
        call::catching("PyObject_Dump", (), || unsafe { world::dump(object) });
    }
}
