//! Floor 4: tests of the calls that a collection makes to an object model, of their order, and of
//! the effects of each answer.

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use std::collections::{HashMap, HashSet};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use crate::collect::{Collect, CollectError, by_itself, clear, promote, promote_now};
    use crate::event::{CollectionEvent, CollectionReport, Hook};
    use crate::model::{Ends, Found, ModelHeap, ModelMutator, Object, ObjectModel, Tracer, Verdict, World};
    use crate::mutator::Core;
    use crate::pacing::Due;
    use crate::safepoint::{StopError, ThreadId};
    use crate::tracked::{DYING, FINALIZED, OLD, TRACKED, UNREACHABLE};
    use crate::turn::Whose;
    use crate::{Heap, Pacing, Stress};

    pub(crate) type Raw = ModelMutator<Script>;

    type Act = Box<dyn FnOnce(&Raw) + Send>;

    /// The model's knowledge of an object, in a table beside the heap.
    pub(crate) struct Thing {
        name: char,
        /// The number of references to it.
        pub(crate) count: i64,
        pub(crate) edges: Vec<Object>,
        /// `f`: a finalizer. `l`: a legacy finalizer. `w`: a weak reference. `c`: a weak reference with
        /// a callback. `x`: a damaged header. `i`: immortal. `d`: doubted. `m`: more callbacks than there is
        /// memory for. `r`: another thread runs the finalizer first.
        pub(crate) has: &'static str,
        /// The effect of each traversal. `s`: it shows the edges. `h`: it shows them, and has a field
        /// that cannot be read. `p`: it panics. `t`: it shows them twice. Later traversals repeat the
        /// last one. `q`: a traversal of several objects panics that begins with this one. `e`: such a
        /// traversal shows the edges once more at its end.
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
        /// Threads in traversals, which wait for each other: so many.
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
            let objects: Vec<Object> = of.iter().map(|&(name, has)| Self::thing(m, name, has, "s")).collect();
            assert!(objects.is_sorted(), "in the order of memory");
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
        unsafe fn traverse_each(&self, objects: &[Object], tracer: &mut Tracer, ends: &mut Ends<'_>) {
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
        let told = |core: &Arc<crate::mutator::Core<Script>>| {
            let core = Arc::downgrade(core);
            move |what: String| core.upgrade().expect("a heap").model.tell(what)
        };
        let (tell, tell_failure) = (told(core), told(core));
        core.hooks.on_collection(Hook::new(Arc::new(move |event: &CollectionEvent<'_>| match event {
            CollectionEvent::Start(kind) => tell(format!("start {kind:?}")),
            CollectionEvent::Stop(report) => tell(figures(report)),
        })));
        core.hooks.on_unraisable(Hook::new(Arc::new(move |what: &crate::event::Unraisable| {
            let address = if what.address == 0 { "" } else { " at its address" };
            tell_failure(format!(
                "failure: {:?} '{}'{address}: {}",
                what.during, what.type_name, what.message
            ));
        })));
        (core.stress == Stress::none()).then_some(heap)
    }

    fn heap() -> Option<ModelHeap<Script>> {
        heap_with(Pacing::manual())
    }

    /// The numbers of a report, without times.
    fn figures(report: &CollectionReport) -> String {
        let CollectionReport { unreachable, finalized, resurrected, collected, uncollectable, .. } = report;
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
            let end =
                "stop: 1 stops, 5 unreachable, 0 finalized, 0 resurrected, 2 collected, 3 uncollectable";
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
            let figures = "1 stops, 3 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
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
        let figures = "1 stops, 2 unreachable, 1 finalized, 2 resurrected, 0 collected, 0 uncollectable";
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

        // The next collection fails at its first stop. Callbacks hear of it, figures do not count it.
        m.core().pace.taken(7, 0);
        assert_eq!(m.core().pace.new_objects(), 7);
        let before = heap.stats();
        let Err(CollectError::Stop(error)) = crate::collect::collect(&mut m, Collect::full()) else {
            panic!("a thread is gone")
        };
        assert!(matches!(error, StopError::ThreadGone { .. }), "{error}");
        let figures = "0 stops, 0 unreachable, 0 finalized, 0 resurrected, 0 collected, 0 uncollectable";
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
        assert_eq!(heap.model().told(), ["prepare", "merge", "bury d, dying: false", "d dies", "resumed"]);
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
            // The finalizer takes a's reference to c out, and takes u, which refers to v, out of the
            // tracked set.
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
            let end =
                "stop: 2 stops, 6 unreachable, 1 finalized, 3 resurrected, 2 collected, 0 uncollectable";
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
        let Some(heap) = heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('a', ""), ('b', ""), ('c', "")]);
        heap.model().when("release b", |_| panic!("a release, on purpose"));
        let unwound = catch_unwind(AssertUnwindSafe(|| by_itself(&mut m, Collect::young()).map(|_| ())));
        assert!(unwound.is_err());
        assert!(m.core().turn.is_burying(), "what became of them is to be counted");
        assert!(clear::bury(&mut m, Whose::Anybodys, usize::MAX));
        let told = heap.model().told();
        let end = "stop: 1 stops, 3 unreachable, 0 finalized, 0 resurrected, 1 collected, 2 uncollectable";
        assert_eq!(told[told.len() - 4..], ["release a", "a dies", "release b", end]);
        assert!(m.core().turn.try_take() && !m.core().turn.is_burying());
        m.core().turn.give_back();
        // They still have the claim's references.
        are_ordinary(&m, &ring[1..], 1);
        let released: Vec<_> = ring[1..].iter().map(|&object| heap.model().drop_ref(object, &m)).collect();
        assert_eq!((released.len(), heap.stats().live_objects), (2, 0));
    }
}
