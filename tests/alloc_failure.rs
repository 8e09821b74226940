//! Allocation failure, at every allocation in turn.
//!
//! Each test builds a heap, and then runs one operation on it again and again, each time in a
//! forked child with a copy of the same heap. The first child is refused its first allocation, the
//! second its second, and so on, until an operation needs no more. This is done twice: with one
//! refused allocation, and with all refused from that one on. After any outcome the child checks
//! that the heap is whole, and that the next collection completes the work of the first.
//!
//! A refusal still ends the process if the allocation is made inside std or another package and
//! cannot fail gracefully. The function is then in the test's list of such places, and there is no
//! other. So these lists contain all the ways in which a program without memory can die in the
//! library.

#![cfg(not(loom))]
#![allow(missing_docs, clippy::type_complexity)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use common::child::{Process, role};
use common::{Census, Fin, Node, fin, is_full, link, node, ring};
use standstill::gc_module::{CallbackInfo, DEBUG_SAVEALL, Services, Visit};
use standstill::model::{
    ClaimRef, Count, Finalizers, Live, ModelHeap, ModelMutator, Object, ObjectModel, Stopped,
    Tracer, Uncounted, Verdicts, World,
};
use standstill::safepoint::{Coordinator, Participant, StopError, ThreadId};
use standstill::{
    AnyGc, AtomicGc, AttachError, BuildError, Code, Collect, CollectionReport, Gc, GcCell, GcSlice,
    GcVec, GcWeak, GcWeakMap, Guardian, Heap, HeapBuilder, Mutator, OutOfMemory, Pacing, Stress,
    Trace,
};

// ----------------------------------------------------------------------------------- the allocator

/// The system's allocator, which can be made to refuse.
struct Refusing;

/// Allocations until the one to refuse; 0: none is refused. On all threads.
static LEFT: AtomicIsize = AtomicIsize::new(0);
/// Whether those after it are refused too.
static ALL_LATER: AtomicBool = AtomicBool::new(false);
/// The value of `ALL_LATER` at its last use.
static LASTING: AtomicBool = AtomicBool::new(false);
/// Whether any was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

fn refuses() -> bool {
    if LEFT.load(SeqCst) == 0 {
        return false;
    }
    match LEFT.fetch_sub(1, SeqCst) {
        1 => REFUSED.store(true, SeqCst),
        left if left > 1 || !ALL_LATER.load(SeqCst) => return false,
        _ => {}
    }
    // Not 0, which is the id of no thread.
    LEFT.store(if ALL_LATER.load(SeqCst) { -1 } else { 0 }, SeqCst);
    true
}

/// Refuses the allocation after `n - 1` others.
fn arm(n: usize, all_later: bool) {
    ALL_LATER.store(all_later, SeqCst);
    LASTING.store(all_later, SeqCst);
    LEFT.store(n as isize, SeqCst);
}

/// Refuses nothing any more. Returns whether an allocation was refused.
fn disarm() -> bool {
    ALL_LATER.store(false, SeqCst);
    LEFT.store(0, SeqCst);
    REFUSED.load(SeqCst)
}

// SAFETY: the system's allocator, or no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, cell: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.realloc(cell, layout, size) }
    }

    unsafe fn dealloc(&self, cell: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(cell, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

// ------------------------------------------------------------------------------------ the children

/// The exit status of a child. Details go to its standard error.
const WHOLE: i32 = 0;
const NOT_REACHED: i32 = 1;
const WRONG: i32 = 2;
const ABORTED: i32 = 3;

/// In a child that is being aborted: says from where, by addresses. To name them takes memory and
/// locks.
extern "C" fn aborted(_: libc::c_int) {
    disarm();
    let mut site = "\nsite:".to_owned();
    // SAFETY: this is the child's end, in which no other thread traces anything; if one does, it is
    // ending too.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            site += &format!(" {:x}", frame.ip() as usize);
            true
        });
        // In one go: another thread may be aborting too, and saying so.
        eprint_raw(&(site + "\n"));
        // Without anything in between.
        libc::_exit(ABORTED)
    }
}

/// The function of the library nearest to the allocation, and the package that it was made in if
/// that is another. The addresses are a forked child's, hence of the same program at the same
/// place.
fn site_of(addresses: &str, names: &mut HashMap<usize, Vec<String>>) -> String {
    let mut functions = Vec::new();
    for address in addresses.split_whitespace() {
        let address = usize::from_str_radix(address, 16).expect("an address").saturating_sub(1);
        functions.extend_from_slice(names.entry(address).or_insert_with(|| {
            let mut names = Vec::new();
            backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
                names.extend(symbol.name().map(|name| format!("{name:#}")));
            });
            names
        }));
    }
    // Functions outside of Rust have no path.
    functions.retain(|function| function.contains("::"));
    const STD: [&str; 7] =
        ["std", "core", "alloc", "hashbrown", "lock_api", "backtrace", "alloc_failure"];
    // The first word of a path: `<a::B as c::D>::e` is of `a`.
    let package = |function: &String| -> String {
        let path = function.trim_start_matches(['<', '&']);
        let end = path.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(path.len());
        if path[end..].starts_with("::") { path[..end].to_owned() } else { String::new() }
    };
    let is_foreign = |package: &String| {
        !package.is_empty() && !package.starts_with("__") && !STD.contains(&package.as_str())
    };
    let nearest = functions.iter().map(package).find(is_foreign);
    let ours = functions.iter().find(|function| function.contains("standstill::"));
    match (nearest, ours) {
        (Some(nearest), Some(ours)) if nearest == "standstill" => ours.clone(),
        (Some(nearest), Some(ours)) => format!("{ours}, in {nearest}"),
        (Some(nearest), None) => format!("in {nearest}"),
        _ => functions.join(" "),
    }
}

/// Past the test harness, which captures the output of tests.
fn eprint_raw(text: &str) {
    // SAFETY: the bytes of the text.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Runs `f` in a forked child, and returns its outcome.
fn in_child(f: impl FnOnce() -> i32) -> (i32, String) {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are made.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0, "no pipe");
    // SAFETY: the child does the work of this thread, and leaves without destructors. No other
    // thread of the process holds a lock or memory that it needs (`one_at_a_time`).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        // SAFETY: the child's output goes to the pipe. If it hangs, it is killed; if it is aborted,
        // it prints the place.
        unsafe {
            libc::dup2(ends[1], 2);
            libc::alarm(20);
            libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t);
        }
        let code = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
            disarm();
            let text = payload.downcast_ref::<String>().cloned();
            eprint_raw(
                &text
                    .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_default(),
            );
            WRONG
        });
        // SAFETY: no destructors, no output: this is a copy of a test process.
        unsafe { libc::_exit(code) };
    }
    let mut said = String::new();
    let mut status = 0;
    // SAFETY: the descriptors are this function's, and `pid` is a child of this process.
    unsafe {
        libc::close(ends[1]);
        let _ = std::fs::File::from_raw_fd(ends[0]).read_to_string(&mut said);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert!(
        libc::WIFEXITED(status),
        "the child was killed by signal {}: {said}",
        libc::WTERMSIG(status)
    );
    (libc::WEXITSTATUS(status), said)
}

/// Does `act` to copies of `start`, each time with another allocation refused, and then `check`.
/// The places where a refusal ends the process are those that contain one of `ends`, and each of
/// these is one.
///
/// Returns how many refusals there were.
fn refuse_each<S>(
    start: S,
    ends: &[&str],
    warm: impl Fn(&mut S),
    act: impl Fn(&mut S),
    check: impl Fn(S),
) -> usize {
    let mut start = Some(start);
    let (mut sites, mut names) = (BTreeMap::<String, usize>::new(), HashMap::new());
    let mut refused = [0; 2];
    for (all_later, refused) in [false, true].into_iter().zip(&mut refused) {
        for n in 1.. {
            let (code, said) = in_child(|| {
                let mut state = start.take().expect("a copy of the start");
                warm(&mut state);
                arm(n, all_later);
                act(&mut state);
                if !disarm() {
                    return NOT_REACHED;
                }
                check(state);
                WHOLE
            });
            match code {
                WHOLE => *refused += 1,
                NOT_REACHED => break,
                ABORTED if said.contains("memory allocation of") => {
                    let site =
                        said.lines().find_map(|line| line.strip_prefix("site:")).expect("a site");
                    *sites.entry(site_of(site, &mut names)).or_default() += 1;
                }
                _ => panic!("refusing allocation {n} (and all later: {all_later}): {said}"),
            }
            assert!(n < 5000, "no end of allocations");
        }
    }
    let asked = refused[0] + sites.values().sum::<usize>();
    eprintln!(
        "survived: {} single refusals, {} lasting ones; ended by: {sites:#?}",
        refused[0], refused[1]
    );
    // Some happen now and then: `?` before them says so. An optimised build inlines some functions
    // into others: `|` is between the two names.
    let is = |site: &String, end: &str| {
        end.trim_start_matches('?').split('|').any(|name| site.contains(name))
    };
    let unexpected: Vec<_> =
        sites.keys().filter(|site| !ends.iter().any(|end| is(site, end))).collect();
    assert!(unexpected.is_empty(), "a refusal ends the process in {unexpected:#?}");
    for end in ends.iter().filter(|end| !end.starts_with('?')) {
        assert!(
            sites.keys().any(|site| is(site, end)),
            "'{end}' does not end the process any more"
        );
    }
    // The parent's own copy was never touched.
    drop(start);
    asked
}

/// A child has one thread, and locks of others stay locked: so the tests of this file do not run
/// side by side.
fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

// --------------------------------------------------------------------------------------- the heaps

/// A heap with objects, and the report of a collection.
struct State {
    heap: Heap,
    m: Mutator,
    census: Arc<Census>,
    /// The handles that hold all living objects.
    kept: Vec<AnyGc>,
    /// How many objects that is.
    live: usize,
    report: Option<CollectionReport>,
    /// Collections that callbacks have heard of: how many began, and how many ended.
    told: Arc<[AtomicUsize; 2]>,
}

fn builder() -> HeapBuilder {
    Heap::builder().reserve(1 << 30).workers(1).checked(false).pacing(Pacing::manual())
}

impl State {
    fn new(builder: HeapBuilder) -> Self {
        let heap = builder.build().expect("a heap");
        heap.on_unraisable(|_| {});
        let told = Arc::<[AtomicUsize; 2]>::default();
        let tells = told.clone();
        heap.on_collection(move |event| {
            tells[usize::from(event.report().is_some())].fetch_add(1, SeqCst);
        });
        let m = heap.attach();
        Self { heap, m, census: Census::new(), kept: Vec::new(), live: 0, report: None, told }
    }

    fn collect(&mut self) {
        self.report = Some(self.m.try_collect(Collect::full()).expect("the world can be stopped"));
    }

    /// The heap is whole after any outcome of the collection. The next collection finds all
    /// garbage. When no object is kept any more, none stays.
    fn check(mut self) {
        let live = self.live;
        if let Some(report) = &self.report {
            match report.abandoned.as_deref() {
                Some(why) => {
                    assert_eq!(why, "memory ran out");
                    assert_eq!(report.collected, 0, "an abandoned collection clears nothing");
                }
                None => {
                    assert_eq!(
                        self.heap.stats().live_objects,
                        live,
                        "a collection that ends is complete"
                    );
                    assert_eq!(
                        report.uncollectable, 0,
                        "nothing that is alive was taken for garbage"
                    );
                }
            }
        }
        self.m.verify().expect("a whole heap");
        let report = self.m.try_collect(Collect::full()).expect("the world can be stopped");
        assert_eq!((report.abandoned, report.uncollectable), (None, 0));
        self.m.verify().expect("a whole heap");
        assert_eq!(self.heap.stats().live_objects, live);
        self.kept.clear();
        self.m.collect();
        assert_eq!((self.heap.stats().live_objects, self.census.alive()), (0, 0));
        let [begun, ended] = [0, 1].map(|at| self.told[at].load(SeqCst));
        assert_eq!(begun, ended, "of each collection that begins the end is told");
    }
}

/// Keeps nodes by the first of them, which leads to the others.
fn keep(state: &mut State, nodes: Vec<Gc<Node>>) {
    state.live += nodes.len();
    state.kept.extend(nodes.into_iter().next().map(AnyGc::from));
}

/// Live rings and garbage rings, a hub, and one object without counted references.
fn mixed(state: &mut State, n: usize) {
    // Garbage first: garbage that is lost when there is no memory for its counts would keep the hub
    // alive.
    let garbage = ring(&state.m, &state.census, n, n);
    let alive = ring(&state.m, &state.census, 0, n);
    // More references than a byte counts, from both sides.
    let hubs = ring(&state.m, &state.census, 2 * n, 2);
    for (alive, garbage) in alive.iter().zip(&garbage) {
        link(&state.m, alive, &hubs[0]);
        link(&state.m, garbage, &hubs[1]);
        link(&state.m, garbage, alive);
        link(&state.m, &hubs[0], alive);
        link(&state.m, &hubs[1], garbage);
    }
    // The ring of hubs is alive through the first: cut it.
    let (m, both) = (&state.m, &hubs);
    both.iter().for_each(|hub| {
        hub.edges.lock(m).retain(|to| !hubs.contains(to));
    });
    keep(state, alive);
    // The objects behind the hub: so many at once that a work list never has room for them by
    // chance.
    for name in 3 * n..4 * n {
        link(&state.m, &hubs[0], &node(&state.m, &state.census, name));
    }
    state.live += n;
    keep(state, vec![hubs[0].clone()]);
}

// ------------------------------------------------------------------------------------- collections

#[test]
fn collecting_plain_garbage() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 300);
    assert!(refuse_each(state, &[], |_| {}, State::collect, State::check) > 0);
}

type Notes = GcWeakMap<Gc<Node>, Gc<Node>>;

/// A table whose values refer to their keys, of which half are alive.
fn noted(state: &mut State, n: usize) -> Gc<Notes> {
    let notes = Notes::new(&state.m);
    for name in 0..n {
        let [key, value] = [name, n + name].map(|name| node(&state.m, &state.census, name));
        link(&state.m, &value, &key);
        notes.insert(&state.m, &key, value);
        if name % 2 == 0 {
            state.kept.push(key.into());
            state.live += 2;
        }
    }
    state.kept.push(notes.clone().into());
    state.live += 1;
    notes
}

#[test]
fn collecting_entries_of_a_table() {
    let _alone = one_at_a_time();
    for is_forked in [false, true] {
        let mut state = State::new(builder());
        drop(noted(&mut state, 100));
        let collect = |state: &mut State| {
            let report = state.m.try_collect(Collect::full().forked(is_forked));
            state.report = Some(report.expect("the world can be stopped"));
        };
        assert!(refuse_each(state, &[], |_| {}, collect, State::check) > 0);
    }
}

/// A function that is refused memory has changed nothing, and works afterwards.
#[test]
fn using_tables_and_guardians() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    let notes = noted(&mut state, 8);
    let key = node(&state.m, &state.census, 100);
    state.kept.push(key.clone().into());
    state.live += 1;
    let guardian = Guardian::<Gc<Node>>::new();
    let act =
        |(state, notes, key, guardian, done): &mut (State, Gc<Notes>, Gc<Node>, _, [bool; 5])| {
            let m = &state.m;
            let guardian: &Guardian<Gc<Node>> = guardian;
            *done = [
                notes.try_insert(m, key, key.clone()).is_ok(),
                notes.try_entries(m).is_ok(),
                Notes::try_new(m).is_ok(),
                guardian.try_register(m, key).is_ok(),
                Gc::try_finalize_with(key, m, |_, _| ()).is_ok(),
            ];
        };
    let check = |(mut state, notes, key, guardian, done): (State, Gc<Notes>, Gc<Node>, _, _)| {
        let m = &state.m;
        let guardian: Guardian<Gc<Node>> = guardian;
        let done: [bool; 5] = done;
        assert!(done.contains(&false) || !LASTING.load(SeqCst));
        assert_eq!((notes.contains(m, &key), notes.len(m)), (done[0], 8 + usize::from(done[0])));
        notes.insert(m, &key, key.clone());
        assert_eq!(notes.entries(m).len(), 9);
        notes.remove(m, &key);
        drop(notes);
        // Each registration hands the key over once.
        state.kept.pop();
        drop(key);
        let mut handed = 0;
        while guardian.next(&state.m).is_some() {
            handed += 1;
        }
        assert_eq!(handed, usize::from(done[3]));
        state.live -= 1;
        state.check();
    };
    let start = (state, notes, key, guardian, [false; 5]);
    assert!(refuse_each(start, &[], |_| {}, act, check) > 0);
}

#[test]
fn collecting_what_a_child_proposes() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 300);
    let collect = |state: &mut State| {
        let report = state.m.try_collect(Collect::full().forked(true));
        state.report = Some(report.expect("the world can be stopped"));
    };
    assert!(refuse_each(state, &[], |_| {}, collect, State::check) > 0);
}

#[test]
fn collecting_young_garbage() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    // More pages than those that cells for the next objects lie on.
    mixed(&mut state, 1000);
    let young = |state: &mut State| {
        state.report =
            Some(state.m.try_collect(Collect::young()).expect("the world can be stopped"));
    };
    let check = |mut state: State| {
        let is_abandoned = |report: &CollectionReport| report.abandoned.is_some();
        if state.report.as_ref().is_some_and(is_abandoned) {
            state.m.try_collect(Collect::young()).expect("the world can be stopped");
            let live = state.heap.stats().live_objects;
            assert_eq!(live, state.live, "the next young collection finds the garbage");
        }
        state.check();
    };
    assert!(refuse_each(state, &[], |_| {}, young, check) > 0);
}

#[test]
fn collecting_without_being_asked() {
    let _alone = one_at_a_time();
    let pacing = Pacing::default().with_young_objects(1000);
    let mut state = State::new(builder().pacing(pacing));
    mixed(&mut state, 1000);
    let pass = |state: &mut State| {
        for _ in 0..20 {
            state.m.safepoint();
        }
    };
    // Garbage to be cleared in batches is listed by thread and batch.
    assert!(refuse_each(state, &[], |_| {}, pass, State::check) > 0);
}

/// The memory that large garbage needs: removed values are kept, and dropped together.
#[test]
fn collecting_with_small_constants() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder().stress(Stress::none().small_constants(true)));
    mixed(&mut state, 100);
    assert!(refuse_each(state, &[], |_| {}, State::collect, State::check) > 0);
}

/// Refers to itself through a slot that is read without a lock. So a removed reference waits for
/// its readers.
#[derive(standstill::Trace)]
struct Slotted {
    slot: AtomicGc<Slotted>,
    #[trace(skip)]
    _witness: common::Witness,
}

#[derive(Trace)]
#[trace(label = Labelled::label)]
struct Labelled(u64, GcCell<Option<Gc<Labelled>>>);

impl Labelled {
    fn label(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "number {}", self.0)
    }
}

/// Labels are copied in the stop. Without memory there is no graph, and the world runs again.
#[test]
fn asking_for_labels() {
    let _alone = one_at_a_time();
    let heap = builder().build().expect("a heap");
    let m = heap.attach();
    let first = m.alloc(Labelled(0, GcCell::default()));
    for number in 1..20 {
        let next = m.alloc(Labelled(number, GcCell::default()));
        next.1.set(&m, first.1.replace(&m, Some(next.clone())));
    }
    let ask = |state: &mut (Mutator, Gc<Labelled>)| {
        if let Err(fault) = state.0.try_graph_with_labels() {
            assert_eq!(fault.code, Code::Memory);
        }
    };
    let check = |(mut m, first): (Mutator, Gc<Labelled>)| {
        let holders = m.graph_with_labels().holders();
        assert_eq!((holders.len(), &holders[0].label[..]), (1, "number 0"));
        m.verify().expect("a whole heap");
        drop(first);
    };
    assert!(refuse_each((m, first), &[], |_| {}, ask, check) > 0);
}

#[test]
fn collecting_with_lock_free_slots() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 20);
    let slotted = |name| Slotted {
        slot: AtomicGc::new(None),
        _witness: common::Witness::new(&state.census, name),
    };
    for name in 2000..2100 {
        let gc = state.m.alloc(slotted(name));
        gc.slot.store(&state.m, Some(gc.clone()));
    }
    let check = |mut state: State| {
        // A reference that could not be kept for later is kept for ever.
        state.m.verify().expect("a whole heap");
        for _ in 0..2 {
            let report = state.m.try_collect(Collect::full()).expect("the world can be stopped");
            assert_eq!(report.abandoned, None);
            state.m.verify().expect("a whole heap");
        }
        let lost = state
            .m
            .objects()
            .into_iter()
            .filter(|any| any.clone().downcast::<Slotted>(&state.m).is_ok())
            .count();
        assert_eq!(state.heap.stats().live_objects, state.live + lost, "nothing else is lost");
        assert!(lost <= if LASTING.load(SeqCst) { 100 } else { 1 }, "{lost} references");
    };
    assert!(refuse_each(state, &[], |_| {}, State::collect, check) > 0);
}

/// The thread hands over references that it removed from slots and that other threads may still be
/// reading. Without memory to record that, the references stay for ever, and the thread ends all
/// the same.
#[test]
fn ending_a_thread_that_has_emptied_slots() {
    let _alone = one_at_a_time();
    let heap = builder().build().expect("a heap");
    let m = heap.attach();
    let slot = AtomicGc::new(None);
    for number in 0..3u64 {
        slot.store(&m, Some(m.alloc(number)));
    }
    slot.store(&m, None);
    assert_eq!(heap.stats().live_objects, 3, "they wait");
    let check = |(heap, _): (Heap, Option<Mutator>)| {
        let mut m = heap.attach();
        m.verify().expect("a whole heap");
        assert_eq!(
            m.try_collect(Collect::full()).expect("the world can be stopped").abandoned,
            None
        );
        m.verify().expect("a whole heap");
        assert!([0, 3].contains(&heap.stats().live_objects), "all or none are lost");
    };
    let end = |state: &mut (Heap, Option<Mutator>)| drop(state.1.take());
    assert!(refuse_each((heap, Some(m)), &[], |_| {}, end, check) > 0);
}

/// References that cannot be published, or that cannot be listed to be dropped, wait for the
/// thread's next safepoint.
#[test]
fn passing_a_safepoint_after_a_slot_was_emptied() {
    let _alone = one_at_a_time();
    let heap = builder().build().expect("a heap");
    let m = heap.attach();
    let slot = AtomicGc::new(Some(m.alloc(7u64)));
    slot.store(&m, None);
    let pass = |(_, m): &mut (Heap, Mutator)| m.safepoint();
    let check = |(heap, mut m): (Heap, Mutator)| {
        assert_eq!(heap.stats().live_objects, 1);
        m.safepoint();
        assert_eq!(heap.stats().live_objects, 0);
    };
    assert_eq!(refuse_each((heap, m), &[], |_| {}, pass, check), 2);
}

/// The callbacks of the gc module are called in their order, also without memory for a copy of
/// their list.
#[test]
fn collecting_with_progress_callbacks() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 20);
    let services = state.heap.services();
    // The calls, as the digits of a number.
    let calls = Arc::new(AtomicUsize::new(0));
    for digit in 1..=3 {
        let (calls, services) = (Arc::clone(&calls), services.clone());
        services.clone().add_callback(move |_, _| {
            // No lock is held: the callback may use the list.
            assert!(!services.remove_callback(u64::MAX));
            calls.store(10 * calls.load(SeqCst) + digit, SeqCst);
        });
    }
    let check = move |state: State| {
        assert_eq!(calls.load(SeqCst), 123_123, "at the start and at the end");
        state.check();
    };
    assert!(refuse_each(state, &[], |_| {}, State::collect, check) > 0);
}

/// A callback that cannot be registered is dropped, and the callbacks are as before.
#[test]
fn registering_progress_callbacks() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 5);
    let (services, calls) = (state.heap.services(), Arc::new(AtomicUsize::new(0)));
    let add = |(_, services, calls, added): &mut (State, Services, Arc<AtomicUsize>, usize)| {
        for _ in 0..9 {
            let (calls, calling) = (Arc::clone(calls), services.clone());
            let callback = move |_, _: &CallbackInfo| {
                assert!(!calling.remove_callback(u64::MAX));
                calls.fetch_add(1, SeqCst);
            };
            *added += usize::from(services.try_add_callback(callback).is_ok());
        }
    };
    let check = |(state, _, calls, added): (State, Services, Arc<AtomicUsize>, usize)| {
        assert!(added >= if LASTING.load(SeqCst) { 0 } else { 8 });
        assert_eq!(Arc::strong_count(&calls), added + 1, "what is not registered is dropped");
        state.check();
        // `check` has collected twice.
        assert_eq!(calls.load(SeqCst), 4 * added);
    };
    // An `Arc` is allocated after as much memory was there.
    let ends = ["fallible::arc|registering_progress_callbacks"];
    assert!(refuse_each((state, services, calls, 0), &ends, |_| {}, add, check) > 0);
}

/// Garbage that cannot be saved stays garbage, and a hook is called.
#[test]
fn saving_garbage() {
    let _alone = one_at_a_time();
    let state = State::new(builder());
    let garbage = ring(&state.m, &state.census, 0, 50);
    drop(garbage);
    let services = state.heap.services();
    services.set_debug(DEBUG_SAVEALL).expect("flags");
    let lost = Arc::new(AtomicUsize::new(0));
    state.heap.on_unraisable({
        let lost = Arc::clone(&lost);
        move |what| {
            let is_lost = what.message.starts_with("no memory for the garbage list");
            lost.fetch_add(usize::from(is_lost), SeqCst);
        }
    });
    let check = move |mut state: State| {
        let report = state.report.take().expect("a collection");
        let saved = services.garbage_len(&state.m);
        let expected = match report.abandoned {
            Some(_) => (0, 0),
            None if saved == 0 => (0, 1),
            None => (50, 0),
        };
        assert_eq!((saved, lost.load(SeqCst)), expected);
        services.set_debug(0).expect("flags");
        drop(services.garbage_take(&state.m));
        state.check();
    };
    assert!(refuse_each(state, &[], |_| {}, State::collect, check) > 0);
}

/// Without memory for the guards of the model's locks there is no fork, and the locks are open.
#[test]
fn preparing_a_fork() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 20);
    let prepare = |state: &mut State| match state.m.prepare_fork() {
        Ok(fork) => fork.parent(),
        Err(error) => assert_eq!(error, StopError::NoMemory),
    };
    let check = |mut state: State| {
        prepare(&mut state);
        state.check();
    };
    assert!(refuse_each(state, &[], |_| {}, prepare, check) > 0);
}

/// Without memory for their names, the error of a stop that gives up names fewer threads.
#[test]
fn giving_up_a_stop() {
    let _alone = one_at_a_time();
    let coordinator = Coordinator::<()>::new();
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let coordinator = &coordinator;
        let late = std::thread::Builder::new().name("late".into());
        let late = late.spawn_scoped(scope, move || {
            let late = coordinator.register(());
            late.attach().expect("attached nowhere");
            tell.send(()).expect("it waits");
            ended.recv().expect_err("nothing is sent");
        });
        late.expect("a thread");
        told.recv().expect("it is attached");
        let me = coordinator.register(());
        me.attach().expect("attached nowhere");
        // A child still counts the late thread, which it does not have.
        let stop = |me: &mut Participant| {
            let stopped = me.stop_for(std::time::Duration::ZERO);
            assert!(matches!(stopped, Err(StopError::TimedOut { .. })), "{stopped:?}");
        };
        assert!(refuse_each(me, &[], |_| {}, stop, |mut me| stop(&mut me)) > 0);
        drop(end);
    });
}

#[test]
fn collecting_with_known_roots() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 200);
    let roots: Vec<_> =
        state.kept.iter().take(3).map(|root| state.heap.known_root(root.clone())).collect();
    let check = |(state, roots): (State, Vec<_>)| {
        drop(roots);
        state.check();
    };
    assert!(refuse_each((state, roots), &[], |_| {}, |s| s.0.collect(), check) > 0);
}

/// The collection begins from the roots of the one before.
#[test]
fn collecting_from_remembered_roots() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 200);
    let warm = |state: &mut State| {
        state.collect();
        mixed(state, 10);
    };
    assert!(refuse_each(state, &[], warm, State::collect, State::check) > 0);
}

#[test]
fn collecting_with_finalizers_that_resurrect() {
    let _alone = one_at_a_time();
    let state = State::new(builder());
    let shelf = Arc::new(Mutex::new(Vec::<Gc<Fin>>::with_capacity(8)));
    let members: Vec<_> = (0..40)
        .map(|name| {
            let shelf = Arc::clone(&shelf);
            fin(&state.m, &state.census, name, move |this, _| {
                if name % 10 == 0 && name < 20 {
                    shelf.lock().unwrap().push(this.clone());
                }
            })
        })
        .collect();
    // A ring that comes back as a whole, and one that does not.
    common::tie(&state.m, &members[..20]);
    common::tie(&state.m, &members[20..]);
    drop(members);
    let check = |(mut state, shelf): (State, Arc<Mutex<Vec<Gc<Fin>>>>)| {
        // The finalizers have all run, or none has.
        let finalized = state.census.finalized();
        assert!(finalized == 0 || finalized == 40, "{finalized} finalizers have run");
        state.m.verify().expect("a whole heap");
        state.collect();
        assert_eq!(state.report.as_ref().unwrap().abandoned, None);
        assert_eq!((state.census.finalized(), state.census.alive()), (40, 20));
        drop(std::mem::take(&mut *shelf.lock().unwrap()));
        state.report = None;
        state.check();
    };
    assert!(refuse_each((state, shelf), &[], |_| {}, |s| s.0.collect(), check) > 0);
}

#[test]
fn collecting_with_weak_references() {
    let _alone = one_at_a_time();
    let state = State::new(builder());
    let calls = common::Calls::new();
    let (mut weak, mut watchers) = (Vec::new(), Vec::new());
    let members: Vec<_> =
        (0..30).map(|name| fin(&state.m, &state.census, name, |_, _| {})).collect();
    common::tie(&state.m, &members);
    for member in &members {
        weak.push(Gc::downgrade(member, &state.m));
        watchers.push(common::watched(&state.m, member, &calls));
    }
    drop(members);
    let check =
        |(mut state, weak, watchers, calls): (State, Vec<_>, Vec<_>, Arc<common::Calls>)| {
            state.m.verify().expect("a whole heap");
            state.collect();
            assert_eq!(state.report.take().unwrap().abandoned, None);
            assert_eq!(state.census.alive(), 0);
            assert_eq!(
                (calls.count(), calls.saw()),
                (30, 0),
                "each callback once, and none saw its target"
            );
            for weak in &weak {
                let weak: &standstill::GcWeak<Fin> = weak;
                assert!(weak.upgrade(&state.m).is_none());
            }
            drop((weak, watchers));
            state.check();
        };
    assert!(refuse_each((state, weak, watchers, calls), &[], |_| {}, |s| s.0.collect(), check) > 0);
}

#[test]
fn collecting_objects_that_other_threads_have_dropped() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 20);
    // References that were counted for another thread wait in this one's queue: dropped elsewhere,
    // where they go below zero.
    let shared: Vec<_> = (1000..1064).map(|name| node(&state.m, &state.census, name)).collect();
    let clones: Vec<_> = shared.iter().map(Gc::clone).collect();
    let heap = state.heap.clone();
    // This thread does not detach: else the other would do its work for it.
    std::thread::spawn(move || heap.attach_scoped(|_| drop(clones))).join().expect("a thread");
    drop(shared);
    assert!(refuse_each(state, &[], |_| {}, State::collect, State::check) > 0);
}

/// A call of the pool fills its queues. If memory is short already, no call is made. Some of the
/// pool's own threads may still be starting, and a thread that waits for a lock for the first
/// time allocates a queue. rayon's queues register each thread that steals.
const PARALLEL_ENDS: [&str; 6] = [
    "Workers::call_pool_from, in rayon_core",
    "?thread_start",
    "?in rayon_core",
    "?in crossbeam_deque",
    "?in crossbeam_epoch",
    "?in parking_lot_core",
];

#[test]
fn collecting_in_parallel() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder().workers(3).serial_below(0));
    let scale = if is_full() { 1 } else { 4 };
    mixed(&mut state, 2500 / scale);
    // Long as well as wide.
    let list: Vec<_> =
        (10_000..10_000 + 3_000 / scale).map(|name| node(&state.m, &state.census, name)).collect();
    list.windows(2).for_each(|pair| link(&state.m, &pair[0], &pair[1]));
    keep(&mut state, list);
    let warm = |state: &mut State| {
        // The pool's threads are running. They are the child's: a fork takes no thread along.
        state.m.try_collect(Collect::young()).expect("the world can be stopped");
    };
    let asked = refuse_each(state, &PARALLEL_ENDS, warm, State::collect, State::check);
    assert!(asked < 1000, "{asked} requests for memory, in proportion to the length of the list");
}

// ----------------------------------------------------------------------------------- another model

/// Objects with slots, which may have finalizers of both kinds. `UNCOUNTED`: all slots but the
/// first one are uncounted, and traversals may overlap.
#[derive(Default)]
struct Slots<const UNCOUNTED: bool> {
    root: Mutex<Option<Object>>,
}

#[repr(C)]
struct Cells {
    count: AtomicUsize,
    kind: Kind,
    slots: [AtomicPtr<u8>; SLOTS],
}

const SLOTS: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    /// Has a finalizer, which does nothing.
    Final,
    /// Has a legacy finalizer, which is never called.
    Legacy,
}

fn cells<'a>(object: Object) -> &'a Cells {
    // SAFETY: objects start with this, and a caller that names one has a reference.
    unsafe { object.as_ptr().cast().as_ref() }
}

impl<const UNCOUNTED: bool> Slots<UNCOUNTED> {
    fn alloc(m: &ModelMutator<Self>, kind: Kind) -> Object {
        let cell = m.allocate(size_of::<Cells>(), 32).expect("memory");
        // SAFETY: the cell is ours, and large enough.
        unsafe {
            cell.cast().write(Cells {
                count: AtomicUsize::new(1),
                kind,
                slots: Default::default(),
            });
            m.publish(Object::new(cell), true);
        }
        Object::new(cell)
    }

    fn is_counted(slot: usize) -> bool {
        slot == 0 || !UNCOUNTED
    }

    fn link(from: Object, slot: usize, to: Object) {
        if Self::is_counted(slot) {
            cells(to).count.fetch_add(1, SeqCst);
        }
        assert!(cells(from).slots[slot].swap(to.as_ptr().as_ptr(), SeqCst).is_null());
    }

    fn drop_ref(object: Object, m: &ModelMutator<Self>) {
        if cells(object).count.fetch_sub(1, SeqCst) == 1 {
            Self::empty(object, m);
            // SAFETY: its count is 0.
            unsafe { m.free(object.as_ptr()) };
        }
    }

    fn empty(object: Object, m: &ModelMutator<Self>) {
        for (at, slot) in cells(object).slots.iter().enumerate() {
            let target = NonNull::new(slot.swap(std::ptr::null_mut(), SeqCst));
            if let Some(target) = target.filter(|_| Self::is_counted(at)) {
                Self::drop_ref(Object::new(target), m);
            }
        }
    }
}

// SAFETY: counts hold all references, lowered by attached threads alone; `drop_ref` frees, at 0;
// slots are counted, or reported as uncounted. The referents of uncounted slots die together with
// the objects that have these slots.
unsafe impl<const UNCOUNTED: bool> ObjectModel for Slots<UNCOUNTED> {
    type Addresses = standstill::model::Reserved;
    type Parts = Self;
    const OVERLAPPING_TRAVERSALS: bool = UNCOUNTED;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(cells(*object).count.load(SeqCst) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for (at, slot) in cells(*object).slots.iter().enumerate() {
            let Some(target) = NonNull::new(slot.load(SeqCst)).map(Object::new) else { continue };
            if Self::is_counted(at) {
                // SAFETY: the slot's reference is counted.
                unsafe { tracer.visit_object(target) };
            } else {
                // SAFETY: the referent of the slot is alive.
                unsafe { tracer.uncounted(target) };
            }
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        cells(*object).count.fetch_add(1, SeqCst);
    }

    fn release(&self, reference: ClaimRef, m: &ModelMutator<Self>) {
        Self::drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &ModelMutator<Self>) {
        Self::empty(*object, m);
    }
}

standstill::parts!(impl[const UNCOUNTED: bool] Slots<UNCOUNTED>: Finalizers, Verdicts, Uncounted);

impl<const UNCOUNTED: bool> Finalizers<Slots<UNCOUNTED>> for Slots<UNCOUNTED> {
    fn has_finalizer(_: &Self, object: Live<'_>) -> bool {
        cells(*object).kind == Kind::Final
    }

    fn finalize(_: &Self, _: Live<'_>, _: &ModelMutator<Self>) {}
}

impl<const UNCOUNTED: bool> Verdicts<Slots<UNCOUNTED>> for Slots<UNCOUNTED> {
    fn has_legacy(_: &Self) -> bool {
        true
    }

    fn legacy(_: &Self, object: Stopped<'_>) -> bool {
        cells(*object).kind == Kind::Legacy
    }
}

impl<const UNCOUNTED: bool> Uncounted<Slots<UNCOUNTED>> for Slots<UNCOUNTED> {
    const PRESENT: bool = UNCOUNTED;

    fn roots(
        model: &Self,
        _: &World<'_, Self>,
        _: &dyn Fn(Object) -> bool,
        report: &mut dyn FnMut(Object),
    ) {
        if let Some(root) = *model.root.lock().expect("no panic") {
            report(root);
        }
    }
}

#[test]
fn collecting_with_legacy_finalizers_and_moody_traversals() {
    let _alone = one_at_a_time();
    const RINGS: usize = 10;
    let heap = builder().build_with(Slots::<false>::default()).expect("a heap");
    let m = heap.attach();
    for _ in 0..RINGS {
        // Of each ring of three, the one with a legacy finalizer and the one that it reaches stay.
        let [plain, legacy, reached] =
            [Kind::Final, Kind::Legacy, Kind::Plain].map(|kind| Slots::<false>::alloc(&m, kind));
        for (from, slot, to) in
            [(plain, 0, legacy), (plain, 1, plain), (legacy, 0, reached), (reached, 0, legacy)]
        {
            Slots::<false>::link(from, slot, to);
        }
        [plain, legacy, reached].iter().for_each(|&object| Slots::<false>::drop_ref(object, &m));
    }
    let collect =
        |(_, m, report): &mut (_, ModelMutator<Slots<false>>, Option<CollectionReport>)| {
            *report = Some(m.try_collect(Collect::full()).expect("the world can be stopped"));
        };
    let check = |(heap, mut m, report): (
        ModelHeap<Slots<false>>,
        ModelMutator<Slots<false>>,
        Option<CollectionReport>,
    )| {
        let report = report.expect("a report");
        match report.abandoned.as_deref() {
            Some(why) => assert_eq!((why, report.collected), ("memory ran out", 0)),
            None => assert_eq!((report.collected, report.uncollectable), (RINGS, 2 * RINGS)),
        }
        let report = m.try_collect(Collect::full()).expect("the world can be stopped");
        assert_eq!((report.abandoned, report.uncollectable), (None, 2 * RINGS));
        assert_eq!(heap.stats().live_objects, 2 * RINGS);
        std::mem::forget(m);
    };
    // This heap has no hook, and its output goes into the test harness' memory.
    assert!(refuse_each((heap, m, None), &["?Hooks::unraisable_at"], |_| {}, collect, check) > 0);
}

/// Several workers mark before counting: they list targets, uncounted ones too, and give half of
/// their lists to each other.
#[test]
fn collecting_in_parallel_with_plain_marks() {
    type Plain = Slots<true>;
    let _alone = one_at_a_time();
    let (alive, garbage) = if is_full() { (6000, 500) } else { (1500, 125) };
    // The stress mode loses marks.
    let builder = builder().workers(3).serial_below(0).stress(Stress::none().yield_at_random(5));
    let heap = builder.build_with(Plain::default()).expect("a heap");
    let m = heap.attach();
    // A tree: a node refers to its first child by a counted reference, and to its second one by an
    // uncounted reference.
    let tree: Vec<Object> = (0..alive).map(|_| Plain::alloc(&m, Kind::Plain)).collect();
    for at in 1..alive {
        Plain::link(tree[(at - 1) / 2], 1 - at % 2, tree[at]);
        Plain::link(tree[at], 2, tree[at * 31 % alive]);
    }
    // Without `drop_ref`, which frees objects that only uncounted references keep.
    for &object in &tree {
        cells(object).count.fetch_sub(1, SeqCst);
    }
    *heap.model().root.lock().expect("no panic") = Some(tree[0]);
    let collect = |(_, m, report): &mut (_, ModelMutator<Plain>, Option<CollectionReport>)| {
        *report = Some(m.try_collect(Collect::full()).expect("the world can be stopped"));
    };
    let warm = |(_, m, _): &mut (_, ModelMutator<Plain>, _)| {
        // Starts the threads of the pool.
        m.try_collect(Collect::full()).expect("the world can be stopped");
        for &target in &tree[..garbage] {
            let dead = Plain::alloc(m, Kind::Plain);
            Plain::link(dead, 0, dead);
            Plain::link(dead, 1, target);
            Plain::drop_ref(dead, m);
        }
    };
    let check = |(heap, mut m, report): (
        ModelHeap<Plain>,
        ModelMutator<Plain>,
        Option<CollectionReport>,
    )| {
        let report = report.expect("a report");
        match report.abandoned.as_deref() {
            Some(why) => assert_eq!((why, report.collected), ("memory ran out", 0)),
            None => assert_eq!(report.collected, garbage),
        }
        let report = m.try_collect(Collect::full()).expect("the world can be stopped");
        assert_eq!(report.abandoned, None);
        assert_eq!(heap.stats().live_objects, alive);
        std::mem::forget(m);
    };
    assert!(refuse_each((heap, m, None), &PARALLEL_ENDS, warm, collect, check) > 0);
}

// --------------------------------------------------------------------------------- everything else

#[test]
fn allocating_objects_calls_no_other_allocator() {
    let _alone = one_at_a_time();
    let state = State::new(builder().limit(1 << 20));
    let filled: Vec<Gc<Node>> = Vec::with_capacity(100_000);
    // The type is known, as it is after its first object.
    drop(node(&state.m, &state.census, 0));
    let fill = |(state, filled): &mut (State, Vec<Gc<Node>>)| {
        while let Ok(node) = state.m.try_alloc(Node::value(&state.census, 0)) {
            filled.push(node);
        }
    };
    let check = |(state, filled): (State, Vec<Gc<Node>>)| {
        drop(filled);
        state.check();
    };
    // A heap's memory comes from the system, and goes to objects without any list.
    assert_eq!(refuse_each((state, filled), &[], |_| {}, fill, check), 0);
}

/// A value whose copies are counted.
#[derive(Trace)]
struct Token(#[trace(skip)] Arc<()>);

#[derive(Trace)]
struct Selfish {
    this: GcWeak<Selfish>,
    _token: Token,
}

/// Calls each fallible function that makes an object of a new type, or a weak reference. Returns
/// the objects, and a weak reference. A refused call returns all that it was given.
fn make_each(
    m: &Mutator,
    target: &Gc<Node>,
    token: &Arc<()>,
    made: &mut Vec<AnyGc>,
) -> Option<GcWeak<Node>> {
    static CALLBACKS: AtomicUsize = AtomicUsize::new(0);
    let new = || Token(token.clone());
    let copies = Arc::strong_count(token);
    match m.try_alloc(new()) {
        Ok(gc) => made.push(gc.into()),
        Err(error) => {
            assert_eq!(error.reason(), OutOfMemory::System);
            assert_eq!(Arc::strong_count(&error.into_inner().0), copies + 1);
        }
    }
    // Too large for a size class.
    match m.try_alloc((new(), [0u8; 100_000])) {
        Ok(gc) => made.push(gc.into()),
        Err(error) => assert_eq!(error.reason(), OutOfMemory::System),
    }
    match m.try_alloc_slice(new(), [new(), new()]) {
        Ok(slice) => made.push(GcSlice::into_any(slice)),
        Err(error) => {
            assert_eq!(error.reason(), OutOfMemory::System);
            assert_eq!(error.into_inner().1.len(), 2);
        }
    }
    let called = Cell::new(false);
    let value = |weak: &GcWeak<Selfish>| {
        called.set(true);
        assert!(weak.upgrade(m).is_none());
        Selfish { this: weak.clone(), _token: new() }
    };
    match Gc::try_new_cyclic(m, value) {
        Ok(gc) => {
            assert!(called.get() && gc.this.upgrade(m).as_ref() == Some(&gc));
            made.push(gc.into());
        }
        Err(error) => {
            assert!(!called.get());
            assert_eq!(error.reason(), OutOfMemory::System);
            // The function is the one that was passed.
            error.into_inner()(&GcWeak::new());
            assert!(called.get());
        }
    }
    let callbacks = CALLBACKS.load(SeqCst);
    let watched = m.alloc(0u64);
    let watch = m.try_alloc_weak(&watched, new(), |_, _| {
        CALLBACKS.fetch_add(1, SeqCst);
    });
    drop(watched);
    assert_eq!(CALLBACKS.load(SeqCst) - callbacks, usize::from(watch.is_ok()));
    match watch {
        Ok(weak) => made.push(weak.into()),
        Err(error) => {
            assert_eq!(error.reason(), OutOfMemory::System);
            assert_eq!(Arc::strong_count(&error.into_inner().0), Arc::strong_count(token));
        }
    }
    Gc::try_downgrade(target, m).map_err(|reason| assert_eq!(reason, OutOfMemory::System)).ok()
}

#[test]
fn making_objects_of_new_types_and_weak_references() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    let target = node(&state.m, &state.census, 0);
    keep(&mut state, vec![target.clone()]);
    drop(state.m.alloc(0u64));
    let (token, made) = (Arc::new(()), Vec::with_capacity(10));
    type Making = (State, Gc<Node>, Arc<()>, Vec<AnyGc>);
    let make = |(state, target, token, made): &mut Making| {
        drop(make_each(&state.m, target, token, made));
    };
    let check = |(state, target, token, mut made): Making| {
        // Nothing is refused any more.
        let before = made.len();
        let weak = make_each(&state.m, &target, &token, &mut made).expect("memory");
        assert_eq!(made.len(), before + 5);
        assert_eq!(state.heap.stats().live_objects, state.live + made.len());
        assert!(weak.upgrade(&state.m).as_ref() == Some(&target));
        drop((made, target));
        assert_eq!(Arc::strong_count(&token), 1);
        state.check();
    };
    assert!(refuse_each((state, target, token, made), &[], |_| {}, make, check) > 10);
}

/// A vector that the heap refuses to let grow returns the handle, and is whole.
#[test]
fn growing_vectors_of_handles() {
    let _alone = one_at_a_time();
    let start = || {
        let mut state = State::new(builder().limit(1 << 20));
        let one = node(&state.m, &state.census, 0);
        keep(&mut state, vec![one.clone()]);
        let vectors: Vec<GcVec<Node, 2>> = (0..100).map(|_| GcVec::new()).collect();
        (state, vectors, one)
    };
    let fill = |(state, vectors, one): &mut (State, Vec<GcVec<Node, 2>>, Gc<Node>)| {
        let handles = loop {
            let grown = vectors.iter_mut().map(|vector| vector.try_push(&state.m, one.clone()));
            if let Err(error) = grown.collect::<Result<(), _>>() {
                assert_eq!(error.into_inner(), *one);
                break vectors.iter().map(|vector| vector.len()).sum::<usize>();
            }
        };
        assert_eq!(Gc::strong_count(one), handles + 2);
    };
    let check = |(state, vectors, one): (State, Vec<GcVec<Node, 2>>, Gc<Node>)| {
        drop((vectors, one));
        state.check();
    };
    assert_eq!(refuse_each(start(), &[], |_| {}, fill, check), 0, "only the heap's memory");
    let mut filled = start();
    fill(&mut filled);
    check(filled);
}

/// The heap needs memory of the allocator for a large object only where it grows, and survives a
/// refusal. It needs none to drop an object.
#[test]
fn allocating_and_dropping_large_objects() {
    let _alone = one_at_a_time();
    let heap = builder().build().expect("a heap");
    let m = heap.attach();
    // Free runs of three pages, each between two objects.
    let mut kept: Vec<_> = (0..20).map(|_| m.alloc([0u8; 160_000])).collect();
    let mut number = 0;
    kept.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    kept.reserve(100);
    let churn = |(_, m, kept): &mut (Heap, Mutator, Vec<Gc<[u8; 160_000]>>)| {
        let before = kept.len();
        for _ in 0..100 {
            match m.try_alloc([1u8; 160_000]) {
                Ok(object) => kept.push(object),
                Err(error) => assert_eq!(error.reason(), OutOfMemory::System),
            }
        }
        assert!(kept.len() >= before + 10, "the free runs need no memory");
        let mut number = 0;
        kept.retain(|_| {
            number += 1;
            number % 3 == 0
        });
    };
    let check = |(heap, mut m, kept): (Heap, Mutator, Vec<Gc<[u8; 160_000]>>)| {
        m.verify().expect("a whole heap");
        assert_eq!(heap.stats().live_objects, kept.len());
        drop(kept);
        assert_eq!(heap.stats().live_objects, 0);
        m.verify().expect("a whole heap");
    };
    assert!(refuse_each((heap, m, kept), &[], |_| {}, churn, check) > 0);
}

#[test]
fn inspecting_a_heap() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    mixed(&mut state, 40);
    let services = state.heap.services();
    let target = state.kept[0].clone();
    // How many objects each call names.
    let numbers = |state: &mut State, services: &Services, target: &AnyGc| {
        let target = std::slice::from_ref(target);
        [
            services.objects(&mut state.m, None).map(|objects| objects.len()),
            services.referrers(&mut state.m, target).map(|objects| objects.len()),
            services.referents(&mut state.m, target).map(|objects| objects.len()),
            services.visit_objects(&mut state.m, |_, _| Visit::Continue),
        ]
    };
    let complete = numbers(&mut state, &services, &target).map(|answer| answer.expect("memory"));
    let look = |(state, services, target, failed): &mut (State, Services, AnyGc, usize)| {
        for (answer, complete) in numbers(state, services, target).into_iter().zip(complete) {
            match answer {
                Ok(number) => assert_eq!(number, complete),
                Err(fault) => {
                    assert_eq!(fault.code, Code::Memory);
                    *failed += 1;
                }
            }
        }
    };
    let check = |(state, services, target, _): (State, Services, AnyGc, usize)| {
        assert!(services.is_enabled());
        drop((services, target));
        state.check();
    };
    assert!(refuse_each((state, services, target, 0), &[], |_| {}, look, check) > 0);
}

/// The thread of `STANDSTILL_DIAG` says that it has no memory, and serves the next request.
#[test]
fn writing_requested_snapshots() {
    const TEST: &str = "writing_requested_snapshots";
    const VARIABLE: &str = "STANDSTILL_DIAG";
    let _alone = one_at_a_time();
    if role().is_none() {
        let folder =
            std::env::temp_dir().join(format!("standstill-refused-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let prepare = |command: &mut std::process::Command| {
            command.env(VARIABLE, &folder);
        };
        let status = Process::start(TEST, "alone", prepare).ends();
        let files = std::fs::read_dir(&folder).expect("the folder").flatten();
        let names: Vec<_> = files.map(|file| file.file_name()).collect();
        std::fs::remove_dir_all(&folder).expect("the folder");
        assert!(status.success(), "{status}");
        let is_part = |name: &OsString| name.to_string_lossy().ends_with(".part");
        return assert!(names.len() > 1 && !names.iter().any(is_part), "{names:?}");
    }
    let mut state = State::new(builder());
    mixed(&mut state, 40);
    let request = Path::new(&std::env::var_os(VARIABLE).expect("a folder")).join("snapshot");
    let mut request = std::fs::File::create(request).expect("a request");
    let mut ends = [0; 2];
    // SAFETY: two descriptors are made, and standard error is kept under another number.
    let error = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "no pipe");
        libc::dup(2)
    };
    let mut told = Vec::new();
    for all_later in [false, true] {
        let mut n = 1;
        loop {
            let mut line = [0u8; 1024];
            let length = state.m.detach(|| {
                // So that the file's time is another one.
                std::thread::sleep(std::time::Duration::from_millis(20));
                // SAFETY: the descriptors are open. Only the watching thread writes to standard
                // error meanwhile, and its line fits.
                unsafe {
                    libc::dup2(ends[1], 2);
                    arm(n, all_later);
                    request.write_all(b".").expect("a request");
                    let length = libc::read(ends[0], line.as_mut_ptr().cast(), line.len());
                    disarm();
                    libc::dup2(error, 2);
                    length
                }
            });
            let line = String::from_utf8_lossy(&line[..usize::try_from(length).expect("a line")]);
            let is_refused = REFUSED.swap(false, SeqCst);
            let is_written = line.contains("': a snapshot with ");
            assert!(is_written || is_refused && line.contains("': no snapshot "), "{n}: {line}");
            if !is_refused {
                break;
            }
            told.push(is_written);
            n += if is_full() { 1 } else { 1 + n / 2 };
        }
    }
    assert!(told.iter().filter(|is_written| !**is_written).count() > 5, "{told:?}");
    state.check();
}

#[test]
fn dropping_references() {
    let _alone = one_at_a_time();
    let mut state = State::new(builder());
    let list: Vec<_> = (0..300).map(|name| node(&state.m, &state.census, name)).collect();
    list.windows(2).for_each(|pair| link(&state.m, &pair[0], &pair[1]));
    // Most die one after the other; a few are dropped where nothing can be counted.
    let (first, deferred) = (list[0].clone(), list[200..210].to_vec());
    drop(list);
    mixed(&mut state, 5);
    let drops = |(state, first, deferred): &mut (State, Option<Gc<Node>>, Vec<Gc<Node>>)| {
        drop(first.take());
        state.m.detach(|| deferred.drain(..).for_each(drop));
        state.m.safepoint();
    };
    // A drop returns no errors. A reference that it cannot record is reported to the hook, and
    // stays for ever. A reference that dies with an object needs no record.
    let lost = Arc::new(AtomicUsize::new(0));
    state.heap.on_unraisable({
        let lost = Arc::clone(&lost);
        move |what| {
            assert!(what.message.contains("no memory"), "{what}");
            lost.fetch_add(1, SeqCst);
        }
    });
    let check = move |(mut state, ..): (State, Option<Gc<Node>>, Vec<Gc<Node>>)| {
        if lost.load(SeqCst) == 0 {
            return state.check();
        }
        assert!(lost.load(SeqCst) <= if LASTING.load(SeqCst) { 10 } else { 1 });
        let report = state.m.try_collect(Collect::full()).expect("the world can be stopped");
        assert_eq!((report.abandoned, report.uncollectable), (None, 0));
        state.m.verify().expect("a whole heap");
        // An object that stays keeps the rest of the list.
        let stay = state.heap.stats().live_objects - state.live;
        assert!((90..=100).contains(&stay), "{stay} objects");
    };
    assert!(refuse_each((state, Some(first), deferred), &[], |_| {}, drops, check) > 0);
}

#[test]
fn making_heaps_mutators_and_first_objects() {
    let _alone = one_at_a_time();
    let make = |made: &mut bool| {
        let heap = match builder().build() {
            Err(error) => {
                return assert!(
                    matches!(error, BuildError::Memory | BuildError::Reserve { .. }),
                    "{error}"
                );
            }
            Ok(heap) => heap,
        };
        let m = match heap.try_attach() {
            Err(error) => return assert_eq!(error, AttachError::Memory),
            Ok(m) => m,
        };
        match m.try_alloc(GcCell::new(0)) {
            Err(error) => assert_eq!(error.reason(), OutOfMemory::System),
            Ok(cell) => *made = Gc::try_downgrade(&cell, &m).is_ok(),
        }
    };
    // Where std counts the processors; and its `Arc`, which is asked for before, and all the same
    // may not be had.
    let ends = [
        "ModelHeap<M>>::build",
        "fallible::arc",
        "Core<M>::new",
        "Coordinator<T>::under",
        "?Coordinator<T>::try_register",
        "?teardown::teardown",
    ];
    let check = |made: bool| {
        let mut again = made;
        make(&mut again);
        assert!(again);
    };
    refuse_each(false, &ends, |_| {}, make, check);
}
