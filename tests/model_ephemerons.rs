//! Tables with weak keys in a model of objects that know nothing of the typed face, against the
//! naive definition on random graphs; and what wrong reports of entries cause.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use common::{Rng, deadline};
use standstill::model::{
    ClaimRef, Count, Ephemeron, Ephemerons, Found, Live, ModelHeap, ModelMutator, Object,
    ObjectModel, Reserved, Stopped, Tracer, Verdict, Verdicts, WeakRefs, World,
};
use standstill::safepoint::ThreadId;
use standstill::{Collect, Heap, HeapBuilder, OutOfMemory, Pacing};

/// An object of the model, which can have entries, too.
struct Body {
    count: AtomicUsize,
    name: usize,
    /// Counted references. Attached threads lock it, so it is free in a stop.
    edges: Mutex<Vec<Object>>,
    /// How often the collector has cleared it.
    cleared: AtomicUsize,
}

/// The entry owns a counted reference to its value alone.
#[derive(Clone, Copy)]
struct Entry {
    number: usize,
    table: Object,
    key: Object,
    value: Object,
}

/// How the model reports its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Right,
    /// Each third entry is missing.
    Missing,
    /// Each third entry stands there twice.
    Twice,
    /// The key of each third entry lies outside of the heap.
    ForeignKey,
    /// Without memory for the rest.
    Refused,
}

struct Bodies {
    report: Report,
    entries: Mutex<Vec<Entry>>,
    /// The values of entries whose keys are garbage.
    void: Mutex<Vec<Object>>,
    alive: Mutex<BTreeSet<usize>>,
}

type Mutator = ModelMutator<Bodies>;

impl Bodies {
    fn heap(builder: HeapBuilder, report: Report) -> ModelHeap<Self> {
        let (entries, void, alive) = Default::default();
        let model = Self { report, entries, void, alive };
        builder.pacing(Pacing::manual()).build_with(model).expect("a heap")
    }

    fn body(&self, object: Object) -> &Body {
        // SAFETY: every object of this heap is a body. The caller holds a reference to it, or is
        // the collector, which names live objects only.
        unsafe { object.as_ptr().cast().as_ref() }
    }

    /// A new body, and the one reference to it.
    fn new_body(m: &Mutator, name: usize) -> Object {
        let cell = m.allocate(size_of::<Body>(), align_of::<Body>()).expect("memory");
        let (count, cleared) = (AtomicUsize::new(1), AtomicUsize::new(0));
        // SAFETY: the cell is fresh, of this size and alignment; it holds a body before the
        // collector can reach it.
        unsafe {
            cell.cast::<Body>().write(Body { count, name, edges: Mutex::default(), cleared });
            m.publish(Object::new(cell), true);
        }
        m.model().alive.lock().unwrap().insert(name);
        Object::new(cell)
    }

    fn retain(&self, object: Object) -> Object {
        self.body(object).count.fetch_add(1, Relaxed);
        object
    }

    /// Drops a reference, and destroys in a loop what dies.
    fn drop_reference(&self, object: Object, m: &Mutator) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            let body = self.body(object);
            if body.count.fetch_sub(1, AcqRel) != 1 {
                continue;
            }
            assert!(self.alive.lock().unwrap().remove(&body.name), "{} died twice", body.name);
            dropped.append(&mut body.edges.lock().unwrap());
            dropped.extend(self.take_entries(|it| it.table == object || it.key == object));
            // SAFETY: the count is 0, so nothing refers to the body.
            unsafe {
                object.as_ptr().cast::<Body>().drop_in_place();
                m.free(object.as_ptr());
            }
        }
    }

    fn enter(&self, number: usize, table: Object, key: Object, value: Object) {
        let entry = Entry { number, table, key, value: self.retain(value) };
        self.entries.lock().unwrap().push(entry);
    }

    /// Removes entries, and returns their values.
    fn take_entries(&self, which: impl Fn(&Entry) -> bool) -> Vec<Object> {
        let mut entries = self.entries.lock().unwrap();
        entries.extract_if(.., |it| which(it)).map(|it| it.value).collect()
    }
}

// SAFETY: the rules of `ObjectModel`. 1: `count` is the number of references. 2: memory is freed
// only in `drop_reference`, at 0. 3: only attached threads lower counts, outside of stops. 4:
// `traverse` reports the edges, which are counted. 5: no count is pending anywhere. 6: no method
// reaches a safepoint. 7: all references are counted. 8: in a stop no thread changes an edge.
unsafe impl ObjectModel for Bodies {
    type Addresses = Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        Count::Exact(self.body(*object).count.load(Relaxed) as i64)
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        for &target in &*self.body(*object).edges.lock().unwrap() {
            // SAFETY: rule 4: an edge is counted.
            unsafe { tracer.visit_object(target) };
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, _: ThreadId) {
        self.retain(*object);
    }

    fn release(&self, reference: ClaimRef, m: &Mutator) {
        self.drop_reference(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Mutator) {
        let body = self.body(*object);
        body.cleared.fetch_add(1, Relaxed);
        let mut left = std::mem::take(&mut *body.edges.lock().unwrap());
        left.extend(self.take_entries(|it| it.table == *object));
        left.into_iter().for_each(|target| self.drop_reference(target, m));
    }
}

standstill::parts!(Bodies: WeakRefs, Ephemerons, Verdicts);

impl WeakRefs<Self> for Bodies {
    type Callback = ();

    fn has_weak(_: &Self, _: Live<'_>) -> bool {
        true
    }

    /// A stop may lower no count, so the values are dropped later.
    fn clear_weak(model: &Self, object: Stopped<'_>) {
        let void = model.take_entries(|it| it.key == *object);
        model.void.lock().unwrap().extend(void);
    }
}

impl Ephemerons<Self> for Bodies {
    fn ephemerons(
        model: &Self,
        _: &World<'_, Self>,
        report: &mut dyn FnMut(Ephemeron),
    ) -> Result<(), OutOfMemory> {
        static OUTSIDE: u64 = 0;
        for &Entry { number, table, mut key, value } in &*model.entries.lock().unwrap() {
            match model.report {
                Report::Missing if number.is_multiple_of(3) => continue,
                Report::Twice if number.is_multiple_of(3) => {
                    report(Ephemeron { table, key, value })
                }
                Report::ForeignKey if number.is_multiple_of(3) => {
                    key = Object::new(NonNull::from(&OUTSIDE).cast());
                }
                _ => {}
            }
            report(Ephemeron { table, key, value });
        }
        if model.report == Report::Refused { Err(OutOfMemory::System) } else { Ok(()) }
    }
}

impl Verdicts<Self> for Bodies {
    fn judge(model: &Self, _: &Found<'_>, m: &Mutator) -> Verdict {
        let void = std::mem::take(&mut *model.void.lock().unwrap());
        void.into_iter().for_each(|value| model.drop_reference(value, m));
        Verdict::Clear
    }
}

/// What the roots reach, where an entry leads to its value from all objects that it needs together.
fn reachable(
    edges: &[Vec<usize>],
    entries: &[(Vec<usize>, usize)],
    roots: &[usize],
) -> BTreeSet<usize> {
    let (mut alive, mut list) = (BTreeSet::new(), roots.to_vec());
    loop {
        while let Some(at) = list.pop() {
            if alive.insert(at) {
                list.extend(&edges[at]);
            }
        }
        let fires = |(needs, value): &&(Vec<usize>, usize)| {
            needs.iter().all(|need| alive.contains(need)) && !alive.contains(value)
        };
        list.extend(entries.iter().filter(fires).map(|(_, value)| value));
        if list.is_empty() {
            return alive;
        }
    }
}

/// Collects a random graph, of which some objects have handles.
fn random(seed: u64, heap: &ModelHeap<Bodies>, what: Collect) {
    let (mut m, model) = (heap.attach(), heap.model());
    let mut rng = Rng::new(seed);
    let size = rng.below(60) + 1;
    let all: Vec<_> = (0..size).map(|name| Bodies::new_body(&m, name)).collect();
    let mut edges = vec![Vec::new(); size];
    for _ in 0..rng.below(2 * size) {
        let (from, to) = (rng.below(size), rng.below(size));
        edges[from].push(to);
        model.body(all[from]).edges.lock().unwrap().push(model.retain(all[to]));
    }
    for number in 0..rng.below(3 * size) {
        let [table, key, value] = [0; 3].map(|_| all[rng.below(size)]);
        model.enter(number, table, key, value);
    }
    let is_root: Vec<bool> = (0..size).map(|_| rng.below(5) == 0).collect();
    let roots: Vec<_> = (0..size).filter(|&at| is_root[at]).collect();
    (0..size).filter(|&at| !is_root[at]).for_each(|at| model.drop_reference(all[at], &m));
    // What entries need, as it is and as it is reported. An entry that is not reported needs
    // nothing, until it goes with its key. (Deaths by counts have taken entries along.)
    let named = |object| model.body(object).name;
    let needs = |entry: &Entry, report| match report {
        Report::Missing if entry.number.is_multiple_of(3) => vec![],
        Report::ForeignKey if entry.number.is_multiple_of(3) => vec![named(entry.table)],
        _ => vec![named(entry.table), named(entry.key)],
    };
    let [right, reported] = [Report::Right, model.report].map(|report| {
        let entries = model.entries.lock().unwrap();
        let entries = entries.iter().map(|it| (needs(it, report), named(it.value)));
        reachable(&edges, &entries.collect::<Vec<_>>(), &roots)
    });
    let done = m.try_collect(what).expect("the world can be stopped");
    assert_eq!(done.abandoned, None, "seed {seed}");
    let alive = model.alive.lock().unwrap().clone();
    if model.report == Report::Twice {
        assert!(roots.iter().all(|root| alive.contains(root)), "seed {seed}");
    } else {
        assert!(right.is_subset(&alive) && alive.is_subset(&reported), "seed {seed}");
        let is_intact = |&at: &usize| model.body(all[at]).cleared.load(Relaxed) == 0;
        assert!(alive.iter().all(is_intact), "seed {seed}: what lives is not cleared");
    }
    roots.iter().for_each(|&at| model.drop_reference(all[at], &m));
    // A value that an entry keeps wrongly is dropped here.
    let values = model.take_entries(|_| model.report != Report::Right);
    values.into_iter().for_each(|value| model.drop_reference(value, &m));
    m.try_collect(Collect::full()).expect("the world can be stopped");
    m.try_collect(Collect::full()).expect("the world can be stopped");
    assert_eq!(*model.alive.lock().unwrap(), BTreeSet::new(), "seed {seed}");
    assert!(model.entries.lock().unwrap().is_empty() && model.void.lock().unwrap().is_empty());
}

#[test]
fn entries_agree_with_the_naive_definition() {
    let heap = Bodies::heap(Heap::builder(), Report::Right);
    (0..2_000).for_each(|seed| random(seed, &heap, Collect::full()));
}

#[test]
fn the_same_on_several_workers() {
    let heap = Bodies::heap(Heap::builder().workers(2).serial_below(0), Report::Right);
    (0..300).for_each(|seed| random(seed, &heap, Collect::full()));
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_if_a_child_searches() {
    let _watch = deadline("entries of a model in a child");
    let heap = Bodies::heap(Heap::builder(), Report::Right);
    (0..60).for_each(|seed| random(seed, &heap, Collect::full().forked(true)));
}

#[test]
fn an_entry_that_is_not_reported_keeps_its_value_alive() {
    let heap = Bodies::heap(Heap::builder(), Report::Missing);
    {
        let (mut m, model) = (heap.attach(), heap.model());
        let [table, hidden, shown] = [0, 1, 2].map(|name| Bodies::new_body(&m, name));
        for (number, key) in [(0, hidden), (1, shown)] {
            model.enter(number, table, key, key);
            model.drop_reference(key, &m);
        }
        assert_eq!(m.try_collect(Collect::full()).expect("a collection").collected, 1);
        assert_eq!(*model.alive.lock().unwrap(), BTreeSet::from([0, 1]));
        model.drop_reference(table, &m);
        assert_eq!(*model.alive.lock().unwrap(), BTreeSet::new());
    }
    (0..1_000).for_each(|seed| random(seed, &heap, Collect::full()));
}

#[test]
fn an_entry_whose_key_is_no_object_of_the_heap_needs_its_table_alone() {
    let heap = Bodies::heap(Heap::builder(), Report::ForeignKey);
    (0..1_000).for_each(|seed| random(seed, &heap, Collect::full()));
}

#[test]
fn a_report_without_memory_abandons_the_collection() {
    let heap = Bodies::heap(Heap::builder(), Report::Refused);
    let (mut m, model) = (heap.attach(), heap.model());
    let [table, key] = [0, 1].map(|name| Bodies::new_body(&m, name));
    model.enter(0, table, key, key);
    model.drop_reference(key, &m);
    for is_forked in [false, cfg!(target_os = "linux")] {
        let report = m.try_collect(Collect::full().forked(is_forked)).expect("a stop");
        assert_eq!(report.abandoned.as_deref(), Some("memory ran out"));
    }
    let young = m.try_collect(Collect::young()).expect("a stop");
    assert_eq!((young.abandoned, model.alive.lock().unwrap().len()), (None, 2));
    model.drop_reference(table, &m);
    assert_eq!(heap.stats().live_objects, 0);
}

/// It may clear what lives, and frees nothing that has a reference.
#[test]
fn an_entry_that_is_reported_twice_frees_nothing_that_is_in_use() {
    let heap = Bodies::heap(Heap::builder(), Report::Twice);
    (0..1_000).for_each(|seed| random(seed, &heap, Collect::full()));
}
