//! The scripted object model of the tests, which records each call of a collection.

use std::borrow::Cow;

use crate::base::outside::Hook;
use crate::heap::model_heap::ModelHeap;
use crate::heap::parts::*;
use crate::object::live::{ClaimRef, DeadObject, Live, Stopped};
use crate::object::state::{DYING, FINALIZED, OLD, TRACKED, UNREACHABLE};
use crate::report::facts::{CollectionEvent, CollectionReport};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

use crate::base::stress::Stress;
use crate::heap::core::Core;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::{Found, Verdict};
use crate::heap::request::Collect;
use crate::heap::world::World;
use crate::object::address::Object;
use crate::object::tracer::{Ends, Tracer};
use crate::safepoint::ThreadId;
use crate::{Heap, Pacing};

pub(crate) type Raw = ModelMutator<Script>;

type Act = Box<dyn FnOnce(&Raw) + Send>;

/// The model's data about an object, in a table outside the heap.
pub(crate) struct Thing {
    pub(crate) name: char,
    /// The number of references to it.
    pub(crate) count: i64,
    pub(crate) edges: Vec<Object>,
    /// `f`: a finalizer. `l`: a legacy finalizer. `w`: a weak reference. `c`: a weak reference
    /// with a callback. `x`: a damaged header. `i`: immortal. `o`: outside. `d`: its two
    /// traversals are compared. `m`: more callbacks than memory for them. `r`: another thread
    /// runs the finalizer first.
    pub(crate) has: &'static str,
    /// The effect of each traversal. `s`: it reports the edges. `h`: it reports them, and a
    /// field is unreadable. `p`: it panics. `t`: it reports them twice. `v`: it reports them as
    /// slots. `k`: it reports them as leaves. Later traversals repeat the last effect. `q`: a
    /// traversal of several objects that begins with this object panics. `e`: such a traversal
    /// reports the edges once more at its end.
    pub(crate) traversals: &'static str,
    pub(crate) traversed: usize,
}

/// A model that records each call, and then runs the action that a test has set for the call.
#[derive(Default)]
pub(crate) struct Script(Mutex<State>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) things: HashMap<Object, Thing>,
    pub(crate) calls: Vec<String>,
    /// By call: an action that runs at the first such call.
    pub(crate) acts: HashMap<&'static str, Act>,
    /// References that the next merge drops.
    pub(crate) later: Vec<Object>,
    /// Whether `after_clear` needs another stop.
    pub(crate) needs_stop: bool,
    /// Whether a merge finds more dead objects than memory for their list.
    pub(crate) floods: bool,
    /// Whether the next merge panics.
    pub(crate) merge_fails: bool,
    /// Traversals wait until this many threads have started one.
    pub(crate) meets: usize,
    pub(crate) there: HashSet<std::thread::ThreadId>,
    /// The thread that releases each object.
    pub(crate) holders: Vec<ThreadId>,
    pub(crate) core: std::sync::Weak<Core<Script>>,
    /// The verdict.
    pub(crate) keeps: bool,
}

impl Script {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self, object: Object) -> char {
        self.state().things[&object].name
    }

    pub(crate) fn names(&self, objects: &[Object]) -> String {
        objects.iter().map(|&object| self.name(object)).collect()
    }

    pub(crate) fn has(&self, object: Object, what: char) -> bool {
        self.state().things[&object].has.contains(what)
    }

    pub(crate) fn is_reached(calls: &[String], what: &str) -> bool {
        calls.iter().any(|calls| calls == what)
    }

    pub(crate) fn count_of(&self, object: Object) -> i64 {
        self.state().things[&object].count
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    pub(crate) fn record(&self, what: String) {
        self.state().calls.push(what);
    }

    /// Records a call, and runs its action.
    pub(crate) fn called(&self, what: String, m: &Raw) {
        let act = self.state().acts.remove(&what[..]);
        self.record(what);
        if let Some(act) = act {
            act(m);
        }
    }

    /// Runs the action of a call that is not recorded.
    fn act(&self, what: &str, m: &Raw) {
        let act = self.state().acts.remove(what);
        if let Some(act) = act {
            act(m);
        }
    }

    /// Makes all later verdicts keep the garbage.
    pub(crate) fn keep_all(&self) {
        self.state().keeps = true;
    }

    pub(crate) fn when(&self, what: &'static str, act: impl FnOnce(&Raw) + Send + 'static) {
        self.state().acts.insert(what, Box::new(act));
    }

    /// Makes a tracked object with one reference, for the caller.
    pub(crate) fn thing(
        m: &Raw,
        name: char,
        has: &'static str,
        traversals: &'static str,
    ) -> Object {
        Self::sized(m, 32, name, has, traversals)
    }

    /// As `thing`, of this size.
    pub(crate) fn sized(
        m: &Raw,
        size: usize,
        name: char,
        has: &'static str,
        traversals: &'static str,
    ) -> Object {
        let object = Object::new(m.allocate(size, 32).expect("memory"));
        let thing = Thing { name, count: 1, edges: Vec::new(), has, traversals, traversed: 0 };
        m.model().state().things.insert(object, thing);
        // SAFETY: rule *new*: new memory of this heap. The model's table describes the object.
        unsafe { m.publish(object, true) };
        object
    }

    /// Adds an object, to which the test has a reference, to the tracked set.
    pub(crate) fn track(m: &Raw, object: Object) -> bool {
        // SAFETY: rule *counted*: the test has a reference.
        unsafe { m.track(object) }
    }

    /// Removes an object, to which the test has a reference, from the tracked set.
    pub(crate) fn untrack(m: &Raw, object: Object) -> bool {
        // SAFETY: rule *counted*: the test has a reference.
        unsafe { m.untrack(object) }
    }

    /// Makes objects that each refer to the next, and the last to the first. There are no other
    /// references to them.
    pub(crate) fn ring(m: &Raw, of: &[(char, &'static str)]) -> Vec<Object> {
        let mut objects: Vec<Object> = of.iter().map(|_| Self::thing(m, ' ', "", "s")).collect();
        // In the order of memory.
        objects.sort_unstable();
        for (&object, &(name, has)) in objects.iter().zip(of) {
            Self::of(m, object, |thing| (thing.name, thing.has) = (name, has));
        }
        for at in 0..objects.len() {
            // The caller's reference becomes the reference of the previous object.
            let next = objects[(at + 1) % objects.len()];
            Self::of(m, objects[at], |thing| thing.edges.push(next));
        }
        objects
    }

    pub(crate) fn of<R>(m: &Raw, object: Object, f: impl FnOnce(&mut Thing) -> R) -> R {
        f(m.model().state().things.get_mut(&object).expect("alive"))
    }

    pub(crate) fn link(m: &Raw, from: Object, to: Object) {
        Self::of(m, to, |thing| thing.count += 1);
        Self::of(m, from, |thing| thing.edges.push(to));
    }

    /// Drops a reference, and destroys each object with count 0 after that.
    pub(crate) fn drop_ref(&self, object: Object, m: &Raw) {
        let mut dropped = vec![object];
        while let Some(object) = dropped.pop() {
            let mut state = self.state();
            let thing = state.things.get_mut(&object).expect("alive");
            thing.count -= 1;
            if thing.count == 0 {
                drop(state);
                dropped.extend(self.destroy(object, m));
            }
        }
    }

    /// Destroys an object, and returns its edges.
    pub(crate) fn destroy(&self, object: Object, m: &Raw) -> Vec<Object> {
        let Thing { name, edges, .. } = self.state().things.remove(&object).expect("alive");
        self.record(format!("{name} dies"));
        // SAFETY: rule *zero*: the count is 0, and no other reference exists.
        unsafe { m.free(object.as_ptr()) };
        edges
    }
}

// SAFETY: rule *guarded*: 1. `count` includes every reference, `claim_ref` adds one and
// `release` removes one.
// 2. `destroy` frees, at 0. 3. Counts are lowered on attached threads and in `merge`. 4. Edges
//    are counted. 5. `merge` drops all deferred references. 6. No method reaches a safepoint.
unsafe impl ObjectModel for Script {
    type Addresses = crate::memory::address_map::Reserved;
    type Parts = Self;

    fn count(&self, object: Stopped<'_>) -> Count {
        let state = self.state();
        match &state.things[&*object] {
            Thing { has, .. } if has.contains('i') => Count::Immortal,
            Thing { has, .. } if has.contains('o') => Count::Outside,
            Thing { count, .. } => Count::Exact(*count),
        }
    }

    fn traverse(&self, object: Stopped<'_>, tracer: &mut Tracer) {
        let (edges, traversal) = {
            let mut state = self.state();
            state.there.insert(std::thread::current().id());
            while state.there.len() < state.meets {
                drop(state);
                std::thread::yield_now();
                state = self.state();
            }
            let thing = state.things.get_mut(&*object).expect("alive");
            let traversal =
                thing.traversals.as_bytes()[thing.traversed.min(thing.traversals.len() - 1)];
            thing.traversed += 1;
            if traversal == b'v' {
                // SAFETY: rules *counted* and *stopped*: the edges are counted, and do not
                // change in a stop. An object is represented as a slot that is not empty.
                unsafe {
                    let (first, len) = (thing.edges.as_ptr().cast(), thing.edges.len());
                    return tracer.visit_slots(std::slice::from_raw_parts(first, len));
                }
            }
            (thing.edges.clone(), traversal)
        };
        assert!(traversal != b'p', "a traversal, on purpose");
        for edge in std::iter::repeat_n(edges, if traversal == b't' { 2 } else { 1 }).flatten() {
            // SAFETY: rule *counted*: the edge is counted. The model has no uncounted edges.
            unsafe {
                if traversal == b'k' { tracer.visit_leaf(edge) } else { tracer.visit_object(edge) }
            }
        }
        if traversal == b'h' {
            tracer.unreadable();
        }
    }

    fn claim_ref(&self, object: Stopped<'_>, by: ThreadId) {
        self.state().holders.push(by);
        self.record(format!("hold {}", self.name(*object)));
        self.state().things.get_mut(&*object).expect("alive").count += 1;
    }

    fn release(&self, reference: ClaimRef, m: &Raw) {
        self.called(format!("release {}", self.name(reference.object())), m);
        self.drop_ref(reference.object(), m);
    }

    fn clear(&self, object: Live<'_>, m: &Raw) {
        self.called(format!("clear {}", self.name(*object)), m);
        for edge in Self::of(m, *object, |thing| std::mem::take(&mut thing.edges)) {
            self.drop_ref(edge, m);
        }
    }

    fn type_name(&self, object: Live<'_>) -> Cow<'static, str> {
        if self.has(*object, 'd') { "verified thing".into() } else { "thing".into() }
    }
}

crate::parts!(Script: Threads, SplitCounts, Batches, Finalizers, Verdicts, WeakRefs, Checks);

impl Threads<Script> for Script {
    fn attached(model: &Self, m: &Raw) {
        model.act("attached", m);
    }

    fn answer(model: &Self, _: u32, m: &Raw) {
        model.act("answer", m);
    }

    fn ending(model: &Self, m: &Raw) {
        model.act("ending", m);
    }
}

impl SplitCounts<Script> for Script {
    fn prepare(model: &Self, m: &Raw) {
        model.called("prepare".to_owned(), m);
    }

    fn pending(model: &Self, _: &World<'_, Self>) -> usize {
        let state = model.state();
        if state.floods { usize::MAX } else { state.later.len() }
    }

    fn merge(model: &Self, world: &World<'_, Self>, dead: &mut Vec<DeadObject>) {
        model.record("merge".to_owned());
        assert!(!std::mem::take(&mut model.state().merge_fails), "a merge, on purpose");
        let later = std::mem::take(&mut model.state().later);
        for object in later {
            let mut state = model.state();
            let thing = state.things.get_mut(&object).expect("alive");
            thing.count -= 1;
            if thing.count == 0 {
                // SAFETY: rule *zero*: the count is 0, and no other reference exists.
                dead.push(unsafe { DeadObject::new(object) });
            }
        }
        assert!(!world.core().collector_lock.try_acquire(), "who collects has the turn");
    }

    fn destroy_merged(model: &Self, dead: DeadObject, m: &Raw) {
        let state = m.core().dead_state(&dead).get();
        model.called(
            format!("destroy_merged {}, dying: {}", model.name(dead.object()), state & DYING != 0),
            m,
        );
        for edge in model.destroy(dead.object(), m) {
            model.drop_ref(edge, m);
        }
    }

    fn resumed(model: &Self, m: &Raw) {
        model.called("resumed".to_owned(), m);
    }

    fn after_clear(model: &Self, m: &Raw) -> bool {
        model.called("after_clear".to_owned(), m);
        std::mem::take(&mut model.state().needs_stop)
    }
}

impl Batches<Script> for Script {
    fn clearing(model: &Self, m: &Raw, objects: usize) {
        model.called(format!("clearing {objects}"), m);
    }

    fn cleared(model: &Self, m: &Raw, last: bool) {
        model.called(if last { "all cleared" } else { "cleared" }.to_owned(), m);
    }

    fn traverse_each(
        model: &Self,
        objects: &[Stopped<'_>],
        tracer: &mut Tracer,
        ends: &mut Ends<'_>,
    ) {
        let traversals = model.state().things[&objects[0].object()].traversals;
        assert!(traversals != "q", "a batch traversal, on purpose");
        // SAFETY: rule *counted*: as the caller says.
        tracer.each(objects, ends, |object, tracer| model.traverse(object, tracer));
        if traversals == "e" {
            let edges = model.state().things[&objects[0].object()].edges.clone();
            // SAFETY: rule *counted*: the edges are counted.
            edges.into_iter().for_each(|edge| unsafe { tracer.visit_object(edge) });
        }
    }
}

impl Finalizers<Script> for Script {
    fn has_finalizer(model: &Self, object: Live<'_>) -> bool {
        // Called once in the stop, and again just before the finalizer runs.
        let is_called_again = Self::is_reached(&model.state().calls, "resumed");
        if model.has(*object, 'r') && is_called_again {
            let core = model.state().core.upgrade().expect("a heap");
            core.state_at(object.object()).set(FINALIZED);
        }
        model.has(*object, 'f')
    }

    fn finalize(model: &Self, object: Live<'_>, m: &Raw) {
        model.called(format!("finalize {}", model.name(*object)), m);
    }
}

impl Verdicts<Script> for Script {
    fn has_legacy(model: &Self) -> bool {
        model.state().things.values().any(|thing| thing.has.contains('l'))
    }

    fn legacy(model: &Self, object: Stopped<'_>) -> bool {
        model.has(*object, 'l')
    }

    fn judge(model: &Self, found: &Found<'_>, m: &Raw) -> Verdict {
        let [garbage, uncollectable, legacy] = [found.garbage, found.uncollectable, found.legacy]
            .map(|list| {
                let objects: Vec<Object> = list.iter().map(|object| object.object()).collect();
                model.names(&objects)
            });
        model.called(format!("judge [{garbage}] [{uncollectable}] [{legacy}]"), m);
        if model.state().keeps { Verdict::Keep } else { Verdict::Clear }
    }
}

impl WeakRefs<Script> for Script {
    type Callback = char;

    fn has_weak(model: &Self, object: Live<'_>) -> bool {
        model.has(*object, 'w') || model.has(*object, 'c')
    }

    fn callbacks(model: &Self, object: Stopped<'_>) -> usize {
        if model.has(*object, 'm') { usize::MAX } else { usize::from(model.has(*object, 'c')) }
    }

    fn take_callbacks(
        model: &Self,
        object: Stopped<'_>,
        is_unreachable: &dyn Fn(Object) -> bool,
        _: &World<'_, Self>,
        due: &mut Vec<char>,
    ) {
        let objects: Vec<Object> = model.state().things.keys().copied().collect();
        let unreachable: Vec<Object> =
            objects.into_iter().filter(|&object| is_unreachable(object)).collect();
        let mut names: Vec<char> = model.names(&unreachable).chars().collect();
        names.sort_unstable();
        let name = model.name(*object);
        model.record(format!("weak {name} of {}", names.into_iter().collect::<String>()));
        due.extend(model.has(*object, 'c').then_some(name));
    }

    fn call_back(model: &Self, callback: char, m: &Raw) {
        model.called(format!("call back {callback}"), m);
    }

    fn clear_weak(model: &Self, object: Stopped<'_>) {
        model.record(format!("clear_weak {}", model.name(*object)));
    }
}

impl Checks<Script> for Script {
    fn verifies_traversals(model: &Self) -> bool {
        model.state().things.values().any(|thing| thing.has.contains('d'))
    }

    fn verifies_traversal(model: &Self, object: Stopped<'_>) -> bool {
        model.has(*object, 'd')
    }

    fn overvisited(model: &Self, object: Stopped<'_>) {
        model.record(format!("overvisited {}", model.name(*object)));
    }

    fn check(model: &Self, object: Stopped<'_>) -> Result<(), String> {
        if model.has(*object, 'x') { Err("damage, on purpose".to_owned()) } else { Ok(()) }
    }
}

/// A heap of scripted objects. `None` if the environment sets stress modes, since the verifier
/// makes calls of its own.
pub(crate) fn heap_with(pacing: Pacing) -> Option<ModelHeap<Script>> {
    let builder = Heap::builder().name("scripted").reserve(1 << 28).workers(1).pacing(pacing);
    let heap = builder.build_with(Script::default()).expect("a heap");
    let core = &heap.0.core;
    heap.model().state().core = Arc::downgrade(core);
    let calls = |core: &Arc<crate::heap::core::Core<Script>>| {
        let core = Arc::downgrade(core);
        move |what: String| core.upgrade().expect("a heap").model.record(what)
    };
    let (record, record_failure) = (calls(core), calls(core));
    core.hooks.on_collection(Hook::new(Arc::new(move |event: &CollectionEvent<'_>| match event {
        CollectionEvent::Start(kind) => record(format!("start {kind:?}")),
        CollectionEvent::Stop(report) => record(figures(report)),
    })));
    core.hooks.on_unraisable(Hook::new(Arc::new(
        move |what: &crate::report::facts::Unraisable| {
            let address = if what.address == 0 { "" } else { " at its address" };
            record_failure(format!(
                "failure: {:?} '{}'{address}: {}",
                what.during, what.type_name, what.message
            ));
        },
    )));
    (core.stress == Stress::none()).then_some(heap)
}

pub(crate) fn scripted_heap() -> Option<ModelHeap<Script>> {
    heap_with(Pacing::manual())
}

/// The numbers of a report, without times.
pub(crate) fn figures(report: &CollectionReport) -> String {
    let CollectionReport { unreachable, finalized, resurrected, collected, uncollectable, .. } =
        report;
    let figures = format!(
        "{} stops, {unreachable} unreachable, {finalized} finalized, {resurrected} resurrected, {collected} collected, \
         {uncollectable} uncollectable",
        report.stops.len()
    );
    match &report.abandoned {
        None => format!("stop: {figures}"),
        Some(why) => format!("stop: {figures}, abandoned: {why}"),
    }
}

pub(crate) fn collect(m: &mut Raw, what: Collect) -> (CollectionReport, Vec<String>) {
    let report = crate::collect::collection::collect(m, what).expect("the world stops");
    assert!(m.core().collector_lock.try_acquire(), "the turn is given back");
    m.core().collector_lock.release();
    assert!(m.arena(|arena| arena.count_frees(true)), "the pace hears of frees again");
    (report, m.model().calls())
}

/// Checks that all these objects are ordinary old objects with this many references.
pub(crate) fn are_ordinary(m: &Raw, objects: &[Object], count: i64) {
    for &object in objects {
        let state = m.core().state_at(object).get();
        let name = m.model().name(object);
        assert_eq!(state & (TRACKED | UNREACHABLE | OLD), TRACKED | OLD, "{name}");
        assert_eq!(m.model().count_of(object), count, "{name}");
    }
}

/// As `heap`, with this many workers and constants as small as can be.
pub(crate) fn small_heap(workers: usize) -> Option<ModelHeap<Script>> {
    let stress = Stress::none().small_constants(true);
    let builder = Heap::builder().reserve(1 << 28).workers(workers).serial_below(0).stress(stress);
    let heap = builder.pacing(Pacing::manual()).build_with(Script::default()).expect("a heap");
    (heap.0.core.stress == stress).then_some(heap)
}

/// Drops the test's references to all but the first of these objects.
pub(crate) fn keep_first(m: &Raw, objects: &[Object]) {
    objects[1..].iter().for_each(|&object| m.model().drop_ref(object, m));
}

/// An object that refers to this many others, each of which refers to one more object. The test
/// holds the first object.
pub(crate) fn fan(m: &Raw, width: usize) -> Vec<Object> {
    let mut objects = vec![Script::thing(m, 'r', "", "s")];
    for _ in 0..width {
        let [middle, leaf] = ['m', 'l'].map(|name| Script::thing(m, name, "", "s"));
        Script::link(m, objects[0], middle);
        Script::link(m, middle, leaf);
        objects.extend([middle, leaf]);
    }
    keep_first(m, &objects);
    objects
}
