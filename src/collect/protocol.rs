//! Floor 4: tests of the calls that a collection makes to an object model, of their order, and of
//! the effects of each answer.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use std::collections::{HashMap, HashSet};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use crate::base::event::{CollectionEvent, CollectionReport, Hook};
    use crate::base::sync::Ordering;
    use crate::collect::{Collect, CollectError, by_itself, clear, promote, promote_now};
    use crate::heap::model::{
        Ends, Found, ModelHeap, ModelMutator, Object, ObjectModel, Tracer, Verdict, World,
    };
    use crate::heap::mutator::Core;
    use crate::heap::pacing::Due;
    use crate::heap::reclaim_queue::{PIECE, Whose};
    use crate::memory::space::PAGE_GRANULES;
    use crate::object::state::{DYING, FINALIZED, OLD, TRACKED, UNREACHABLE};
    use crate::safepoint::{StopError, ThreadId};
    use crate::{Heap, Pacing, Stress};

    pub(crate) type Raw = ModelMutator<Script>;

    type Act = Box<dyn FnOnce(&Raw) + Send>;

    /// The model's knowledge of an object, in a table beside the heap.
    pub(crate) struct Thing {
        name: char,
        /// The number of references to it.
        pub(crate) count: i64,
        pub(crate) edges: Vec<Object>,
        /// `f`: a finalizer. `l`: a legacy finalizer. `w`: a weak reference. `c`: a weak reference
        /// with a callback. `x`: a damaged header. `i`: immortal. `d`: doubted. `m`: more callbacks
        /// than there is memory for. `r`: another thread runs the finalizer first.
        pub(crate) has: &'static str,
        /// The effect of each traversal. `s`: it shows the edges. `h`: it shows them, and has a
        /// field that cannot be read. `p`: it panics. `t`: it shows them twice. Later traversals
        /// repeat the last one. `q`: a traversal of several objects that begins with this one
        /// panics. `e`: such a traversal shows the edges once more at its end.
        pub(crate) looks: &'static str,
        looked: usize,
    }

    /// A model that writes down each call, and then runs the action that a test has set for it.
    #[derive(Default)]
    pub(crate) struct Script(Mutex<State>);

    #[derive(Default)]
    pub(crate) struct State {
        things: HashMap<Object, Thing>,
        told: Vec<String>,
        /// By call: an action that runs at the first such call.
        acts: HashMap<&'static str, Act>,
        /// References that the next merge drops.
        later: Vec<Object>,
        /// Whether settling needs another stop.
        settles: bool,
        /// Whether the dead of a merge are more than there is memory for.
        floods: bool,
        /// Traversals wait until this many threads have come to one.
        meets: usize,
        there: HashSet<std::thread::ThreadId>,
        /// Which thread is to release an object.
        holders: Vec<ThreadId>,
        core: std::sync::Weak<Core<Script>>,
        /// The verdict.
        keeps: bool,
    }

    impl Script {
        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn name(&self, object: Object) -> char {
            self.state().things[&object].name
        }

        fn names(&self, objects: &[Object]) -> String {
            objects.iter().map(|&object| self.name(object)).collect()
        }

        fn has(&self, object: Object, what: char) -> bool {
            self.state().things[&object].has.contains(what)
        }

        fn is_noted(told: &[String], what: &str) -> bool {
            told.iter().any(|told| told == what)
        }

        fn count_of(&self, object: Object) -> i64 {
            self.state().things[&object].count
        }

        pub(crate) fn told(&self) -> Vec<String> {
            std::mem::take(&mut self.state().told)
        }

        fn tell(&self, what: String) {
            self.state().told.push(what);
        }

        /// Writes down a call, and runs its action.
        fn asked(&self, what: String, m: &Raw) {
            let act = self.state().acts.remove(&what[..]);
            self.tell(what);
            if let Some(act) = act {
                act(m);
            }
        }

        /// From now on each verdict is to keep the garbage.
        pub(crate) fn keep_all(&self) {
            self.state().keeps = true;
        }

        pub(crate) fn when(&self, what: &'static str, act: impl FnOnce(&Raw) + Send + 'static) {
            self.state().acts.insert(what, Box::new(act));
        }

        /// A tracked object with one reference, the caller's.
        pub(crate) fn thing(m: &Raw, name: char, has: &'static str, looks: &'static str) -> Object {
            Self::sized(m, 32, name, has, looks)
        }

        /// The same, of this size.
        pub(crate) fn sized(
            m: &Raw,
            size: usize,
            name: char,
            has: &'static str,
            looks: &'static str,
        ) -> Object {
            let object = Object::new(m.allocate(size, 32).expect("memory"));
            let thing = Thing { name, count: 1, edges: Vec::new(), has, looks, looked: 0 };
            m.model().state().things.insert(object, thing);
            // SAFETY: rule N: new memory of this heap. The model's table says what is there.
            unsafe { m.publish(object, true) };
            object
        }

        /// Objects of which each refers to the next, and the last to the first. There are no other
        /// references to them.
        pub(crate) fn ring(m: &Raw, of: &[(char, &'static str)]) -> Vec<Object> {
            let mut objects: Vec<Object> =
                of.iter().map(|_| Self::thing(m, ' ', "", "s")).collect();
            // In the order of memory.
            objects.sort_unstable();
            for (&object, &(name, has)) in objects.iter().zip(of) {
                Self::of(m, object, |thing| (thing.name, thing.has) = (name, has));
            }
            for at in 0..objects.len() {
                // The caller's reference becomes that of the object before.
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

        /// Drops a reference, and destroys all objects that have none left.
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

        /// Ends an object, and returns its edges.
        fn destroy(&self, object: Object, m: &Raw) -> Vec<Object> {
            let Thing { name, edges, .. } = self.state().things.remove(&object).expect("alive");
            self.tell(format!("{name} dies"));
            // SAFETY: rule Z: the count is 0, and nothing else knows it.
            unsafe { m.free(object.as_ptr()) };
            edges
        }
    }

    // SAFETY: rule X: 1. `count` has every reference, `hold` adds one and `release` takes one away.
    // 2. `destroy` frees, at 0. 3. Counts go down on attached threads and in `merge`. 4. Edges are
    // counted. 5. `merge` drops all references that wait. 6. No method reaches a safepoint.
    unsafe impl ObjectModel for Script {
        type Local = ();
        type Private = ();
        type Callback = char;
        const STABLE_DURING_STOP: bool = true;

        fn local(&self) {}
        fn private(&self) {}

        unsafe fn count(&self, object: Object) -> Option<i64> {
            (!self.has(object, 'i')).then(|| self.count_of(object))
        }
        unsafe fn traverse(&self, object: Object, tracer: &mut Tracer) {
            let (edges, look) = {
                let mut state = self.state();
                state.there.insert(std::thread::current().id());
                while state.there.len() < state.meets {
                    drop(state);
                    std::thread::yield_now();
                    state = self.state();
                }
                let thing = state.things.get_mut(&object).expect("alive");
                let look = thing.looks.as_bytes()[thing.looked.min(thing.looks.len() - 1)];
                thing.looked += 1;
                (thing.edges.clone(), look)
            };
            assert!(look != b'p', "a traversal, on purpose");
            for edge in std::iter::repeat_n(edges, if look == b't' { 2 } else { 1 }).flatten() {
                // SAFETY: rule R: the edge is counted.
                unsafe { tracer.visit_object(edge) };
            }
            if look == b'h' {
                tracer.unreadable();
            }
        }
        unsafe fn hold(&self, object: Object, by: ThreadId) {
            self.state().holders.push(by);
            self.tell(format!("hold {}", self.name(object)));
            self.state().things.get_mut(&object).expect("alive").count += 1;
        }
        unsafe fn release(&self, object: Object, m: &Raw) {
            self.asked(format!("release {}", self.name(object)), m);
            self.drop_ref(object, m);
        }
        unsafe fn clear(&self, object: Object, m: &Raw) {
            self.asked(format!("clear {}", self.name(object)), m);
            for edge in Self::of(m, object, |thing| std::mem::take(&mut thing.edges)) {
                self.drop_ref(edge, m);
            }
        }
        fn clearing(&self, m: &Raw, objects: usize) {
            self.asked(format!("clearing {objects}"), m);
        }
        fn cleared(&self, m: &Raw, last: bool) {
            self.asked(if last { "all cleared" } else { "cleared" }.to_owned(), m);
        }
        unsafe fn has_finalizer(&self, object: Object) -> bool {
            // It is asked once in the stop, and again just before the finalizer runs.
            let is_asked_again = Self::is_noted(&self.state().told, "resumed");
            if self.has(object, 'r') && is_asked_again {
                let core = self.state().core.upgrade().expect("a heap");
                // SAFETY: rule R: as the caller says.
                unsafe { core.state(object.address()) }.set(FINALIZED);
            }
            self.has(object, 'f')
        }
        fn doubts(&self) -> bool {
            self.state().things.values().any(|thing| thing.has.contains('d'))
        }
        unsafe fn is_doubted(&self, object: Object) -> bool {
            self.has(object, 'd')
        }
        unsafe fn traverse_each(
            &self,
            objects: &[Object],
            tracer: &mut Tracer,
            ends: &mut Ends<'_>,
        ) {
            let looks = self.state().things[&objects[0]].looks;
            assert!(looks != "q", "a look at several, on purpose");
            // SAFETY: rule R: as the caller says.
            tracer.each(objects, ends, |object, tracer| unsafe { self.traverse(object, tracer) });
            if looks == "e" {
                let edges = self.state().things[&objects[0]].edges.clone();
                // SAFETY: rule R: the edges are counted.
                edges.into_iter().for_each(|edge| unsafe { tracer.visit_object(edge) });
            }
        }
        unsafe fn finalize(&self, object: Object, m: &Raw) {
            self.asked(format!("finalize {}", self.name(object)), m);
        }
        unsafe fn overvisited(&self, object: Object) {
            self.tell(format!("overvisited {}", self.name(object)));
        }
        fn prepare(&self, m: &Raw) {
            self.asked("prepare".to_owned(), m);
        }
        fn pending(&self, _: &World<'_, Self>) -> usize {
            let state = self.state();
            if state.floods { usize::MAX } else { state.later.len() }
        }
        fn merge(&self, world: &World<'_, Self>, dead: &mut Vec<Object>) {
            self.tell("merge".to_owned());
            let later = std::mem::take(&mut self.state().later);
            for object in later {
                let mut state = self.state();
                let thing = state.things.get_mut(&object).expect("alive");
                thing.count -= 1;
                if thing.count == 0 {
                    dead.push(object);
                }
            }
            assert!(!world.core().turn.try_take(), "who collects has the turn");
        }
        unsafe fn bury(&self, object: Object, m: &Raw) {
            // SAFETY: rule Z: it is alive until here.
            let state = unsafe { m.core().state(object.address()) }.get();
            self.asked(format!("bury {}, dying: {}", self.name(object), state & DYING != 0), m);
            for edge in self.destroy(object, m) {
                self.drop_ref(edge, m);
            }
        }
        unsafe fn has_weak(&self, object: Object) -> bool {
            self.has(object, 'w') || self.has(object, 'c')
        }
        unsafe fn callbacks(&self, object: Object) -> usize {
            if self.has(object, 'm') { usize::MAX } else { usize::from(self.has(object, 'c')) }
        }
        unsafe fn take_callbacks(
            &self,
            object: Object,
            is_unreachable: &dyn Fn(Object) -> bool,
            _: &World<'_, Self>,
            due: &mut Vec<char>,
        ) {
            let objects: Vec<Object> = self.state().things.keys().copied().collect();
            let unreachable: Vec<Object> =
                objects.into_iter().filter(|&object| is_unreachable(object)).collect();
            let mut names: Vec<char> = self.names(&unreachable).chars().collect();
            names.sort_unstable();
            let name = self.name(object);
            self.tell(format!("weak {name} of {}", names.into_iter().collect::<String>()));
            due.extend(self.has(object, 'c').then_some(name));
        }
        fn call_back(&self, callback: char, m: &Raw) {
            self.asked(format!("call back {callback}"), m);
        }
        unsafe fn clear_weak(&self, object: Object) {
            self.tell(format!("cut {}", self.name(object)));
        }
        fn has_legacy(&self) -> bool {
            self.state().things.values().any(|thing| thing.has.contains('l'))
        }
        unsafe fn legacy(&self, object: Object) -> bool {
            self.has(object, 'l')
        }
        unsafe fn judge(&self, found: &Found<'_>, m: &Raw) -> Verdict {
            let [garbage, uncollectable, legacy] =
                [found.garbage, found.uncollectable, found.legacy].map(|list| self.names(list));
            self.asked(format!("judge [{garbage}] [{uncollectable}] [{legacy}]"), m);
            if self.state().keeps { Verdict::Keep } else { Verdict::Clear }
        }
        unsafe fn check(&self, object: Object) -> Result<(), String> {
            if self.has(object, 'x') { Err("damage, on purpose".to_owned()) } else { Ok(()) }
        }
        unsafe fn type_name(&self, object: Object) -> &'static str {
            if self.has(object, 'd') { "doubted thing" } else { "thing" }
        }
        fn resumed(&self, m: &Raw) {
            self.asked("resumed".to_owned(), m);
        }
        fn settle(&self, m: &Raw) -> bool {
            self.asked("settle".to_owned(), m);
            std::mem::take(&mut self.state().settles)
        }
    }

    /// A heap of scripted objects. `None` where the environment asks for stress, since the verifier
    /// makes calls of its own.
    fn heap_with(pacing: Pacing) -> Option<ModelHeap<Script>> {
        let builder = Heap::builder().name("scripted").reserve(1 << 28).workers(1).pacing(pacing);
        let heap = builder.build_with(Script::default()).expect("a heap");
        let core = &heap.0.core;
        heap.model().state().core = Arc::downgrade(core);
        let told = |core: &Arc<crate::heap::mutator::Core<Script>>| {
            let core = Arc::downgrade(core);
            move |what: String| core.upgrade().expect("a heap").model.tell(what)
        };
        let (tell, tell_failure) = (told(core), told(core));
        core.hooks.on_collection(Hook::new(Arc::new(
            move |event: &CollectionEvent<'_>| match event {
                CollectionEvent::Start(kind) => tell(format!("start {kind:?}")),
                CollectionEvent::Stop(report) => tell(figures(report)),
            },
        )));
        core.hooks.on_unraisable(Hook::new(Arc::new(
            move |what: &crate::base::event::Unraisable| {
                let address = if what.address == 0 { "" } else { " at its address" };
                tell_failure(format!(
                    "failure: {:?} '{}'{address}: {}",
                    what.during, what.type_name, what.message
                ));
            },
        )));
        (core.stress == Stress::none()).then_some(heap)
    }

    fn heap() -> Option<ModelHeap<Script>> {
        heap_with(Pacing::manual())
    }

    /// The numbers of a report, without times.
    fn figures(report: &CollectionReport) -> String {
        let CollectionReport {
            unreachable, finalized, resurrected, collected, uncollectable, ..
        } = report;
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

    fn collect(m: &mut Raw, what: Collect) -> (CollectionReport, Vec<String>) {
        let report = crate::collect::collect(m, what).expect("the world stops");
        assert!(m.core().turn.try_take(), "the turn is given back");
        m.core().turn.give_back();
        assert!(m.arena(|arena| arena.count_frees(true)), "the pace hears of frees again");
        (report, m.model().told())
    }

    /// Checks that all of these are ordinary old objects with this many references.
    fn are_ordinary(m: &Raw, objects: &[Object], count: i64) {
        for &object in objects {
            // SAFETY: rule R: the test has a reference.
            let state = unsafe { m.core().state(object.address()) }.get();
            let name = m.model().name(object);
            assert_eq!(state & (TRACKED | UNREACHABLE | OLD), TRACKED | OLD, "{name}");
            assert_eq!(m.model().count_of(object), count, "{name}");
        }
    }

    #[test]
    fn a_collection_asks_for_each_step_once_and_in_this_order() {
        for by_the_heap in [false, true] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            Script::ring(&m, &[('a', "f"), ('b', "c"), ('c', "w")]);
            let merged = Script::thing(&m, 'd', "", "s");
            let late = Script::thing(&m, 'e', "", "s");
            let kept = Script::thing(&m, 'k', "fc", "s");
            heap.model().state().later.push(merged);
            heap.model().when("finalize a", move |m| m.model().state().later.push(late));
            let told = if by_the_heap {
                by_itself(&mut m, Collect::full()).expect("a turn");
                heap.model().told()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let expected = [
                "start Full",
                "prepare",
                "merge",
                "hold a",
                "hold b",
                "hold c",
                "weak b of abc",
                "weak c of abc",
                "bury d, dying: false",
                "d dies",
                "resumed",
                "call back b",
                "finalize a",
                "merge",
                "cut a",
                "cut b",
                "cut c",
                "bury e, dying: false",
                "e dies",
                "resumed",
                "judge [abc] [] []",
                "clearing 3",
                "clear a",
                "cleared",
                "clear b",
                "cleared",
                "clear c",
                "cleared",
                "all cleared",
                "release a",
                "a dies",
                "release b",
                "b dies",
                "release c",
                "c dies",
                "settle",
                "stop: 2 stops, 3 unreachable, 1 finalized, 0 resurrected, 3 collected, 0 uncollectable",
            ];
            assert_eq!(told, expected);
            let stats = heap.stats();
            assert_eq!((stats.collections, stats.collected, stats.live_objects), (1, 3, 1));
            assert!(m.core().turn.try_take(), "the turn is given back");
            m.core().turn.give_back();
            heap.model().drop_ref(kept, &m);
        }
    }

    #[test]
    fn where_no_code_can_run_weak_references_are_cleared_in_the_one_stop() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        Script::ring(&m, &[('a', ""), ('b', "w")]);
        let (_, told) = collect(&mut m, Collect::young());
        let expected = [
            "start Young",
            "prepare",
            "merge",
            "hold a",
            "hold b",
            "weak b of ab",
            "cut b",
            "resumed",
            "judge [ab] [] []",
            "clearing 2",
            "clear a",
            "cleared",
            "clear b",
            "cleared",
            "all cleared",
            "release a",
            "a dies",
            "release b",
            "b dies",
            "settle",
            "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 2 collected, 0 uncollectable",
        ];
        assert_eq!(told, expected);
        // Without garbage the collection makes hardly any calls.
        let (_, told) = collect(&mut m, Collect::full());
        let none = "stop: 1 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
        assert_eq!(told[..4], ["start Full", "prepare", "merge", "resumed"]);
        assert_eq!(told[4..], ["clearing 0", "all cleared", "settle", none]);
    }

    #[test]
    fn callbacks_alone_are_reason_enough_to_look_again() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "c"), ('b', "")]);
        let brought_back = ring[0];
        heap.model()
            .when("call back a", move |m| Script::of(m, brought_back, |thing| thing.count += 1));
        let (report, told) = collect(&mut m, Collect::full());
        let end = "stop: 2 stops, 2 unreachable, 0 finalized, 2 resurrected, 0 collected, 0 uncollectable";
        assert_eq!(told.last().map(String::as_str), Some(end));
        assert_eq!(report.finalized, 0);
        are_ordinary(&m, &ring[1..], 1);
    }

    /// Collects 600 objects. In the call `asked` the thread waits until another thread requests a
    /// stop. The calls to the model before that stop.
    fn stopped_in(asked: &'static str) -> Option<Vec<String>> {
        let heap = heap()?;
        let mut m = heap.attach();
        let named: Vec<(char, &'static str)> =
            ('\u{4e00}'..).take(600).map(|name| (name, "")).collect();
        Script::ring(&m, &named);
        let (sender, receiver) = std::sync::mpsc::channel();
        heap.model().when(asked, move |m| {
            sender.send(()).expect("a receiver");
            while m.poll() & crate::safepoint::STOP == 0 {
                std::thread::yield_now();
            }
        });
        let told = std::thread::scope(|scope| {
            let heap = &heap;
            let other = scope.spawn(move || {
                receiver.recv().expect("a call");
                let m = heap.attach();
                let _world = m.stop_here().expect("a stop");
                heap.model().told()
            });
            assert_eq!(collect(&mut m, Collect::full()).0.collected, 600);
            m.detach(|| other.join()).expect("no panic")
        });
        Some(told)
    }

    #[test]
    fn a_thread_that_clears_parks_after_a_few_objects_and_drops_before_what_it_has_taken_out() {
        let Some(told) = stopped_in("clear \u{4e00}") else { return };
        assert_eq!(told.iter().filter(|what| what.starts_with("clear \u{4e00}")).count(), 1);
        assert_eq!(told.iter().filter(|what| *what == "cleared").count(), 256);
        assert_eq!(told.last().map(String::as_str), Some("all cleared"));
    }

    #[test]
    fn a_thread_that_releases_parks_after_a_few_objects() {
        let Some(told) = stopped_in("release \u{4e0a}") else { return };
        assert_eq!(told.iter().filter(|what| what.starts_with("release")).count(), 256);
    }

    #[test]
    fn what_settling_finds_dead_is_destroyed_after_a_stop_of_its_own() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let late = Script::thing(&m, 'e', "", "s");
        Script::ring(&m, &[('a', "")]);
        heap.model().state().settles = true;
        heap.model().when("settle", move |m| m.model().state().later.push(late));
        let (_, told) = collect(&mut m, Collect::full());
        let expected = [
            "settle",
            "merge",
            "bury e, dying: false",
            "e dies",
            "resumed",
            "stop: 2 stops, 1 unreachable, 0 finalized, 0 resurrected, 1 collected, 0 uncollectable",
        ];
        assert_eq!(told[told.len() - expected.len()..], expected);
    }

    #[test]
    fn a_legacy_finalizer_keeps_its_object_and_all_that_this_leads_to() {
        for by_the_heap in [false, true] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            // g refers to l, and l to r and s. All of them are garbage.
            let garbage = Script::ring(&m, &[('g', "w"), ('h', "")]);
            let reached = Script::ring(&m, &[('r', "fc"), ('s', "w")]);
            let legacy = Script::thing(&m, 'l', "lf", "s");
            // l also refers to objects outside, and has more edges than there is garbage.
            let outside = Script::thing(&m, 'o', "", "s");
            Script::link(&m, garbage[0], legacy);
            heap.model().drop_ref(legacy, &m);
            Script::link(&m, legacy, reached[0]);
            for name in ['x', 'y', 'z'] {
                let target = Script::thing(&m, name, "", "s");
                Script::link(&m, legacy, target);
                Script::link(&m, outside, target);
                heap.model().drop_ref(target, &m);
            }
            let told = if by_the_heap {
                by_itself(&mut m, Collect::full()).expect("a turn");
                heap.model().told()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let expected = [
                "start Full",
                "prepare",
                "merge",
                "hold g",
                "hold h",
                "hold r",
                "hold s",
                "hold l",
                "weak g of gh",
                "cut g",
                "resumed",
                "judge [gh] [rsl] [l]",
            ];
            assert_eq!(told[..expected.len()], expected, "no finalizer runs");
            let mut rest = told[expected.len()..].to_vec();
            let end = "stop: 1 stops, 5 unreachable, 0 finalized, 0 resurrected, 2 collected, 3 uncollectable";
            assert_eq!(rest.pop().as_deref(), Some(end));
            rest.sort_unstable();
            let expected = [
                "all cleared",
                "clear g",
                "clear h",
                "cleared",
                "cleared",
                "clearing 2",
                "g dies",
                "h dies",
                "l dies",
                "release g",
                "release h",
                "release l",
                "release r",
                "release s",
                "settle",
            ];
            assert_eq!(rest, expected, "what it kept was held by what is cleared");
            are_ordinary(&m, &reached, 1);
            heap.model().drop_ref(outside, &m);
        }
    }

    #[test]
    fn a_legacy_finalizer_that_cannot_be_looked_at_keeps_everything() {
        let hidden = "a field that leads from a legacy finalizer cannot be read now";
        for (looks, why) in [("sh", hidden), ("sp", "a traversal, on purpose")] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            let mut garbage = Script::ring(&m, &[('a', "fw"), ('b', "c")]);
            let legacy = Script::thing(&m, 'l', "l", looks);
            Script::link(&m, garbage[0], legacy);
            heap.model().drop_ref(legacy, &m);
            garbage.push(legacy);
            let (report, told) = collect(&mut m, Collect::full());
            assert_eq!(report.abandoned.as_deref(), Some(why));
            let failure = format!("failure: Traverse 'thing': the collection was abandoned: {why}");
            let figures =
                "1 stops, 3 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
            let end = format!("stop: {figures}, abandoned: {why}");
            let expected = [
                "start Full",
                "prepare",
                "merge",
                "hold a",
                "hold b",
                "hold l",
                "resumed",
                &failure,
                "clearing 0",
                "all cleared",
                "release a",
                "release b",
                "release l",
                "settle",
                &end,
            ];
            assert_eq!(told, expected);
            are_ordinary(&m, &garbage, 1);
        }
    }

    #[test]
    fn garbage_that_the_model_keeps_is_ordinary_again_and_counts_as_uncollectable() {
        for (by_the_heap, panics) in [(false, false), (true, false), (false, true)] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            let garbage = Script::ring(&m, &[('a', ""), ('b', "")]);
            if panics {
                heap.model().when("judge [ab] [] []", |_| panic!("a verdict, on purpose"));
            } else {
                heap.model().state().keeps = true;
            }
            let told = if by_the_heap {
                by_itself(&mut m, Collect::full()).expect("a turn");
                heap.model().told()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let mut expected = vec!["judge [ab] [] []"];
            if panics {
                expected.push("failure: Clear '': a verdict, on purpose");
            }
            expected.extend(["clearing 0", "all cleared", "release a", "release b", "settle"]);
            expected.push(
                "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 0 collected, 2 uncollectable",
            );
            assert_eq!(told[told.len() - expected.len()..], expected);
            are_ordinary(&m, &garbage, 1);
        }
    }

    #[test]
    fn a_handler_that_panics_is_told_and_the_others_run() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "fc"), ('b', "fc"), ('c', "")]);
        Script::link(&m, ring[1], ring[1]);
        for what in ["call back a", "finalize a", "clear b"] {
            heap.model().when(what, move |_| panic!("{what}, on purpose"));
        }
        let (_, told) = collect(&mut m, Collect::full());
        let from = told.iter().position(|what| what == "call back a").expect("it");
        let expected = [
            "call back a",
            "failure: WeakCallback '': call back a, on purpose",
            "call back b",
            "finalize a",
            "failure: Finalize 'thing' at its address: finalize a, on purpose",
            "finalize b",
            "merge",
            "cut a",
            "cut b",
            "cut c",
            "resumed",
            "judge [abc] [] []",
            "clearing 3",
            "clear a",
            "cleared",
            "clear b",
            "failure: Clear 'thing' at its address: clear b, on purpose",
            "clear c",
            "cleared",
            "all cleared",
            "release a",
            "a dies",
            "release b",
            "release c",
            "settle",
            "stop: 2 stops, 3 unreachable, 2 finalized, 0 resurrected, 1 collected, 2 uncollectable",
        ];
        // b is not cleared. It keeps itself, and c.
        assert_eq!(told[from..], expected);
        are_ordinary(&m, &ring[2..], 1);
        are_ordinary(&m, &ring[1..2], 1);
    }

    #[test]
    fn where_the_world_cannot_be_stopped_again_everything_is_kept() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
        let other = heap.clone();
        heap.model().when("finalize a", move |_| {
            let leaks = std::thread::Builder::new().name("leaks".into());
            let leaks = leaks.spawn(move || std::mem::forget(other.attach())).expect("a thread");
            leaks.join().expect("no panic");
        });
        m.core().pace.taken(7, 0);
        let (report, told) = collect(&mut m, Collect::full());
        let why = report.abandoned.expect("a reason");
        assert!(why.contains("(leaks) has ended attached"), "{why}");
        let from = told.iter().position(|what| what == "finalize a").expect("it");
        let failure = format!("failure: Traverse '': the collection was abandoned: {why}");
        let figures =
            "1 stops, 2 unreachable, 1 finalized, 2 resurrected, 0 collected, 0 uncollectable";
        let end = format!("stop: {figures}, abandoned: {why}");
        let expected = [
            "finalize a",
            "resumed",
            &failure,
            "clearing 0",
            "all cleared",
            "release a",
            "release b",
            "settle",
            &end,
        ];
        assert_eq!(told[from..], expected);
        are_ordinary(&m, &ring, 1);

        // The next collection fails at its first stop. Callbacks hear of it. Figures do not count it.
        m.core().pace.taken(7, 0);
        assert_eq!(m.core().pace.new_objects(), 7);
        let before = heap.stats();
        let Err(CollectError::Stop(error)) = crate::collect::collect(&mut m, Collect::full())
        else {
            panic!("a thread is gone")
        };
        assert!(matches!(error, StopError::ThreadGone { .. }), "{error}");
        let figures =
            "0 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
        let end = format!("stop: {figures}, abandoned: {error}");
        assert_eq!(heap.model().told(), ["start Full", "prepare", &end]);
        assert_eq!(heap.stats().collections, before.collections);
        assert_eq!(m.core().pace.new_objects(), 0, "else every safepoint would try again");
        m.core().pace.taken(7, 0);
        assert_eq!(by_itself(&mut m, Collect::young()), Err(CollectError::Stop(error.clone())));
        assert_eq!(m.core().pace.new_objects(), 0);
        assert_eq!(heap.model().told().len(), 3);
        m.core().pace.taken(7, 0);
        assert_eq!(promote_now(&mut m), Err(error));
        assert_eq!(m.core().pace.new_objects(), 0);
        assert_eq!(heap.model().told(), ["prepare"]);
        assert!(m.core().turn.try_take(), "the turn is given back");
        m.core().turn.give_back();
    }

    #[test]
    fn a_stop_that_is_refused_for_a_while_leaves_what_is_due() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        m.core().pace.taken(7, 0);
        let lent = m.lend();
        let found = crate::collect::collect(&mut m, Collect::full()).map(|_| ());
        assert_eq!(found, Err(CollectError::Stop(StopError::NoSafepoint)));
        assert_eq!(promote_now(&mut m), Err(StopError::NoSafepoint));
        assert_eq!(m.core().pace.new_objects(), 7);
        drop(lent);
    }

    #[test]
    fn a_promotion_makes_old_what_is_new_where_it_is_due_and_no_thread_collects() {
        let Some(heap) = heap_with(Pacing::default()) else { return };
        let mut m = heap.attach();
        let late = Script::thing(&m, 'd', "", "s");
        let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
        heap.model().state().later.push(late);
        assert_eq!(promote(&mut m), Ok(()), "it is not due");
        assert_eq!(heap.model().told(), [""; 0]);
        // The pace has seen collections of a growing heap, which find no garbage.
        let pace = &heap.0.core.pace;
        pace.after_full(1_000_000, 0);
        (0..10).for_each(|_| pace.after_young(2_500, 0));
        pace.taken(1_000_000, 0);
        assert_eq!(pace.due(), Due::Promotion);
        let turn = &heap.0.core.turn;
        assert!(turn.try_take());
        assert_eq!(promote(&mut m), Err(CollectError::Busy));
        turn.give_back();
        assert_eq!(heap.model().told(), [""; 0]);
        assert_eq!(promote(&mut m), Ok(()));
        assert_eq!(
            heap.model().told(),
            ["prepare", "merge", "bury d, dying: false", "d dies", "resumed"]
        );
        are_ordinary(&m, &ring, 1);
        assert_eq!((pace.due(), pace.new_objects()), (Due::Nothing, 0));
        let stats = heap.stats();
        assert_eq!((stats.promotions, stats.collections), (1, 0));
        assert!(turn.try_take(), "the turn is given back");
        turn.give_back();
        let (_, told) = collect(&mut m, Collect::young());
        assert_eq!(
            told[4..6],
            ["clearing 0", "all cleared"],
            "a young collection looks at nothing that is old"
        );
    }

    /// The thread that waits is detached. An attached thread would hold up the stop.
    #[test]
    fn a_collection_waits_for_its_turn_and_stops_of_others_do_not_wait_for_it() {
        let Some(heap) = heap() else { return };
        let m = heap.attach();
        let turn = &heap.0.core.turn;
        assert!(turn.try_take());
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let other = heap.clone();
            let waits = scope.spawn(move || {
                let mut m = other.attach();
                let busy = crate::collect::collect(&mut m, Collect::full().wait(false)).map(|_| ());
                sender.send(busy).expect("a receiver");
                collect(&mut m, Collect::young())
            });
            assert_eq!(receiver.recv(), Ok(Err(CollectError::Busy)));
            drop(m.stop_here().expect("the other thread detaches"));
            assert_eq!(heap.model().told(), [""; 0], "it waits");
            turn.give_back();
            let (report, told) = {
                let mut m = m;
                m.detach(|| waits.join().expect("no panic"))
            };
            assert_eq!((report.unreachable, &told[0][..]), (0, "start Young"));
        });
    }

    #[test]
    fn what_finalizers_bring_back_is_let_go_of_and_the_rest_is_cleared() {
        for by_the_heap in [false, true] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
            Script::ring(&m, &[('x', "w")]);
            // The finalizer drops a's reference to c, and untracks u, which refers to v.
            let [c, u, v] = ['c', 'u', 'v'].map(|name| Script::thing(&m, name, "", "s"));
            for (from, to) in [(ring[0], c), (c, c), (u, u), (u, v), (v, v)] {
                Script::link(&m, from, to);
            }
            [c, u, v].iter().for_each(|&object| heap.model().drop_ref(object, &m));
            let a = ring[0];
            heap.model().when("finalize a", move |m| {
                Script::of(m, a, |thing| {
                    thing.count += 1;
                    thing.edges.retain(|&edge| edge != c);
                });
                m.model().drop_ref(c, m);
                // SAFETY: rule R: held since the claim.
                assert!(unsafe { m.untrack(u) });
            });
            let told = if by_the_heap {
                by_itself(&mut m, Collect::full()).expect("a turn");
                heap.model().told()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let end = "stop: 2 stops, 6 unreachable, 1 finalized, 3 resurrected, 2 collected, 0 uncollectable";
            assert_eq!(told.last().map(String::as_str), Some(end));
            let cut: Vec<&String> = told.iter().filter(|what| what.starts_with("cut")).collect();
            assert_eq!(cut, ["cut x", "cut c"]);
            are_ordinary(&m, &ring[1..], 1);
            are_ordinary(&m, &ring[..1], 2);
            assert_eq!((m.model().count_of(u), m.model().count_of(v)), (1, 2));
            // SAFETY: rule R: counted by itself.
            assert_eq!(unsafe { m.core().state(u.address()) }.get() & UNREACHABLE, 0);
        }
    }

    /// The unreadable field may still hold the references that counting saw in the first stop.
    #[test]
    fn a_field_that_is_locked_after_finalizers_have_run_keeps_what_it_led_to() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('b', "f"), ('c', "")]);
        let hides = Script::thing(&m, 'h', "", "sh");
        for (from, to) in [(hides, hides), (hides, ring[0])] {
            Script::link(&m, from, to);
        }
        heap.model().drop_ref(hides, &m);
        let (report, told) = collect(&mut m, Collect::full());
        let end = "stop: 2 stops, 3 unreachable, 1 finalized, 3 resurrected, 0 collected, 0 uncollectable";
        assert_eq!((told.last().map(String::as_str), report.abandoned), (Some(end), None));
        are_ordinary(&m, &ring[1..], 1);
    }

    #[test]
    fn an_object_that_shows_more_references_than_there_are_is_kept_and_named() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let twice = Script::thing(&m, 'a', "", "t");
        let once = Script::thing(&m, 'b', "", "s");
        for (from, to) in [(twice, once), (once, twice)] {
            Script::link(&m, from, to);
            heap.model().drop_ref(to, &m);
        }
        let (report, told) = collect(&mut m, Collect::full());
        assert_eq!((report.overvisited, report.unreachable), (1, 0));
        assert_eq!(told[3], "overvisited b");
    }

    /// Objects behind the failed release stay held, and count as uncollectable.
    #[test]
    fn a_release_that_unwinds_leaves_a_collection_that_others_can_end() {
        for by_a_collection in [false, true] {
            unwinds(by_a_collection);
        }
    }

    fn unwinds(by_a_collection: bool) {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', ""), ('b', ""), ('c', "")]);
        heap.model().when("release b", |_| panic!("a release, on purpose"));
        let unwound =
            catch_unwind(AssertUnwindSafe(|| by_itself(&mut m, Collect::young()).map(|_| ())));
        assert!(unwound.is_err());
        assert!(m.arena(|arena| arena.count_frees(true)), "the pace hears of frees again");
        assert!(m.core().turn.is_burying(), "what became of them is to be counted");
        let mut told = heap.model().told();
        if by_a_collection {
            // A thread that wants to collect ends that collection first, and then takes the turn.
            told.extend(collect(&mut m, Collect::young()).1);
            let from = told.iter().rposition(|what| what.starts_with("start")).expect("its start");
            told.truncate(from);
        } else {
            assert!(clear::bury(&mut m, Whose::Anybodys, usize::MAX));
            told.extend(heap.model().told());
        }
        let end = "stop: 1 stops, 3 unreachable, 0 finalized, 0 resurrected, 1 collected, 2 uncollectable";
        assert_eq!(told[told.len() - 4..], ["release a", "a dies", "release b", end]);
        assert!(m.core().turn.try_take() && !m.core().turn.is_burying());
        m.core().turn.give_back();
        // They still have the claim's references.
        are_ordinary(&m, &ring[1..], 1);
        let released: Vec<_> =
            ring[1..].iter().map(|&object| heap.model().drop_ref(object, &m)).collect();
        assert_eq!((released.len(), heap.stats().live_objects), (2, 0));
    }

    /// As `heap`, with this many workers and constants as small as can be.
    fn small_heap(workers: usize) -> Option<ModelHeap<Script>> {
        let stress = Stress::none().small_constants(true);
        let builder =
            Heap::builder().reserve(1 << 28).workers(workers).serial_below(0).stress(stress);
        let heap = builder.pacing(Pacing::manual()).build_with(Script::default()).expect("a heap");
        (heap.0.core.stress == stress).then_some(heap)
    }

    /// Drops the test's references to all but the first of these objects.
    fn keep_first(m: &Raw, objects: &[Object]) {
        objects[1..].iter().for_each(|&object| m.model().drop_ref(object, m));
    }

    /// An object that refers to this many others, each of which refers to one more. The test holds
    /// the first one.
    fn fan(m: &Raw, width: usize) -> Vec<Object> {
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

    #[test]
    fn memory_that_is_refused_gives_the_collection_up_and_nothing_is_lost() {
        let figures =
            "0 finalized, 0 resurrected, 0 collected, 0 uncollectable, abandoned: memory ran out";
        let failure = "failure: Traverse '': the collection was abandoned: memory ran out";
        // First the list of dead objects of the merge.
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', "w"), ('b', "")]);
        heap.model().state().floods = true;
        let (_, told) = collect(&mut m, Collect::full());
        let end = format!("stop: 1 stops, 0 unreachable, {figures}");
        assert_eq!(told, ["start Full", "prepare", "resumed", failure, &end]);
        heap.model().state().floods = false;
        assert_eq!(collect(&mut m, Collect::full()).0.collected, ring.len());
        // Then the same list after finalizers have run: everything is kept.
        let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
        heap.model().when("finalize a", |m| m.model().state().floods = true);
        let (report, told) = collect(&mut m, Collect::full());
        assert_eq!((report.abandoned.as_deref(), report.resurrected), (Some("memory ran out"), 2));
        assert!(!told.iter().any(|what| what.starts_with("cut")));
        are_ordinary(&m, &ring, 1);
        heap.model().state().floods = false;
        assert_eq!(collect(&mut m, Collect::full()).0.collected, 2);
        // Then the list of callbacks: no weak reference is cleared, no finalizer runs.
        let ring = Script::ring(&m, &[('a', "fw"), ('b', "wm")]);
        let (_, told) = collect(&mut m, Collect::full());
        let end = format!("stop: 1 stops, 2 unreachable, {figures}");
        let expected = [
            "start Full",
            "prepare",
            "merge",
            "hold a",
            "hold b",
            "resumed",
            failure,
            "clearing 0",
            "all cleared",
            "release a",
            "release b",
            "settle",
            &end,
        ];
        assert_eq!(told, expected);
        are_ordinary(&m, &ring, 1);
        Script::of(&m, ring[1], |thing| thing.has = "");
        assert_eq!(collect(&mut m, Collect::full()).0.collected, 2);
    }

    #[test]
    fn a_finalizer_that_another_thread_runs_first_is_not_run_again() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        Script::ring(&m, &[('a', "fr"), ('b', "f")]);
        let (report, told) = collect(&mut m, Collect::full());
        let finalized: Vec<&String> =
            told.iter().filter(|what| what.starts_with("finalize")).collect();
        assert_eq!(finalized, ["finalize b"]);
        assert_eq!(report.finalized, 1);
    }

    #[test]
    fn what_a_clear_handler_untracks_is_not_cleared() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', ""), ('b', "")]);
        let other = ring[1];
        // SAFETY: rule R: held since the claim.
        heap.model().when("clear a", move |m| assert!(unsafe { m.untrack(other) }));
        let (_, told) = collect(&mut m, Collect::full());
        assert!(!told.contains(&"clear b".to_owned()), "{told:?}");
        assert_eq!(heap.stats().live_objects, 0);
    }

    /// Two objects that each show other references the second time that they are traversed.
    #[test]
    fn doubted_objects_that_change_their_mind_give_the_collection_up() {
        let why =
            "the traverse handler of 'doubted thing' visited other references the second time";
        for (has, looks, is_full, found) in [
            (["d", "d"], ["s", "s"], true, None),
            (["d", "d"], ["s", "s"], false, None),
            (["", "d"], ["s", "st"], true, Some(why)),
            (["", "d"], ["s", "st"], false, Some(why)),
            (["d", ""], ["st", "s"], false, Some(why)),
            // An object that is not doubted, and one that cannot be read.
            (["d", ""], ["s", "st"], false, None),
            (["d", "d"], ["s", "h"], false, None),
        ] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            let objects = [0, 1].map(|at| Script::thing(&m, 'a', has[at], looks[at]));
            let end = Script::thing(&m, 'z', "", "s");
            Script::link(&m, objects[0], end);
            Script::link(&m, objects[1], objects[0]);
            Script::link(&m, objects[1], end);
            let what = if is_full { Collect::full() } else { Collect::young() };
            let (report, told) = collect(&mut m, what);
            assert_eq!(report.abandoned.as_deref(), found, "{has:?} {looks:?}");
            if let Some(why) = found {
                let failure = format!(
                    "failure: Traverse 'doubted thing': the collection was abandoned: {why}"
                );
                assert!(told.contains(&failure), "{told:?}");
            }
        }
    }

    #[test]
    fn a_look_at_several_objects_that_fails_names_the_first_and_its_surplus_is_dropped() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let fails = Script::thing(&m, 'q', "", "q");
        let (report, told) = collect(&mut m, Collect::full());
        assert_eq!(report.abandoned.as_deref(), Some("a look at several, on purpose"));
        assert!(told[4].starts_with("failure: Traverse 'thing': "), "{told:?}");
        heap.model().drop_ref(fails, &m);
        // Edges that are shown behind the last object belong to no object.
        for what in [Collect::young(), Collect::full()] {
            let ring = Script::ring(&m, &[('a', ""), ('b', "")]);
            Script::of(&m, ring[0], |thing| thing.looks = "e");
            let (report, _) = collect(&mut m, what);
            assert_eq!((report.overvisited, report.collected), (0, 2));
        }
    }

    #[test]
    fn immortal_objects_behind_known_roots_leave_the_tracked_set() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let root = Script::thing(&m, 'r', "", "s");
        let objects =
            [('a', ""), ('i', "i"), ('b', "")].map(|(name, has)| Script::thing(&m, name, has, "s"));
        for (from, to) in [(root, objects[0]), (root, objects[1]), (objects[1], objects[2])] {
            Script::link(&m, from, to);
        }
        objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
        // SAFETY: rule R: the test has a reference.
        let key = unsafe { heap.known_root(root) };
        let (report, _) = collect(&mut m, Collect::young());
        assert_eq!(
            (report.known_alive, report.candidates),
            (0, 4),
            "young collections do without known roots"
        );
        // The first collection has untracked the immortal object.
        // SAFETY: rule R: the root leads there.
        let is_tracked = |m: &Raw| unsafe { m.is_tracked(objects[1]) };
        assert!(!is_tracked(&m));
        // SAFETY: rule R: the root leads there.
        assert!(unsafe { m.track(objects[1]) });
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.known_alive, report.candidates, report.unreachable), (3, 4, 0));
        assert!(!is_tracked(&m), "also behind a known root");
        heap.forget_root(key);
    }

    #[test]
    fn everything_that_many_edges_lead_to_is_found() {
        // More than wait for memory at once, and more than are asked for ahead together.
        for width in [300, 2_500] {
            for workers in [1, 2] {
                for is_small in [false, true] {
                    let heap = if is_small { small_heap(workers) } else { heap() };
                    let Some(heap) = heap else { return };
                    let mut m = heap.attach();
                    let objects = fan(&m, width);
                    for what in [Collect::young(), Collect::full(), Collect::full()] {
                        let report = crate::collect::collect(&mut m, what).expect("a stop");
                        assert_eq!((report.unreachable, report.abandoned), (0, None));
                    }
                    heap.model().drop_ref(objects[0], &m);
                    assert_eq!(heap.stats().live_objects, 0);
                }
            }
        }
    }

    /// An object with too many edges for the log refers to the last object of the page, and that one
    /// to the first.
    #[test]
    fn the_last_object_of_a_page_leads_on_where_it_is_found_late() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let mut objects = vec![Script::thing(&m, 'b', "", "s"), Script::thing(&m, 'r', "", "s")];
        while m.core().space.granule(objects[objects.len() - 1].address()) % PAGE_GRANULES
            != PAGE_GRANULES - 1
        {
            objects.push(Script::thing(&m, 'o', "", "s"));
        }
        let [behind, root, last] = [objects[0], objects[1], objects[objects.len() - 1]];
        assert!(
            m.core().space.page_index(behind.address())
                == m.core().space.page_index(last.address())
        );
        (0..100).for_each(|_| Script::link(&m, root, last));
        Script::link(&m, last, behind);
        objects
            .iter()
            .filter(|&&object| object != root)
            .for_each(|&object| heap.model().drop_ref(object, &m));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (3, 0));
        assert_eq!(heap.stats().live_objects, 3);
    }

    /// Marking takes edges from the log. Untracked objects are not traversed at all.
    #[test]
    fn a_full_collection_traverses_each_object_once() {
        let heaps = [heap(), small_heap(1)];
        for heap in heaps {
            let Some(heap) = heap else { return };
            let mut m = heap.attach();
            // Each object refers to the one before, so marking goes down the memory. The last one, which
            // the test holds, has ten edges, and one to the untracked object.
            let mut list = vec![Script::thing(&m, 'u', "", "s")];
            // SAFETY: rule R: the test has a reference.
            assert!(unsafe { m.untrack(list[0]) });
            for at in 1..6 {
                let object = Script::thing(&m, 'o', "", "s");
                (0..if at == 5 { 10 } else { 1 })
                    .for_each(|_| Script::link(&m, object, list[at - 1]));
                list.push(object);
            }
            Script::link(&m, list[5], list[0]);
            list[..5].iter().for_each(|&object| heap.model().drop_ref(object, &m));
            let report = crate::collect::collect(&mut m, Collect::full()).expect("a stop");
            assert_eq!((report.candidates, report.unreachable), (5, 0));
            let looked: Vec<usize> =
                list.iter().map(|&object| Script::of(&m, object, |thing| thing.looked)).collect();
            assert_eq!(looked[0], 0, "an untracked object");
            if m.core().stress == Stress::none() {
                assert_eq!(looked[1..], [1; 5]);
            }
        }
    }

    /// So many objects lie behind the first one that the collector marks from the stack in between.
    #[test]
    fn marking_from_the_stack_takes_edges_from_the_log_too() {
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let leaves: Vec<Object> = (0..2_500).map(|_| Script::thing(&m, 'l', "", "s")).collect();
        let root = Script::thing(&m, 'r', "", "s");
        leaves.iter().for_each(|&leaf| Script::link(&m, root, leaf));
        leaves.iter().for_each(|&leaf| heap.model().drop_ref(leaf, &m));
        assert!(leaves.iter().all(|&leaf| leaf < root));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (2_501, 0));
        assert!(leaves.iter().all(|&leaf| Script::of(&m, leaf, |thing| thing.looked) == 1));
    }

    /// The edges of the first object lead to a later page, and none leads back.
    #[test]
    fn targets_on_later_pages_are_noted_before_the_collector_comes_there() {
        let Some(heap) = small_heap(1) else { return };
        let mut m = heap.attach();
        let root = Script::thing(&m, 'r', "", "s");
        let leaves: Vec<Object> = (0..200).map(|_| Script::sized(&m, 64, 'l', "", "s")).collect();
        for &leaf in &leaves {
            Script::link(&m, root, leaf);
            heap.model().drop_ref(leaf, &m);
        }
        let page = |object: Object| m.core().space.page_index(object.address());
        assert!(leaves.iter().all(|&leaf| page(leaf) > page(root)));
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.candidates, report.unreachable), (201, 0));
    }

    /// Each of two threads waits in its first traversal for the other.
    #[test]
    fn each_worker_but_the_first_counts_into_a_table_of_its_own_which_is_kept() {
        let builder =
            Heap::builder().reserve(1 << 28).workers(2).serial_below(0).pacing(Pacing::manual());
        let heap = builder.build_with(Script::default()).expect("a heap");
        let mut m = heap.attach();
        let objects: Vec<Object> =
            (0..16).map(|_| Script::sized(&m, 60_000, 'o', "", "s")).collect();
        heap.model().state().meets = 2;
        let (report, _) = collect(&mut m, Collect::full());
        assert_eq!((report.workers, report.candidates, report.unreachable), (2, 16, 0));
        assert_eq!(heap.model().state().there.len(), 2);
        // A table that was kept is as long as the heap's own.
        let table = m.core().workers.take_table(1).expect("memory");
        assert_eq!(table.len(), m.core().space.counts().len());
        assert!(table.iter().all(|&byte| byte == 0));
        objects.iter().for_each(|&object| heap.model().drop_ref(object, &m));
    }

    /// In a collection that the heap starts, each thread buries the garbage on its own pages, unless
    /// all garbage is a single piece.
    #[test]
    fn garbage_is_held_for_the_thread_that_is_to_let_go_of_it() {
        for (garbage, by_the_heap) in [(PIECE, true), (PIECE + 1, true), (PIECE + 1, false)] {
            let Some(heap) = heap() else { return };
            let mut m = heap.attach();
            std::thread::scope(|scope| {
                let (sender, receiver) = std::sync::mpsc::channel();
                let on = Arc::new(crate::base::sync::AtomicBool::new(true));
                let (other, is_on) = (heap.clone(), on.clone());
                let other = scope.spawn(move || {
                    let mut m = other.attach();
                    Script::ring(&m, &vec![('o', ""); garbage]);
                    sender.send(m.thread_id()).expect("a receiver");
                    while is_on.load(Ordering::Relaxed) {
                        m.park();
                        std::thread::yield_now();
                    }
                });
                let theirs = m.detach(|| receiver.recv()).expect("a thread");
                if by_the_heap {
                    by_itself(&mut m, Collect::full()).expect("a turn");
                } else {
                    let report = crate::collect::collect(&mut m, Collect::full()).expect("a stop");
                    assert!(
                        report.time_to_stop > std::time::Duration::ZERO,
                        "it waited for the other thread"
                    );
                }
                let expected = if by_the_heap && garbage > PIECE { theirs } else { m.thread_id() };
                let holders = std::mem::take(&mut heap.model().state().holders);
                assert_eq!(holders.len(), garbage);
                assert!(
                    holders.iter().all(|&holder| holder == expected),
                    "{garbage} {by_the_heap}"
                );
                while clear::bury(&mut m, Whose::Anybodys, usize::MAX) {}
                on.store(false, Ordering::Relaxed);
                m.detach(|| other.join()).expect("no panic");
            });
            assert_eq!(heap.stats().live_objects, 0);
        }
    }

    #[test]
    fn nothing_is_due_after_a_small_collection_and_its_garbage_slows_no_thread_down() {
        let Some(heap) = heap_with(Pacing::default().with_young_objects(1)) else { return };
        let mut m = heap.attach();
        Script::ring(&m, &[('o', ""); 100]);
        m.take_collect();
        by_itself(&mut m, Collect::full()).expect("a turn");
        assert_eq!(m.poll() & crate::heap::mutator::COLLECT, 0);
        let pace = &heap.0.core.pace;
        pace.taken(40, 0);
        assert!(pace.is_overdue(), "less than half of the garbage of a collection that is over");
        assert_eq!(heap.stats().live_objects, 0);
    }

    /// Where pages run short, all of the garbage is cleared at once.
    #[test]
    fn in_a_heap_that_is_nearly_full_all_garbage_is_buried_at_once() {
        for is_tight in [false, true] {
            let limit = if is_tight { 6 << 16 } else { 1 << 27 };
            let builder =
                Heap::builder().reserve(1 << 28).limit(limit).workers(1).pacing(Pacing::manual());
            let heap = builder.build_with(Script::default()).expect("a heap");
            let mut m = heap.attach();
            Script::ring(&m, &vec![('o', ""); clear::MANY + 3 * PIECE]);
            let kept: Vec<Object> =
                (0..3).map(|_| Script::sized(&m, 60_000, 'k', "", "s")).collect();
            assert_eq!(m.core().space.is_tight(), is_tight);
            by_itself(&mut m, Collect::full()).expect("a turn");
            assert_eq!(m.core().turn.is_burying(), !is_tight);
            while clear::bury(&mut m, Whose::Anybodys, usize::MAX) {}
            kept.iter().for_each(|&object| heap.model().drop_ref(object, &m));
            assert_eq!(heap.stats().live_objects, 0);
        }
    }

    /// A thread leaves the span of a collection before it enters the span again. (A thread that clears
    /// garbage in pieces may end the collection inside of the span.)
    #[test]
    fn the_span_of_a_collection_is_entered_once_at_a_time() {
        use tracing::span::Id;
        use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
        use tracing_subscriber::registry::LookupSpan;

        #[derive(Clone, Default)]
        struct Depth(Arc<Mutex<(Vec<Id>, usize)>>);
        impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Depth {
            fn on_enter(&self, id: &Id, context: Context<'_, S>) {
                if context.span(id).is_some_and(|span| span.name() == "collection") {
                    let (entered, times) = &mut *self.0.lock().expect("no panic");
                    assert!(!entered.contains(id), "twice at a time");
                    entered.push(id.clone());
                    *times += 1;
                }
            }
            fn on_exit(&self, id: &Id, _: Context<'_, S>) {
                self.0.lock().expect("no panic").0.retain(|entered| entered != id);
            }
        }

        let depth = Depth::default();
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(depth.clone()),
            || {
                for garbage in [0, 2] {
                    Script::ring(&m, &[('a', ""), ('b', "")][..garbage]);
                    let report = crate::collect::collect(&mut m, Collect::full()).expect("a stop");
                    assert_eq!(report.collected, garbage);
                    by_itself(&mut m, Collect::full()).expect("a turn");
                }
            },
        );
        let (entered, times) = &*depth.0.lock().expect("no panic");
        assert!(entered.is_empty() && *times >= 4 * 3, "{times}");
    }

    #[test]
    fn collections_wait_for_their_turn_unless_they_are_told_not_to() {
        assert_eq!(Collect::full(), Collect::full().wait(true));
        assert_eq!(Collect::young(), Collect::young().wait(true));
        assert_ne!(Collect::full(), Collect::full().wait(false));
    }
}
